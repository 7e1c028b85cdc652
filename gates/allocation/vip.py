"""VIP: predict each task's chance of success, then split the budget to minimise the variance of the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from winnowrl.gates.allocation.base import Allocator
from winnowrl.gates.allocation.integer import check_bounds, split_budget
from winnowrl.gates.allocation.success_model import SuccessModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winnowrl.gates.allocation.base import FloatArray


class VipAllocator(Allocator):
    """One round, split by predicted success; each finished step teaches the predictor.

    Attributes:
        least, most: bounds on the rollouts of a task.
        objective: "dr_grpo" or "rloo", whose gradient variance is minimised.
        reward_low, reward_high: rewards that mean failure and success; a mean reward is placed between them.

    Source: arXiv 2602.01601.
    """

    needs_features: ClassVar[bool] = True

    def __init__(
        self,
        rollouts_per_task: int = 8,
        *,
        least: int = 3,
        most: int = 20,
        objective: str = "dr_grpo",
        length_scale: float | None = None,
        clip: float = 0.01,
        reward_low: float = 0.0,
        reward_high: float = 1.0,
    ) -> None:
        super().__init__(rollouts_per_task)
        check_bounds(least, most, objective)
        if not least <= rollouts_per_task <= most:
            raise ValueError(
                f"rollouts_per_task is {rollouts_per_task} and the bounds {least} to {most}; "
                "the mean must lie within the bounds: change either"
            )
        if reward_high <= reward_low:
            raise ValueError(f"reward_low is {reward_low} and reward_high {reward_high}; the low one must be below")
        self.least = least
        self.most = most
        self.objective = objective
        self.reward_low = reward_low
        self.reward_high = reward_high
        self.model = SuccessModel(length_scale=length_scale, clip=clip)
        self._last_error = 0.0

    def observe(self, features: FloatArray, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> None:
        """Teach the predictor a finished step.

        Args:
            features: [N, D] as given to :meth:`first_round`.
            rewards: [N] valid rewards of each task. Tasks without any, and stopped ones (whose rewards were cut short),
                teach nothing.
            stopped: [N] whether a gate stopped the group.
        """
        if not len(features) == len(rewards) == len(stopped):
            raise ValueError(
                f"features, rewards and stopped have {len(features)}, {len(rewards)} and {len(stopped)} tasks; "
                "give all three for the same tasks"
            )
        known = [row for row, values in enumerate(rewards) if len(values) and not stopped[row]]
        if not known:
            return
        span = self.reward_high - self.reward_low
        success = np.clip([(float(np.mean(rewards[row])) - self.reward_low) / span for row in known], 0.0, 1.0)
        features = np.asarray(features, dtype=np.float64)[known]
        self._last_error = float(np.mean(np.abs(self.model.predict(features) - success)))
        self.model.observe(features, success.tolist())

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "last_error": self._last_error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "model" not in state:
            raise ValueError(f"the checkpoint's allocator state has {sorted(state)}; allowed: that of a VIP allocator")
        self.model.load_state_dict(state["model"])
        self._last_error = float(state["last_error"])

    def metrics(self) -> dict[str, float]:
        """With the predictor's mean absolute error in success rate on the last step, before it saw that step."""
        return {
            **super().metrics(),
            "allocator/prediction_error": self._last_error,
            "allocator/observed_prompts": float(self.model.num_points),
        }

    def _lay_out_first(self, num_tasks: int, features: FloatArray | None) -> list[int]:
        if features is None or len(features) != num_tasks:
            came = "none" if features is None else f"{len(features)} rows"
            raise ValueError(f"features: {came} came; a VIP allocator needs one row for each of the {num_tasks} tasks")
        success = self.model.predict(features)
        return split_budget(
            success.tolist(), self.total_budget, least=self.least, most=self.most, objective=self.objective
        )

    def _lay_out_next(self, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None:
        return None

    def _may_remain(self) -> bool:
        return False
