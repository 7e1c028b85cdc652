"""The ten features of a rollout that the bandit's scheduler sees.

Reward: 1 reward, 2 advantage, 3 group mean, 4 group std (sample). Length: 5 share of the limit, 6 truncated. Policy, as
of the last forward pass over the rollout: 7 entropy, 8 clip fraction. History: 9 age in rounds, 10 updates that used it.

Source: Contextual Rollout Bandits (arXiv 2602.08499), table 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winnowrl.training.candidates import Candidate

NUM_FEATURES = 10
HISTORY = slice(8, 10)


def rollout_features(candidates: Sequence[Candidate], step: int, max_tokens: int) -> Tensor:
    """[C, 10] float32, as in the table, unscaled.

    Args:
        step: Present step; the age is counted from it.
        max_tokens: Longest completion of the run, tokens.
    """
    rows = [
        (
            candidate.reward,
            candidate.advantage,
            candidate.group_mean,
            candidate.group_std,
            candidate.num_tokens / max_tokens,
            float(candidate.is_truncated),
            candidate.entropy,
            candidate.clip_fraction,
            float(step - candidate.birth_step),
            float(candidate.num_uses),
        )
        for candidate in candidates
    ]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, NUM_FEATURES)


def l2_normalize(features: Tensor) -> Tensor:
    """Each row of [C, 10] brought to length 1; a row of zeros stays."""
    return features / features.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)


class HistoryScaler:
    """Running mean and variance of the two unbounded features, age and usage, over every candidate seen."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = torch.zeros(2, dtype=torch.float64)
        self._squares = torch.zeros(2, dtype=torch.float64)

    def update(self, features: Tensor) -> None:
        """Take in [C, 10] unscaled features (Chan's parallel form of Welford's sums)."""
        values = features[:, HISTORY].double()
        if not len(values):
            return
        total = self._count + len(values)
        shift = values.mean(0) - self._mean
        self._squares = (
            self._squares
            + (values - values.mean(0)).square().sum(0)
            + shift.square() * (self._count * len(values) / total)
        )
        self._mean = self._mean + shift * (len(values) / total)
        self._count = total

    def __call__(self, features: Tensor) -> Tensor:
        """[C, 10] with age and usage centered and scaled; a feature that never varied becomes 0."""
        std = (self._squares / max(self._count, 1)).sqrt()
        scaled = (features[:, HISTORY].double() - self._mean) / std.clamp(min=1e-6)
        return torch.cat([features[:, : HISTORY.start], scaled.to(features.dtype)], dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean.tolist(), "squares": self._squares.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count = state["count"]
        self._mean = torch.tensor(state["mean"], dtype=torch.float64)
        self._squares = torch.tensor(state["squares"], dtype=torch.float64)
