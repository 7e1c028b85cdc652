from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from winnowrl.training.logprobs import token_logprobs


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are faster on one thread, and on a busy machine many times faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def case(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """13 rows, 29 tokens (several of one row, some rows without any), 31 words."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 12, (29,), generator=generator)
    return {
        "hidden": torch.randn(13, 8, generator=generator).to(dtype).requires_grad_(),
        "weight": torch.randn(31, 8, generator=generator).to(dtype).requires_grad_(),
        "bias": torch.randn(31, generator=generator).to(dtype).requires_grad_(),
        "rows": rows,
        "targets": torch.randint(0, 31, (29,), generator=generator),
    }


def plain(hidden, weight, bias, rows, targets, temperature, scale=1.0):
    logps = ((hidden @ weight.T + bias) * scale / temperature).log_softmax(-1)
    return logps[rows, targets], -(logps.exp() * logps).sum(-1)


def objective(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    return (logprobs * torch.linspace(-1, 2, 29)).sum() + (entropies * torch.linspace(1, -1, 13)).sum()


def test_hand_value() -> None:
    # Logits 0, ln 3 at temperature 1: p = 1/4, 3/4; H = ln 4 - 3/4 ln 3.
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(3)]])
    logprobs, entropies = token_logprobs(hidden, weight, torch.tensor([0, 0]), torch.tensor([0, 1]))
    torch.testing.assert_close(logprobs, torch.tensor([math.log(0.25), math.log(0.75)]))
    torch.testing.assert_close(entropies, torch.tensor([math.log(4) - 0.75 * math.log(3)]))


@pytest.mark.parametrize("chunk_rows", [1, 4, 13, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_full_logits_for_every_chunk_size(chunk_rows: int, temperature: float) -> None:
    ours, theirs = case(), case()
    found = token_logprobs(**ours, temperature=temperature, chunk_rows=chunk_rows, logit_scale=0.5)
    expected = plain(**theirs, temperature=temperature, scale=0.5)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    objective(*found).backward()
    objective(*expected).backward()
    for name in ("hidden", "weight", "bias"):
        torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-4, atol=2e-5)


def test_gradient_equals_finite_differences() -> None:
    tensors = {name: t.detach() for name, t in case().items()}

    def value(hidden: torch.Tensor) -> float:
        logps, entropies = plain(hidden, tensors["weight"].double(), tensors["bias"].double(), tensors["rows"],
                                 tensors["targets"], 0.9)  # fmt: skip
        return float(objective(logps, entropies))

    leaf = tensors["hidden"].clone().requires_grad_()
    objective(*token_logprobs(**(tensors | {"hidden": leaf}), temperature=0.9, chunk_rows=5)).backward()
    step = 1e-6
    for row, column in ((0, 0), (5, 3), (12, 7)):
        moved = [tensors["hidden"].double().clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        numeric = (value(moved[0]) - value(moved[1])) / (2 * step)
        assert float(leaf.grad[row, column]) == pytest.approx(numeric, rel=1e-4, abs=1e-5)


def test_only_one_gradient_may_be_wanted() -> None:
    for pick in (0, 1):
        ours, theirs = case(), case()
        token_logprobs(**ours, chunk_rows=4)[pick].sum().backward()
        plain(**theirs, temperature=1.0)[pick].sum().backward()
        torch.testing.assert_close(ours["weight"].grad, theirs["weight"].grad, rtol=1e-4, atol=2e-5)


def test_a_frozen_head_gets_no_gradient() -> None:
    tensors = case()
    frozen = {name: tensors[name].detach() for name in ("weight", "bias")}
    token_logprobs(**(tensors | frozen))[0].sum().backward()
    assert tensors["hidden"].grad is not None


def test_large_logits_stay_finite() -> None:
    hidden, weight = torch.tensor([[1000.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    logprobs, entropies = token_logprobs(hidden, weight, torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert logprobs.tolist() == [0.0, -2000.0]
    assert entropies.tolist() == [0.0]


def test_bfloat16_rows_are_reduced_in_float32() -> None:
    tensors = case(torch.bfloat16)
    logprobs, entropies = token_logprobs(**tensors, chunk_rows=4)
    assert logprobs.dtype == entropies.dtype == torch.float32
    logprobs.sum().backward()
    assert tensors["weight"].grad.dtype == torch.bfloat16


def test_no_rows_give_no_tokens_and_a_zero_gradient() -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.long)
    logprobs, entropies = token_logprobs(torch.zeros(0, 3, requires_grad=True), weight, empty, empty)
    logprobs.sum().backward()
    assert logprobs.shape == entropies.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros(5, 3))


def test_greedy_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        token_logprobs(**case(), temperature=0.0)


def test_memory_holds_one_chunk_of_logits_not_all() -> None:
    rows, vocabulary, chunk = 512, 4096, 32
    hidden = torch.randn(rows, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    ids = torch.zeros(rows, dtype=torch.long)
    with torch.profiler.profile(profile_memory=True) as profile:
        token_logprobs(hidden, weight, torch.arange(rows), ids, chunk_rows=chunk)[0].sum().backward()
    largest = max(event.self_cpu_memory_usage / max(event.count, 1) for event in profile.key_averages())
    assert largest < rows * vocabulary * 4 / 4
