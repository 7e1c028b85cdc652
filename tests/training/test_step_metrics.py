"""Numbers about a step that a reader of the metrics relies on."""

from __future__ import annotations

from winnowrl.training.batch import TrainingSequence
from winnowrl.training.step_metrics import joined_allocation, staleness_metrics


def sequence(birth_step: int, num_tokens: int) -> TrainingSequence:
    mask = [False] + [True] * num_tokens
    return TrainingSequence([5] * len(mask), mask, [0.0] * len(mask), 1.0, 0, 0, birth_step=birth_step)


def test_staleness_is_weighted_by_sampled_tokens() -> None:
    found = staleness_metrics([sequence(7, 6), sequence(3, 2)], step=7)
    assert found == {"staleness/mean": 1.0, "staleness/max": 4.0}


def test_fresh_rollouts_are_not_stale() -> None:
    assert staleness_metrics([sequence(7, 3)], step=7) == {"staleness/mean": 0.0, "staleness/max": 0.0}


def test_a_refilled_step_counts_both_draws() -> None:
    first = {"allocator/rollouts": 24.0, "allocator/smallest_group": 2.0, "allocator/largest_group": 8.0}
    second = {"allocator/rollouts": 8.0, "allocator/smallest_group": 4.0, "allocator/largest_group": 16.0}
    assert joined_allocation({}, first) == first
    assert joined_allocation(first, second) == {
        "allocator/rollouts": 32.0,
        "allocator/smallest_group": 2.0,
        "allocator/largest_group": 16.0,
    }
