"""Selectors in whole runs on a tiny random model: a run cut short resumes to the very rows of the uninterrupted one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from winnowrl.training.run import resume, train

SUPPORT = Path(__file__).parents[1] / "support"
TIMED = ("seconds/", "time/", "memory/", "_per_s", "collect/seconds", "saved_s", "/mfu")

SELECTORS: dict[str, dict[str, Any]] = {
    "cbs and replay": {
        "type": "cbs",
        "buffer_rounds": 3,
        "replay": {"type": "advantage_prioritized", "warmup_steps": 1},
    },
    "cbs_star with the learner's entropy": {"type": "cbs_star", "entropy_source": "learner"},
    "random and refill": {"type": "random", "dynamic_sampling": {"type": "refill", "max_attempts": 2}},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo", "dual_clip": 10.0},
    "gspo by task": {"loss_type": "gspo", "dual_clip": 10.0, "weighting": "task"},
    "cispo": {"loss_type": "cispo"},
}


def config(model: Path, folder: Path, selector: dict[str, Any], objective: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {"folder": str(folder), "num_steps": 7, "name": "tiny", "trackers": []},
        "model": {"path": str(model), "dtype": "float32"},
        "environment": {"id": "winnowrl_test_env:WinnowTest/Parity-v0"},
        "conversation": {"template": "plain", "turn_tokens": 3, "rollout_tokens": 12, "context_tokens": 96},
        "engine": {"type": "transformers", "dtype": "float32", "is_deterministic": True},
        "collector": {"tasks_per_step": 3, "rollouts_per_task": 4},
        "learner": {"learning_rate": 1e-3},
        "evaluation": {"before": False, "after": False},
        "checkpoint": {"every_steps": 3, "keep_last": 5},
        "selector": selector,
        "objective": objective,
    }


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(mark in k for mark in TIMED)} for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_run_cut_short_resumes_to_the_same_rows(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selector: str, objective: str
) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))
    train(config(tiny_model_path, tmp_path, SELECTORS[selector], OBJECTIVES[objective]))
    folder = tmp_path / "tiny"
    expected = rows(folder)
    assert [row["step"] for row in expected] == list(range(1, 8))
    assert all(0 < row["selector/selected"] <= row["selector/candidates"] for row in expected)
    if selector == "cbs and replay":
        assert expected[-1]["replay/total_drawn"] > 0
        assert expected[-1]["max/ratio"] > 1.0
    else:
        assert all(row["selector/token_share"] < 0.9 for row in expected)
    for checkpoint in (folder / "checkpoints").glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > 3:
            shutil.rmtree(checkpoint)
    resume(folder)
    assert rows(folder) == expected


def test_what_the_overlong_filter_takes_out_is_masked_not_unselected(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))
    train(config(tiny_model_path, tmp_path, {"type": "all"}, {"overlong_filter": True}))
    found = rows(tmp_path / "tiny")
    assert any(row["batch/overlong_filtered"] for row in found)
    for row in found:
        # The selector takes all that is informative, so it leaves no token.
        assert row["ledger/unselected_share"] == 0.0
        assert (row["ledger/masked_share"] > 0.0) is (row["batch/overlong_filtered"] > 0.0)
