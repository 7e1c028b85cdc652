from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from winnowrl.training.interrupts import graceful_interrupts, interruptible


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


def test_what_an_interrupt_leaves_behind_has_ended_before_it_goes_on() -> None:
    said: list[str] = []

    async def episodes() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        loop.call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            said.append("ended")

    with asyncio.Runner() as runner:
        with pytest.raises(KeyboardInterrupt), graceful_interrupts(lambda: said.append("asked")):
            interruptible(runner)(episodes())
        assert said == ["asked", "ended"]
        # Nothing of it is left for the next call.
        assert runner.run(_other_tasks()) == 0


async def _other_tasks() -> int:
    return len(asyncio.all_tasks()) - 1


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen: list[bool] = []

    def run() -> None:
        with graceful_interrupts(lambda: None) as request:
            seen.append(request.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]
