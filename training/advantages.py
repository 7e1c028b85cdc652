"""Group advantages: how much better a rollout did than its group.

Legend: B rollouts. A group is the set of rollouts with one group id; members need not be contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnowrl.training.aggregation import segment_sum

ADVANTAGE_SCALES = ("group", "batch", "none")
STD_KINDS = ("population", "sample")
BASELINES = ("mean", "leave_one_out")


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    scale: str = "group",
    std: str = "population",
    eps: float = 1e-6,
    baseline: str = "mean",
    tolerance: float = 1e-6,
    baseline_mask: Tensor | None = None,
) -> Tensor:
    """Center rewards within each group and divide by a standard deviation: A = (r - mean) / (std + eps).

    Args:
        rewards: [B] scalar reward per rollout.
        group_ids: [B] integer id; members need not be contiguous and groups may differ in size.
        scale: ``group`` divides by the group's std (GRPO), ``batch`` by that of all rewards, ``none`` only centers
            (Dr. GRPO, RLOO).
        std: ``population`` (ddof 0) or ``sample`` (ddof 1); they differ most at two members: 1 against 0.7071.
        eps: Added to the std.
        baseline: ``mean`` of the group, or of its other members (``leave_one_out``: G / (G - 1) times as far).
        tolerance: A group whose rewards span no more than this carries no signal and gets exact zeros.
        baseline_mask: [B] bool, False = in no mean and no std, advantage 0 (a verdict that is undecided, a failure).

    Returns:
        [B] float32, no gradient. A group of one, or of equal rewards, gets exact zeros.

    Raises:
        ValueError: shapes differ, or a name is unknown.

    Source: GRPO, DeepSeekMath eq. 3; Dr. GRPO (Liu et al. 2025); RLOO (Ahmadian et al. 2024).
    """
    _check(rewards, group_ids, scale, std, baseline, baseline_mask)
    counted = torch.ones_like(rewards, dtype=torch.bool) if baseline_mask is None else baseline_mask.bool()
    values = torch.where(counted, rewards.detach().double(), 0.0)
    _, groups = torch.unique(group_ids, return_inverse=True)
    num_groups = int(groups.max()) + 1 if groups.numel() else 0
    sizes = segment_sum(counted.double(), groups, num_groups)
    means = segment_sum(values, groups, num_groups) / sizes.clamp(min=1)
    centered = torch.where(counted, values - means[groups], 0.0)

    informative = _reward_span(values, counted, groups, num_groups) > tolerance
    advantages = centered
    if baseline == "leave_one_out":
        advantages = centered * (sizes / (sizes - 1).clamp(min=1))[groups]
    if scale == "group":
        ddof = 1 if std == "sample" else 0
        variances = segment_sum(centered.square(), groups, num_groups) / (sizes - ddof).clamp(min=1)
        advantages = advantages / (variances.sqrt() + eps)[groups]
    elif scale == "batch":
        advantages = advantages / (_batch_std(values[counted], std) + eps)
    return torch.where(counted & informative[groups], advantages, 0.0).float()


def informative_groups(
    rewards: Tensor, group_ids: Tensor, *, tolerance: float = 1e-6, baseline_mask: Tensor | None = None
) -> Tensor:
    """[B] bool, True where the rollout's group has rewards that differ by more than ``tolerance``."""
    counted = torch.ones_like(rewards, dtype=torch.bool) if baseline_mask is None else baseline_mask.bool()
    _, groups = torch.unique(group_ids, return_inverse=True)
    num_groups = int(groups.max()) + 1 if groups.numel() else 0
    return _reward_span(rewards.detach().double(), counted, groups, num_groups)[groups] > tolerance


def _reward_span(values: Tensor, counted: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Largest minus smallest counted reward of each group: [num_groups]; -inf where none is counted."""
    infinity = torch.full((num_groups,), float("inf"), dtype=values.dtype, device=values.device)
    high = (-infinity).scatter_reduce(0, groups, torch.where(counted, values, -torch.inf), "amax")
    low = infinity.scatter_reduce(0, groups, torch.where(counted, values, torch.inf), "amin")
    return high - low


def _batch_std(values: Tensor, kind: str) -> Tensor:
    if values.numel() < 2:
        return values.new_zeros(())
    return values.std(correction=1 if kind == "sample" else 0)


def _check(
    rewards: Tensor, group_ids: Tensor, scale: str, std: str, baseline: str, baseline_mask: Tensor | None
) -> None:
    if rewards.ndim != 1 or rewards.shape != group_ids.shape:
        raise ValueError(
            f"rewards {list(rewards.shape)} and group_ids {list(group_ids.shape)} must both be [B], one a rollout"
        )
    if baseline_mask is not None and baseline_mask.shape != rewards.shape:
        raise ValueError(f"baseline_mask is {list(baseline_mask.shape)}; it must be [B] = {list(rewards.shape)}")
    for name, value, allowed in (
        ("scale", scale, ADVANTAGE_SCALES),
        ("std", std, STD_KINDS),
        ("baseline", baseline, BASELINES),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
