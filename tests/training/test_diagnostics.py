from __future__ import annotations

import pytest

from winnowrl.configs.sections.run import DiagnosticsConfig
from winnowrl.training.diagnostics import Diagnostics

HEALTHY = {
    "reward/mean": 0.5,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "groups/informative": 4.0,
    "policy/entropy": 1.0,
    "mismatch/mean_abs": 1e-3,
    "reward/parse_failure_rate": 0.1,
}


def _said(*steps: dict[str, float], **settings: float) -> list[list[str]]:
    diagnostics = Diagnostics(DiagnosticsConfig(**settings))  # type: ignore[arg-type]
    return [diagnostics.check(number, HEALTHY | step) for number, step in enumerate(steps, start=1)]


def test_a_healthy_run_is_not_warned_about() -> None:
    assert not any(_said(*[{}] * 50))


def test_each_sickness_is_named_with_its_usual_cause() -> None:
    constant = {"reward/min": 0.0, "reward/max": 0.0, "reward/mean": 0.0}
    assert "verifier" in _said(*[constant] * 3, constant_reward_steps=3)[-1][0]
    assert "no group" in _said(*[{"groups/informative": 0.0}] * 2, uninformative_steps=2)[-1][0]
    assert "collapsed" in _said({"policy/entropy": 0.001})[0][0]
    assert "old weights" in _said({}, {"mismatch/mean_abs": 0.5})[1][0]
    assert "no answer" in _said({"reward/parse_failure_rate": 0.9})[0][0]


def test_a_streak_is_broken_by_a_healthy_step_and_a_warning_is_not_repeated_at_once() -> None:
    empty = {"groups/informative": 0.0}
    assert not any(_said(empty, {}, empty, {}, uninformative_steps=2))
    said = _said(*[{"policy/entropy": 0.0}] * 11, repeat_after_steps=10)
    assert [bool(texts) for texts in said] == [True] + [False] * 9 + [True]


def test_a_step_without_a_metric_neither_lengthens_nor_ends_a_streak() -> None:
    sick = {
        "reward/mean": 0.0,
        "reward/min": 0.0,
        "reward/max": 0.0,
        "groups/informative": 0.0,
        "policy/entropy": 0.0,
        "mismatch/mean_abs": 1.0,
        "reward/parse_failure_rate": 1.0,
    }
    settings = DiagnosticsConfig(constant_reward_steps=3, uninformative_steps=3, repeat_after_steps=1)
    families = {name.split("/")[0] for name in sick}
    for missing in [*sick, *families, ""]:
        diagnostics = Diagnostics(settings)
        # Two sick steps, one that lacks a metric (or a family of them, or all), and the third sick one.
        rows = [sick, sick, {name: v for name, v in sick.items() if not name.startswith(missing)}, sick]
        said = [diagnostics.check(step, row) for step, row in enumerate(rows, start=1)]
        assert len(said[3]) == 5, missing
        assert not any(text.startswith("every reward") for text in said[2]) or not "reward/max".startswith(missing)


@pytest.mark.parametrize(
    ("mismatches", "settings", "warned"),
    [
        ([3.0], {}, [True]),  # wrong from the first step: what came first is no measure of what is right
        ([0.05, 0.12], {}, [False, True]),
        ([0.03, 0.2], {"max_mismatch": 0.5}, [False, True]),  # more than five times the first
        ([1e-6, 0.019], {"max_mismatch": 0.01}, [False, True]),
        ([1e-6, 0.03], {}, [False, True]),  # float32 engine and learner part ways
        ([0.011, 0.008, 0.014, 0.012], {}, [False] * 4),  # bfloat16
        ([0.042, 0.05, 0.038, 0.061], {}, [False] * 4),  # bfloat16, 135M
        ([1e-6, 5e-6, 1e-4, 0.015], {}, [False] * 4),
    ],
)
def test_a_mismatch_is_warned_of_where_it_is_gross_or_has_grown(
    mismatches: list[float], settings: dict[str, float], warned: list[bool]
) -> None:
    said = _said(*[{"mismatch/mean_abs": mismatch} for mismatch in mismatches], repeat_after_steps=1, **settings)
    assert [bool(texts) for texts in said] == warned


@pytest.mark.parametrize(("mismatch", "is_warned"), [(0.09, False), (0.3, True), (float("nan"), True)])
def test_an_engine_that_did_not_take_the_weights_is_warned_of(mismatch: float, is_warned: bool) -> None:
    [said] = _said({"mismatch/after_sync": mismatch})
    assert ["did not take the new weights" in text for text in said] == [True] * is_warned


def test_state_survives_a_restart() -> None:
    settings = DiagnosticsConfig(uninformative_steps=3)
    first = Diagnostics(settings)
    for step in (1, 2):
        first.check(step, HEALTHY | {"groups/informative": 0.0})
    second = Diagnostics(settings)
    second.load_state_dict(first.state_dict())
    assert second.check(3, HEALTHY | {"groups/informative": 0.0})


def test_what_the_audits_say_of_a_gate_is_repeated_as_seldom_as_the_rest() -> None:
    diagnostics = Diagnostics(DiagnosticsConfig(repeat_after_steps=3))
    said = [diagnostics.check(step, HEALTHY, gate_warning="below its floor") for step in range(1, 8)]
    assert [number for number, texts in enumerate(said, start=1) if texts] == [1, 4, 7]
