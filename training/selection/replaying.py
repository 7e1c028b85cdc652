"""Replay on top of any selector: past rollouts join what it chose and displace nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from winnowrl.training.batch import UpdateResult
from winnowrl.training.candidates import Candidate, RoundStats, frozen_sequences
from winnowrl.training.replay import ReplayBuffer, replay_count
from winnowrl.training.selection.base import Selector


class ReplaySelector(Selector):
    """Fresh-anchored replay: select, evict by age, draw, and after the update insert the fresh rollouts it trained on."""

    def __init__(
        self,
        base: Selector,
        buffer: ReplayBuffer,
        *,
        ratio: float = 0.5,
        warmup_steps: int = 20,
        birth_logprobs: str = "learner",
        multiple_of: int = 1,
    ) -> None:
        """Args:
        base: Chooses among the fresh rollouts (and, if it is CBS, its own past ones).
        ratio: Replayed rollouts per chosen one. warmup_steps: No replay before this step.
        birth_logprobs: Where a replayed ratio starts: the ``learner``'s log-probs at birth or the ``sampler``'s.
        multiple_of: The rollouts of a step are brought to a multiple of this, if there are as many; what is left out for it
            counts as not chosen.
        """
        self._base = base
        self._buffer = buffer
        self._ratio = ratio
        self._warmup_steps = warmup_steps
        self._birth_logprobs = birth_logprobs
        self._multiple_of = multiple_of
        self._born: list[Candidate] = []
        self._metrics: dict[str, float] = {}

    @property
    def needs_scores(self) -> bool:
        return self._base.needs_scores

    @property
    def buffer(self) -> ReplayBuffer:
        return self._buffer

    def pick(self, fresh: Sequence[Candidate], step: int, stats: RoundStats | None = None) -> list[Candidate]:
        chosen = self._base.pick(fresh, step, stats)
        self._buffer.evict(step)
        taken = {candidate.rollout_id for candidate in chosen}
        available = self._buffer.num_available(exclude=taken) if step >= self._warmup_steps else 0
        count, left_out = replay_count(len(chosen), self._ratio, available, multiple_of=self._multiple_of)
        if left_out:
            chosen = chosen[:-left_out]
            self._base.narrow(chosen)
        drawn = self._buffer.draw(count, step, exclude=taken)
        self._born = [candidate for candidate in chosen if candidate.birth_step == step]
        self._metrics = self._buffer.metrics(step) | {
            "replay/replayed": float(len(drawn)),
            "replay/replayed_tokens": float(sum(s.num_completion_tokens for e in drawn for s in e.sequences)),
            "replay/left_out": float(left_out),
        }
        return chosen + drawn

    def narrow(self, chosen: Sequence[Candidate]) -> None:
        self._base.narrow(chosen)
        kept = {candidate.rollout_id for candidate in chosen}
        self._born = [candidate for candidate in self._born if candidate.rollout_id in kept]

    def observe(self, result: UpdateResult, step: int) -> None:
        # The base first: CBS freezes the same rollouts, and one frozen copy then serves both.
        self._base.observe(result, step)
        self._buffer.insert(
            [
                replace(each, sequences=frozen_sequences(each, result.sequences, self._birth_logprobs))
                for each in self._born
            ]
        )
        self._born = []

    def metrics(self) -> dict[str, float]:
        return self._base.metrics() | self._metrics

    def state_dict(self) -> dict[str, Any]:
        return {"base": self._base.state_dict(), "buffer": self._buffer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._base.load_state_dict(state["base"])
        self._buffer.load_state_dict(state["buffer"])
        self._born = []
