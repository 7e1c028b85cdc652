"""WinnowRL: reinforcement learning for language-model agents that spends rollouts only where they teach.

Three things to do with it: register an environment (``gymnasium.register``), launch a training run
(:func:`train`), evaluate on held-out tasks (:func:`evaluate`).
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "train"]


def train(config: Any, overrides: Any = (), **options: Any) -> dict[str, Any]:
    """Run a training configuration to its end; see :func:`winnowrl.training.run.train`."""
    from winnowrl.training.run import train as run_training

    return run_training(config, overrides, **options)


def evaluate(**request: Any) -> dict[str, Any]:
    """Evaluate a model or a run on held-out tasks.

    Args:
        request: Fields of :class:`winnowrl.training.evaluate_command.EvaluationRequest`, e.g. ``run="runs/quickstart-1"`` or
            ``model="smollm2-135m", config="quickstart", samples=8``.

    Returns:
        What ``report.json`` holds.
    """
    from pathlib import Path

    from winnowrl.training.evaluate_command import EvaluationRequest, run_evaluation

    paths = {name: Path(request[name]) for name in ("run", "output") if request.get(name) is not None}
    return run_evaluation(EvaluationRequest(**{**request, **paths}))
