"""A run killed again and again, at any moment, ends with the very weights of a run never killed."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from winnowrl.training.export import export_run

SUPPORT = Path(__file__).parents[1] / "support"
TIMED = ("seconds/", "time/", "memory/", "_per_s", "collect/seconds", "saved_s", "/mfu")
NUM_STEPS, NUM_KILLS = 60, 20


def _config(model: Path, folder: Path) -> dict[str, Any]:
    return {
        "run": {"folder": str(folder), "name": "run", "num_steps": NUM_STEPS, "trackers": []},
        "model": {"path": str(model), "dtype": "float32"},
        "environment": {"id": "winnowrl_test_env:WinnowTest/Parity-v0"},
        "conversation": {"template": "plain", "turn_tokens": 3, "rollout_tokens": 3, "context_tokens": 64},
        "engine": {"type": "transformers", "dtype": "float32", "is_deterministic": True},
        "collector": {"tasks_per_step": 4, "rollouts_per_task": 8},
        "allocator": {"type": "vigor", "rounds": 3},
        "objective": {"dual_clip": 10.0},
        "selector": {
            "type": "cbs",
            "buffer_rounds": 3,
            "replay": {"type": "advantage_prioritized", "warmup_steps": 2, "max_age": 4},
        },
        "learner": {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 3},
        "evaluation": {"before": False, "after": False},
        "checkpoint": {"every_steps": 1},
    }


def _start(*arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(SUPPORT), "WINNOWRL_PRELOADED": "1"}
    command = [sys.executable, "-m", "winnowrl.training.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{k: v for k, v in row.items() if not any(mark in k for mark in TIMED)} for row in rows]


def _step_seconds(folder: Path) -> float:
    """Median seconds of a step, so that a fast machine is killed as often in a run of as many steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["seconds/step"] for row in rows)


def _kill_after_a_row(process: subprocess.Popen[str], folder: Path, delay_s: float) -> bool:
    """SIGKILL ``delay_s`` after the next row is written; False when the process ended before."""
    seen = len((folder / "metrics.jsonl").read_bytes()) if (folder / "metrics.jsonl").exists() else 0
    while process.poll() is None:
        path = folder / "metrics.jsonl"
        if path.exists() and len(path.read_bytes()) > seen:
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            return process.returncode == -signal.SIGKILL
        time.sleep(0.005)
    return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_random_kills_with_replay_bandit_and_vigor_change_nothing(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(_config(tiny_model_path, tmp_path / "straight")))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(_config(tiny_model_path, tmp_path / "killed")))
    straight = _start("train", str(tmp_path / "a.yaml"))
    output, _ = straight.communicate(timeout=600)
    assert straight.returncode == 0, output

    folder = tmp_path / "killed" / "run"
    generator = random.Random(7)
    num_kills = 0
    process = _start("train", str(tmp_path / "b.yaml"))
    longest_s = 1.5 * _step_seconds(tmp_path / "straight" / "run")
    while num_kills < NUM_KILLS and _kill_after_a_row(process, folder, generator.uniform(0.0, longest_s)):
        num_kills += 1
        process = _start("resume", str(folder))
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert num_kills == NUM_KILLS

    assert _rows(folder) == _rows(tmp_path / "straight" / "run")
    for name in ("straight", "killed"):
        export_run(tmp_path / name / "run", tmp_path / f"{name}_model")
    weights = [(tmp_path / f"{name}_model" / "model.safetensors").read_bytes() for name in ("straight", "killed")]
    assert weights[0] == weights[1]
