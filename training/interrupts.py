"""Ctrl-C once finishes the step and saves; twice stops at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Seconds that cancelled episodes have to end in.
CANCEL_S = 10.0


class StopRequest:
    """Whether somebody asked the run to stop after this step."""

    def __init__(self) -> None:
        self.is_set = False


@contextmanager
def graceful_interrupts(on_first: Callable[[], None]) -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request, and the second into ``KeyboardInterrupt``.

    Outside the main thread, where signals cannot be handled, the request is simply never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.is_set:
            raise KeyboardInterrupt
        request.is_set = True
        on_first()

    earlier: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def interruptible(runner: asyncio.Runner) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """``runner.run``, but what an interrupt leaves behind is cancelled and has ended before the interrupt goes on.

    Else it would run on in the next call, while its engine is being closed, and fail there.
    """

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        begun: list[asyncio.Task[Any]] = []

        async def main() -> Any:
            begun.append(asyncio.ensure_future(coroutine))
            return await begun[0]

        try:
            return runner.run(main())
        except KeyboardInterrupt:
            for task in begun:
                task.cancel()
            if begun:
                runner.run(_end(begun))
            raise

    return run


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    done, _ = await asyncio.wait(tasks, timeout=CANCEL_S)
    for task in done:
        if not task.cancelled():
            task.exception()
