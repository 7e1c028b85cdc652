"""Runs the tests statement by statement, function by function, and tells how each check ended.

Runs inside the judge's sandbox. A failure ends the statement or function it happens in, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import CoroutineType, TracebackType
from typing import Any, Protocol

from winnowrl.envs.code.wire import encode

MAX_SHOWN = 300


class Notes(Protocol):
    """What the judge keeps: what the last call did, and why nothing can be decided."""

    last: str
    unsupported: str


class Reporter:
    """The pipe to the parent."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __call__(self, *message: Any) -> None:
        data = encode(message, lambda value: (b"o", 0, type(value).__name__))
        os.write(self.fd, len(data).to_bytes(4, "big") + data)


def shown(value: Any) -> str:
    """A short repr that never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - e.g. an integer of more digits than Python prints
        return f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def text_of(error: BaseException) -> str:
    """``str(error)``, or nothing where that raises: an exception of the tests may hold what the program returned."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the program answers
        return ""


class Checks:
    """What the tests have as ``__check__``: a context for each check, and what came of all of them so far."""

    def __init__(self, report: Reporter, judge: Notes) -> None:
        self.report, self.judge = report, judge
        # A check inside a function may run many times; each outcome is worth telling once.
        self.outcomes: dict[int, set[bool]] = {}
        self.entered: set[str] = set()
        self.has_aborted = False

    def __call__(self, number: int) -> Check:
        return Check(self, number)

    def enter(self, key: str) -> None:
        """A test function runs."""
        self.entered.add(key)

    def tell(self, number: int, error: BaseException | None) -> None:
        """One check ended, with ``error`` if it did not hold."""
        outcomes = self.outcomes.setdefault(number, set())
        if (error is None) not in outcomes:
            outcomes.add(error is None)
            self.report("check", number, error is None, self._told(error))
        self._notice(error)

    def abort(self, error: BaseException) -> None:
        """Something outside any check failed."""
        if not self.has_aborted:
            self.has_aborted = True
            self.report("aborted", f"{type(error).__name__}: {text_of(error)}"[: 2 * MAX_SHOWN])
        self._notice(error)

    def _notice(self, error: BaseException | None) -> None:
        # The program's own ImportError comes with a line of the program.
        if isinstance(error, ImportError) and not hasattr(error, "program_line"):
            self.judge.unsupported = f"the tests import what the sandbox does not have: {text_of(error)}"

    def _told(self, error: BaseException | None) -> str:
        said = self.judge.last if error is not None else ""
        if error is not None and not said.startswith("raised") and not isinstance(error, AssertionError):
            raised = f"{type(error).__name__}: {text_of(error)}"
            said = f"{said}, then {raised}" if said else raised
        return said[: 2 * MAX_SHOWN]


class Check:
    """Context of one check: tells how the statement inside it ended, and lets the next one run."""

    def __init__(self, checks: Checks, number: int) -> None:
        self.checks, self.number = checks, number

    def __enter__(self) -> None:
        self.checks.judge.last = ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self.checks.tell(self.number, error)
        return isinstance(error, Exception)


class NeverRanError(Exception):
    """A test that the tests define was not reached."""


class TestRun:
    """The tests of one program, run once.

    Args:
        namespace: The module they run in.
        checks: Where each outcome goes.
        config: The plan's ``tests``, ``calls`` and ``test_cases``.
    """

    def __init__(self, namespace: dict[str, Any], checks: Checks, config: dict[str, Any]) -> None:
        self.namespace, self.checks, self.config = namespace, checks, config
        namespace["__check__"] = checks

    def run(self) -> None:
        if self.config["test_cases"]:
            import unittest

            # The classes are run below, where each method is counted.
            unittest.main = lambda *args, **kwargs: None  # type: ignore[assignment,misc]
        for code, assigned in self.config["tests"]:
            error = self._attempt(partial(exec, code, self.namespace))
            if error is not None:
                self.checks.abort(error)
                # What follows must not be checked against the value from before.
                for name in assigned:
                    self.namespace.pop(name, None)
        entered = set(self.checks.entered)
        for where, (key, first, end, needs_arguments) in self.config["calls"]:
            if key not in (entered if "." in where else self.checks.entered):
                self._call(where, key, range(first, end), needs_arguments)
        if self.config["test_cases"]:
            self._run_cases()

    def _attempt(self, step: Callable[[], Any]) -> BaseException | None:
        """What ``step`` raised, if that is a failure."""
        self.checks.judge.last = ""
        try:
            step()
        except SystemExit as error:
            return error if error.code else None
        except Exception as error:  # noqa: BLE001 - it is told
            return error
        return None

    def _call(self, where: str, key: str, numbers: range, needs_arguments: bool) -> None:
        """Call a test function that nothing has called, and account for all of its checks."""
        error: BaseException | None = NeverRanError(f"{where} was never called")
        if not needs_arguments:
            error = self._attempt(lambda: self._reach(where))
            is_ours = not self.checks.has_aborted and not hasattr(error, "program_line")
            if key not in self.checks.entered and is_ours:
                self.checks.judge.unsupported = f"the test {where} cannot be run: {text_of(error) if error else ''}"
                return
        missed = [number for number in numbers if number not in self.checks.outcomes]
        if error is None:
            # It ran to its end another way than past its checks, as by a return in a handler.
            for number in missed[:1] if len(missed) == len(numbers) else ():
                self.checks.tell(number, None)
            return
        for number in missed:
            self.checks.tell(number, error)
        if not missed:
            self.checks.abort(error)

    def _reach(self, where: str) -> None:
        name, _, method = where.partition(".")
        found = self.namespace[name]
        if not method:
            _finish(found(self.namespace[self.config["entry_point"]]) if name == "check" else found())
            return
        each = found()
        for setup in ("setup_class", "setup_method"):
            if hasattr(each, setup):
                getattr(each, setup)()
        try:
            _finish(getattr(each, method)())
        finally:
            if hasattr(each, "teardown_method"):
                each.teardown_method()

    def _run_cases(self) -> None:
        import unittest

        checks = self.checks
        numbers = {(name, method): n for name, methods in self.config["test_cases"] for method, n in methods}
        skipped: set[int | None] = set()

        def number_of(test: Any) -> int | None:
            test = getattr(test, "test_case", test)  # of a subTest
            method = getattr(test, "_testMethodName", "")
            found = (numbers.get((kind.__name__, method)) for kind in type(test).__mro__)
            return next((number for number in found if number is not None), None)

        def tell(test: Any, error: BaseException | None) -> None:
            number = number_of(test)
            if number is not None:
                checks.tell(number, error)
            elif error is not None:  # setUpClass, or a method made while the tests ran
                checks.abort(error)

        class Result(unittest.TestResult):
            def startTest(self, test: Any) -> None:  # noqa: N802
                checks.judge.last = ""

            def addSuccess(self, test: Any) -> None:  # noqa: N802
                tell(test, None)

            def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
                tell(test, err[1])

            def addError(self, test: Any, err: Any) -> None:  # noqa: N802
                tell(test, err[1])

            def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
                if err is not None:
                    tell(test, err[1])

            def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
                tell(test, None)

            def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
                tell(test, AssertionError("it holds and should not"))

            def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
                method = getattr(test, getattr(test, "_testMethodName", ""), None)
                if any(getattr(each, "__unittest_skip__", False) for each in (type(test), method)):
                    skipped.add(number_of(test))
                else:  # while it ran, so the program may be the reason
                    tell(test, NeverRanError(f"skipped: {reason}"))

        found = [self.namespace[name] for name, _ in self.config["test_cases"] if name in self.namespace]
        loader = unittest.defaultTestLoader
        suite = unittest.TestSuite([loader.loadTestsFromTestCase(case) for case in found if _is_case(case)])
        error = self._attempt(lambda: suite.run(Result()))
        for (name, method), number in numbers.items():
            if number not in checks.outcomes and number not in skipped:
                checks.tell(number, error or NeverRanError(f"{name}.{method} was never run"))


def _is_case(value: Any) -> bool:
    import unittest

    return isinstance(value, type) and issubclass(value, unittest.TestCase)


def _finish(result: Any) -> None:
    """Run what an ``async`` test function left to be run."""
    if type(result) is CoroutineType:
        import asyncio

        asyncio.run(result)
