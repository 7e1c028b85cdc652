"""What a collection hands back, and when too much of it has failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnowrl.agents.rollout import Group, Rollout


class FailureRateError(RuntimeError):
    """More rollouts failed than the configured limit allows; the message names the commonest cause."""


@dataclass(slots=True)
class StepRollouts:
    """The groups of one step, in the order of their tasks, replacements last; rollouts in the order they were drawn.

    Attributes:
        step: Step number.
        policy_version: Of the weights that wrote every token of it.
        groups: All groups, stopped and failed ones included.
        rounds: Rollouts drawn in each allocation round, replacements of stopped groups not counted.
        failures: Number of failed rollouts by kind; ``verifier`` counts the undecided ones.
        collect_s: Wall-clock seconds of the collection. generate_s, env_s: seconds that episodes waited for the engine
            and for their environment, summed over episodes (they overlap).
    """

    step: int
    policy_version: int
    groups: list[Group]
    rounds: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    collect_s: float = 0.0
    generate_s: float = 0.0
    env_s: float = 0.0

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]

    @property
    def num_turns(self) -> int:
        return sum(len(rollout.turns) for group in self.groups for rollout in group.rollouts)

    @property
    def num_completion_tokens(self) -> int:
        return sum(rollout.num_completion_tokens for group in self.groups for rollout in group.rollouts)

    @property
    def informative_groups(self) -> list[Group]:
        return [group for group in self.groups if group.is_informative()]

    def metrics(self) -> dict[str, float]:
        """Numbers of the step for the log. Means are over valid rollouts of groups that ran to their end."""
        rollouts = self.rollouts
        valid = [rollout for group in self.groups if not group.was_gated for rollout in group.valid_rollouts]
        num_valid, tokens = max(1, len(valid)), self.num_completion_tokens
        return {
            "collect/rollouts": float(len(rollouts)),
            "collect/groups": float(len(self.groups)),
            "collect/informative_groups": float(len(self.informative_groups)),
            "collect/gated_groups": float(sum(group.was_gated for group in self.groups)),
            "collect/reward_mean": sum(rollout.reward for rollout in valid) / num_valid,
            "collect/success_rate": sum(bool(rollout.success) for rollout in valid) / num_valid,
            "collect/truncated_rate": sum(rollout.truncated for rollout in valid) / num_valid,
            "collect/cut_reply_rate": sum(rollout.has_cut_reply for rollout in valid) / num_valid,
            "collect/turns_mean": sum(len(rollout.turns) for rollout in valid) / num_valid,
            "collect/completion_tokens_mean": sum(rollout.num_completion_tokens for rollout in valid) / num_valid,
            "collect/forked_rollouts": float(sum(rollout.num_forks > 0 for rollout in rollouts)),
            "collect/failure_rate": sum(self.failures.values()) / max(1, len(rollouts)),
            "collect/tokens_per_s": tokens / self.collect_s if self.collect_s else 0.0,
            "collect/seconds": self.collect_s,
            **{f"collect/failed_{kind}": float(count) for kind, count in sorted(self.failures.items())},
        }


def count_failures(rollouts: Iterable[Rollout]) -> Counter[str]:
    """Failed rollouts by kind. An undecided verdict counts as ``verifier``."""
    return Counter(kind for rollout in rollouts if (kind := failure_kind(rollout)) is not None)


def failure_kind(rollout: Rollout) -> str | None:
    if rollout.error is not None:
        return rollout.error.kind
    return "verifier" if rollout.verdict == "undecided" and rollout.stop_reason != "gate" else None


def check_failure_rate(rollouts: Iterable[Rollout], limit: float) -> Counter[str]:
    """Failures by kind. Raises :class:`FailureRateError` when their share is above ``limit``."""
    rollouts = list(rollouts)
    failures = count_failures(rollouts)
    num_failed = sum(failures.values())
    if rollouts and num_failed / len(rollouts) > limit:
        kind, count = failures.most_common(1)[0]
        messages = Counter(
            rollout.error.message.splitlines()[0] if rollout.error and rollout.error.message else "undecided verdict"
            for rollout in rollouts
            if failure_kind(rollout) == kind
        )
        message, times = messages.most_common(1)[0]
        raise FailureRateError(
            f"{num_failed} of {len(rollouts)} rollouts failed ({num_failed / len(rollouts):.0%}; "
            f"collector.failure_rate_limit is {limit:g}). Commonest kind: {kind} ({count} times), most often "
            f"({times} times): {message}"
        )
    return failures
