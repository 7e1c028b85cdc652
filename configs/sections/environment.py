"""Which environment the agent acts in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvironmentConfig:
    """A Gymnasium id and its arguments."""

    id: str = "winnowrl/Arithmetic-v0"
    """Gymnasium id; module:Namespace/Name-v0 imports the module first."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    train_split: str = "train"
    """Split that tasks are drawn from."""
    eval_split: str = "eval"
    """Held-out split."""
    max_train_tasks: int | None = None
    """Use only the first so many train tasks; null uses all."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("environment.id is empty; give a Gymnasium id such as winnowrl/Arithmetic-v0")
        if self.train_split == self.eval_split:
            raise ValueError(
                f"environment.eval_split is {self.eval_split!r}, the same as train_split; held-out tasks must not be "
                "trained on: name another split"
            )
        if self.max_train_tasks is not None and self.max_train_tasks < 1:
            raise ValueError(f"environment.max_train_tasks is {self.max_train_tasks}; allowed: 1 or more, or null")
