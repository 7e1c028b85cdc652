"""What a program may use, and what came of running its tests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

ExecutionStatus = Literal["passed", "failed", "invalid", "timeout", "memory", "output", "crashed", "unsupported"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. A program that crosses one is refused what it asks for or killed.

    Attributes:
        wall_s: Seconds from loading the program to its last test. Time it is ready to run but has no processor is added
            (up to four times the limit; not to a program that ever had several threads or processes), so that a busy
            machine makes no verdict.
        cpu_s: Processor seconds of all its processes together, also of those that have ended.
        memory_mb: Address space of one process. Resident memory of all of them together, each socket counting 256 kB
            and each file in ``/tmp`` 1 kB more.
        processes: Processes and threads at one time.
        open_files: File descriptors of one process.
        disk_mb: Size of the private ``/tmp``, and of any one file.
        output_kb: Bytes the program may print on stdout and stderr together.
        answer_kb: Size of one argument list or one returned value on its way between program and tests.
    """

    wall_s: float = 10.0
    cpu_s: float = 8.0
    memory_mb: int = 512
    processes: int = 16
    open_files: int = 64
    disk_mb: int = 16
    output_kb: int = 256
    answer_kb: int = 2048

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise ValueError(f"limits.{each.name} is {value}; allowed: above 0")
        if self.memory_mb < 64:
            raise ValueError(f"limits.memory_mb is {self.memory_mb}; allowed: 64 or more (an interpreter needs 40)")


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One check that did not pass: its source, and what the program did when it was asked."""

    source: str
    message: str


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What came of running a program against tests.

    Attributes:
        passed: Checks that passed. A check is one statement of the tests that asserts something.
        total: Checks there are.
        status: ``passed`` only when all did. ``failed``: some check did not hold. ``invalid``: the program could not be
            loaded (syntax error, exception at import, no entry point). ``timeout``, ``memory``, ``output``: a limit was
            crossed. ``crashed``: its process died. ``unsupported``: the tests need something that cannot cross the
            sandbox, which says nothing about the program.
        failures: The checks that failed, in order, at most ten of them.
        message: One line on what ended the run.
        output: The end of what the program printed.
        seconds: Wall-clock time, start of the sandbox included.
        start_s: Of that, until the sandbox was ready for the program.
        waited_s: Of that, time after the limit's end which was granted because the program had had no processor.
    """

    passed: int
    total: int
    status: ExecutionStatus
    failures: tuple[CheckFailure, ...] = ()
    message: str = ""
    output: str = ""
    seconds: float = 0.0
    start_s: float = 0.0
    waited_s: float = 0.0

    @property
    def fraction(self) -> float:
        return self.passed / self.total if self.total else 0.0

    @property
    def is_decided(self) -> bool:
        """False when nothing was learned about the program."""
        return self.status != "unsupported"
