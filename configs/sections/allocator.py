"""The ``allocator`` section: how the rollouts of a step are spread over its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class AllocatorConfig:
    """Spreads ``collector.rollouts_per_task`` x ``collector.tasks_per_step`` rollouts over the tasks of a step."""

    type: str = "uniform"
    """uniform | vigor | vip"""
    rounds: int = 4
    """VIGOR: rounds of drawing in a step."""
    first_round_rollouts: int = 2
    """VIGOR: rollouts of each task in the first round (at least 2, since one reward has no variance)."""
    fraction: float = 0.5
    """VIGOR: share of the active tasks, those of highest reward variance, that stays active after a round (0-1)."""
    growth: float = 2.0
    """VIGOR: factor on the rollouts of each kept task from round to round."""
    skip_zero_variance: bool = False
    """VIGOR: give the rollouts of kept tasks without reward variance to those with."""
    exclude_selection_rounds: bool = False
    """VIGOR: leave rounds whose rewards selected a task out of its baseline and out of the update."""
    least_rollouts: int = 3
    """VIP: lower bound on the rollouts of a task (at least 3 with dr_grpo, 2 with rloo)."""
    most_rollouts: int = 20
    """VIP: upper bound on the rollouts of a task."""
    objective: str = "dr_grpo"
    """VIP: dr_grpo | rloo, the estimator whose gradient variance is minimised."""
    length_scale: float | None = None
    """VIP: length scale of the kernel between prompts; null = median distance of the first step's prompts."""
    success_clip: float = 0.01
    """VIP: observed success rates are kept this far from 0 and 1."""
    reward_low: float = 0.0
    """VIP: reward that means failure."""
    reward_high: float = 1.0
    """VIP: reward that means success."""

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "uniform": (),
        "vigor": (
            "rounds",
            "first_round_rollouts",
            "fraction",
            "growth",
            "skip_zero_variance",
            "exclude_selection_rounds",
        ),
        "vip": (
            "least_rollouts",
            "most_rollouts",
            "objective",
            "length_scale",
            "success_clip",
            "reward_low",
            "reward_high",
        ),
    }

    def first_round_size(self, rollouts_per_task: int) -> int:
        """Rollouts of each task in the first round, which are those that a gate judges (VIP: on the average)."""
        return self.first_round_rollouts if self.type == "vigor" and self.rounds > 1 else rollouts_per_task

    def __post_init__(self) -> None:
        if self.type not in self.TYPES:
            raise ValueError(f"allocator.type is {self.type!r}; allowed: {', '.join(self.TYPES)}")
        self._check_vigor()
        self._check_vip()

    def _check_vigor(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"allocator.rounds is {self.rounds}; allowed: 1 or more")
        least = 2 if self.rounds > 1 else 1
        if self.first_round_rollouts < least:
            raise ValueError(
                f"allocator.first_round_rollouts is {self.first_round_rollouts}; allowed: {least} or more "
                "(a single reward has no variance to select by)"
            )
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"allocator.fraction is {self.fraction}; allowed: above 0, at most 1")
        if self.growth <= 0.0:
            raise ValueError(f"allocator.growth is {self.growth}; allowed: above 0")

    def _check_vip(self) -> None:
        if self.objective not in ("dr_grpo", "rloo"):
            raise ValueError(f"allocator.objective is {self.objective!r}; allowed: dr_grpo, rloo")
        least = 3 if self.objective == "dr_grpo" else 2
        if not least <= self.least_rollouts <= self.most_rollouts:
            raise ValueError(
                f"allocator.least_rollouts is {self.least_rollouts} and allocator.most_rollouts {self.most_rollouts}; "
                f"allowed with {self.objective}: {least} <= least <= most"
            )
        if self.length_scale is not None and self.length_scale <= 0.0:
            raise ValueError(f"allocator.length_scale is {self.length_scale}; allowed: above 0, or null for the median")
        if not 0.0 < self.success_clip < 0.5:
            raise ValueError(f"allocator.success_clip is {self.success_clip}; allowed: above 0, below 0.5")
        if self.reward_high <= self.reward_low:
            raise ValueError(
                f"allocator.reward_low is {self.reward_low} and reward_high {self.reward_high}; set low below high"
            )
