"""Concurrent problems under one shared token budget (CCR, arXiv 2604.02322)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.envs.ccr.environment import CCREnv
    from winnowrl.envs.ccr.metrics import group_metrics
    from winnowrl.envs.ccr.recovery import Recovery, last_recoverable_end, recover, recover_answers

__all__ = ["CCREnv", "Recovery", "group_metrics", "last_recoverable_end", "recover", "recover_answers"]

_HOMES = {
    "CCREnv": "environment",
    "Recovery": "recovery",
    "group_metrics": "metrics",
    "last_recoverable_end": "recovery",
    "recover": "recovery",
    "recover_answers": "recovery",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
