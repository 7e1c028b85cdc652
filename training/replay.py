"""Advantage-prioritised replay of rollouts: what is kept, what goes, and what is drawn.

Everything about a kept rollout is frozen at its birth: tokens, advantage, log-probs. Only age and capacity remove one;
being drawn does not. Source: "Rollout-Level Advantage-Prioritized Experience Replay for GRPO" (2026).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.candidates import Candidate

FloatArray = npt.NDArray[np.float64]


def priorities(advantages: Sequence[float], *, exponent: float, eps: float) -> FloatArray:
    """P(i) proportional to (|A_i| + eps)^exponent; sums to 1. Empty for no advantages."""
    weights = (np.abs(np.asarray(advantages, dtype=np.float64)) + eps) ** exponent
    return np.asarray(weights / weights.sum() if weights.size else weights, dtype=np.float64)


def is_expired(birth_step: int, step: int, max_age: int) -> bool:
    """A rollout of exactly ``max_age`` steps is still kept."""
    return step - birth_step > max_age


def replay_count(num_fresh: int, ratio: float, num_available: int, *, multiple_of: int = 1) -> tuple[int, int]:
    """How many rollouts to replay, and how many fresh ones to leave out so that the sum is a multiple.

    round(ratio * num_fresh), halves to even, at most ``num_available``; then moved by the smallest step, upwards first,
    that makes fresh plus replayed a multiple of ``multiple_of``. Fresh ones go only if no such step exists, and none go
    where the sum is below one multiple: an update of a few is better than none.

    Returns:
        (replayed, fresh left out), in rollouts. Nothing fresh, nothing replayed.
    """
    if num_fresh == 0:
        return 0, 0
    count = min(round(ratio * num_fresh), num_available)
    for distance in range(multiple_of):
        for moved in (count + distance, count - distance):
            if 0 <= moved <= num_available and (num_fresh + moved) % multiple_of == 0:
                return moved, 0
    total = num_fresh + count
    return count, total % multiple_of if total >= multiple_of else 0


class ReplayBuffer:
    """Rollouts of the last ``max_age`` steps, drawn by the size of their advantage.

    Draws are derived from (seed, step), so a resumed run draws what the uninterrupted one would.
    """

    def __init__(
        self,
        *,
        capacity: int = 30_000,
        max_age: int = 10,
        priority_exponent: float = 0.5,
        priority_eps: float = 1e-6,
        seed: int = 0,
    ) -> None:
        """Args:
        capacity: Most rollouts kept; the oldest go first.
        max_age: Steps since birth up to which a rollout is kept.
        priority_exponent: 0 draws uniformly, 1 in proportion to the advantage.
        priority_eps: Added to each advantage's size.
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; allowed: 1 or more rollouts")
        self._rollouts: deque[Candidate] = deque(maxlen=capacity)
        self._max_age = max_age
        self._exponent = priority_exponent
        self._eps = priority_eps
        self._seed = seed
        self._num_expired = 0
        self._num_drawn = 0

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def rollouts(self) -> tuple[Candidate, ...]:
        """Oldest first."""
        return tuple(self._rollouts)

    def evict(self, step: int) -> int:
        """Drop what is too old at ``step``; call before drawing. Returns how many went."""
        kept = [each for each in self._rollouts if not is_expired(each.birth_step, step, self._max_age)]
        num_gone = len(self._rollouts) - len(kept)
        if num_gone:
            self._rollouts = deque(kept, maxlen=self._rollouts.maxlen)
        self._num_expired += num_gone
        return num_gone

    def draw(self, count: int, step: int, *, exclude: Collection[int] = ()) -> list[Candidate]:
        """Up to ``count`` rollouts without replacement, by priority; they stay in the buffer.

        Args:
            exclude: Rollout ids that are in the batch already.

        Returns:
            Oldest first, so that the batch does not depend on the order of the draw.
        """
        pool = [each for each in self._rollouts if each.rollout_id not in exclude]
        count = min(count, len(pool))
        if count <= 0:
            return []
        chances = priorities([each.advantage for each in pool], exponent=self._exponent, eps=self._eps)
        # The smallest of Exp(1) / p_i are distributed as draws one after another without replacement.
        generator = np.random.default_rng(derive_seed(self._seed, "replay", step))
        keys = generator.exponential(size=len(pool)) / chances
        chosen = np.sort(np.argsort(keys, kind="stable")[:count])
        self._num_drawn += count
        return [pool[index] for index in chosen]

    def num_available(self, *, exclude: Collection[int] = ()) -> int:
        """Rollouts that could be drawn."""
        return sum(each.rollout_id not in exclude for each in self._rollouts)

    def insert(self, born: Sequence[Candidate]) -> None:
        """Add the fresh rollouts of a step, frozen, after its draw; beyond the capacity the oldest go."""
        self._rollouts.extend(born)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rollouts": [each.state_dict() for each in self._rollouts],
            "num_expired": self._num_expired,
            "num_drawn": self._num_drawn,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rollouts = [Candidate.from_state(each) for each in state["rollouts"]]
        self._rollouts = deque(rollouts, maxlen=self._rollouts.maxlen)
        self._num_expired = state["num_expired"]
        self._num_drawn = state["num_drawn"]

    def metrics(self, step: int) -> dict[str, float]:
        """Size, ages in steps, and totals since the start of the run."""
        ages = [step - each.birth_step for each in self._rollouts]
        return {
            "replay/size": float(len(ages)),
            "replay/mean_age": float(np.mean(ages)) if ages else 0.0,
            "replay/max_age": float(max(ages, default=0)),
            "replay/total_expired": float(self._num_expired),
            "replay/total_drawn": float(self._num_drawn),
        }
