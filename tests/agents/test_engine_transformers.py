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


def test_new_weights_are_used(loaded):
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


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda weights: [("model.extra", weights[0][1])], r"no weight named model\.extra"),
        (lambda weights: weights[:3], "was sent no weight for"),
        (lambda weights: [], "was sent no weight for"),
    ],
)
def test_an_incomplete_load_is_refused_and_nothing_is_served_from_it(loaded, tiny_model_path, choose, message):
    from winnowrl.agents.engines.transformers import TransformersEngine

    engine = TransformersEngine(tiny_model_path, max_context_tokens=128, dtype="float32")

    async def run():
        with pytest.raises(EngineFailure, match=message):
            await engine.load_weights(choose(list(loaded[2].state_dict().items())), 5)
        with pytest.raises(EngineFailure, match="the load of version 5 did not succeed"):
            await engine.generate([5], Sampling(1), 0)
        await engine.close()

    asyncio.run(run())
    assert engine.policy_version == 0


@pytest.mark.parametrize(("prompt", "max_tokens"), [([5, 10**6], 2), ([5, 384], 2), ([-3], 2), ([5, 6], 0), ([5], -1)])
def test_a_request_that_cannot_be_served_fails_alone(loaded, prompt, max_tokens):
    engine = loaded[0]

    async def run():
        return await asyncio.gather(
            engine.generate([5, 6], Sampling(4), 0),
            engine.generate(prompt, Sampling(max_tokens), 0),
            engine.generate([5, 383], Sampling(4), 1),
            return_exceptions=True,
        )

    first, refused, last = asyncio.run(run())
    assert isinstance(refused, EngineFailure)
    assert "allowed: 0 to 383" in str(refused) or "allowed: at least 1" in str(refused)
    assert (len(first.token_ids), len(last.token_ids)) == (4, 4)


@pytest.mark.parametrize("sampling", [Sampling(3), Sampling(3, 0.0), Sampling(3, top_k=2), Sampling(3, top_p=0.5)])
def test_logits_that_are_not_numbers_end_their_request_alone(loaded, sampling):
    import torch

    from winnowrl.agents.engines.decoding import Row, draw
    from winnowrl.agents.engines.stepped import Request

    rows = [Row(Request(i, [1], sampling, i), loaded[1], 10) for i in range(2)]
    draw(rows, torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 1.0]]))
    assert [row.finish_reason for row in rows] == [None, "abort"]
    assert rows[0].logprobs[0] <= 0.0
    assert rows[1].logprobs[0] != rows[1].logprobs[0]


@pytest.mark.parametrize(
    ("ids", "stop", "expected"),
    [
        ([1, 3, 2], " Answer", 1),  # the reply's first piece: the decoder drops the blank a text begins with
        ([2, 1, 3], " Answer", 2),
        ([2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 3], " Answer", 10),  # the window has left the prompt behind
        ([3, 2, 1], " the Answer", 3),
        ([2, 4, 5, 2], " .", 3),  # cleaning up would eat the blank
        ([3, 2], " is:", None),  # the prompt's last token is no part of the reply
    ],
)
def test_a_stop_string_is_found_whatever_the_decoder_drops(ids, stop, expected):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    from winnowrl.agents.engines.decoding import Row
    from winnowrl.agents.engines.stepped import Request

    pieces = ["<unk>", "▁Answer", "▁the", ":", "▁", ".", "▁is"]
    core = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    core.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=True)
    row = Row(Request(0, [2, 6], Sampling(20, stop=(stop,)), 0), tokenizer, 100)
    for token_id in ids:
        row.write(token_id, -1.0)
        if row.finish_reason is not None:
            break
    assert (len(row.token_ids) if row.finish_reason == "stop" else None) == expected


def test_a_character_begun_in_the_prompt_hides_no_stop_string(loaded):
    from winnowrl.agents.engines.decoding import Row
    from winnowrl.agents.engines.stepped import Request

    tokenizer = loaded[1]
    # The prompt ends amid the three bytes of a euro sign; the reply ends the sign, and stops.
    ids = [tokenizer.convert_tokens_to_ids(_byte_token(byte)) for byte in "€".encode()]
    [end] = tokenizer.encode("!")
    for split in (1, 2):
        row = Row(Request(0, ids[:split], Sampling(9, stop=("!",)), 0), tokenizer, 100)
        for token_id in [*ids[split:], end]:
            assert row.finish_reason is None
            row.write(token_id, -1.0)
        assert row.finish_reason == "stop"


def _byte_token(byte: int) -> str:
    """How a byte-level vocabulary writes a byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()[byte]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"]}),
        ("mamba", {}),
    ],
)
def test_a_model_with_another_state_than_keys_and_values_is_refused_before_it_is_loaded(tmp_path, kind, fields):
    from transformers import AutoConfig

    from winnowrl.agents.engines.transformers import TransformersEngine

    AutoConfig.for_model(kind, num_hidden_layers=2, **fields).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"keys and values alone; {kind} has others .*: set engine.type=vllm"):
        TransformersEngine(tmp_path, max_context_tokens=64)


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
