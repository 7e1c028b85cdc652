"""A pool of worker processes with hard deadlines, for all threads of this process.

Works from any thread and inside an event loop (it uses pipes and ``poll``, no signals) and starts on first use.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

START_TIMEOUT_S = 120.0
RESPAWN_TIMEOUT_S = 20.0
FREE_WORKER_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 3.0
DEFAULT_MEMORY_LIMIT_MB = 512

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from winnowrl.envs.isolation.server import serve; serve()"
)


class WorkerLost(Exception):  # noqa: N818
    """The supervisor process is gone or does not answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker answered, or why it did not.

    Attributes:
        status: As in a verdict; ``undecided`` when there was no answer.
        reason: One short clause.
        score: What the service measured, where it measures.
    """

    status: str
    reason: str
    score: float = 0.0


class Worker:
    """One supervisor process and the child that it forked to serve jobs. Used by one thread at a time."""

    def __init__(self, service: str, memory_limit_mb: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), service, str(memory_limit_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._buffer = b""
        self._child: int | None = None
        self._next_id = 0
        self._ready_timeout_s = START_TIMEOUT_S

    def run(self, job: dict[str, Any], time_limit_s: float) -> Reply:
        """Have the child do one job; kill it at the limit.

        Raises:
            WorkerLost: the supervisor died or did not bring up a child; replace this worker.
        """
        self._wait_until_ready()
        self._next_id += 1
        job_id, child = self._next_id, self._child
        start = time.monotonic()
        self._write(json.dumps({**job, "id": job_id, "time_limit_s": time_limit_s}).encode() + b"\n")
        while (message := self._read(start + time_limit_s)) is not None:
            if message.get("id") == job_id:
                return Reply(message["status"], message["reason"], message.get("score", 0.0))
            if self._child != child:
                # The child retired after the previous job and its successor takes this one, or it died at this one.
                if time.monotonic() - start < time_limit_s / 2 and "retired" not in job:
                    return self.run({**job, "retired": True}, time_limit_s)
                return Reply("undecided", "the worker died")
        self._kill_child()
        return Reply("undecided", f"timed out after {time_limit_s:.1f} s")

    def close(self) -> None:
        """End the whole of it and reap it; calling it twice is fine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Without input the child ends, and its supervisor after having reaped it: killing both at once would leave the
        # child to whatever adopts it. What does not end is killed, the child first.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self._has_ended():
            self._kill_child()
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _has_ended(self) -> bool:
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pids(self) -> list[int]:
        return [self._process.pid, *([self._child] if self._child else [])]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while self._child is None:
            if self._read(deadline) is None:
                raise WorkerLost(f"no worker within {self._ready_timeout_s:.0f} s")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._stdin, data) :]
        except OSError as error:
            raise WorkerLost(str(error)) from None

    def _read(self, deadline: float) -> dict[str, Any] | None:
        """The next message, or None at the deadline. A ready message also updates who the child is."""
        while True:
            line, separator, rest = self._buffer.partition(b"\n")
            if separator:
                self._buffer = rest
                message = _decode(line)
                if message is None:
                    continue
                if "child" in message:
                    self._child = message["child"]
                    self._ready_timeout_s = RESPAWN_TIMEOUT_S
                return message
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._poll.poll(remaining * 1000):
                return None
            piece = os.read(self._stdout, 65536)
            if not piece:
                raise WorkerLost("the worker ended")
            self._buffer += piece

    def _kill_child(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
            self._child = None


def _decode(line: bytes) -> dict[str, Any] | None:
    """A message, or None for an empty line or the torn last line of a killed child."""
    try:
        message = json.loads(line) if line else None
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class WorkerPool:
    """Up to ``num_workers`` workers, started as they are needed.

    Args:
        service: A module with ``prepare() -> Service`` (:mod:`winnowrl.envs.isolation.server`).
        num_workers: Most worker processes at a time.
        memory_limit_mb: Memory that one job may take on top of a fresh worker, MiB.
    """

    def __init__(self, service: str, num_workers: int, memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB) -> None:
        if num_workers < 1 or memory_limit_mb < 16:
            raise ValueError(
                f"num_workers is {num_workers} and memory_limit_mb {memory_limit_mb}; allowed: 1 or more, and 16 or more"
            )
        self.service, self.num_workers, self.memory_limit_mb = service, num_workers, memory_limit_mb
        self._owner = os.getpid()
        self._idle: list[Worker] = []
        self._num_started = 0
        self._condition = threading.Condition()
        self._is_closed = False

    def run(self, job: dict[str, Any], time_limit_s: float) -> Reply:
        """Run a job on a free worker, waiting for one; a lost worker is replaced and the job tried once more."""
        for _ in range(2):
            worker = self._take()
            if worker is None:
                return Reply("undecided", f"no free worker within {FREE_WORKER_TIMEOUT_S:.0f} s")
            is_healthy = False
            try:
                reply = worker.run(job, time_limit_s)
                is_healthy = True
                return reply
            except WorkerLost:
                continue
            finally:
                self._give_back(worker if is_healthy else None)
                if not is_healthy:
                    worker.close()
        return Reply("undecided", "the worker was lost twice")

    def close(self) -> None:
        """End all idle workers; busy ones end when they are given back. Calling it twice is fine."""
        if self._owner != os.getpid():
            return
        with self._condition:
            self._is_closed = True
            workers, self._idle = self._idle, []
            self._num_started -= len(workers)
        for worker in workers:
            worker.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the idle workers and their children."""
        with self._condition:
            return [pid for worker in self._idle for pid in worker.pids]

    def _take(self) -> Worker | None:
        with self._condition:
            if not self._condition.wait_for(
                lambda: self._is_closed or self._idle or self._num_started < self.num_workers, FREE_WORKER_TIMEOUT_S
            ):
                return None
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            if self._idle:
                return self._idle.pop()
            self._num_started += 1
        try:
            return Worker(self.service, self.memory_limit_mb)
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, worker: Worker | None) -> None:
        with self._condition:
            if worker is None or self._is_closed:
                self._num_started -= 1
            else:
                self._idle.append(worker)
            self._condition.notify()
            is_surplus = worker is not None and self._is_closed
        if is_surplus and worker is not None:
            worker.close()
