"""Runs a program against tests: the program in one sandbox, the tests in another, the verdict over a pipe of its own."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from winnowrl.envs.code.checks import CheckPlan, plan_checks
from winnowrl.envs.code.execution import CheckFailure, ExecutionResult, ExecutionStatus, Limits
from winnowrl.envs.code.judge_server import get_judge_server
from winnowrl.envs.code.sandbox import Sandbox, SandboxFailureError, SandboxKind, kernel_limits, warn_unsafe
from winnowrl.envs.code.usage import Usage
from winnowrl.envs.code.values import ChannelClosedError
from winnowrl.envs.code.wire import decode

START_S = 30.0
POLL_S = 0.05
EXIT_S = 0.3
MAX_WAITED = 4.0
# More processor time than this outside the first thread is another thread's or process's, not a rounded clock tick.
OTHERS_CPU_S = 0.05
MAX_FAILURES = 10
KEPT_OUTPUT = 4096
# All judges share one sandbox, whose processes are counted together.
JUDGE_LIMITS = Limits(cpu_s=60, processes=4096, disk_mb=1)
# What the tests make of an answer (a list of a range) costs memory in their process, for which the program pays: it may
# take what the program may, and so much more for the interpreter and the answer itself.
JUDGE_EXTRA_MB = 64
DEFAULT_LIMITS = Limits()
# Sandboxes at one time: enough to keep the processors busy while some programs sleep, and no more than memory bears.
NUM_SLOTS = 4 * (os.cpu_count() or 1)
# A free sandbox is waited for so long, in seconds: dozens of rounds of programs that all run to their limits.
SLOT_WAIT_S = 1800.0
_slots = threading.BoundedSemaphore(NUM_SLOTS)


def run_tests(
    program: str,
    tests: str,
    entry_point: str,
    limits: Limits = DEFAULT_LIMITS,
    *,
    prelude: str = "",
    sandbox: SandboxKind = "bubblewrap",
) -> ExecutionResult:
    """Run ``tests`` against ``program`` and count the checks that pass.

    The tests run in a process of their own, where ``entry_point`` is a stand-in that sends its arguments to the program
    and brings the result back as a plain value. What is expected never enters the program's process, and no object,
    exception or operator of the program's is used beside the tests.

    Args:
        program: Python source that defines ``entry_point``.
        tests: Python source with ``assert`` statements, ``check(candidate)``, ``test_…`` functions or ``TestCase``s.
        entry_point: Name of the function or class under test.
        limits: What the program may use.
        prelude: Trusted source run before the tests. Helpers that the problem's statement defines belong here: a name
            the tests use and neither they nor the prelude define is looked up in the program, which may define it
            as it likes.
        sandbox: ``none`` runs both processes without protection (logged as unsafe).

    Raises:
        ValueError: the tests or the prelude are no Python; or the tests assert nothing, import what the sandbox does not
            have, or hold a test that could never run (two of one name, or one that needs arguments and nothing calls).
        SandboxFailureError: the sandbox did not start or none became free; nothing was learned about the program.
        SandboxUnavailableError: there is no sandbox on this machine.
    """
    plan = plan_checks(tests, entry_point)
    if sandbox == "none":
        warn_unsafe()
    with _slot(), contextlib.ExitStack() as stack:
        run = _Run(plan, limits, time.monotonic())
        run.start(stack, program, entry_point, prelude, sandbox)
        run.watch()
    return run.result()


@contextlib.contextmanager
def _slot() -> Iterator[None]:
    slots = _slots
    if not slots.acquire(timeout=SLOT_WAIT_S):
        raise SandboxFailureError(f"waited {SLOT_WAIT_S:g} s for one of {NUM_SLOTS} sandboxes, all of them in use")
    try:
        yield
    finally:
        slots.release()


def _renew_slots() -> None:
    """In a forked process: those that hold the slots are the parent's threads and give none back here."""
    global _slots
    _slots = threading.BoundedSemaphore(NUM_SLOTS)


os.register_at_fork(after_in_child=_renew_slots)


def _compile_prelude(prelude: str) -> Any:
    try:
        return compile(prelude, "<prelude>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the prelude is no Python: {error}") from None


@dataclass
class _Run:
    """One run. ``outcomes`` maps a check's number to what was said when it held (True) and when it did not."""

    plan: CheckPlan
    limits: Limits
    started: float
    outcomes: dict[int, dict[bool, str]] = field(default_factory=dict)
    status: ExecutionStatus | None = None
    message: str = ""
    output: bytearray = field(default_factory=bytearray)
    is_ready: bool = False
    is_done: bool = False
    aborted: str = ""
    deadline: float = 0.0
    next_look: float = 0.0
    waited: float = 0.0
    was_alone: bool = True
    start_s: float = 0.0

    def start(
        self, stack: contextlib.ExitStack, program: str, entry_point: str, prelude: str, kind: SandboxKind
    ) -> None:
        """Open the channels and start both processes; ``stack`` kills and closes all of it."""
        ours, theirs = socket.socketpair()
        self.output_fd, output = _pipe(stack)
        self.verdict_fd, verdict = _pipe(stack)
        lifeline, kept = os.pipe()
        stack.callback(os.close, kept)
        max_bytes = (self.limits.answer_kb << 10) + 4096
        candidate = {
            "channel": theirs.fileno(),
            "max_bytes": max_bytes,
            "program": program,
            "limits": kernel_limits(self.limits),
        }
        job = {
            "max_bytes": max_bytes,
            "limits": kernel_limits(replace(JUDGE_LIMITS, memory_mb=self.limits.memory_mb + JUDGE_EXTRA_MB)),
            "entry_point": entry_point,
            "prelude": _compile_prelude(prelude),
            "tests": self.plan.code,
            "program_names": list(self.plan.program_names),
            "calls": [(name, list(arguments)) for name, arguments in self.plan.calls],
            "test_cases": list(self.plan.test_cases),
            "seeds_random": self.plan.seeds_random,
        }
        # Our ends go at once, so that the death of one process is the end of file of the other.
        try:
            self.server = get_judge_server(kind)
            self.server.submit(job, ours.fileno(), verdict, lifeline)
            modules = ("values", "wire", "channel", "candidate")
            self.candidate = Sandbox(modules, "main", candidate, self.limits, [theirs.fileno()], output, kind)
            stack.callback(self.candidate.kill)
        finally:
            ours.close()
            theirs.close()
            os.close(output)
            os.close(verdict)
            os.close(lifeline)

    def watch(self) -> None:
        """Read findings until the tests are done, a limit is crossed or a process is gone."""
        self.deadline = self.started + START_S
        self.inbox = bytearray()
        with selectors.DefaultSelector() as selector:
            for fd in (self.output_fd, self.verdict_fd):
                selector.register(fd, selectors.EVENT_READ)
            while not self.is_done and self.status not in ("timeout", "memory", "output"):
                left = self.deadline - time.monotonic()
                if left <= 0 and not self._may_go_on():
                    return
                for key, _ in selector.select(max(0.0, min(left, POLL_S))):
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                    if key.fd == self.output_fd:
                        self._printed(data)
                    elif data:
                        self._found(data)
                    elif not self.is_done:
                        raise SandboxFailureError(self._why())
                self._look_at_usage()

    def _look_at_usage(self) -> None:
        if not self.is_ready or time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + POLL_S
        usage = self._usage()
        if usage.memory_mb > self.limits.memory_mb:
            self._end("memory", f"used more than {self.limits.memory_mb} MB")
        elif usage.cpu_s > self.limits.cpu_s:
            self._end("timeout", f"used more than {self.limits.cpu_s:g} s of processor time")

    def _usage(self) -> Usage:
        usage = self.candidate.usage()
        self.was_alone &= usage.num_threads <= 1 and usage.others_cpu_s <= OTHERS_CPU_S
        return usage

    def _may_go_on(self) -> bool:
        """At the deadline: add the time for which a program that was always alone waited for a processor.

        At most ``MAX_WAITED`` limits are added.
        """
        if not self.is_ready:
            raise SandboxFailureError(f"the sandbox did not start within {START_S:.0f} s")
        waited = min(self._usage().waited_s, MAX_WAITED * self.limits.wall_s)
        # Several threads wait for one another, so a fork bomb would earn time by being one.
        if self.was_alone and waited - self.waited > 0.01:
            self.deadline += waited - self.waited
            self.waited = waited
            return True
        self._end("timeout", f"ran longer than {self.limits.wall_s:g} s")
        return False

    def _why(self) -> str:
        said = (self.server.complaints() + bytes(self.output))[-500:].decode("utf-8", "replace").strip()
        return said or "a process of the sandbox ended without a word"

    def _printed(self, data: bytes) -> None:
        self.output += data
        if len(self.output) > self.limits.output_kb << 10:
            self._end("output", f"printed more than {self.limits.output_kb} kB")

    def _found(self, data: bytes) -> None:
        self.inbox += data
        while len(self.inbox) >= 4:
            end = 4 + int.from_bytes(self.inbox[:4], "big")
            if len(self.inbox) < end:
                break
            message = decode(bytes(self.inbox[4:end]), _refuse)
            del self.inbox[:end]
            self._take(message)

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, *parts = message
        if kind == "ready":
            now = time.monotonic()
            self.is_ready, self.start_s = True, now - self.started
            self.deadline, self.next_look = now + self.limits.wall_s, now + POLL_S
        elif kind == "check":
            self.outcomes.setdefault(parts[0], {})[parts[1]] = parts[2]
        elif kind == "aborted":
            self.aborted = parts[0]
        elif kind in ("invalid", "unsupported"):
            self._end(kind, parts[0])
        elif kind == "done":
            self.is_done = True
            if parts[0]:
                self._crashed()

    def _crashed(self) -> None:
        code = self.candidate.wait(EXIT_S)
        if code is None:
            self.status, self.message = "crashed", "the program broke its channel to the tests"
        elif self.candidate.cpu_s >= 0.95 * self.limits.cpu_s:
            self.status, self.message = "timeout", f"used more than {self.limits.cpu_s:g} s of processor time"
        else:
            self.status, self.message = "crashed", f"the program's process ended (status {code})"

    def _end(self, status: ExecutionStatus, message: str) -> None:
        if self.status is None or self.status == "invalid":
            self.status, self.message = status, message

    def result(self) -> ExecutionResult:
        numbers = range(len(self.plan.sources))
        passed = [n for n in numbers if n in self.outcomes and False not in self.outcomes[n]]
        failures = [
            CheckFailure(self.plan.sources[n], self.outcomes[n][False])
            for n in numbers
            if False in self.outcomes.get(n, ())
        ]
        total = self._total(len(passed))
        status: ExecutionStatus = self.status or ("passed" if len(passed) == total else "failed")
        return ExecutionResult(
            passed=len(passed),
            total=total,
            status=status if total else "unsupported",
            failures=tuple(failures[:MAX_FAILURES]),
            message=self.message or self.aborted,
            output=bytes(self.output[-KEPT_OUTPUT:]).decode("utf-8", "replace"),
            seconds=time.monotonic() - self.started,
            start_s=self.start_s,
            waited_s=self.waited,
        )

    def _total(self, num_passed: int) -> int:
        """Checks there are. What ended the run early counts as one when all the others passed."""
        if self.status is None and not self.aborted:
            # The tests ran to their end: what they left out was in branches not taken.
            return len(self.outcomes)
        return max(len(self.plan.sources), num_passed + 1)


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose reading end ``stack`` closes."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    return reading, writing


def _refuse(tag: bytes, number: int, name: str) -> Any:
    raise ChannelClosedError("findings are plain values")
