"""Exact integer split of a budget over tasks, for costs that fall convexly with the rollouts of a task.

Q tasks, n_q rollouts of task q, C the budget, a_q = 4 p_q (1 - p_q) the variance of a reward of +1 or -1 whose success
probability is p_q. The cost is the variance of the task's projected gradient, up to a factor all tasks share.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Below this count the cost is not convex in n (Dr.GRPO), or not defined (RLOO), and the greedy split not exact.
LEAST_ROLLOUTS = {"dr_grpo": 3, "rloo": 2}
OBJECTIVES = tuple(LEAST_ROLLOUTS)


def gradient_variance(success: float, rollouts: int, objective: str) -> float:
    """Cost of one task: a (n-1)/n^2 for Dr.GRPO, a/(n-1) for RLOO.

    Source: arXiv 2602.01601, section 4.
    """
    spread = 4.0 * success * (1.0 - success)
    if objective == "dr_grpo":
        return spread * (rollouts - 1) / rollouts**2
    return spread / (rollouts - 1)


def split_budget(success: Sequence[float], total: int, *, least: int, most: int, objective: str) -> list[int]:
    """Counts n with least <= n_q <= most and sum C that minimise the summed gradient variance.

    One rollout at a time goes where it lowers the cost most; with convex costs no exchange of rollouts can improve on
    the result. Equal gains go to the smaller group, then to the earlier task.

    Args:
        success: [Q] predicted probability of success, in [0, 1].
        total: C.
        least, most: bounds on every n_q; ``least`` at least 3 for Dr.GRPO and 2 for RLOO.
        objective: "dr_grpo" or "rloo".

    Raises:
        ValueError: no split fits the bounds, or the bounds leave the convex range.
    """
    check_bounds(least, most, objective)
    num_tasks = len(success)
    if not num_tasks * least <= total <= num_tasks * most:
        raise ValueError(
            f"{total} rollouts cannot be split over {num_tasks} tasks with {least} to {most} each "
            f"(allowed: {num_tasks * least} to {num_tasks * most}); change the bounds or rollouts_per_task"
        )
    counts = [least] * num_tasks
    heap = [(-_gain(p, least, objective), least, task) for task, p in enumerate(success)] if most > least else []
    heapq.heapify(heap)
    for _ in range(total - num_tasks * least):
        _, count, task = heapq.heappop(heap)
        counts[task] = count + 1
        if counts[task] < most:
            heapq.heappush(heap, (-_gain(success[task], count + 1, objective), count + 1, task))
    assert sum(counts) == total, f"{sum(counts)} of {total} rollouts split"
    return counts


def check_bounds(least: int, most: int, objective: str) -> None:
    """Raise ``ValueError`` unless the bounds are ordered and lie where the cost of ``objective`` is convex."""
    if objective not in LEAST_ROLLOUTS:
        raise ValueError(f"objective is {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    if least < LEAST_ROLLOUTS[objective]:
        raise ValueError(
            f"least is {least}; allowed with {objective}: {LEAST_ROLLOUTS[objective]} or more, where its cost is convex"
        )
    if most < least:
        raise ValueError(f"least is {least} and most {most}; most must not be below least")


def _gain(success: float, rollouts: int, objective: str) -> float:
    """How far one more rollout lowers the cost."""
    return gradient_variance(success, rollouts, objective) - gradient_variance(success, rollouts + 1, objective)
