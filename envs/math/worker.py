"""The process that does the algebra: a supervisor that has everything imported, and the child it forks to serve jobs.

The parent kills the child when a job runs past its deadline; the supervisor then forks the next one in milliseconds,
because the parser and sympy are already loaded. One JSON object a line, one job at a time:

    in:  {"id": 7, "gold": "...", "prediction": "...", "policy": {...}}
    out: {"child": 1234}                    a child is ready
         {"id": 7, "status": "correct", "reason": "..."}
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

JOBS_PER_CHILD = 2000
JOBS_PER_CACHE = 100
MAX_FAILURES = 10
_NO_MORE_JOBS, _FAILED, _RETIRED = 0, 1, 3
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.remove", "os.rename", "os.mkdir",
    "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.kill", "os.killpg", "subprocess.",
    "socket.", "shutil.", "pty.", "ctypes.", "tempfile.", "webbrowser.", "urllib.", "ftplib.", "http.",
)  # fmt: skip

_WARM_UP = (
    r"\frac{x+2}{7}", r"4\sqrt{2}-\sqrt[3]{x}", r"e^{16}-1", r"\tan^{2}(y)+1", r"\binom{9}{4}", r"n!+(n+1)!", r"f(x)+g(2)",
    r"\sum_{k=0}^{n-1} F_{k}", r"\log_{2} 3 \cdot \ln n", r"|x|+\sin 2x \cos x", r"\int_{0}^{1} x^{2} dx", r"2\pi r+x_{1}",
    r"(0,1)\cup[2,3)", r"\{1,2\}", r"3 \times 10^{-3}", r"a(b+c)-\frac{a}{b}(x-1)^{2}", r"\infty", r"x/2-y+1.5",
)  # fmt: skip


def serve() -> None:
    """Fork children that serve jobs from standard input until it ends."""
    from winnowrl.envs.math import symbolic

    for text in _WARM_UP:
        # A grammar that no longer reads a warm-up line only costs speed.
        with contextlib.suppress(symbolic.Unreadable):
            symbolic.read_expression(text)
    memory_limit = int(sys.argv[1]) * 2**20
    num_failures = 0
    while num_failures < MAX_FAILURES:
        pid = os.fork()
        if pid == 0:
            _child(memory_limit)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _NO_MORE_JOBS:
            return
        # A child that cannot even start would be forked without end; one that was killed was not at fault.
        num_failures = num_failures + 1 if code == _FAILED else 0


def _child(memory_limit: int) -> None:
    """Serve jobs, then leave without running the supervisor's exit handlers."""
    code = _FAILED
    try:
        os.setpgid(0, 0)
        _limit_resources(memory_limit)
        sys.addaudithook(_refuse)
        _send({"child": os.getpid()})
        code = _serve_jobs()
    except BrokenPipeError:
        code = _NO_MORE_JOBS  # the parent is gone
    finally:
        os._exit(code)


def _serve_jobs() -> int:
    from sympy.core.cache import clear_cache

    buffer = b""
    for number in range(1, JOBS_PER_CHILD + 1):
        while b"\n" not in buffer:
            piece = os.read(0, 65536)
            if not piece:
                return _NO_MORE_JOBS
            buffer += piece
        line, _, buffer = buffer.partition(b"\n")
        _send(_answer(json.loads(line)))
        if number % JOBS_PER_CACHE == 0:
            clear_cache()
    return _RETIRED


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    from winnowrl.envs.math.compare import GoldUnreadable
    from winnowrl.envs.math.identity import TooLarge
    from winnowrl.envs.math.policy import VerifierPolicy
    from winnowrl.envs.math.shapes import read_shape
    from winnowrl.envs.math.symbolic import SymbolicComparison, Unreadable

    # The kernel ends this child should both the parent and the interpreter fail to.
    signal.setitimer(signal.ITIMER_REAL, job["policy"]["time_limit_s"] * 1.25 + 0.25)
    policy = VerifierPolicy(**{field.name: job["policy"][field.name] for field in fields(VerifierPolicy)})
    try:
        same = SymbolicComparison(policy).same(read_shape(job["gold"]), read_shape(job["prediction"]))
        status, reason = ("correct", "equal") if same else ("wrong", "not equal")
    except GoldUnreadable as error:
        status, reason = "undecided", f"gold unparseable: {error}"
    except Unreadable:
        status, reason = "wrong", "prediction unparseable"
    except TooLarge as error:
        status, reason = "wrong", f"prediction beyond limits: {error}"
    except MemoryError:
        status, reason = "undecided", "out of memory"
    except RecursionError:
        status, reason = "undecided", "nested too deep to evaluate"
    except Exception as error:  # noqa: BLE001 - a fault inside sympy says nothing about the answer
        status, reason = "undecided", f"verifier error: {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"id": job["id"], "status": status, "reason": reason[:200]}


def _send(message: dict[str, Any]) -> None:
    # The leading newline ends whatever a killed predecessor left half-written.
    data = b"\n" + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _limit_resources(memory_limit: int) -> None:
    """Cap memory above what is already mapped, and forbid files and core dumps."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_limit, mapped + memory_limit))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook of the child: no writing, no processes, no network."""
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITE_FLAGS:
            raise PermissionError("a verifier worker does not write files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a verifier worker does not {event}")


if __name__ == "__main__":
    serve()
