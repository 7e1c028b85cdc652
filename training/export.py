"""A run's policy as a plain Hugging Face folder, with a record of what it was trained on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winnowrl.configs.load import ConfigError
from winnowrl.training.checkpoint import CheckpointStore
from winnowrl.training.preflight import TRAINED_TASKS, load_task_sets, trained_tasks
from winnowrl.training.run_folder import RunFolder, write_atomically

_UNFINISHED = ".writing"


def export_run(run: str | Path, output: str | Path, *, step: int | None = None, best: bool = False) -> Path:
    """Write the policy of a checkpoint to ``output``; transformers and vLLM load it like any model.

    Args:
        step: The checkpoint of this step; None takes the last one, or with ``best`` the best by checkpoint.best_metric.

    Raises:
        ConfigError: no run, no such checkpoint, its environment is not installed, ``output`` is no empty folder or cannot be
            written; nothing half-written is left.
    """
    from winnowrl.training.learner.build import build_learner
    from winnowrl.training.model_loading import resolve_model_path

    folder = RunFolder.open(run)
    config = folder.read_config()
    target = Path(output).expanduser()
    _refuse_occupied(target)
    settings = config.checkpoint
    store = CheckpointStore(folder.checkpoints, best_metric=settings.best_metric, best_mode=settings.best_mode)
    found = store.best() if best else next((c for c in reversed(store.all()) if step in (None, c.step)), None)
    if best and settings.best_metric is None:
        raise ConfigError(f"{folder.path} has no best checkpoint: it ran without checkpoint.best_metric; name a step")
    if best and found is None:
        raise ConfigError(f"no checkpoint of {folder.path} has a {settings.best_metric} to be best by; name a step")
    if found is None:
        there = ", ".join(str(c.step) for c in store.all()) or "none"
        raise ConfigError(f"{folder.path} has no such checkpoint; there are: {there}")
    # A model trained on from an earlier export has seen that one's tasks too.
    before = trained_tasks(resolve_model_path(config.model.path))
    tasks = {(task.id, task.prompt): task for task in (*before, *load_task_sets(config.environment).train)}
    learner = build_learner(config)
    try:
        learner.load(found.path / "learner")
        rows: list[dict[str, Any]] = [
            {"id": task.id, "prompt": task.prompt, "answer": task.answer} for task in tasks.values()
        ]
        with _whole_or_not_at_all(target) as unfinished:
            write_atomically(unfinished / TRAINED_TASKS, json.dumps(rows))
            learner.export(unfinished)
    finally:
        learner.close()
    return target


def _refuse_occupied(target: Path) -> None:
    if target.is_dir():
        if any(path.name != _UNFINISHED for path in target.iterdir()):
            raise ConfigError(f"{target} exists and is not empty; name another folder")
    elif target.exists():
        raise ConfigError(f"{target} is a file; name a folder")


@contextmanager
def _whole_or_not_at_all(target: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of ``target`` at the end, and is removed if anything goes wrong.

    Raises:
        ConfigError: it cannot be written.
    """
    from safetensors import SafetensorError

    # What exists may be a mount point, which can be filled but not replaced.
    is_filled = target.is_dir()
    unfinished = target / _UNFINISHED if is_filled else target.parent / f".{target.name}{_UNFINISHED}"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        if is_filled:
            # A folder without config.json is no model.
            for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "config.json"):
                path.rename(target / path.name)
            unfinished.rmdir()
        else:
            unfinished.rename(target)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{target} cannot be written ({reason}); nothing is left there") from None
        raise
