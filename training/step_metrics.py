"""What a practitioner looks for in the rollouts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from winnowrl.envs.ccr.metrics import group_metrics

if TYPE_CHECKING:
    from winnowrl.agents.collecting.outcome import StepRollouts
    from winnowrl.agents.rollout import Group, Rollout
    from winnowrl.training.batch import TrainingSequence

# Reasons of a verdict that mean no answer could be read; of a program: that it is none.
UNREADABLE = ("no answer", "unparseable", "unreadable", "nothing", "SyntaxError", "IndentationError", "TabError")


def collection_metrics(
    collected: StepRollouts, tolerance: float, informative_ids: Set[int] = frozenset()
) -> dict[str, float]:
    """Rewards, groups, lengths and failures of one step.

    Args:
        informative_ids: Groups whose rewards differ once shaped, as by a penalty for length; they count as informative
            beside those whose own rewards do.
    """
    valid = [rollout for group in collected.groups for rollout in group.valid_rollouts if not group.was_gated]
    return (
        collected.metrics()
        | _reward_metrics(valid)
        | _group_metrics(collected.groups, tolerance, informative_ids)
        | _length_metrics(valid)
        | _ccr_metrics(collected.groups)
        | {"tokens/generated": float(collected.num_completion_tokens)}
    )


def joined_allocation(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The allocator's numbers of a step that drew twice (a refill): sums, extremes, else the latest."""
    found = dict(first) | dict(second)
    for name in first.keys() & second.keys():
        if name.endswith(("/rollouts", "/unspent_rollouts", "/rounds")):
            found[name] = first[name] + second[name]
        elif name.endswith("/smallest_group"):
            found[name] = min(first[name], second[name])
        elif name.endswith("/largest_group"):
            found[name] = max(first[name], second[name])
    return found


def staleness_metrics(trained: Sequence[TrainingSequence], step: int) -> dict[str, float]:
    """Steps since the birth of what an update trains on, weighted by sampled tokens; 0 where nothing is reused."""
    ages = [(step - sequence.birth_step, sequence.num_completion_tokens) for sequence in trained]
    tokens = max(1, sum(count for _, count in ages))
    return {
        "staleness/mean": sum(age * count for age, count in ages) / tokens,
        "staleness/max": float(max((age for age, _ in ages), default=0)),
    }


def _reward_metrics(valid: Sequence[Rollout]) -> dict[str, float]:
    if not valid:
        return {}
    rewards = [rollout.reward for rollout in valid]
    mean = _mean(rewards)
    found = {
        "reward/mean": mean,
        "reward/std": _mean([(reward - mean) ** 2 for reward in rewards]) ** 0.5,
        "reward/min": min(rewards),
        "reward/max": max(rewards),
    }
    for name in sorted({part for rollout in valid for part in rollout.reward_parts}):
        found[f"reward/{name}"] = _mean([rollout.reward_parts.get(name, 0.0) for rollout in valid])
    judged = [rollout for rollout in valid if rollout.verdict is not None]
    if judged:
        unread = sum(any(word in rollout.verdict_reason for word in UNREADABLE) for rollout in judged)
        found["reward/parse_failure_rate"] = unread / len(judged)
    return found


def _group_metrics(groups: Sequence[Group], tolerance: float, informative_ids: Set[int]) -> dict[str, float]:
    informative = sum(group.is_informative(tolerance) or group.group_id in informative_ids for group in groups)
    running = [group for group in groups if not group.was_gated]
    return {
        "groups/informative": float(informative),
        "groups/informative_share": informative / max(1, len(groups)),
        "groups/all_correct": float(sum(_is_constant(group, tolerance, above=True) for group in running)),
        "groups/all_wrong": float(sum(_is_constant(group, tolerance, above=False) for group in running)),
        "groups/gated": float(sum(group.was_gated for group in groups)),
        "groups/audited": float(sum(group.is_audit for group in groups)),
    }


def _is_constant(group: Group, tolerance: float, *, above: bool) -> bool:
    rewards = group.rewards
    if not rewards or max(rewards) - min(rewards) > tolerance:
        return False
    return all(_is_solved(rollout, tolerance) is above for rollout in group.valid_rollouts)


def _is_solved(rollout: Rollout, tolerance: float) -> bool:
    """As the environment says; where it says nothing, whether there was a reward."""
    return rollout.success if rollout.success is not None else rollout.reward > tolerance


def _length_metrics(valid: Sequence[Rollout]) -> dict[str, float]:
    if not valid:
        return {}
    lengths = [rollout.num_completion_tokens for rollout in valid]
    return {
        "length/mean": _mean(lengths),
        "length/max": float(max(lengths)),
        "length/min": float(min(lengths)),
        "length/turns": _mean([len(rollout.turns) for rollout in valid]),
        "length/truncated_share": _mean([float(rollout.has_cut_reply) for rollout in valid]),
    }


def _ccr_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """For prompts of several problems: what the accuracy alone says, and the answers recovered per position."""
    members = [[r for r in group.valid_rollouts if "ccr" in r.info] for group in groups if not group.was_gated]
    members = [rollouts for rollouts in members if rollouts]
    if not members:
        return {}
    reports = [[rollout.info["ccr"] for rollout in rollouts] for rollouts in members]
    found = group_metrics(reports, [[rollout.reward for rollout in rollouts] for rollouts in members])
    return {f"ccr/{name}": value for name, value in found.items()}


def _mean(values: Iterable[float]) -> float:
    items = list(values)
    return sum(items) / len(items) if items else 0.0
