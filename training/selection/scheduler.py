"""The scheduler: a small network that scores one rollout, and the choice of the best or, now and then, of random ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

EXPLORE_UNITS = ("round", "slot")


class Scheduler:
    """An MLP from ten features to a score, trained by squared error with Adam. Its weights come from its own generator."""

    def __init__(
        self,
        *,
        num_features: int,
        hidden_size: int = 64,
        hidden_layers: int = 2,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        widths = [num_features] + [hidden_size] * hidden_layers
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            layers += [_linear(inner, outer, generator), nn.ReLU()]
        self._network = nn.Sequential(*layers, _linear(widths[-1], 1, generator))
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=learning_rate)

    @torch.no_grad()
    def score(self, features: Tensor) -> list[float]:
        """One score per row of [C, F]."""
        with _one_thread():
            scores: list[float] = self._network(features).squeeze(-1).tolist()
        return scores

    def fit(self, features: Tensor, targets: Sequence[float], num_steps: int = 1) -> float:
        """Gradient steps on mean (score - target)^2. Returns that mean before the first of them."""
        wanted = torch.tensor(targets, dtype=features.dtype)
        first = 0.0
        with _one_thread():
            for number in range(num_steps):
                error = (self._network(features).squeeze(-1) - wanted).square().mean()
                self._optimizer.zero_grad()
                error.backward()
                self._optimizer.step()
                first = float(error.detach()) if number == 0 else first
        return first

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({"network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def explore_probability(round_number: int, *, start: float, end: float, num_rounds: int) -> float:
    """Linear from ``start`` in round 0 to ``end`` in round ``num_rounds`` and after."""
    return start + (end - start) * min(round_number / num_rounds, 1.0)


def keep_count(group_size: int, fraction: float) -> int:
    """Rollouts kept of a group: floor(fraction * size), at least one."""
    # The product of two decimals may fall just below the whole number it stands for (0.29 * 100 = 28.999...).
    return max(1, int(fraction * group_size + 1e-9)) if group_size else 0


def top_scored(scores: Sequence[float], count: int) -> list[int]:
    """Indices of the ``count`` highest scores, best first; equal scores in their order."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]


def choose(scores: Sequence[float], count: int, explore: float, unit: str, generator: np.random.Generator) -> list[int]:
    """Epsilon-greedy choice of ``count`` indices, best first.

    Args:
        explore: Probability of a random choice: of every slot by itself (``slot``), where the caller decided the round
            already pass 0 or 1 (``round``).
    """
    remaining = top_scored(scores, len(scores))
    if unit == "round":
        if explore <= 0.0:
            return remaining[:count]
        return [remaining[index] for index in generator.permutation(len(remaining))[:count]]
    chosen: list[int] = []
    for _ in range(count):
        place = int(generator.integers(len(remaining))) if generator.random() < explore else 0
        chosen.append(remaining.pop(place))
    return chosen


@contextmanager
def _one_thread() -> Iterator[None]:
    """Products this small lose far more to waking threads (100 times when the cores are busy) than they gain."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _linear(num_inputs: int, num_outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer drawn as torch's default (uniform within 1 / sqrt(inputs)), but from the given generator."""
    # Born on the meta device, it draws nothing from the global generator.
    layer = nn.Linear(num_inputs, num_outputs, device="meta").to_empty(device="cpu")
    bound = num_inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
