"""Ctrl-C once finishes the step and saves; twice stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
