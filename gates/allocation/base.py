"""What an allocator is: it hands out the rollouts of one step to its tasks, in rounds, to the exact total.

N tasks of the step, C its total budget in rollouts, a round = rollouts drawn together. All rounds of a step use one
policy version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]


class Allocator(ABC):
    """Shared bookkeeping; a subclass says how each round is laid out.

    Attributes:
        rollouts_per_task: mean over the tasks of a step; the total of a step is this times its tasks.
        needs_features: :meth:`first_round` must be given one feature vector per task.
    """

    needs_features: ClassVar[bool] = False

    def __init__(self, rollouts_per_task: int) -> None:
        if rollouts_per_task < 1:
            raise ValueError(f"rollouts_per_task is {rollouts_per_task}; allowed: 1 or more")
        self.rollouts_per_task = rollouts_per_task
        self._rounds: list[list[int]] = []
        self._is_over = True

    @property
    def total_budget(self) -> int:
        """C, rollouts of the step begun last; 0 before the first."""
        return self.rollouts_per_task * len(self._rounds[0]) if self._rounds else 0

    @property
    def spent(self) -> int:
        """Rollouts handed out in this step so far."""
        return sum(map(sum, self._rounds))

    def first_round(self, num_tasks: int, features: FloatArray | None = None) -> list[int]:
        """Begin a step.

        Args:
            num_tasks: N.
            features: [N, D] one vector per task; only read where ``needs_features``.

        Returns:
            [N] rollouts to draw now.
        """
        if num_tasks < 1:
            raise ValueError(f"num_tasks is {num_tasks}; a step has at least one task")
        self._rounds = [[0] * num_tasks]
        self._is_over = False
        self._rounds = [self._lay_out_first(num_tasks, features)]
        self._check_total()
        return list(self._rounds[0])

    def next_round(self, rewards_so_far: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None:
        """Lay out the next round of the step.

        Args:
            rewards_so_far: [N] valid rewards of each task over all rounds of this step; may be fewer than its rollouts.
            stopped: [N] whether a gate stopped the task's group; such a task gets no more.

        Returns:
            [N] further rollouts to draw, or None when the step has no more rounds.
        """
        num_tasks = len(self._rounds[0]) if self._rounds else 0
        if len(rewards_so_far) != num_tasks or len(stopped) != num_tasks:
            raise ValueError(
                f"rewards_so_far has {len(rewards_so_far)} tasks and stopped {len(stopped)}; "
                f"first_round began a step of {num_tasks}"
            )
        counts = None if self._is_over else self._lay_out_next(rewards_so_far, stopped)
        if counts is None:
            self._is_over = True
            return None
        self._rounds.append(counts)
        self._check_total()
        return list(counts)

    def observe(  # noqa: B027 - learning is optional, and most allocators have nothing to learn
        self, features: FloatArray, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]
    ) -> None:
        """Learn from a finished step; only allocators with ``needs_features`` do anything here."""

    def rollout_rounds(self) -> list[list[int]]:
        """[N] for each task the round of each of its rollouts, in the order they were drawn."""
        per_task = zip(*self._rounds, strict=True)
        return [[number for number, count in enumerate(counts) for _ in range(count)] for counts in per_task]

    def baseline_masks(self) -> list[list[bool]]:
        """[N] for each task which of its rollouts belong in the group baseline, in the order they were drawn."""
        return [[True] * len(rounds) for rounds in self.rollout_rounds()]

    def state_dict(self) -> dict[str, Any]:
        """What outlives a step. Rounds do not: a checkpoint is taken between steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        if state:
            raise ValueError(
                f"{type(self).__name__} keeps no state; the checkpoint has {sorted(state)}: "
                "set allocator.type to what the run used"
            )

    def metrics(self) -> dict[str, float]:
        """Of the step begun last: rollouts handed out, and the smallest and largest group."""
        sizes = [sum(counts) for counts in zip(*self._rounds, strict=True)] or [0]
        return {
            "allocator/rollouts": float(self.spent),
            "allocator/unspent_rollouts": float(self.total_budget - self.spent),
            "allocator/rounds": float(len(self._rounds)),
            "allocator/smallest_group": float(min(sizes)),
            "allocator/largest_group": float(max(sizes)),
        }

    @abstractmethod
    def _lay_out_first(self, num_tasks: int, features: FloatArray | None) -> list[int]:
        """[N] rollouts of the first round."""

    @abstractmethod
    def _lay_out_next(self, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None:
        """[N] rollouts of the next round, or None."""

    @abstractmethod
    def _may_remain(self) -> bool:
        """Whether budget may be left after the rounds so far."""

    def _check_total(self) -> None:
        assert self.spent <= self.total_budget, f"{self.spent} rollouts handed out of {self.total_budget}"
        assert self._may_remain() or self.spent == self.total_budget, f"{self.spent} of {self.total_budget} handed out"


def spread_evenly(total: int, tasks: Sequence[int], num_tasks: int) -> list[int]:
    """Split ``total`` rollouts over ``tasks`` so that counts differ by at most one; earlier tasks get the extra.

    Returns:
        [num_tasks] counts, zero for tasks not named.
    """
    counts = [0] * num_tasks
    share, extra = divmod(total, len(tasks))
    for rank, task in enumerate(tasks):
        counts[task] = share + (rank < extra)
    return counts
