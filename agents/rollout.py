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
    forked). ``action`` is the canonical action string, what gates compare. ``loss_end`` is the end of the tokens the
    environment wants in the loss (``info["loss_text_end"]``), None for all of them.
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
    loss_end: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Rollout:
    """One episode of one task.

    Attributes:
        rollout_id: Unique in a run, the same whatever the order in which episodes end.
        round_index: Allocation round of its step that asked for it.
        is_in_baseline: Its reward counts in the group's mean and it is trained on; False where the allocator leaves its
            round out.
        seed: Derived from run seed, step, task and index; the seed of each reply is derived from the same and its turn.
        terminated: The environment reached an end of its own. truncated: it was cut (turn or token limit); never both.
        stop_reason: What ended it. ``env_done``: the environment said so; ``turn_limit``: its step limit cut it;
            ``token_limit``: no room for another reply; ``gate``: its group was stopped; ``error``: see ``error``.
        verdict: Status of the environment's last verdict (correct, wrong, undecided), None if it gave none;
            verdict_reason: its short clause.
        info: The environment's last ``info``, less what stands in fields of its own.
        num_prefill_tokens: Prompt tokens sent, over all turns; num_cached_tokens: those of them not computed again.
        generate_s, env_s, total_s: Seconds waiting for the engine, for the environment, and of the whole episode.
        was_request_lost: A request failed or was cancelled under way; the tokens it had written never reached us.
    """

    task_id: str
    group_id: int
    index: int
    seed: int
    policy_version: int
    task_type: str = ""
    rollout_id: int = -1
    round_index: int = 0
    is_in_baseline: bool = True
    sequences: list[TokenSequence] = field(default_factory=lambda: [TokenSequence()])
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    verdict: str | None = None
    verdict_reason: str = ""
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
    was_request_lost: bool = False

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
    def has_cut_reply(self) -> bool:
        """Some reply was cut by a token budget, or the episode was truncated (for the overlong filter)."""
        return self.truncated or any(turn.finish_reason == "length" for turn in self.turns)

    def loss_mask(self, sequence: int = -1) -> list[bool]:
        """[T] ``completion_mask`` of one sequence, False also where the environment keeps text out of the loss."""
        number = sequence % len(self.sequences)
        mask = self.sequences[number].completion_mask
        cut = [turn for turn in self.turns if turn.loss_end is not None and turn.sequence == number]
        if not cut:
            return mask
        mask = mask.copy()
        for turn in cut:
            assert turn.loss_end is not None
            mask[turn.loss_end : turn.end] = [False] * (turn.end - turn.loss_end)
        return mask

    @property
    def is_valid(self) -> bool:
        """Counts in its group's baseline: it did not fail and its verdict, if any, was decided."""
        return self.error is None and self.verdict != "undecided" and self.stop_reason != "gate"


@dataclass(slots=True)
class Group:
    """The rollouts of one task under one policy version; sizes may differ between groups.

    ``was_gated`` is set at the moment a gate stops the group and never derived again; an audited group ran on to its
    end although the gate said stop, so ``gate_stop`` is True and ``was_gated`` False.

    ``gate_turn`` is the turn K at which a gate judges it, None without a gate. ``env_seed`` is what every member was
    reset with. ``is_replacement``: a fresh task that took the budget of a stopped group.
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
    gate_turn: int | None = None
    env_id: str = ""
    env_seed: int = 0
    is_replacement: bool = False

    @property
    def valid_rollouts(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.is_valid]

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.valid_rollouts]

    def is_informative(self, tolerance: float = 1e-6) -> bool:
        """At least two valid rewards in the baseline, and they differ by more than ``tolerance``."""
        rewards = [rollout.reward for rollout in self.valid_rollouts if rollout.is_in_baseline]
        return not self.was_gated and len(rewards) >= 2 and max(rewards) - min(rewards) > tolerance

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)
