from __future__ import annotations

import json
from pathlib import Path

import pytest

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.training.run_folder import RunFolder, finite


def _folder(tmp_path: Path, **run: object) -> RunFolder:
    return RunFolder.create(load_config({"run": {"folder": str(tmp_path), **run}}), "job")


def test_an_unnamed_run_takes_the_next_free_number(tmp_path: Path) -> None:
    assert [_folder(tmp_path).name for _ in range(3)] == ["job-1", "job-2", "job-3"]


def test_a_named_run_that_exists_is_refused(tmp_path: Path) -> None:
    _folder(tmp_path, name="mine")
    with pytest.raises(ConfigError, match="exists already; continue it with `winnowrl resume"):
        _folder(tmp_path, name="mine")


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        RunFolder.create(load_config({"run": {"folder": "/proc/runs"}}), "job")
    with pytest.raises(ConfigError, match="is no run folder"):
        RunFolder.open("/proc")


def test_a_cut_last_row_is_skipped_and_later_steps_are_forgotten(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step, "x": float("nan")})
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 4, "x"')
    assert [row["step"] for row in folder.read_metrics()] == [1, 2, 3]
    folder.rollouts.mkdir()
    for step in (2, 3):
        (folder.rollouts / f"step_{step:06d}.jsonl.zst").touch()
    folder.forget_after(2)
    assert [json.loads(line) for line in folder.metrics_file.read_text().splitlines()] == [
        {"step": 1, "x": None},
        {"step": 2, "x": None},
    ]
    assert [path.name for path in folder.rollouts.iterdir()] == ["step_000002.jsonl.zst"]


def test_what_json_cannot_hold_becomes_null() -> None:
    assert finite({"a": [float("inf"), 1.0], 2: (float("nan"),)}) == {"a": [None, 1.0], "2": [None]}
