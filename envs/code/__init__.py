"""Code execution: programs run in a sandbox they cannot leave, judged by tests they cannot see or answer for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.envs.code.environment import CodeEnv
    from winnowrl.envs.code.execution import ExecutionResult, Limits
    from winnowrl.envs.code.image import SandboxUnavailableError
    from winnowrl.envs.code.runner import run_tests
    from winnowrl.envs.code.sandbox import SandboxFailureError

__all__ = ["CodeEnv", "ExecutionResult", "Limits", "SandboxFailureError", "SandboxUnavailableError", "run_tests"]

_HOMES = {
    "CodeEnv": "environment",
    "ExecutionResult": "execution",
    "Limits": "execution",
    "SandboxFailureError": "sandbox",
    "SandboxUnavailableError": "image",
    "run_tests": "runner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
