from __future__ import annotations

import errno
from pathlib import Path

import pytest

from winnowrl.training.checkpoint import CheckpointStore


def _save_learner(text: str):  # type: ignore[no-untyped-def]
    def save(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(text)

    return save


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=5)
    for step in (1, 2, 10):
        store.save(step, {"step": step}, _save_learner(str(step)), {})
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.state()["step"]) == (10, 10)
    assert (latest.path / "learner" / "weights").read_text() == "10"


@pytest.mark.parametrize("damage", ["no manifest", "cut manifest", "short file", "lost file"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=5)
    store.save(1, {}, _save_learner("a"), {})
    path = store.save(2, {}, _save_learner("long enough"), {})
    if damage == "no manifest":
        (path / "manifest.json").unlink()
    elif damage == "cut manifest":
        (path / "manifest.json").write_text('{"format": 1, "st')
    elif damage == "short file":
        (path / "learner" / "weights").write_text("x")
    else:
        (path / "state.pt").unlink()
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_a_failed_save_leaves_the_earlier_checkpoint_and_no_leftovers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {}, _save_learner("a"), {})

    def full_disk(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.save(2, {}, full_disk, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_pruning_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2, best_metric="eval/mean")
    for step, score in enumerate([0.1, 0.9, 0.3, 0.4, 0.2], start=1):
        store.save(step, {}, _save_learner(""), {"eval/mean": score})
    assert [checkpoint.step for checkpoint in store.all()] == [2, 4, 5]
    assert store.best().step == 2  # type: ignore[union-attr]


def test_leftovers_of_a_killed_save_are_ignored_and_removed(tmp_path: Path) -> None:
    (tmp_path / ".writing_step_000007" / "learner").mkdir(parents=True)
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    store.save(8, {}, _save_learner(""), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000008"]


def test_a_score_found_out_after_the_save_decides_what_is_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, best_metric="eval/mean")
    for step, score in enumerate([0.2, 0.7, 0.4, None, 0.1], start=1):
        store.save(step, {}, _save_learner("whole"), {"reward/mean": 1.0})
        if score is not None:
            store.add_metrics(step, {"eval/mean": score})
    assert {c.step: c.metrics.get("eval/mean") for c in store.all()} == {2: 0.7, 5: 0.1}
    assert store.best().metrics == {"reward/mean": 1.0, "eval/mean": 0.7}  # type: ignore[union-attr]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_score_that_cannot_be_written_leaves_the_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {}, _save_learner("whole"), {})

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.add_metrics(1, {"eval/mean": 0.5})
    assert [(c.step, c.metrics) for c in store.all()] == [(1, {})]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_score_that_is_no_number_is_best_of_nothing(tmp_path: Path, mode: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=3, best_metric="x", best_mode=mode)
    for step, score in enumerate([float("nan"), 1.0, float("inf")], start=1):
        store.save(step, {}, _save_learner(""), {"x": score})
    assert store.best().step == 2  # type: ignore[union-attr]


def test_what_a_killed_deletion_left_is_deleted_by_the_next_save(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    for step in (1, 2):
        (tmp_path / f"step_{step:06d}" / "learner").mkdir(parents=True)
    (tmp_path / "step_000009").mkdir()
    (tmp_path / "step_notes").mkdir()
    store.save(3, {}, _save_learner(""), {})
    # What is newer than the newest whole one is left alone, and what is no checkpoint.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000009", "step_notes"]
