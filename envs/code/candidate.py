"""The process that holds the program. It answers what the tests ask and never learns what they expect.

Runs inside the sandbox. Everything here may be taken over by the program; all that reaches the tests are values.
"""

from __future__ import annotations

import operator
import os
import resource
import sys

from winnowrl.envs.code.wire import Peer

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE_NAME = "program"
MAX_TEXT = 500


class Candidate(Peer):
    """Serves one program."""

    def __init__(self, fd: int, max_bytes: int, source: str) -> None:
        super().__init__(fd, max_bytes)
        self.source = source
        self.module = type(sys)(MODULE_NAME)
        sys.modules[MODULE_NAME] = self.module
        self.operations: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "global": lambda name: getattr(self.module, name),
            "getattr": getattr,
            "iter": iter,
            "next": _next,
            "len": len,
            "getitem": operator.getitem,
            "setitem": operator.setitem,
            "bool": bool,
            "str": str,
        }

    def may_export(self, value: Any) -> bool:
        return True

    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            if operation == "call":
                return self._call(*arguments)
            return "value", self.operations[operation](*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is an answer
            return _describe(error)
        finally:
            _flush()

    def settle(self, answer: tuple[Any, ...]) -> Any:
        if answer[0] == "value":
            return answer[1]
        raise RuntimeError(f"a function of the tests raised {answer[1][0]}: {answer[2]}")

    def _load(self) -> None:
        exec(compile(self.source, "<program>", "exec", dont_inherit=True), self.module.__dict__)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        result = function(*args, **kwargs)
        if result is None and any(type(arg) in (list, dict, set, bytearray) for arg in args):
            # A function that returns nothing works on its arguments in place: hand them back.
            return "value", None, args
        return "value", result


def _flush() -> None:
    """What was printed leaves now: the process is killed, not ended."""
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - the program may have closed or replaced it
        return


def _next(iterator: Any) -> tuple[Any] | None:
    try:
        return (next(iterator),)
    except StopIteration:
        return None


def _describe(error: BaseException) -> tuple[str, list[str], str, int]:
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<program>":
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - a program may define an exception that cannot be shown
        text = ""
    return "raise", [kind.__name__ for kind in type(error).__mro__], text[:MAX_TEXT], line


def set_limits(limits: dict[str, int]) -> None:
    """Hard and soft at once, so that no code that follows can raise them."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def main(config: dict[str, Any]) -> None:
    """Greet, then answer questions until the channel closes."""
    sys.dont_write_bytecode = True
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    candidate = Candidate(config["channel"], config["max_bytes"], config["program"])
    candidate.send(("hello",))
    set_limits(config["limits"])
    while True:
        message = candidate.receive()
        if message[0] == "ask":
            candidate.answer(message[1], message[2])
