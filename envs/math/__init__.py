"""Mathematics problems and the verifier that judges answers to them.

``verify`` and ``extract_answer`` load no heavy package; the algebra runs in worker processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.envs.math.environment import MathEnv
    from winnowrl.envs.math.extract import extract_answer
    from winnowrl.envs.math.policy import VerifierPolicy
    from winnowrl.envs.math.pool import close_pool, configure_pool
    from winnowrl.envs.math.verifier import check_gold, verify, verify_answer

__all__ = [
    "MathEnv",
    "VerifierPolicy",
    "check_gold",
    "close_pool",
    "configure_pool",
    "extract_answer",
    "verify",
    "verify_answer",
]

_HOMES = {
    "MathEnv": "environment",
    "VerifierPolicy": "policy",
    "check_gold": "verifier",
    "close_pool": "pool",
    "configure_pool": "pool",
    "extract_answer": "extract",
    "verify": "verifier",
    "verify_answer": "verifier",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
