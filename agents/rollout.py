"""The nouns of generation: token sequence, turn, rollout, group. What ended an episode is recorded, never guessed later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from winnowrl.agents.errors import ErrorRecord
    from winnowrl.envs.tasks import Task

StopReason = Literal["env_done", "turn_limit", "token_limit", "gate", "error"]


@dataclass(slots=True)
class TokenSequence:
    """Parallel arrays over one sequence of T tokens, exactly what the model saw and wrote.

    Attributes:
        token_ids: [T].
        completion_mask: [T], True = sampled by the policy.
        sampler_logprobs: [T], the engine's log p of each sampled id; 0.0 where the mask is False.
    """

    token_ids: list[int] = field(default_factory=list)
    completion_mask: list[bool] = field(default_factory=list)
    sampler_logprobs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return sum(self.completion_mask)


@dataclass(slots=True)
class Turn:
    """One reply and the environment's answer to it.

    ``start``/``end`` are the span of the sampled tokens in the sequence numbered ``sequence`` (0 unless the rollout
    forked). ``action`` is the canonical action string, what gates compare.
    """

    start: int
    end: int
    text: str
    action: str
    observation: str = ""
    finish_reason: str = "stop"
    sequence: int = 0
    reward: float = 0.0
    generate_s: float = 0.0
    env_s: float = 0.0


@dataclass(slots=True)
class Rollout:
    """One episode of one task."""

    task_id: str
    group_id: int
    index: int
    seed: int
    policy_version: int
    task_type: str = ""
    sequences: list[TokenSequence] = field(default_factory=lambda: [TokenSequence()])
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    verdict: str | None = None
    success: bool | None = None
    terminated: bool = False
    truncated: bool = False
    stop_reason: StopReason | None = None
    error: ErrorRecord | None = None
    info: dict[str, Any] = field(default_factory=dict)
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    generate_s: float = 0.0
    env_s: float = 0.0
    total_s: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return self.sequences[-1].token_ids

    @property
    def completion_mask(self) -> list[bool]:
        return self.sequences[-1].completion_mask

    @property
    def sampler_logprobs(self) -> list[float]:
        return self.sequences[-1].sampler_logprobs

    @property
    def num_forks(self) -> int:
        return len(self.sequences) - 1

    @property
    def num_completion_tokens(self) -> int:
        """Sampled tokens over all sequences; a fork repeats no sampled token with mask True."""
        return sum(sequence.num_completion_tokens for sequence in self.sequences)

    @property
    def actions(self) -> list[str]:
        return [turn.action for turn in self.turns]

    @property
    def is_valid(self) -> bool:
        """Counts in its group's baseline: it did not fail and its verdict, if any, was decided."""
        return self.error is None and self.verdict != "undecided" and self.stop_reason != "gate"


@dataclass(slots=True)
class Group:
    """The rollouts of one task under one policy version; sizes may differ between groups.

    ``was_gated`` is set at the moment a gate stops the group and never derived again; an audited group ran on to its
    end although the gate said stop, so ``gate_stop`` is True and ``was_gated`` False.
    """

    group_id: int
    task: Task
    policy_version: int
    rollouts: list[Rollout] = field(default_factory=list)
    was_gated: bool = False
    gate_stop: bool = False
    gate_distance: float | None = None
    gate_reason: str = ""
    is_audit: bool = False

    @property
    def valid_rollouts(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.is_valid]

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.valid_rollouts]

    def is_informative(self, tolerance: float = 1e-6) -> bool:
        """At least two valid rewards, and they differ by more than ``tolerance``."""
        rewards = self.rewards
        return not self.was_gated and len(rewards) >= 2 and max(rewards) - min(rewards) > tolerance

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)
