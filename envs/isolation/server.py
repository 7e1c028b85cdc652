"""The worker's side of the pool: a supervisor that has everything imported, and the child it forks to serve jobs.

The parent kills the child when a job runs past its deadline; the supervisor then forks the next one in milliseconds,
because what the job needs is already loaded. One JSON object a line, one job at a time:

    in:  {"id": 7, "time_limit_s": 5.0, ...}
    out: {"child": 1234}                    a child is ready
         {"id": 7, ...}                     what the service answered
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOBS_PER_CHILD = 2000
MAX_FAILURES = 10
_NO_MORE_JOBS, _FAILED, _RETIRED = 0, 1, 3
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.remove", "os.rename", "os.mkdir",
    "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.kill", "os.killpg", "subprocess.",
    "socket.", "shutil.", "pty.", "ctypes.", "tempfile.", "webbrowser.", "urllib.", "ftplib.", "http.",
)  # fmt: skip


Job = dict[str, Any]
Service = Callable[[Job], Job]


def serve() -> None:
    """Run the service named on the command line until standard input ends.

    Arguments of the process: a module with ``prepare() -> Service``, and the memory limit of a child in MiB.
    """
    service: Service = importlib.import_module(sys.argv[1]).prepare()
    memory_limit = int(sys.argv[2]) * 2**20
    # What a job prints must not look like an answer: answers go to a descriptor of their own.
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    num_failures = 0
    while num_failures < MAX_FAILURES:
        pid = os.fork()
        if pid == 0:
            _child(service, memory_limit, answers)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _NO_MORE_JOBS:
            return
        # A child that cannot even start would be forked without end; one that was killed was not at fault.
        num_failures = num_failures + 1 if code == _FAILED else 0


def _child(service: Service, memory_limit: int, answers: int) -> None:
    """Serve jobs, then leave without running the supervisor's exit handlers."""
    code = _FAILED
    try:
        os.setpgid(0, 0)
        limit_resources(memory_limit)
        sys.addaudithook(refuse)
        _send(answers, {"child": os.getpid()})
        code = _serve_jobs(service, answers)
    except BrokenPipeError:
        code = _NO_MORE_JOBS  # the parent is gone
    finally:
        os._exit(code)


def _serve_jobs(service: Service, answers: int) -> int:
    buffer = b""
    for _ in range(JOBS_PER_CHILD):
        while b"\n" not in buffer:
            piece = os.read(0, 65536)
            if not piece:
                return _NO_MORE_JOBS
            buffer += piece
        line, _, buffer = buffer.partition(b"\n")
        job = json.loads(line)
        # The kernel ends this child should both the parent and the interpreter fail to.
        signal.setitimer(signal.ITIMER_REAL, job["time_limit_s"] * 1.25 + 0.25)
        answer = service(job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, {**answer, "id": job["id"]})
    return _RETIRED


def _send(descriptor: int, message: Job) -> None:
    # The leading newline ends whatever a killed predecessor left half-written.
    data = b"\n" + json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def limit_resources(memory_limit: int) -> None:
    """Cap memory in bytes above what is already mapped, and forbid files and core dumps."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_limit, mapped + memory_limit))


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook of the child: no writing, no processes, no network."""
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & _WRITE_FLAGS:
            raise PermissionError("a worker does not write files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a worker does not {event}")
