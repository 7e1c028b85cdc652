"""Daemon threads for blocking calls, some of which are given up before they end."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from winnowrl.agents.errors import EnvironmentFailure


@dataclass(slots=True, eq=False)
class _Call:
    """What a thread is to run; ``sequel`` runs behind it in the same thread, whatever became of it."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    sequel: Callable[[], Any] | None = None
    is_abandoned: bool = False


class Threads:
    """Daemon threads, one more whenever all are busy, up to ``limit``; one that hangs delays nobody's exit.

    A call that was abandoned gives its place to a new thread, so hung environments do not use the pool up.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_pending = 0
        self._calls: dict[asyncio.Future[Any], _Call] = {}
        self._is_closed = False

    def submit(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run ``work`` in a thread; the future holds what it returned or raised."""
        loop = asyncio.get_running_loop()
        call = _Call(work, loop.create_future(), loop)
        call.future.add_done_callback(self._on_done)
        with self._lock:
            self._calls[call.future] = call
            self._num_pending += 1
            is_closed = self._is_closed
            must_grow = not is_closed and self._num_pending > self._num_threads and self._num_threads < self._limit
            self._num_threads += must_grow
        if is_closed:
            # The others have been told to end: one that runs this alone.
            self._start(lambda: self._run(call))
            return call.future
        self._work.put(call)
        if must_grow:
            self._start(self._serve)
        return call.future

    def submit_after(self, future: asyncio.Future[Any] | None, work: Callable[[], Any]) -> None:
        """Run ``work`` behind the call of ``future``, when that has ended at last; nobody hears what becomes of it."""
        with self._lock:
            call = self._calls.get(future) if future is not None else None
            if call is not None:
                call.sequel = work
        if call is None:
            self.submit(work)

    def _start(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="winnowrl-env", daemon=True).start()

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()
            return
        with self._lock:
            if (call := self._calls.get(future)) is not None:
                call.is_abandoned = True
                self._limit += 1

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            self._run(call)

    def _run(self, call: _Call) -> None:
        result, error = (None, None) if call.future.cancelled() else _outcome(call.work)
        with self._lock:
            del self._calls[call.future]
        if call.sequel is not None:
            _outcome(call.sequel)
        with self._lock:
            self._num_pending -= 1
            self._limit -= call.is_abandoned
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            call.loop.call_soon_threadsafe(_settle, call.future, result, error)

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its call."""
        with self._lock:
            self._is_closed, num_threads = True, self._num_threads
        for _ in range(num_threads):
            self._work.put(None)


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - handed to the episode, which records it
        return None, error
    except BaseException as error:  # noqa: BLE001 - an environment may not end its thread
        return None, EnvironmentFailure(f"{type(error).__name__}: {error}")


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
