from __future__ import annotations

import os
import signal
import threading

import pytest

from winnowrl.training.interrupts import graceful_interrupts


def test_the_first_signal_asks_and_the_second_stops_at_once() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), graceful_interrupts(lambda: said.append("once")) as request:  # noqa: PT012
        assert not request.is_set
        os.kill(os.getpid(), signal.SIGINT)
        assert request.is_set
        os.kill(os.getpid(), signal.SIGINT)
    assert said == ["once"]
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen: list[bool] = []

    def run() -> None:
        with graceful_interrupts(lambda: None) as request:
            seen.append(request.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]
