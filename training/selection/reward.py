"""The bandit's reward: how much better the policy became after it trained on a selection.

V is the mean reward of a round's rollouts, E their mean entropy; both of round t + 1 are needed for the reward of round t.
Source: Contextual Rollout Bandits (arXiv 2602.08499), eqs. 5, 7, 10, 11.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

CREDIT_MODES = ("scaled", "shared")
EMA_MODES = ("center_scale_gain", "scale_all", "center_only", "none")
# Keeps a gain that never varies from being divided by 0; far below any variance of a mean reward.
VARIANCE_FLOOR = 1e-12


def entropy_term(entropy: float, next_entropy: float, *, weight: float, floor: float) -> float:
    """weight * (E_next - E) where E is strictly above ``floor``, else 0: a rise costs, a fall is a bonus."""
    return weight * (next_entropy - entropy) if entropy > floor else 0.0


def credit(advantages: Sequence[float], reward: float, *, mode: str) -> list[float]:
    """Each chosen rollout's part of the reward: its target for the network.

    Args:
        mode: ``scaled`` |A_i| times the reward (eq. 11, used in practice); ``shared`` divides that by the sum of |A|
            (eq. 7, the theory), zeros where the sum is 0.

    Raises:
        ValueError: unknown mode.
    """
    if mode not in CREDIT_MODES:
        raise ValueError(f"credit is {mode!r}; allowed: {', '.join(CREDIT_MODES)}")
    total = sum(abs(advantage) for advantage in advantages) if mode == "shared" else 1.0
    return [abs(advantage) * reward / total if total else 0.0 for advantage in advantages]


class RewardNormalizer:
    """Running mean mu and variance sigma of the gain V_next - V, and the normalised reward of eq. 10.

    The paper's text leaves open what the square root of sigma divides: ``center_scale_gain`` (gain - mu) / sqrt(sigma)
    - entropy term; ``scale_all`` (gain - mu - entropy term) / sqrt(sigma); ``center_only`` gain - mu - entropy term;
    ``none`` gain - entropy term, the ablation.
    """

    def __init__(self, *, mode: str = "center_scale_gain", rate: float = 0.1) -> None:
        if mode not in EMA_MODES:
            raise ValueError(f"ema_mode is {mode!r}; allowed: {', '.join(EMA_MODES)}")
        self._mode = mode
        self._rate = rate
        self.mean = 0.0
        self.variance = 1.0

    def update(self, gain: float) -> None:
        """mu first, then sigma from the distance to the *new* mu."""
        self.mean = (1.0 - self._rate) * self.mean + self._rate * gain
        self.variance = (1.0 - self._rate) * self.variance + self._rate * (gain - self.mean) ** 2

    def __call__(self, gain: float, entropy_cost: float) -> float:
        """Normalised reward of a selection; ``update`` with the same gain comes first."""
        if self._mode == "none":
            return gain - entropy_cost
        centered = gain - self.mean
        if self._mode == "center_only":
            return centered - entropy_cost
        deviation = math.sqrt(max(self.variance, VARIANCE_FLOOR))
        if self._mode == "scale_all":
            return (centered - entropy_cost) / deviation
        return centered / deviation - entropy_cost

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.mean, self.variance = state["mean"], state["variance"]
