"""WinnowRL: reinforcement learning for language-model agents that spends rollouts only where they teach.

Three things to do with it: register an environment (``gymnasium.register``), launch a training run
(:func:`train`), evaluate on held-out tasks (:func:`evaluate`).
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "train"]


def train(config: Any, **options: Any) -> dict[str, Any]:
    """Run a training configuration to its end; see :func:`winnowrl.training.run.train`."""
    from winnowrl.training.run import train as run_training

    return run_training(config, **options)


def evaluate(**options: Any) -> dict[str, Any]:
    """Evaluate a model or a finished run on held-out tasks; see :func:`winnowrl.training.evaluate.evaluate`."""
    from winnowrl.training.evaluate import evaluate as run_evaluation

    return run_evaluation(**options)
