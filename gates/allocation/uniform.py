"""The same number of rollouts for every task, in one round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winnowrl.gates.allocation.base import Allocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winnowrl.gates.allocation.base import FloatArray


class UniformAllocator(Allocator):
    """One round of ``rollouts_per_task`` for each task: plain GRPO."""

    def _lay_out_first(self, num_tasks: int, features: FloatArray | None) -> list[int]:
        return [self.rollouts_per_task] * num_tasks

    def _lay_out_next(self, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None:
        return None

    def _may_remain(self) -> bool:
        return False
