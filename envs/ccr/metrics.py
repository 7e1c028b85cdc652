"""What a CCR run logs about its groups: from ``info["ccr"]`` and rewards alone, no tokens needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# G rollouts in a group, N problems in a prompt


def group_metrics(
    groups: Sequence[Sequence[Mapping[str, Any]]], rewards: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Metrics of one step over its groups of rollouts.

    Args:
        groups: For each group, the ``info["ccr"]`` of its G rollouts.
        rewards: For each group, the total rewards of the same rollouts.

    Returns:
        ``accuracy_informative_groups`` (fraction whose accuracy, not total, varies: the diagnostic of the method),
        ``reward_informative_groups``, ``answers_recovered`` (mean of recovered / N), ``count_probability/c`` (share of
        rollouts with c right answers), ``position_accuracy/k`` and ``position_recovered/k``. Empty without rollouts.

    Raises:
        ValueError: the two differ in shape.
    """
    if [len(group) for group in groups] != [len(group) for group in rewards]:
        raise ValueError("groups and rewards differ in shape; give one reward for each rollout")
    rollouts = [rollout for group in groups for rollout in group]
    if not rollouts:
        return {}
    counts = [[sum(rollout["correct"]) / rollout["num_problems"] for rollout in group] for group in groups]
    metrics = {
        "accuracy_informative_groups": _mean([float(_varies(group)) for group in counts if group]),
        "reward_informative_groups": _mean([float(_varies(group)) for group in rewards if group]),
        "answers_recovered": _mean([rollout["n_eff"] / rollout["num_problems"] for rollout in rollouts]),
    }
    width = max(rollout["num_problems"] for rollout in rollouts)
    for count in range(width + 1):
        metrics[f"count_probability/{count}"] = _mean([float(sum(r["correct"]) == count) for r in rollouts])
    for k in range(width):
        reached = [rollout for rollout in rollouts if rollout["num_problems"] > k]
        metrics[f"position_accuracy/{k + 1}"] = _mean([float(rollout["correct"][k]) for rollout in reached])
        metrics[f"position_recovered/{k + 1}"] = _mean([float(rollout["recovered"][k]) for rollout in reached])
    return metrics


def _varies(values: Sequence[float]) -> bool:
    return max(values) - min(values) > 1e-9


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
