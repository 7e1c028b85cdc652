"""Worker processes for environments that compute, block or crash: each hosts many instances, a hung one is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium
import psutil

from winnowrl.agents.env_worker import HEADER, write_frame
from winnowrl.agents.errors import DeadlineExceeded, EnvironmentFailure, RolloutError

START_DEADLINE_S = 120.0
CLOSE_DEADLINE_S = 2.0
MAX_FAILED_STARTS = 3


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

    def __init__(self, setup: dict[str, Any], on_lost: Callable[[EnvWorker, RolloutError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._queue: deque[_Request] = deque()
        self._current: _Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_closing = False
        self.loss: RolloutError | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self.free_slots: list[int] = []
        self.num_slots = 0
        self.leases: set[ProcessLease] = set()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - unnamed: it goes with the worker
        self._parent_socket, child_socket = socket.socketpair()
        self._parent_socket.setblocking(False)
        child_lifeline, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "winnowrl.agents.env_worker", str(child_socket.fileno()), str(child_lifeline)],
                pass_fds=(child_socket.fileno(), child_lifeline),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        finally:
            child_socket.close()
            os.close(child_lifeline)
        self._starting = self._loop.create_task(self._start(setup))

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
            answer.set_exception(self.loss)
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

    def _receive(self, frame: Any) -> None:
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
        others = EnvironmentFailure(f"its environment worker is gone: {error}")
        self.loss = others
        self._release()
        kill_tree(self.process)
        if not self.ready.done():
            self.ready.set_exception(error)
        waiting, self._queue = list(self._queue), deque()
        if self._current is not None and not self._current.answer.done():
            self._current.answer.set_exception(error)
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(others)
        self._on_lost(self, others)

    def _describe_death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        code = self.process.poll()
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = "closed its connection" if code is None else f"exited with code {code}"
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 1000))
        last_words = self._output.read().decode(errors="replace").strip()
        return f"its worker {how}" + (f"; it last wrote: {last_words}" if last_words else "")

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._starting.cancel()
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
            self.loss = EnvironmentFailure("the environment workers are closed")
            if self._transport is not None and self._current is None:
                self._transport.write(write_frame(None))
                await _wait_for_exit(self.process, CLOSE_DEADLINE_S)
            self._release()
            kill_tree(self.process)
        await _wait_for_exit(self.process, CLOSE_DEADLINE_S)
        self._output.close()


class ProcessLease:
    """One episode's hold on an environment instance in a worker."""

    is_inline = False

    def __init__(self, pool: WorkerPool, worker: EnvWorker, slot: int, key: object) -> None:
        self._pool, self._worker, self._slot, self.key = pool, worker, slot, key
        self._last: asyncio.Future[Any] | None = None
        self.on_lost: Callable[[RolloutError], None] | None = None

    async def reset(self, seed: int, task: Any) -> Any:
        self._last = self._worker.request("reset", self._slot, seed, task, deadline_s=self._pool.deadline_s)
        return await self._last

    async def step(self, action: str) -> Any:
        self._last = self._worker.request("step", self._slot, action, deadline_s=self._pool.deadline_s)
        return await self._last

    def release(self, *, is_sound: bool) -> None:
        """Give the instance back; one that failed, or whose last request was abandoned, is dropped."""
        worker = self._worker
        if self not in worker.leases:
            return
        worker.leases.discard(self)
        self._pool.forget(self)
        if worker.loss is None:
            if not is_sound:
                worker.request("drop", self._slot, deadline_s=self._pool.deadline_s)
            worker.free_slots.append(self._slot)


@dataclass(slots=True)
class WorkerPool:
    """Up to ``num_workers`` processes, started when they are needed; a lost one is replaced by the next that is needed.

    Attributes:
        env_id: Gymnasium id.
        kwargs: Arguments of the environment, ``max_episode_steps`` included.
        num_workers: Most processes (1 or more).
        deadline_s: Seconds one ``reset`` or ``step`` may take before its worker is killed.
        shares_by_group: Members of one group go to one worker, where an environment may share what they compute.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    num_workers: int
    deadline_s: float
    shares_by_group: bool = False
    _workers: list[EnvWorker] = field(default_factory=list)
    _reapers: set[asyncio.Task[None]] = field(default_factory=set)
    _homes: dict[object, tuple[EnvWorker, int]] = field(default_factory=dict)
    _failed_starts: int = 0
    _start_error: RolloutError | None = None
    _is_closed: bool = False

    async def acquire(self, key: object) -> ProcessLease:
        """A lease for an episode of the group ``key``. Raises EnvironmentFailure when no worker can be started."""
        assert not self._is_closed, "the worker pool is closed"
        if self._failed_starts >= MAX_FAILED_STARTS:
            assert self._start_error is not None
            raise EnvironmentFailure(f"no environment worker could be started: {self._start_error}")
        worker = self._choose(key)
        if worker.free_slots:
            slot = worker.free_slots.pop()
        else:
            slot = worker.num_slots
            worker.num_slots += 1
        lease = ProcessLease(self, worker, slot, key)
        worker.leases.add(lease)
        try:
            await asyncio.shield(worker.ready)
        except RolloutError as error:
            raise EnvironmentFailure(f"an environment worker did not start: {error}") from error
        except BaseException:
            lease.release(is_sound=True)
            raise
        return lease

    def _choose(self, key: object) -> EnvWorker:
        if self.shares_by_group:
            home, count = self._homes.get(key, (None, 0))
            if home is None or home.loss is not None:
                home, count = self._least_loaded(), 0
            self._homes[key] = (home, count + 1)
            return home
        return self._least_loaded()

    def _least_loaded(self) -> EnvWorker:
        idlest = min(self._workers, key=lambda worker: len(worker.leases), default=None)
        if idlest is None or (idlest.leases and len(self._workers) < self.num_workers):
            idlest = EnvWorker(self._setup(), self._on_lost)
            self._workers.append(idlest)
        return idlest

    def _setup(self) -> dict[str, Any]:
        spec = gymnasium.spec(self.env_id)
        try:
            pickled = pickle.dumps(spec)
            pickle.dumps(dict(self.kwargs))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EnvironmentFailure(
                f"{self.env_id} cannot be sent to a worker process ({error}); register it under an entry point string "
                "'module:Class' with plain arguments, or set its execution to 'inline' or 'thread'"
            ) from None
        return {"spec": pickled, "kwargs": dict(self.kwargs), "sys_path": list(sys.path)}

    def _on_lost(self, worker: EnvWorker, error: RolloutError) -> None:
        self._workers.remove(worker)
        reaper = asyncio.get_running_loop().create_task(worker.close())
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        if worker.ready.exception() is not None:
            self._failed_starts += 1
            self._start_error = cast("RolloutError", worker.ready.exception())
        for lease in list(worker.leases):
            if lease.on_lost is not None:
                lease.on_lost(error)

    def forget(self, lease: ProcessLease) -> None:
        """Called by a lease that ends: the last one of a group frees its home."""
        if lease.key in self._homes:
            home, count = self._homes[lease.key]
            if count > 1:
                self._homes[lease.key] = (home, count - 1)
            else:
                del self._homes[lease.key]

    async def close(self) -> None:
        """End all workers; calling it twice is fine."""
        self._is_closed = True
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.close() for worker in workers), *self._reapers)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a session leader with its process group and every descendant, those that left the group included."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for descendant in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()


async def _wait_for_exit(process: subprocess.Popen[bytes], deadline_s: float) -> None:
    for _ in range(int(deadline_s / 0.005)):
        if process.poll() is not None:
            return
        await asyncio.sleep(0.005)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an exception as seen: the episode that asked may have been cancelled."""
    if not future.cancelled():
        future.exception()
