"""Replies from a function: cut like an engine's, with faults decided by the seed."""

from __future__ import annotations

import asyncio
import time

import pytest

from winnowrl.agents.engines.base import Engine, Sampling
from winnowrl.agents.engines.scripted import Faults, ScriptedEngine
from winnowrl.agents.errors import EngineFailure


@pytest.fixture(scope="module")
def codec(tiny_model_path):
    from transformers import AutoTokenizer

    from winnowrl.agents.text_codec import TextCodec

    return TextCodec(AutoTokenizer.from_pretrained(str(tiny_model_path)))


def reply(engine: ScriptedEngine, sampling: Sampling, seed: int = 0):
    return asyncio.run(engine.generate([5, 6], sampling, seed))


def test_text_is_encoded_and_closed(codec):
    engine = ScriptedEngine(lambda prompt_ids, seed: f"go {seed}", codec, end_token_id=2)
    assert isinstance(engine, Engine)
    completion = reply(engine, Sampling(50), seed=3)
    assert list(completion.token_ids) == [*codec.encode_text("go 3"), 2]
    assert completion.finish_reason == "stop"
    assert len(completion.logprobs) == len(completion.token_ids)
    assert all(-2 <= logprob < 0 for logprob in completion.logprobs)


def test_ids_are_taken_as_they_are_and_cut_at_the_budget():
    engine = ScriptedEngine(lambda prompt_ids, seed: [*prompt_ids, 9])
    assert list(reply(engine, Sampling(3)).token_ids) == [5, 6, 9]
    cut = reply(engine, Sampling(2))
    assert (list(cut.token_ids), cut.finish_reason) == ([5, 6], "length")


def test_text_ends_with_the_first_stop_string_and_stays_open(codec):
    engine = ScriptedEngine(lambda prompt_ids, seed: "one. two! three", codec, end_token_id=2)
    completion = reply(engine, Sampling(50, stop=("!", ".")))
    assert codec.decode(list(completion.token_ids)) == "one."
    assert completion.finish_reason == "stop"


def test_text_without_a_codec_is_refused():
    with pytest.raises(EngineFailure, match="without a codec it must return ids"):
        reply(ScriptedEngine(lambda prompt_ids, seed: "go"), Sampling(5))


def test_faults_strike_at_their_rates_and_again_for_the_same_seed():
    faults, calls = Faults(raises=0.1, is_empty=0.05, hangs=0.02), 20_000
    drawn = [faults.draw(seed) for seed in range(calls)]
    for name, share in (("raises", 0.1), ("is_empty", 0.05), ("hangs", 0.02)):
        # Five standard deviations of a binomial.
        assert abs(drawn.count(name) - calls * share) < 5 * (calls * share * (1 - share)) ** 0.5
    assert drawn == [faults.draw(seed) for seed in range(calls)]


def test_each_fault_does_what_it_says():
    def engine(**faults: float) -> ScriptedEngine:
        return ScriptedEngine(lambda prompt_ids, seed: [1], faults=Faults(**faults))

    with pytest.raises(EngineFailure, match="told to fail"):
        reply(engine(raises=1.0), Sampling(1))
    assert reply(engine(is_empty=1.0), Sampling(1)).token_ids == ()

    async def wait():
        await asyncio.wait_for(engine(hangs=1.0).generate([1], Sampling(1), 0), 0.02)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())


def test_latency_is_waited_for_without_blocking_others():
    engine = ScriptedEngine(lambda prompt_ids, seed: [1], latency_s=0.05)

    async def run():
        begin = time.perf_counter()
        await asyncio.gather(*[engine.generate([1], Sampling(1), 0) for _ in range(100)])
        return time.perf_counter() - begin

    assert 0.05 <= asyncio.run(run()) < 2.5


def test_it_has_no_queue():
    engine, admitted = ScriptedEngine(lambda prompt_ids, seed: [1], latency_s=60), []

    async def run():
        task = asyncio.create_task(engine.generate([1], Sampling(1), 0, lambda: admitted.append(0)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    assert admitted == [0]


def test_weights_raise_the_version():
    engine = ScriptedEngine(lambda prompt_ids, seed: [1])
    asyncio.run(engine.load_weights([], 4))
    assert reply(engine, Sampling(1)).policy_version == 4
