"""What an agent acts in: Gymnasium text environments, their task sets and their verifiers.

A leaf package: it imports nothing else of ours and no torch, vLLM, DeepSpeed, Ray or ALFWorld at import time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from winnowrl.envs.registry import register_all

if TYPE_CHECKING:
    from winnowrl.envs.base import TextEnv
    from winnowrl.envs.tasks import Task, TaskSet, load_tasks
    from winnowrl.envs.verdict import Verdict

__all__ = ["Task", "TaskSet", "TextEnv", "Verdict", "load_tasks", "register_all"]

_HOMES = {
    "TextEnv": "winnowrl.envs.base",
    "Task": "winnowrl.envs.tasks",
    "TaskSet": "winnowrl.envs.tasks",
    "load_tasks": "winnowrl.envs.tasks",
    "Verdict": "winnowrl.envs.verdict",
}


def __getattr__(name: str) -> Any:
    # Gymnasium imports this package while it is itself being imported (plugin entry point), so the parts
    # that subclass gymnasium's classes are loaded on first use.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_all()
