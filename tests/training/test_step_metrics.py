"""Numbers about a step that a reader of the metrics relies on."""

from __future__ import annotations

import pytest

from winnowrl.agents.collecting.outcome import StepRollouts
from winnowrl.agents.rollout import Group, Rollout
from winnowrl.envs.tasks import Task
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.step_metrics import collection_metrics, joined_allocation, staleness_metrics


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


@pytest.mark.parametrize(
    ("reason", "rate"),
    [
        ("no answer in the text", 0.5),
        ("invalid: 0 of 6 checks; SyntaxError: '[' was never closed (line 2)", 0.5),
        ("failed: 0 of 6 checks", 0.0),
        ("invalid: 0 of 6 checks; NameError: name 'x' is not defined (line 1)", 0.0),
    ],
)
def test_what_could_not_be_read_is_told_from_what_is_wrong(reason: str, rate: float) -> None:
    read = Rollout("t", 0, 0, 1, 0, verdict="correct", verdict_reason="passed: 6 of 6 checks", reward=1.0)
    other = Rollout("t", 0, 1, 2, 0, verdict="wrong", verdict_reason=reason)
    step = StepRollouts(1, 0, [Group(0, Task("t", "p"), 0, [read, other])])
    assert collection_metrics(step, 1e-6)["reward/parse_failure_rate"] == rate
