"""The asynchronous face: batching, cancelling, deadlines and failures, over a stepper that only counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from winnowrl.agents.engines.base import Sampling
from winnowrl.agents.engines.stepped import Reply, Request, SteppedEngine
from winnowrl.agents.errors import DeadlineExceeded, EngineFailure


class CountingStepper:
    """Writes the numbers 0, 1, 2 … one a step; a request ends after ``max_tokens`` of them. ``room`` share a step."""

    name = "the counting engine"

    def __init__(self, step_s: float = 0.0, room: int = 1000) -> None:
        self.room = room
        self.waiting: list[Request] = []
        self.live: dict[int, tuple[Request, int]] = {}
        self.step_s = step_s
        self.batch_sizes: list[int] = []
        self.fails_at = -1
        self.num_closes = 0
        self.load_s = 0.0
        self.logprob = -1.0

    @property
    def is_idle(self) -> bool:
        return not self.live and not self.waiting

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    def admit(self, request: Request) -> None:
        if request.prompt_ids == [13]:
            raise KeyError("thirteen")
        self.waiting.append(request)

    def cancel(self, request_ids: Sequence[int]) -> None:
        self.waiting = [request for request in self.waiting if request.request_id not in request_ids]
        for request_id in request_ids:
            self.live.pop(request_id, None)

    def step(self) -> list[Reply]:
        while self.waiting and len(self.live) < self.room:
            request = self.waiting.pop(0)
            self.live[request.request_id] = (request, 0)
        assert self.live, "a step costs even when it does nothing"
        time.sleep(self.step_s)
        self.batch_sizes.append(len(self.live))
        if len(self.batch_sizes) == self.fails_at:
            raise RuntimeError("out of memory")
        self.live = {key: (request, count + 1) for key, (request, count) in self.live.items()}
        over = [(key, count) for key, (request, count) in self.live.items() if count == request.sampling.max_tokens]
        for key, _ in over:
            del self.live[key]
        return [Reply(key, list(range(count)), [-1.0] * (count - 1) + [self.logprob], "length") for key, count in over]

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        assert not self.live
        time.sleep(self.load_s)
        list(weights)

    def score(self, token_ids: list[int]) -> list[float]:
        return [-1.0] * (len(token_ids) - 1)

    def close(self) -> None:
        self.num_closes += 1


def make(step_s: float = 0.0, timeout_s: float = 5.0, room: int = 1000) -> tuple[SteppedEngine, CountingStepper]:
    stepper = CountingStepper(step_s, room)
    return SteppedEngine(lambda: stepper, timeout_s=timeout_s), stepper


def test_all_live_requests_share_every_step():
    engine, stepper = make()

    async def run():
        replies = await asyncio.gather(*[engine.generate([1], Sampling(3), seed) for seed in range(50)])
        await engine.close()
        return replies

    replies = asyncio.run(run())
    assert all(list(reply.token_ids) == [0, 1, 2] for reply in replies)
    assert stepper.batch_sizes == [50, 50, 50]


def test_an_episodes_next_request_joins_the_very_next_step():
    # Four turns each, all of the same length: a turn's reply, then the next request, and no step runs without it.
    engine, stepper = make()

    async def episode():
        for _ in range(4):
            await engine.generate([1], Sampling(2), 0)

    async def run():
        await asyncio.gather(*[asyncio.create_task(episode()) for _ in range(10)])
        await engine.close()

    asyncio.run(run())
    assert stepper.batch_sizes == [10] * 8


def test_callers_a_few_turns_apart_share_the_first_step():
    engine, stepper = make()

    async def caller(turns: int):
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.generate([1], Sampling(2), 0)

    async def run():
        await asyncio.gather(*[caller(3 * number) for number in range(8)])
        await engine.close()

    asyncio.run(run())
    assert stepper.batch_sizes == [8, 8]


def test_a_request_that_arrives_later_joins_at_the_next_step():
    engine, stepper = make(step_s=0.01)

    async def run():
        first = asyncio.create_task(engine.generate([1], Sampling(30), 0))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(engine.generate([1], Sampling(3), 0))
        await asyncio.gather(first, second)
        await engine.close()

    asyncio.run(run())
    assert stepper.batch_sizes.count(2) == 3
    assert len(stepper.batch_sizes) == 30


def test_cancelled_request_is_out_of_the_next_step():
    engine, stepper = make(step_s=0.02)

    async def run():
        kept = asyncio.create_task(engine.generate([1], Sampling(6), 0))
        doomed = asyncio.create_task(engine.generate([1], Sampling(1000), 0))
        await asyncio.sleep(0.05)
        doomed.cancel()
        reply = await kept
        await engine.close()
        return reply, doomed.cancelled()

    reply, was_cancelled = asyncio.run(run())
    assert was_cancelled
    assert len(reply.token_ids) == 6
    assert stepper.batch_sizes[0] == 2
    assert stepper.batch_sizes[-1] == 1
    assert stepper.live == {}


def test_a_request_is_admitted_when_its_writing_begins_and_in_its_turn():
    engine, _ = make(room=2)
    events: list[str] = []

    async def ask(number: int):
        await engine.generate([1], Sampling(3), number, lambda: events.append(f"begin {number}"))
        events.append(f"end {number}")

    async def run():
        requests = [asyncio.create_task(ask(number)) for number in range(4)]
        doomed = asyncio.create_task(ask(9))
        last = asyncio.create_task(ask(4))
        await requests[0]
        doomed.cancel()
        await asyncio.gather(*requests, last)
        await engine.generate([1], Sampling(3), 5)
        await engine.close()

    asyncio.run(run())
    # Two have room at a time, and what was cancelled in the queue never begins.
    first, second = ["begin 0", "begin 1", "end 0", "end 1"], ["begin 2", "begin 3", "end 2", "end 3"]
    assert events == [*first, *second, "begin 4", "end 4"]
    assert engine._on_admitted == {}


def test_request_cancelled_before_it_was_admitted_never_enters():
    engine, stepper = make()

    async def run():
        task = asyncio.create_task(engine.generate([1], Sampling(5), 0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.load_weights([], 2)
        await engine.close()

    asyncio.run(run())
    assert stepper.batch_sizes == []
    assert engine.policy_version == 2


def test_weights_load_right_after_a_cancellation():
    engine, _ = make(step_s=0.02)

    async def run():
        task = asyncio.create_task(engine.generate([1], Sampling(1000), 0))
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # The stepper asserts that nothing is live.
        await engine.load_weights([], 3)
        await engine.close()

    asyncio.run(run())


def _broken_weights():
    yield "a", None
    raise RuntimeError("the link is down")


@pytest.mark.parametrize(
    ("load_s", "weights", "error", "said"),
    [
        (0.3, [], DeadlineExceeded, r"did not succeed \(DeadlineExceeded: the counting engine did not load weights"),
        (0.0, _broken_weights(), RuntimeError, r"did not succeed \(RuntimeError: the link is down\)"),
    ],
)
def test_after_a_weight_load_that_did_not_succeed_no_reply_is_given(load_s, weights, error, said):
    # The load may be applied later or in part: replies would carry a version that did not write them.
    engine, stepper = make(timeout_s=0.1)
    stepper.load_s = load_s

    async def run():
        with pytest.raises(error):
            await engine.load_weights(weights, 7)
        await asyncio.sleep(2 * load_s)
        for later in (engine.generate([1], Sampling(2), 0), engine.score([1, 2]), engine.load_weights([], 8)):
            with pytest.raises(EngineFailure, match=f"stopped working: the load of version 7 {said}.*of version 0"):
                await later
        await engine.close()

    asyncio.run(run())
    assert engine.policy_version == 0


def test_a_weight_load_given_up_by_its_caller_counts_as_failed():
    engine, stepper = make()
    stepper.load_s = 0.1

    async def run():
        load = asyncio.create_task(engine.load_weights([], 7))
        await asyncio.sleep(0.03)
        during = asyncio.create_task(engine.generate([1], Sampling(2), 0))
        await asyncio.sleep(0.01)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        with pytest.raises(EngineFailure, match="the load of version 7 did not succeed"):
            await during
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_logprob_that_is_not_finite_fails_its_rollout_naming_engine_and_version(logprob):
    engine, stepper = make()

    async def run():
        await engine.load_weights([], 4)
        stepper.logprob = logprob
        with pytest.raises(EngineFailure, match=r"the counting engine gave a log-prob.*not finite.*policy version 4"):
            await engine.generate([1], Sampling(3), 0)
        stepper.logprob = -1.0
        reply = await engine.generate([1], Sampling(3), 0)
        await engine.close()
        return reply

    assert len(asyncio.run(run()).token_ids) == 3


def test_a_request_the_engine_does_not_take_fails_alone():
    engine, _ = make()

    async def run():
        results = await asyncio.gather(
            engine.generate([13], Sampling(2), 0), engine.generate([1], Sampling(2), 0), return_exceptions=True
        )
        await engine.close()
        return results

    failed, fine = asyncio.run(run())
    assert isinstance(failed, EngineFailure)
    assert "thirteen" in str(failed)
    assert len(fine.token_ids) == 2


def test_an_engine_that_breaks_fails_every_request_and_says_why():
    engine, stepper = make()
    stepper.fails_at = 2

    async def run():
        results = await asyncio.gather(
            *[engine.generate([1], Sampling(9), 0) for _ in range(3)], return_exceptions=True
        )
        with pytest.raises(EngineFailure, match="stopped working: RuntimeError: out of memory"):
            await engine.generate([1], Sampling(1), 0)
        await engine.close()
        return results

    results = asyncio.run(run())
    assert all(isinstance(result, EngineFailure) and "out of memory" in str(result) for result in results)
    assert len({id(result) for result in results}) == 3


def test_a_stuck_step_ends_every_wait_and_names_the_engine():
    engine, _ = make(step_s=0.3, timeout_s=0.05)

    async def run():
        results = await asyncio.gather(
            *[engine.generate([1], Sampling(5), 0) for _ in range(2)], return_exceptions=True
        )
        with pytest.raises(EngineFailure, match="stopped working: a step took longer"):
            await engine.generate([1], Sampling(5), 0)
        return results

    message = "the counting engine is stuck: a step took longer than 0.05 s with 2 requests in flight"
    results = asyncio.run(run())
    assert [type(result) for result in results] == [DeadlineExceeded] * 2
    assert [str(result) for result in results] == [message] * 2


def test_a_long_reply_is_not_a_stuck_engine():
    # 20 steps of 0.02 s: twice the limit in all, each step well inside it.
    engine, _ = make(step_s=0.02, timeout_s=0.2)

    async def run():
        reply = await engine.generate([1], Sampling(20), 0)
        await engine.close()
        return reply

    assert len(asyncio.run(run()).token_ids) == 20


def test_closing_twice_releases_once_and_ends_what_waits():
    engine, stepper = make(step_s=0.02)

    async def run():
        task = asyncio.create_task(engine.generate([1], Sampling(1000), 0))
        await asyncio.sleep(0.03)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineFailure, match="was closed"):
            await task

    asyncio.run(run())
    assert stepper.num_closes == 1


def test_the_engine_outlives_an_event_loop():
    engine, _ = make()

    async def run():
        return await engine.generate([1], Sampling(2), 0)

    assert [len(asyncio.run(run()).token_ids) for _ in range(3)] == [2, 2, 2]
    asyncio.run(engine.close())


def test_a_failed_load_is_raised_where_the_engine_is_made():
    def build() -> CountingStepper:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        SteppedEngine(build)
