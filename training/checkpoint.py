"""Checkpoints: a folder whose manifest is written last and which is then renamed into place.

Whatever kills the process, a folder under its final name is whole, and the previous one is deleted only afterwards.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnowrl.training.run_folder import write_atomically

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
_STEP = re.compile(r"step_(\d{6,})$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    step: int
    metrics: dict[str, float]

    def state(self) -> dict[str, Any]:
        """The stateful parts by name."""
        import torch

        loaded: dict[str, Any] = torch.load(self.path / "state.pt", weights_only=False)
        return loaded


class CheckpointStore:
    """Writes, finds and prunes the checkpoints of one run.

    Args:
        folder: Holds ``step_000012`` folders.
        keep_last: Newest ones kept.
        best_metric: Metric whose best checkpoint is kept as well; ``best_mode`` is max or min.
    """

    def __init__(
        self, folder: Path, *, keep_last: int = 2, best_metric: str | None = None, best_mode: str = "max"
    ) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.best_metric = best_metric
        self.best_mode = best_mode

    def save(
        self, step: int, state: dict[str, Any], save_learner: Callable[[Path], None], metrics: Mapping[str, float]
    ) -> Path:
        """Write the checkpoint of ``step``; on any failure the earlier checkpoints stand untouched.

        Args:
            metrics: What is known of this very step; ``best_metric`` is looked up here.

        Raises:
            OSError: the disk is full or the folder cannot be written; nothing half-written is left.
        """
        import torch

        final = self.folder / f"step_{step:06d}"
        temporary = self.folder / f".writing_step_{step:06d}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            save_learner(temporary / "learner")
            torch.save(state, temporary / "state.pt")
            files = {
                str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*")) if p.is_file()
            }
            for name in files:
                _sync_file(temporary / name)
            manifest = {"format": FORMAT_VERSION, "step": step, "metrics": _numbers(metrics), "files": files}
            write_atomically(temporary / MANIFEST, json.dumps(manifest, indent=1))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_folder(self.folder)
        self.prune()
        return final

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Put what was found out after the save of ``step`` into its manifest, and prune by it.

        Raises:
            OSError: the manifest cannot be written; it stays as it was.
        """
        path = self.folder / f"step_{step:06d}" / MANIFEST
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["metrics"] |= _numbers(metrics)
        write_atomically(path, json.dumps(manifest, indent=1))
        _sync_folder(path.parent)
        self.prune()

    def all(self) -> list[Checkpoint]:
        """Whole checkpoints, oldest first. Unfinished or damaged ones are passed over."""
        found = []
        for path in self.folder.glob("step_*") if self.folder.is_dir() else ():
            checkpoint = _read(path)
            if checkpoint is not None:
                found.append(checkpoint)
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        checkpoints = self.all()
        return checkpoints[-1] if checkpoints else None

    def best(self) -> Checkpoint | None:
        """Best by ``best_metric``; the later one of equals."""
        scored = [c for c in self.all() if self.best_metric in c.metrics]
        sign = 1 if self.best_mode == "max" else -1
        return max(scored, key=lambda c: (sign * c.metrics[self.best_metric or ""], c.step)) if scored else None

    def prune(self) -> None:
        checkpoints = self.all()
        kept = {checkpoint.step for checkpoint in checkpoints[-self.keep_last :]}
        best = self.best() if self.best_metric else None
        if best is not None:
            kept.add(best.step)
        for checkpoint in checkpoints:
            if checkpoint.step not in kept:
                # The manifest goes first: a deletion cut short must not leave something that looks whole.
                (checkpoint.path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(checkpoint.path, ignore_errors=True)
        if checkpoints:
            self._remove_half_deleted(checkpoints[-1].step)
        for leftover in self.folder.glob(".writing_step_*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _remove_half_deleted(self, newest: int) -> None:
        """Folders older than the newest whole checkpoint whose deletion was cut short after the manifest."""
        for path in self.folder.glob("step_*"):
            number = _STEP.search(path.name)
            if number and int(number.group(1)) < newest and not (path / MANIFEST).exists():
                shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> Checkpoint | None:
    if not _STEP.search(path.name):
        return None
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        is_whole = all((path / name).stat().st_size == size for name, size in manifest["files"].items())
        found = Checkpoint(path, manifest["step"], manifest["metrics"])
        return found if is_whole and manifest["format"] == FORMAT_VERSION else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """What can be compared: a score that is not a finite number is best of nothing."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
