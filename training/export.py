"""A run's policy as a plain Hugging Face folder, with a record of what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.training.checkpoint import CheckpointStore
from winnowrl.training.preflight import load_task_sets
from winnowrl.training.run_folder import RunFolder, write_atomically

TRAINED_TASKS = "winnowrl_trained_tasks.json"


def export_run(run: str | Path, output: str | Path, *, step: int | None = None, best: bool = False) -> Path:
    """Write the policy of a checkpoint to ``output``; transformers and vLLM load it like any model.

    Args:
        step: The checkpoint of this step; None takes the last one, or with ``best`` the best by checkpoint.best_metric.

    Raises:
        ConfigError: no run, no such checkpoint, its environment is not installed, or ``output`` exists and is not empty.
    """
    from winnowrl.training.learner.build import build_learner

    folder = RunFolder.open(run)
    config = load_config(folder.path / "config.yaml")
    target = Path(output).expanduser()
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} exists and is not empty; name another folder")
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
    tasks = load_task_sets(config.environment).train
    learner = build_learner(config)
    try:
        learner.load(found.path / "learner")
        learner.export(target)
    finally:
        learner.close()
    rows: list[dict[str, Any]] = [{"id": task.id, "prompt": task.prompt, "answer": task.answer} for task in tasks]
    write_atomically(target / TRAINED_TASKS, json.dumps(rows))
    return target
