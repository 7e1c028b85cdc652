"""VIGOR: draw a few rollouts for every task, then go on with those whose rewards vary most.

T rounds, m0 rollouts per task in the first, alpha = share of the active tasks kept after a round, gamma = growth of the
rollouts per kept task from round to round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from winnowrl.gates.allocation.base import Allocator, spread_evenly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winnowrl.gates.allocation.base import FloatArray


class VigorAllocator(Allocator):
    """Variance-guided rounds over a nested active set.

    After each round the active tasks are ranked by the population variance of all their rewards so far, the larger
    first and the earlier task first among equals; ``max(1, floor(alpha * active))`` stay active and get
    ``round(m0 * gamma^t)`` further rollouts each.

    The total is exact whatever the shapes: a round never takes more than what is left, and the last round takes all
    that is left, spread evenly with the extra ones to the tasks of highest variance. Where the budget is that of the
    schedule, m0 * sum_t (alpha * gamma)^t per task, and nothing is rounded, each round comes out as scheduled.

    A group that a gate stopped counts as variance 0 and gets no more rollouts. Its place falls to the next active task;
    when no active task is open, to the open ones of the whole step. Only when every group of the step is stopped does
    budget stay unspent.

    Attributes:
        rounds: T.
        first_round_rollouts: m0; at least 2 where there is a second round, since one reward has no variance.
        fraction: alpha, in (0, 1].
        growth: gamma, above 0.
        skip_zero_variance: give the rollouts of kept tasks without variance to those with. Where none has any, all kept
            tasks go on as without this option.
        exclude_selection_rounds: leave rounds whose rewards selected the task out of its baseline and of the update.

    Source: arXiv 2607.22002.
    """

    def __init__(
        self,
        rollouts_per_task: int = 8,
        *,
        rounds: int = 4,
        first_round_rollouts: int = 2,
        fraction: float = 0.5,
        growth: float = 2.0,
        skip_zero_variance: bool = False,
        exclude_selection_rounds: bool = False,
    ) -> None:
        super().__init__(rollouts_per_task)
        check_schedule(rounds, first_round_rollouts, fraction, growth)
        if first_round_rollouts > rollouts_per_task:
            raise ValueError(
                f"first_round_rollouts is {first_round_rollouts} and rollouts_per_task {rollouts_per_task}; "
                "the first round alone would pass the budget: lower the one or raise the other"
            )
        self.rounds = rounds
        self.first_round_rollouts = first_round_rollouts
        self.fraction = fraction
        self.growth = growth
        self.skip_zero_variance = skip_zero_variance
        self.exclude_selection_rounds = exclude_selection_rounds
        self._active: list[int] = []
        self._quota = 0

    def plan(self, num_tasks: int) -> list[tuple[int, int]]:
        """Per round the active tasks and the rollouts of the round, as long as no group is stopped.

        The last entry holds whatever is left to the exact total; rounds that would be empty are left out.
        """
        active, remaining, rounds = num_tasks, self.rollouts_per_task * num_tasks, []
        for number in range(self.rounds):
            count = self._round_size(number, active, remaining)
            if count == 0:
                break
            rounds.append((active, count))
            remaining -= count
            active = self._num_kept(active)
        return rounds

    def baseline_masks(self) -> list[list[bool]]:
        """See the base class. With ``exclude_selection_rounds`` a task that was drawn in several rounds has only its
        last round in the baseline, as long as that round holds at least two rollouts; a task of one round keeps it.
        """
        all_rounds = self.rollout_rounds()
        if not self.exclude_selection_rounds:
            return [[True] * len(rounds) for rounds in all_rounds]
        return [_only_last_round(rounds) for rounds in all_rounds]

    def _lay_out_first(self, num_tasks: int, features: FloatArray | None) -> list[int]:
        self._active, self._quota = list(range(num_tasks)), num_tasks
        count = self._round_size(0, num_tasks, self.total_budget)
        return spread_evenly(count, self._active, num_tasks)

    def _lay_out_next(self, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None:
        number, remaining = len(self._rounds), self.total_budget - self.spent
        if number >= self.rounds or remaining == 0:
            return None
        is_open = [task for task in self._active if not stopped[task]]
        is_open = is_open or [task for task, is_stopped in enumerate(stopped) if not is_stopped]
        if not is_open:
            return None
        # The quota follows the schedule, not the stops, so that a stopped group does not change what a round spends.
        self._quota = self._num_kept(self._quota)
        variances = [reward_variance(values) for values in rewards]
        self._active = top_tasks(variances, is_open, self._quota)
        varying = [task for task in self._active if variances[task] > 0.0]
        receivers = varying if self.skip_zero_variance and varying else self._active
        return spread_evenly(self._round_size(number, self._quota, remaining), receivers, len(rewards))

    def _may_remain(self) -> bool:
        return len(self._rounds) < self.rounds

    def _num_kept(self, num_active: int) -> int:
        # Guards against 0.1 * 10 style products that land a rounding error below an integer.
        return max(1, math.floor(self.fraction * num_active + 1e-9))

    def _round_size(self, number: int, num_active: int, remaining: int) -> int:
        """Rollouts of a round: as scheduled within what is left, and all that is left in the last."""
        if number == self.rounds - 1:
            return remaining
        scheduled = num_active * max(1, round(self.first_round_rollouts * self.growth**number))
        return min(scheduled, remaining)


def reward_variance(rewards: Sequence[float]) -> float:
    """Population variance; 0 for fewer than two rewards, and exactly 0 for equal ones."""
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return 0.0
    return float(np.var(np.asarray(rewards, dtype=np.float64)))


def top_tasks(variances: Sequence[float], tasks: Sequence[int], count: int) -> list[int]:
    """The ``count`` tasks of highest variance, best first; the lower task index first among equals.

    Variances are compared to 12 digits, so that rounding does not rank 1-of-4 above 3-of-4 successes.
    """
    return sorted(tasks, key=lambda task: (-float(f"{variances[task]:.12g}"), task))[:count]


def variance_gain(tail: float, *, rounds: int, fraction: float, growth: float) -> tuple[float, float]:
    """Expected gain over uniform allocation where variance over tasks has a Pareto tail.

    eta = sum_t (gamma alpha^(1-1/k))^t / sum_t (alpha gamma)^t, the ratio of the mean reward variance behind a rollout;
    the predicted speed-up is its cube root. A model of a tail only: the variance of a 0/1 reward ends at 1/4.

    Args:
        tail: k > 1, exponent of the Pareto tail.

    Returns:
        (eta, speed-up).
    """
    if tail <= 1.0:
        raise ValueError(f"tail is {tail}; allowed: above 1 (a heavier tail has no mean)")
    drawn = [(growth * fraction ** (1.0 - 1.0 / tail)) ** number for number in range(rounds)]
    spent = [(fraction * growth) ** number for number in range(rounds)]
    eta = sum(drawn) / sum(spent)
    return eta, eta ** (1.0 / 3.0)


def check_schedule(rounds: int, first_round_rollouts: int, fraction: float, growth: float) -> None:
    """Raise ``ValueError`` for a schedule that cannot be run."""
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; allowed: 1 or more")
    least = 2 if rounds > 1 else 1
    if first_round_rollouts < least:
        raise ValueError(
            f"first_round_rollouts is {first_round_rollouts}; allowed: {least} or more "
            "(a single reward has no variance)"
        )
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction is {fraction}; allowed: above 0, at most 1")
    if growth <= 0.0:
        raise ValueError(f"growth is {growth}; allowed: above 0")


def _only_last_round(rounds: list[int]) -> list[bool]:
    last = [number == rounds[-1] for number in rounds]
    return last if sum(last) >= 2 else [True] * len(rounds)
