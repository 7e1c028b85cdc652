"""Numbers about a step that a reader of the metrics relies on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from winnowrl.agents.collecting.outcome import StepRollouts
from winnowrl.agents.rollout import Group, Rollout, TokenSequence
from winnowrl.envs.tasks import Task
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.step_metrics import collection_metrics, joined_allocation, staleness_metrics
from winnowrl.training.sync_check import check_sync


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


CONTEXT = 8


class FullEngine:
    """Scores -1 a token; like vLLM at a model's own limit it needs a place behind what it scores."""

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        assert len(token_ids) < CONTEXT, "too long a prompt"
        return [-1.0] * (len(token_ids) - 1)


class HalfNatLearner:
    """Gives every token -1.5."""

    def score(self, sequences: Sequence[TrainingSequence]) -> dict[int, Any]:
        return {one.rollout_id: SimpleNamespace(logprobs=[-1.5] * len(one.token_ids)) for one in sequences}


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([[False] * 3 + [True] * 5], {"mismatch/after_sync": 0.5}),  # the context is full
        ([[False] * 3 + [True] * 3], {"mismatch/after_sync": 0.5}),
        ([[False] * 7 + [True]], {}),  # its only sampled token is the last that fits
        ([], {}),
    ],
)
def test_a_full_sequence_does_not_end_the_check_after_a_weight_load(
    masks: list[list[bool]], expected: dict[str, float]
) -> None:
    config: Any = SimpleNamespace(
        diagnostics=SimpleNamespace(sync_check_every_steps=1),
        sampling=SimpleNamespace(temperature=1.0),
        conversation=SimpleNamespace(context_tokens=CONTEXT),
    )
    sequences = [TokenSequence([5] * len(mask), mask, [0.0] * len(mask)) for mask in masks]
    rollouts = [SimpleNamespace(sequences=sequences)]
    outcome: Any = SimpleNamespace(was_updated=True, collected=SimpleNamespace(rollouts=rollouts))
    parts: Any = SimpleNamespace(engine=FullEngine(), learner=HalfNatLearner())
    assert check_sync(config, parts, outcome, asyncio.run, 1) == expected
