"""What a practitioner looks for in the rollouts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from winnowrl.envs.ccr.metrics import group_metrics

if TYPE_CHECKING:
    from winnowrl.agents.collecting.outcome import StepRollouts
    from winnowrl.agents.rollout import Group, Rollout

# Reasons of a verdict that mean no answer could be read.
UNREADABLE = ("no answer", "unparseable", "unreadable", "nothing")


def collection_metrics(collected: StepRollouts, tolerance: float) -> dict[str, float]:
    """Rewards, groups, lengths and failures of one step."""
    valid = [rollout for group in collected.groups for rollout in group.valid_rollouts if not group.was_gated]
    return (
        collected.metrics()
        | _reward_metrics(valid)
        | _group_metrics(collected.groups, tolerance)
        | _length_metrics(valid)
        | _ccr_metrics(collected.groups)
        | {"tokens/generated": float(collected.num_completion_tokens)}
    )


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


def _group_metrics(groups: Sequence[Group], tolerance: float) -> dict[str, float]:
    informative = sum(group.is_informative(tolerance) for group in groups)
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
    return (rewards[0] > tolerance) is above


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
