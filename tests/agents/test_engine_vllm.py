"""A real vLLM engine in this process, on a tiny random model."""

from __future__ import annotations

import asyncio
import os

import pytest

from winnowrl.agents.engines.base import Completion, Engine, Sampling
from winnowrl.agents.engines.vllm_setup import STEP_TOKENS
from winnowrl.agents.errors import DeadlineExceeded, EngineFailure

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

END = 2
PROMPT = "go to drawer 1\nopen drawer 1\ntake apple 2 from countertop 1\nput apple 2 in fridge 1\n"


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def loaded(tiny_model_path, loop):
    """Engine, tokenizer, reference model, and the environment variables and generator state around the load."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from winnowrl.agents.engines.vllm import VllmEngine

    around = (dict(os.environ), torch.get_rng_state(), torch.set_num_threads)
    engine = VllmEngine(tiny_model_path, max_context_tokens=256, max_concurrent_requests=32, dtype="float32")
    after = (dict(os.environ), torch.get_rng_state(), torch.set_num_threads)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path))
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model_path), dtype=torch.float32)
    yield engine, tokenizer, model, (around, after)
    loop.run(engine.close())
    loop.run(engine.close())
    with pytest.raises(EngineFailure, match="is closed"):
        loop.run(engine.generate([5], Sampling(1), 0))


def reference_logprobs(model, ids: list[int], temperature: float = 1.0):
    """[len(ids) - 1] log p of ids[1:] by the Hugging Face model in float32."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def together(loop, engine: Engine, requests) -> list[Completion]:
    async def run():
        return await asyncio.gather(*[engine.generate(*request) for request in requests])

    return loop.run(run())


def test_it_is_an_engine(loaded):
    assert isinstance(loaded[0], Engine)


def test_loading_leaves_the_process_as_it_was(loaded):
    import torch

    (variables, generator, set_num_threads), (variables_after, generator_after, set_num_threads_after) = loaded[3]
    added = set(variables_after) - set(variables)
    assert {name for name in added if not name.startswith("VLLM_")} <= {"TORCH_CPP_LOG_LEVEL"}
    assert torch.equal(generator, generator_after)
    assert set_num_threads is set_num_threads_after


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_sampled_from(loaded, loop, temperature):
    engine, tokenizer, model, _ = loaded
    prompt = tokenizer.encode(PROMPT)
    replies = together(loop, engine, [(prompt, Sampling(12, temperature), seed) for seed in range(8)])
    assert len({tuple(reply.token_ids) for reply in replies}) == 8
    for reply in replies:
        expected = reference_logprobs(model, prompt + list(reply.token_ids), temperature)[len(prompt) - 1 :]
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        assert (reply.finish_reason, len(reply.token_ids)) == ("length", 12)


def test_more_prompt_tokens_than_a_step_holds_leave_seeded_sampling_as_it_is(loaded, loop):
    # vLLM cuts a prompt that does not fit a step in chunks, samples after each and sets the generator back by an offset,
    # which a CPU's generator has not: the engine stopped for good.
    engine, tokenizer, _, _ = loaded
    text = tokenizer.encode(PROMPT * 8)
    prompts = [text[start : start + 150] for start in range(32)]
    assert sum(map(len, prompts)) > 2 * STEP_TOKENS
    requests = [(prompt, Sampling(6), seed) for seed, prompt in enumerate(prompts)]
    found = together(loop, engine, requests)
    for request, reply in zip(requests[::8], found[::8], strict=True):
        assert loop.run(engine.generate(*request)).token_ids == reply.token_ids


def test_tokens_follow_the_model_distribution(loaded, loop):
    # 4000 first tokens. Chi-square over tokens expected at least 20 times, the rest pooled: a correct sampler stays
    # below mean + 5 standard deviations, k + 5 sqrt(2k), with probability beyond 0.9999.
    import torch

    engine, tokenizer, model, _ = loaded
    prompt, draws = tokenizer.encode("hello"), 4000
    replies = together(loop, engine, [(prompt, Sampling(1, 1.0), 7_000_000 + seed) for seed in range(draws)])
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).double() * draws
    counts = torch.bincount(torch.tensor([reply.token_ids[0] for reply in replies]), minlength=len(expected)).double()
    is_common = expected >= 20
    pairs = [
        *zip(counts[is_common], expected[is_common], strict=True),
        (counts[~is_common].sum(), expected[~is_common].sum()),
    ]
    statistic = sum(float((count - mean) ** 2 / mean) for count, mean in pairs)
    degrees = len(pairs) - 1
    assert degrees >= 5
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5


def test_same_seed_same_reply_whatever_the_company(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = tokenizer.encode(PROMPT)
    request = (prompt, Sampling(16, 1.0), (1 << 62) + 5)
    [alone] = together(loop, engine, [request])
    crowded = together(loop, engine, [(prompt, Sampling(9, 1.0), seed) for seed in range(12)] + [request])[-1]
    assert list(alone.token_ids) == list(crowded.token_ids)


def test_greedy_is_the_models_argmax(loaded, loop):
    import torch

    engine, tokenizer, model, _ = loaded
    prompt = tokenizer.encode(PROMPT)
    [reply] = together(loop, engine, [(prompt, Sampling(8, 0.0), 0)])
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert list(reply.token_ids) == expected[0, len(prompt) :].tolist()


def test_end_token_ends_a_reply_and_is_kept(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = tokenizer.encode("hello")
    # Every id ends the reply, so the first sampled one does.
    [reply] = together(loop, engine, [(prompt, Sampling(9, 1.0, stop_token_ids=tuple(range(384))), 3)])
    assert (len(reply.token_ids), len(reply.logprobs), reply.finish_reason) == (1, 1, "stop")


def test_only_the_given_ids_end_a_reply(loaded, loop):
    # The model's own end token is an ordinary one unless it is asked for: 40 replies of 24 tokens would meet it.
    engine, tokenizer, _, _ = loaded
    replies = together(loop, engine, [(tokenizer.encode("hello"), Sampling(24, 1.5), seed) for seed in range(40)])
    assert any(END in reply.token_ids for reply in replies)
    assert {(len(reply.token_ids), reply.finish_reason) for reply in replies} == {(24, "length")}


def test_stop_string_keeps_the_tokens_up_to_the_one_that_completes_it(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = tokenizer.encode(PROMPT)
    requests = [(prompt, Sampling(40, 1.5), seed) for seed in range(6)]
    for free, request in zip(together(loop, engine, requests), requests, strict=True):
        text = tokenizer.decode(free.token_ids[6:8], skip_special_tokens=False)
        if "\ufffd" in text:
            continue
        stopped = together(loop, engine, [(prompt, Sampling(40, 1.5, stop=(text,)), request[2])])[0]
        # Same seed, so the same tokens up to the first at which the text holds the stop string.
        expected = next(
            n for n in range(1, 41) if text in tokenizer.decode(free.token_ids[:n], skip_special_tokens=False)
        )
        assert stopped.finish_reason == "stop"
        assert list(stopped.token_ids) == list(free.token_ids[:expected])
        assert len(stopped.logprobs) == expected


def test_reply_stops_at_the_end_of_the_context(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = (tokenizer.encode(PROMPT) * 20)[:250]
    [reply] = together(loop, engine, [(prompt, Sampling(100, 1.0), 0)])
    assert (len(reply.token_ids), reply.finish_reason) == (6, "length")


def test_prompt_beyond_the_context_fails_alone(loaded, loop):
    engine = loaded[0]

    async def run():
        return await asyncio.gather(
            engine.generate([5] * 300, Sampling(4), 0), engine.generate([5, 6], Sampling(4), 0), return_exceptions=True
        )

    failed, fine = loop.run(run())
    assert isinstance(failed, EngineFailure)
    assert "300 tokens; allowed: 1 to 255" in str(failed)
    assert len(fine.token_ids) == 4


def test_cancelling_aborts_in_the_engine(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = tokenizer.encode(PROMPT)

    async def run():
        doomed = [asyncio.create_task(engine.generate(prompt, Sampling(150, 1.0), seed)) for seed in range(4)]
        await asyncio.sleep(0.05)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        await engine.generate(prompt, Sampling(2), 9)
        return [task.cancelled() for task in doomed], engine.num_in_flight

    assert loop.run(run()) == ([True] * 4, 0)
    assert not engine._stepper._engine.has_unfinished_requests()


def test_requests_are_admitted_as_the_batch_has_room(loaded, loop):
    engine, tokenizer, _, _ = loaded
    events = []

    async def ask(number: int):
        await engine.generate(tokenizer.encode("hello"), Sampling(4), number, lambda: events.append("begin"))
        events.append("end")

    async def run():
        await asyncio.gather(*[ask(number) for number in range(40)])

    loop.run(run())
    # 32 fit; the other eight begin when those have ended.
    assert events == ["begin"] * 32 + ["end"] * 32 + ["begin"] * 8 + ["end"] * 8


def test_shared_prompt_is_computed_once(loaded, loop):
    engine, tokenizer, _, _ = loaded
    prompt = (tokenizer.encode(PROMPT) * 3)[:75]
    together(loop, engine, [(prompt, Sampling(1), 0)])
    replies = together(loop, engine, [(prompt, Sampling(2), seed) for seed in range(4)])
    # Two whole blocks of 32 of the 75 prompt tokens.
    assert [reply.num_cached_tokens for reply in replies] == [64] * 4


def test_a_score_leaves_no_computed_prefix_behind(loaded, loop):
    # Computed alone, a block differs in the last digits from the same block in a batch: a run that scores once after its
    # first step and one resumed after that step would draw apart.
    engine, tokenizer, _, _ = loaded
    prompt = (tokenizer.encode(PROMPT) * 3)[:75]
    loop.run(engine.score(prompt))
    [reply] = together(loop, engine, [(prompt, Sampling(2), 0)])
    assert reply.num_cached_tokens == 0


def test_new_weights_are_used_at_once_with_nothing_left_of_the_old(loaded, loop):
    import copy

    import torch

    engine, tokenizer, model, _ = loaded
    prompt = (tokenizer.encode(PROMPT) * 3)[:75]
    generator = torch.Generator().manual_seed(3)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    together(loop, engine, [(prompt, Sampling(1), 0)])
    loop.run(engine.load_weights(changed.state_dict().items(), 7))
    assert engine.policy_version == 7
    [reply] = together(loop, engine, [(prompt, Sampling(6), 1)])
    assert (reply.policy_version, reply.num_cached_tokens) == (7, 0)
    expected = reference_logprobs(changed, prompt + list(reply.token_ids))[len(prompt) - 1 :]
    assert reply.logprobs == pytest.approx(expected, abs=1e-4)
    assert loop.run(engine.score(prompt)) == pytest.approx(reference_logprobs(changed, prompt), abs=1e-4)
    assert (
        max(
            abs(a - b)
            for a, b in zip(expected, reference_logprobs(model, prompt + list(reply.token_ids))[-6:], strict=True)
        )
        > 0.1
    )
    loop.run(engine.load_weights(model.state_dict().items(), 8))
    assert loop.run(engine.score(prompt)) == pytest.approx(reference_logprobs(model, prompt), abs=1e-4)


def test_weights_cannot_change_under_a_request(loaded, loop):
    engine, tokenizer, model, _ = loaded

    async def run():
        task = asyncio.create_task(engine.generate(tokenizer.encode("hello"), Sampling(20), 0))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="1 requests are in flight"):
            await engine.load_weights(model.state_dict().items(), 9)
        await task

    loop.run(run())
    assert engine.policy_version != 9


def test_a_sequence_that_fills_the_context_is_scored(loaded, loop):
    engine, tokenizer, model, _ = loaded
    prompt = (tokenizer.encode(PROMPT) * 20)[:240]
    [reply] = together(loop, engine, [(prompt, Sampling(100), 0)])
    full = prompt + list(reply.token_ids)
    assert len(full) == 256
    assert loop.run(engine.score(full)) == pytest.approx(reference_logprobs(model, full), abs=1e-4)


def test_a_score_has_no_room_where_the_context_is_the_models_own(tiny_model_path):
    from winnowrl.agents.engines.vllm_setup import has_room_for_a_score

    assert has_room_for_a_score(tiny_model_path, 1023, "float32")
    assert not has_room_for_a_score(tiny_model_path, 1024, "float32")


def test_a_reply_of_no_tokens_is_refused(loaded, loop):
    with pytest.raises(EngineFailure, match="refused a reply of 0 tokens; allowed: at least 1"):
        loop.run(loaded[0].generate([5, 6], Sampling(0), 0))


def test_a_load_needs_either_name_of_a_tied_weight_and_every_other(loaded, loop, tiny_model_path):
    from winnowrl.agents.engines.vllm import weight_names

    names = weight_names(tiny_model_path)
    assert {"model.embed_tokens.weight", "lm_head.weight"} in names
    # What the learner sends: tied heads are not repeated.
    assert sorted(min(found - {"lm_head.weight"}) for found in names) == sorted(dict(loaded[2].named_parameters()))


@pytest.mark.parametrize("num_missing", [20, 15, 1])
def test_an_incomplete_load_is_refused_and_nothing_is_served_from_it(loaded, loop, num_missing):
    from winnowrl.agents.engines.stepped import SteppedEngine

    engine, _, model, _ = loaded
    # The embedding comes first and is the head as well.
    weights = list(model.named_parameters())
    sent, missing = weights[:-num_missing], weights[-num_missing][0].replace("model.embed_tokens", "lm_head")
    assert len(weights) == 20
    # The same vLLM under a face of its own, which may break.
    face = SteppedEngine(lambda: engine._stepper)
    with pytest.raises(EngineFailure, match=f"was sent no weight for {missing} and {num_missing - 1} others"):
        loop.run(face.load_weights(((name, p.detach()) for name, p in sent), 11))
    with pytest.raises(EngineFailure, match="the load of version 11 did not succeed"):
        loop.run(face.generate([5, 6], Sampling(2), 0))
    assert face.policy_version == 0
    loop.run(engine.load_weights(((name, p.detach()) for name, p in weights), 12))
    assert loop.run(engine.score([5, 6, 7])) == pytest.approx(reference_logprobs(model, [5, 6, 7]), abs=1e-4)


def test_a_stuck_step_names_the_engine(loaded, loop):
    # Last in this file: an engine whose step did not return cannot be used again.
    engine, tokenizer, _, _ = loaded
    engine._timeout_s, kept = 1e-6, engine._timeout_s
    try:
        with pytest.raises(DeadlineExceeded, match=r"the vLLM engine \(in this process\) is stuck: a step took longer"):
            loop.run(engine.generate(tokenizer.encode("hello"), Sampling(100), 0))
    finally:
        engine._timeout_s = kept
