"""The embedded engine on a tiny random model: exact, whatever shares the batch."""

from __future__ import annotations

import asyncio

import pytest

from winnowrl.agents.engines.base import Completion, Engine, Sampling
from winnowrl.agents.errors import EngineFailure

PROMPTS = ("go to drawer 1\nopen drawer 1\n", "hello", "Too low. Too high. Correct!")


@pytest.fixture(scope="module")
def loaded(tiny_model_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from winnowrl.agents.engines.transformers import TransformersEngine

    engine = TransformersEngine(tiny_model_path, max_context_tokens=128, dtype="float32", max_concurrent_requests=6)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path))
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model_path), dtype=torch.float32)
    yield engine, tokenizer, model
    asyncio.run(engine.close())
    asyncio.run(engine.close())


def reference_logprobs(model, ids: list[int], temperature: float = 1.0) -> list[float]:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def together(engine: Engine, requests) -> list[Completion]:
    async def run():
        async def later(number: int, request):
            await asyncio.sleep(0.002 * (number % 4))
            return await engine.generate(*request)

        return await asyncio.gather(*[later(number, request) for number, request in enumerate(requests)])

    return asyncio.run(run())


def mixed_requests(tokenizer, temperature: float) -> list[tuple[list[int], Sampling, int]]:
    """Prompts of three lengths, replies of six, arriving at four moments: rows join and leave all the time."""
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    return [(prompts[i % 3], Sampling(5 + i % 6, temperature), 1000 + i) for i in range(18)]


def test_it_is_an_engine(loaded):
    assert isinstance(loaded[0], Engine)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_distribution_sampled_from(loaded, temperature):
    engine, tokenizer, model = loaded
    requests = mixed_requests(tokenizer, temperature)
    for (prompt, sampling, _), reply in zip(requests, together(engine, requests), strict=True):
        expected = reference_logprobs(model, prompt + list(reply.token_ids), temperature)[len(prompt) - 1 :]
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        assert (len(reply.token_ids), reply.finish_reason) == (sampling.max_tokens, "length")


def test_a_reply_does_not_depend_on_its_company(loaded):
    engine, tokenizer, _ = loaded
    requests = mixed_requests(tokenizer, 1.0)
    crowded = together(engine, requests)
    for request, reply in zip(requests, crowded, strict=True):
        assert together(engine, [request])[0].token_ids == reply.token_ids
    assert len({tuple(reply.token_ids) for reply in crowded}) == 18


def test_deterministic_replies_are_equal_to_the_last_bit(loaded, tiny_model_path):
    from winnowrl.agents.engines.transformers import TransformersEngine

    _, tokenizer, _ = loaded
    engine = TransformersEngine(tiny_model_path, max_context_tokens=128, dtype="float32", is_deterministic=True)
    requests = mixed_requests(tokenizer, 1.0)[:9]
    forwards, backwards = together(engine, requests), together(engine, requests[::-1])[::-1]
    alone = [together(engine, [request])[0] for request in requests]
    asyncio.run(engine.close())
    assert [r.logprobs for r in forwards] == [r.logprobs for r in backwards] == [r.logprobs for r in alone]
    assert [r.token_ids for r in forwards] == [r.token_ids for r in backwards] == [r.token_ids for r in alone]


def test_greedy_is_the_models_argmax(loaded):
    import torch

    engine, tokenizer, model = loaded
    prompt = tokenizer.encode(PROMPTS[0])
    [reply] = together(engine, [(prompt, Sampling(8, 0.0), 0)])
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert reply.token_ids == expected[0, len(prompt) :].tolist()
    assert reply.logprobs == pytest.approx(reference_logprobs(model, prompt + reply.token_ids)[-8:], abs=1e-4)


def test_end_token_and_stop_string_are_kept(loaded):
    engine, tokenizer, _ = loaded
    prompt = tokenizer.encode("hello")
    [free] = together(engine, [(prompt, Sampling(20, 1.5), 4)])
    stop_id = free.token_ids[5]
    [at_id] = together(engine, [(prompt, Sampling(20, 1.5, stop_token_ids=(stop_id,)), 4)])
    assert at_id.token_ids == free.token_ids[: free.token_ids.index(stop_id) + 1]
    assert at_id.finish_reason == "stop"
    text = next(
        text
        for n in range(3, 18)
        if "\ufffd" not in (text := tokenizer.decode(free.token_ids[n : n + 2], skip_special_tokens=False))
    )
    [at_text] = together(engine, [(prompt, Sampling(20, 1.5, stop=(text,)), 4)])
    expected = next(n for n in range(1, 21) if text in tokenizer.decode(free.token_ids[:n], skip_special_tokens=False))
    assert at_text.token_ids == free.token_ids[:expected]
    assert at_text.finish_reason == "stop"


@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(2, 1.0, {0, 1}), (0, 0.6, {0, 1}), (0, 0.5, {0}), (1, 0.1, {0})])
def test_truncation_keeps_the_likeliest_and_renormalises(top_k, top_p, kept):
    import torch

    from winnowrl.agents.engines.decoding import truncated

    # Nucleus 0.6: 0.5 alone falls short, so 0.3 is kept as well; nucleus 0.5 is reached by the first.
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    result = truncated(probabilities.log(), top_k, top_p).exp()
    total = float(sum(probabilities[i] for i in kept))
    expected = [float(probabilities[i]) / total if i in kept else 0.0 for i in range(4)]
    assert result.tolist() == pytest.approx(expected, abs=1e-6)


def test_draws_follow_the_distribution(loaded):
    import torch

    from winnowrl.agents.engines.decoding import Row, draw
    from winnowrl.agents.engines.stepped import Request

    tokenizer, draws = loaded[1], 4000
    probabilities = torch.tensor([0.5, 0.3, 0.0, 0.15, 0.05])
    rows = [Row(Request(i, [1], Sampling(1), 50_000 + i), tokenizer, 10) for i in range(draws)]
    draw(rows, probabilities.log().expand(draws, 5).clone())
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=5)
    assert counts[2] == 0
    for count, p in zip(counts.tolist(), probabilities.tolist(), strict=True):
        # Five standard deviations of a binomial.
        assert abs(count - draws * p) <= 5 * (draws * p * (1 - p)) ** 0.5


def test_new_weights_are_used_and_a_missing_one_is_named(loaded):
    import copy

    import torch

    engine, tokenizer, model = loaded
    prompt = tokenizer.encode(PROMPTS[0])
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.1)
    asyncio.run(engine.load_weights(changed.state_dict().items(), 3))
    assert asyncio.run(engine.score(prompt)) == pytest.approx(reference_logprobs(changed, prompt), abs=1e-4)
    [reply] = together(engine, [(prompt, Sampling(2), 0)])
    assert reply.policy_version == 3
    asyncio.run(engine.load_weights(model.state_dict().items(), 4))
    assert asyncio.run(engine.score(prompt)) == pytest.approx(reference_logprobs(model, prompt), abs=1e-4)
    with pytest.raises(EngineFailure, match=r"no weight named model\.extra"):
        asyncio.run(engine.load_weights([("model.extra", torch.zeros(1))], 5))
    with pytest.raises(EngineFailure, match="was sent no weight for"):
        asyncio.run(engine.load_weights(list(model.state_dict().items())[:3], 5))
    assert engine.policy_version == 4


def test_prompt_beyond_the_context_fails_alone(loaded):
    engine = loaded[0]
    with pytest.raises(EngineFailure, match="refused a prompt of 128 tokens; allowed: 1 to 127"):
        together(engine, [([5] * 128, Sampling(4), 0)])
    [reply] = together(engine, [([5] * 126, Sampling(4), 0)])
    assert (len(reply.token_ids), reply.finish_reason) == (2, "length")


def test_requests_are_admitted_as_the_batch_has_room(loaded):
    engine, tokenizer, _ = loaded
    events = []

    async def ask(number: int):
        await engine.generate(tokenizer.encode("hello"), Sampling(4), number, lambda: events.append("begin"))
        events.append("end")

    async def run():
        await asyncio.gather(*[ask(number) for number in range(9)])

    asyncio.run(run())
    # Six rows; the other three begin when those have ended.
    assert events == ["begin"] * 6 + ["end"] * 6 + ["begin"] * 3 + ["end"] * 3


def test_cancelled_requests_leave_the_batch(loaded):
    engine, tokenizer, _ = loaded

    async def run():
        doomed = [asyncio.create_task(engine.generate([5], Sampling(100), seed)) for seed in range(8)]
        await asyncio.sleep(0.02)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        reply = await engine.generate(tokenizer.encode("hello"), Sampling(3), 1)
        return len(reply.token_ids)

    assert asyncio.run(run()) == 3
    assert engine._stepper._batch is None
    assert engine._stepper._waiting == []
