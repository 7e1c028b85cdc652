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


def test_evaluations_of_later_steps_are_forgotten(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    steps = {"before": 0, "step_000002": 2, "step_000004": 4, "after": 4, "eval_step_000004": None}
    for name, step in steps.items():
        (folder.evaluations / name).mkdir(parents=True)
        identity = {"policy": {"step": step} if step is not None else {"weights": "elsewhere"}}
        (folder.evaluations / name / "evaluation.json").write_text(json.dumps(identity))
    (folder.evaluations / "step_000005").mkdir()  # killed before it said what it evaluates
    # What `winnowrl eval` was asked for stays.
    for newest, kept in [(4, set(steps)), (3, {"before", "step_000002", "eval_step_000004"})]:
        folder.forget_after(newest)
        assert {path.name for path in folder.evaluations.iterdir()} == kept
    (folder.evaluations / "after").mkdir()
    (folder.evaluations / "after" / "evaluation.json").write_text('{"task_ids": []}')  # an earlier version's
    folder.forget_after(0)
    assert {path.name for path in folder.evaluations.iterdir()} == {"before", "after", "eval_step_000004"}


def test_what_json_cannot_hold_becomes_null() -> None:
    assert finite({"a": [float("inf"), 1.0], 2: (float("nan"),)}) == {"a": [None, 1.0], "2": [None]}


def test_a_configuration_that_was_cut_anywhere_or_changed_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path, num_steps=7)
    path = folder.path / "config.yaml"
    whole = path.read_text()
    config = folder.read_config()
    assert config == load_config({"run": {"folder": str(tmp_path), "num_steps": 7}})
    ends = [
        0,
        5,
        whole.index("\n") + 1,
        *(number for number, letter in enumerate(whole) if letter == "\n"),
        len(whole) - 9,
    ]
    for end in sorted(set(ends)):
        path.write_text(whole[:end])
        with pytest.raises(ConfigError, match=r"config\.yaml was cut or changed since it was written"):
            folder.read_config()
    path.write_text(whole.replace("num_steps: 7", "num_steps: 9"))
    with pytest.raises(ConfigError, match="its checksum does not fit"):
        folder.read_config(["run.num_steps=10"])
    path.write_text(whole)
    assert folder.read_config(["run.num_steps=10"]).run.num_steps == 10


def test_a_configuration_without_a_checksum_is_read_as_it_is(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder.path / "config.yaml").write_text("run: {num_steps: 3}")
    assert folder.read_config().run.num_steps == 3
    folder.write_config(folder.read_config(["run.num_steps=4"]))
    assert folder.read_config().run.num_steps == 4


def test_a_configuration_that_is_not_text_is_said(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder.path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        folder.read_config()
