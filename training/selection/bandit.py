"""Contextual rollout bandits: a small network learns which rollouts make the next policy better.

CBS* chooses within each fresh group; CBS chooses as many as are fresh from a buffer of the last L rounds. The reward of a
round's choice is known one round later, from the rewards of the next rollouts, so the network lags by one step.

Source: arXiv 2602.08499; what its text leaves open is an option here (docs/objectives.md).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.batch import UpdateResult
from winnowrl.training.candidates import Candidate, RoundStats, frozen_sequences, record_use
from winnowrl.training.selection.base import Selector, by_group, selection_metrics
from winnowrl.training.selection.features import NUM_FEATURES, HistoryScaler, l2_normalize, rollout_features
from winnowrl.training.selection.reward import RewardNormalizer, credit, entropy_term
from winnowrl.training.selection.scheduler import Scheduler, choose, explore_probability, keep_count


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditOptions:
    """Settings that CBS* and CBS share; units and meaning are in ``SelectorConfig``, whose names these are."""

    max_tokens: int
    seed: int = 0
    entropy_source: str = "sampler"
    entropy_weight: float = 1.0
    entropy_floor: float = 0.3
    ema_mode: str = "center_scale_gain"
    ema_rate: float = 0.1
    credit: str = "scaled"
    explore_unit: str = "round"
    explore_start: float = 0.2
    explore_end: float = 0.02
    explore_rounds: int = 100
    hidden_size: int = 64
    hidden_layers: int = 2
    scheduler_learning_rate: float = 1e-3
    scheduler_updates: int = 1
    standardize_history: bool = True
    l2_normalize: bool = True


@dataclass(frozen=True, slots=True)
class _Pending:
    """A choice that waits for its reward."""

    features: Tensor
    advantages: list[float]
    stats: RoundStats

    def state_dict(self) -> dict[str, Any]:
        return {"features": self.features, "advantages": self.advantages, "stats": list(astuple(self.stats))}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Pending:
        return cls(state["features"], state["advantages"], RoundStats(*state["stats"]))


class BanditSelector(Selector):
    """What both bandits do; a subclass says what there is to choose from and how many are taken.

    A choice waits for its reward until rollouts of the policy it led to are there. A step without any (all of them failed,
    say) trains on nothing, so the next one still shows that same policy: the choice goes on waiting, and neither the network
    nor the running statistics learn from the empty step. A reward that is not finite teaches nothing, and its choice is
    dropped: an update follows, and later rollouts show its effect too.
    """

    def __init__(self, options: BanditOptions) -> None:
        self._options = options
        self._scheduler = Scheduler(
            num_features=NUM_FEATURES,
            hidden_size=options.hidden_size,
            hidden_layers=options.hidden_layers,
            learning_rate=options.scheduler_learning_rate,
            seed=derive_seed(options.seed, "scheduler"),
        )
        self._normalizer = RewardNormalizer(mode=options.ema_mode, rate=options.ema_rate)
        self._scaler = HistoryScaler()
        self._num_rounds = 0
        self._pending: _Pending | None = None
        self._proposed: _Pending | None = None
        self._step = 0
        self._pool: list[Candidate] = []
        self._chosen: list[Candidate] = []
        self._metrics: dict[str, float] = {}

    @property
    def needs_scores(self) -> bool:
        return self._options.entropy_source == "learner"

    def pick(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[Candidate]:
        now = self._round_stats(fresh, stats)
        self._metrics = {}
        if now is not None:
            self._metrics = self._learn(now)
            self._pending = None
        self._step = step
        pool = self._pool = self._candidates(fresh, step)
        features = self._features(pool, step)
        places = self._choose(pool, self._scheduler.score(features), len(fresh), step)
        self._chosen = [pool[place] for place in places]
        # It becomes the pending one when the update is observed: a skipped update earns no reward.
        advantages = [candidate.advantage for candidate in self._chosen]
        self._proposed = None if now is None else _Pending(features[places], advantages, now)
        self._num_rounds += 1
        self._metrics |= self._choice_metrics()
        return list(self._chosen)

    def narrow(self, chosen: Sequence[Candidate]) -> None:
        """Only what the update trains on earns a reward."""
        kept = {candidate.rollout_id for candidate in chosen}
        places = [place for place, candidate in enumerate(self._chosen) if candidate.rollout_id in kept]
        self._chosen = [self._chosen[place] for place in places]
        if (proposed := self._proposed) is not None:
            advantages = [candidate.advantage for candidate in self._chosen]
            self._proposed = _Pending(proposed.features[places], advantages, proposed.stats)
        self._metrics |= self._choice_metrics()

    def observe(self, result: UpdateResult, step: int) -> None:
        self._pending = self._proposed if self._chosen else None
        self._proposed, self._pool = None, []

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {
            "scheduler": self._scheduler.state_dict(),
            "normalizer": self._normalizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "num_rounds": self._num_rounds,
            "pending": None if self._pending is None else self._pending.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load_state_dict(state["scheduler"])
        self._normalizer.load_state_dict(state["normalizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._num_rounds = state["num_rounds"]
        self._pending = None if state["pending"] is None else _Pending.from_state(state["pending"])
        self._proposed, self._pool, self._chosen = None, [], []

    @abstractmethod
    def _candidates(self, fresh: Sequence[Candidate], step: int) -> list[Candidate]:
        """What there is to choose from."""

    @abstractmethod
    def _choose(self, pool: Sequence[Candidate], scores: Sequence[float], num_fresh: int, step: int) -> list[int]:
        """Places in the pool, ascending."""

    def _choice_metrics(self) -> dict[str, float]:
        return selection_metrics(self._pool, self._chosen)

    def _explore(self, generator: np.random.Generator) -> float:
        """Probability of a random choice as ``choose`` wants it: decided here for the whole round, or left to slots."""
        options = self._options
        chance = explore_probability(
            self._num_rounds, start=options.explore_start, end=options.explore_end, num_rounds=options.explore_rounds
        )
        if options.explore_unit == "round":
            chance = float(generator.random() < chance)
        self._metrics["selector/explored"] = chance
        return chance

    def _generator(self, step: int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self._options.seed, "bandit", step))

    def _features(self, pool: Sequence[Candidate], step: int) -> Tensor:
        features = rollout_features(pool, step, self._options.max_tokens)
        if self._options.standardize_history:
            self._scaler.update(features)
            features = self._scaler(features)
        return l2_normalize(features) if self._options.l2_normalize else features

    def _round_stats(self, fresh: Sequence[Candidate], stats: RoundStats | None) -> RoundStats | None:
        """Of the present rollouts; the learner's entropy among them only where it scored every one."""
        of_fresh = RoundStats.of_candidates(fresh)
        now = stats or of_fresh
        if self.needs_scores and now is not None and of_fresh is not None and now.num_rollouts == len(fresh):
            return replace(now, learner_entropy=of_fresh.mean_entropy)
        return now

    def _learn(self, now: RoundStats) -> dict[str, float]:
        """Fit the scheduler to the last choice, whose reward the present rollouts reveal."""
        if self._pending is None:
            return {}
        options, last = self._options, self._pending.stats
        gain = now.mean_reward - last.mean_reward
        before, after = _entropies(last, now)
        if not all(math.isfinite(value) for value in (gain, before, after)):
            return {}
        cost = entropy_term(before, after, weight=options.entropy_weight, floor=options.entropy_floor)
        self._normalizer.update(gain)
        reward = self._normalizer(gain, cost)
        targets = credit(self._pending.advantages, reward, mode=options.credit)
        error = self._scheduler.fit(self._pending.features, targets, options.scheduler_updates)
        return {"selector/reward": reward, "selector/gain": gain, "selector/scheduler_loss": error}


def _entropies(last: RoundStats, now: RoundStats) -> tuple[float, float]:
    """Of two rounds, nats per token, told by one and the same source."""
    if last.learner_entropy is None or now.learner_entropy is None:
        return last.mean_entropy, now.mean_entropy
    return last.learner_entropy, now.learner_entropy


class CbsStarSelector(BanditSelector):
    """CBS*: the best floor(keep_fraction * G) rollouts of each fresh group (at least one)."""

    def __init__(self, options: BanditOptions, *, keep_fraction: float = 0.5) -> None:
        super().__init__(options)
        self._keep_fraction = keep_fraction

    def _candidates(self, fresh: Sequence[Candidate], step: int) -> list[Candidate]:
        return [candidate for members in by_group(fresh) for candidate in members]

    def _choose(self, pool: Sequence[Candidate], scores: Sequence[float], num_fresh: int, step: int) -> list[int]:
        generator = self._generator(step)
        explore = self._explore(generator)
        places: list[int] = []
        start = 0
        for members in by_group(pool):
            end = start + len(members)
            count = keep_count(len(members), self._keep_fraction)
            picked = choose(scores[start:end], count, explore, self._options.explore_unit, generator)
            places += sorted(start + place for place in picked)
            start = end
        return places


class CbsSelector(BanditSelector):
    """CBS: from the rollouts of the last ``buffer_rounds`` steps, as many as are fresh, so the update keeps its size."""

    def __init__(self, options: BanditOptions, *, buffer_rounds: int = 4, birth_logprobs: str = "learner") -> None:
        """Args:
        birth_logprobs: Where the ratio of a rollout chosen again starts: the log-probs of the ``learner`` at its
            birth (the ``sampler``'s where it was not trained on then), or always the ``sampler``'s.
        """
        super().__init__(options)
        self._buffer_rounds = buffer_rounds
        self._birth_logprobs = birth_logprobs
        self._buffer: list[Candidate] = []

    @property
    def buffer(self) -> tuple[Candidate, ...]:
        """Oldest first."""
        return tuple(self._buffer)

    def observe(self, result: UpdateResult, step: int) -> None:
        super().observe(result, step)
        for candidate in self._buffer:
            record_use(candidate, result.sequences)
            candidate.sequences = frozen_sequences(candidate, result.sequences, self._birth_logprobs)

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        found["selector/buffer"] = float(len(self._buffer))
        return found

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"buffer": [candidate.state_dict() for candidate in self._buffer]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._buffer = [Candidate.from_state(candidate) for candidate in state["buffer"]]

    def _candidates(self, fresh: Sequence[Candidate], step: int) -> list[Candidate]:
        recent = [c for c in self._buffer if c.birth_step > step - self._buffer_rounds]
        # An update that was skipped reported nothing: what it would have frozen starts from the sampler.
        for candidate in recent:
            candidate.sequences = frozen_sequences(candidate, {}, self._birth_logprobs)
        self._buffer = recent + list(fresh)
        return list(self._buffer)

    def _choose(self, pool: Sequence[Candidate], scores: Sequence[float], num_fresh: int, step: int) -> list[int]:
        generator = self._generator(step)
        explore = self._explore(generator)
        return sorted(choose(scores, num_fresh, explore, self._options.explore_unit, generator))

    def _choice_metrics(self) -> dict[str, float]:
        ages = [self._step - candidate.birth_step for candidate in self._chosen]
        return super()._choice_metrics() | {"selector/mean_age": float(np.mean(ages)) if ages else 0.0}
