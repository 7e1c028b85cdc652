"""Memory of a long run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from winnowrl.training.run import train

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_is_flat_over_two_hundred_steps(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))
    config: dict[str, Any] = {
        "run": {"folder": str(tmp_path), "name": "run", "num_steps": 200, "trackers": ["tensorboard"]},
        "model": {"path": str(tiny_model_path), "dtype": "float32"},
        "environment": {"id": "winnowrl_test_env:WinnowTest/Parity-v0", "kwargs": {"num_turns": 2}},
        "conversation": {"template": "plain", "turn_tokens": 4, "rollout_tokens": 8, "context_tokens": 96},
        "engine": {"type": "transformers", "dtype": "float32"},
        "collector": {"tasks_per_step": 4, "rollouts_per_task": 8},
        "objective": {"dual_clip": 10.0},
        "selector": {"type": "cbs", "buffer_rounds": 3},
        "evaluation": {"before": False, "after": False},
        "checkpoint": {"every_steps": 20},
    }
    train(config)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    memory = [row["memory/rss_bytes"] for row in rows]
    # Buffers are full and allocators warm after 40 steps; medians, since a checkpoint rises and falls.
    early, late = median(memory[40:80]), median(memory[160:200])
    assert late <= 1.02 * early, f"{early / 2**20:.0f} MiB grew to {late / 2**20:.0f} MiB"
