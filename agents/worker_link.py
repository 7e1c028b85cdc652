"""The parent's side of one environment worker: its process, its queue of requests, its deadlines and its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from winnowrl.agents.env_worker import HEADER, write_frame
from winnowrl.agents.errors import DeadlineExceeded, EnvironmentFailure, RolloutError
from winnowrl.envs.isolation.output import OutputFile

if TYPE_CHECKING:
    from winnowrl.agents.workers import ProcessLease

START_DEADLINE_S = 120.0
CLOSE_DEADLINE_S = 2.0
# A worker that prints without end is looked at this often while it computes, and after each of its answers.
TRIM_EVERY_S = 1.0
LAST_WORDS_BYTES = 1000
MARK = "WINNOWRL_WORKER"
# The child imports from where the parent does, so that environments of a script's own folder are found.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); from winnowrl.agents.env_worker import main; main()"
)


class WorkerLost(EnvironmentFailure):
    """The worker is gone, and it was not this episode's request that ended it."""


@dataclass(slots=True)
class _Request:
    operation: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]
    deadline_s: float | None


class EnvWorker(asyncio.Protocol):
    """The parent's side of one worker process. Requests queue here and are sent one at a time.

    A request's deadline runs from the moment it is sent: waiting behind another member's step costs an episode nothing.
    """

    def __init__(self, setup: dict[str, Any], on_lost: Callable[[EnvWorker], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._queue: deque[_Request] = deque()
        self._current: _Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_closing = False
        self.loss: WorkerLost | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self.free_slots: list[int] = []
        self.num_slots = 0
        self.leases: set[ProcessLease] = set()
        self._output = OutputFile()
        self._parent_socket, child_socket = socket.socketpair()
        self._parent_socket.setblocking(False)
        child_lifeline, self._lifeline = os.pipe()
        self._mark = uuid.uuid4().hex
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _BOOTSTRAP,
                    str(child_socket.fileno()),
                    str(child_lifeline),
                    json.dumps(sys.path),
                ],
                pass_fds=(child_socket.fileno(), child_lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._output.fileno(),
                stderr=self._output.fileno(),
                start_new_session=True,
                env={**os.environ, MARK: self._mark},
            )
        finally:
            child_socket.close()
            os.close(child_lifeline)
        self._starting = self._loop.create_task(self._start(setup))
        self._trimming = self._loop.call_later(TRIM_EVERY_S, self._trim)

    async def _start(self, setup: dict[str, Any]) -> None:
        # The connection is a socketpair, so this completes without waiting for the child.
        await self._loop.create_connection(lambda: self, sock=self._parent_socket)
        assert self._transport is not None
        self._transport.write(write_frame(setup))
        self._timer = self._loop.call_later(
            START_DEADLINE_S, self._lose, EnvironmentFailure(f"a worker did not start within {START_DEADLINE_S:g} s")
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer)
            if len(self._buffer) < HEADER.size + size:
                return
            frame = bytes(self._buffer[HEADER.size : HEADER.size + size])
            del self._buffer[: HEADER.size + size]
            self._receive(pickle.loads(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_closing:
            self._lose(None)

    def request(self, operation: str, *arguments: Any, deadline_s: float | None = None) -> asyncio.Future[Any]:
        """Queue a request; the future holds its result, or the ``RolloutError`` that befell it."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.loss is not None:
            # A fresh one: raising it for several episodes would chain their tracebacks.
            answer.set_exception(WorkerLost(str(self.loss)))
        else:
            self._queue.append(_Request(operation, arguments, answer, deadline_s))
            self._send_next()
        answer.add_done_callback(_retrieve)
        return answer

    def _send_next(self) -> None:
        if self._current is not None or not self.ready.done() or self._transport is None:
            return
        while self._queue:
            request = self._queue.popleft()
            if request.answer.cancelled():
                continue
            self._current = request
            if request.deadline_s is not None:
                late = DeadlineExceeded(f"the environment's {request.operation}() took over {request.deadline_s:g} s")
                self._timer = self._loop.call_later(request.deadline_s, self._lose, late)
            self._transport.write(write_frame((request.operation, request.arguments)))
            return

    def _trim(self) -> None:
        self._output.trim()
        self._trimming = self._loop.call_later(TRIM_EVERY_S, self._trim)

    def _receive(self, frame: Any) -> None:
        self._output.trim()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.ready.done():
            self.ready.set_result(None)
        else:
            assert self._current is not None
            answer, self._current = self._current.answer, None
            is_good, result = frame
            if not answer.done():
                if is_good:
                    answer.set_result(result)
                else:
                    answer.set_exception(EnvironmentFailure(f"the environment raised {result[0]}\n{result[1]}"))
        self._send_next()

    def _lose(self, error: RolloutError | None) -> None:
        """Kill the process and everything under it, and fail what waits for it."""
        if self.loss is not None:
            return
        if error is None:
            error = EnvironmentFailure(self._describe_death())
        others = WorkerLost(f"its environment worker is gone: {error}")
        self.loss = others
        # Kill before anything is closed: a child that notices its parent gone ends itself, and its own would be lost.
        kill_tree(self.process, self._mark)
        self._release()
        if not self.ready.done():
            self.ready.set_exception(error)
        waiting, self._queue = list(self._queue), deque()
        if self._current is not None and not self._current.answer.done():
            self._current.answer.set_exception(error)
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(WorkerLost(str(others)))
        self._on_lost(self)

    def _describe_death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        code = self.process.poll()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = "closed its connection" if code is None else f"exited with code {code}"
        last_words = self._output.end(LAST_WORDS_BYTES).decode(errors="replace").strip()
        return f"its worker {how}" + (f"; it last wrote: {last_words}" if last_words else "")

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._starting.cancel()
        self._trimming.cancel()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._parent_socket.close()
        with contextlib.suppress(OSError):
            os.close(self._lifeline)

    async def close(self) -> None:
        """Let it close its environments, then end it, by force after 2 seconds."""
        if self._is_closing:
            return
        self._is_closing = True
        if self.loss is None:
            self.loss = WorkerLost("the environment workers are closed")
            if self._transport is not None and self._current is None:
                self._transport.write(write_frame(None))
                await _wait_for_exit(self.process, CLOSE_DEADLINE_S)
            kill_tree(self.process, self._mark)
            self._release()
        await _wait_for_exit(self.process, CLOSE_DEADLINE_S)
        self._output.close()


def kill_tree(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a session leader, its process group, and every descendant, those that left the group included.

    Descendants of a leader that has died already are no longer its children; they are found by the ``mark`` in the
    environment they inherited.
    """
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for descendant in (*descendants, *_marked_processes(mark)):
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()


def _marked_processes(mark: str) -> Iterator[psutil.Process]:
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if wanted in path.read_bytes().split(b"\0"):
                yield psutil.Process(int(path.parent.name))


async def _wait_for_exit(process: subprocess.Popen[bytes], deadline_s: float) -> None:
    for _ in range(int(deadline_s / 0.005)):
        if process.poll() is not None:
            return
        await asyncio.sleep(0.005)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen: the episode that asked may have been cancelled."""
    if not future.cancelled():
        future.exception()
