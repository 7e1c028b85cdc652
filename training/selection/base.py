"""What a selector is, and the two simple ones: everything, and a random part of each group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.batch import TrainingSequence, UpdateResult
from winnowrl.training.candidates import Candidate, RoundStats
from winnowrl.training.selection.scheduler import keep_count


class Selector(ABC):
    """Chooses what an update trains on, before its forward and backward pass.

    A step is ``select``, then the update, then ``observe`` with its result (not called when the update was skipped). Whoever
    trains on less than ``pick`` returned says so with ``narrow`` before the update.
    Advantages come from the full groups and stay as they are.
    """

    @property
    def needs_scores(self) -> bool:
        """Whether the entropies of the fresh candidates must come from ``Learner.score`` before ``select``."""
        return False

    def select(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[TrainingSequence]:
        """Sequences to train on: all those of the rollouts that ``pick`` returns."""
        return [sequence for candidate in self.pick(fresh, step, stats) for sequence in candidate.sequences]

    @abstractmethod
    def pick(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[Candidate]:
        """Rollouts to train on.

        Args:
            fresh: This step's rollouts that survived the filters.
            stats: Of all this step's rollouts, unfiltered; None takes them from ``fresh``.
        """

    @abstractmethod
    def narrow(self, chosen: Sequence[Candidate]) -> None:
        """Take note that the update will train on ``chosen`` alone, a part of what ``pick`` returned for this step."""

    @abstractmethod
    def observe(self, result: UpdateResult, step: int) -> None:
        """Take in what the update saw of the sequences chosen for the same step."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Numbers of the last step, by name."""

    def state_dict(self) -> dict[str, Any]:
        """Plain containers and tensors, for a checkpoint between two steps."""
        return {}

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""


class AllSelector(Selector):
    """Trains on every fresh rollout."""

    def __init__(self) -> None:
        self._pool: Sequence[Candidate] = ()
        self._metrics: dict[str, float] = {}

    def pick(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[Candidate]:
        self._pool = fresh
        self.narrow(fresh)
        return list(fresh)

    def narrow(self, chosen: Sequence[Candidate]) -> None:
        self._metrics = selection_metrics(self._pool, chosen)

    def observe(self, result: UpdateResult, step: int) -> None:
        self._pool = ()

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class RandomSelector(AllSelector):
    """The baseline of CBS*: as large a part of each group, at random, derived from (seed, step)."""

    def __init__(self, *, keep_fraction: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self._keep_fraction = keep_fraction
        self._seed = seed

    def pick(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[Candidate]:
        generator = np.random.default_rng(derive_seed(self._seed, "random selection", step))
        chosen: list[Candidate] = []
        for members in by_group(fresh):
            count = keep_count(len(members), self._keep_fraction)
            places = np.sort(generator.permutation(len(members))[:count])
            chosen += [members[place] for place in places]
        self._pool = fresh
        self.narrow(chosen)
        return chosen


def by_group(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates of each group, groups in the order of their first member."""
    groups: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.group_id, []).append(candidate)
    return list(groups.values())


def selection_metrics(pool: Sequence[Candidate], chosen: Sequence[Candidate]) -> dict[str, float]:
    """How much was chosen, and how it differs from what it was chosen from."""
    tokens = sum(candidate.num_tokens for candidate in chosen)
    return {
        "selector/candidates": float(len(pool)),
        "selector/selected": float(len(chosen)),
        "selector/selected_tokens": float(tokens),
        "selector/token_share": tokens / max(sum(candidate.num_tokens for candidate in pool), 1),
        "selector/mean_abs_advantage_pool": _mean_abs_advantage(pool),
        "selector/mean_abs_advantage_selected": _mean_abs_advantage(chosen),
    }


def _mean_abs_advantage(candidates: Sequence[Candidate]) -> float:
    return sum(abs(candidate.advantage) for candidate in candidates) / max(len(candidates), 1)
