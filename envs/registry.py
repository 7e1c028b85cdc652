"""The Gymnasium ids this package brings; third parties register theirs with Gymnasium itself."""

from __future__ import annotations

import gymnasium

# id -> (entry point, max_episode_steps)
BUILT_IN: dict[str, tuple[str, int]] = {
    "winnowrl/Arithmetic-v0": ("winnowrl.envs.arithmetic:ArithmeticEnv", 1),
    "winnowrl/GuessNumber-v0": ("winnowrl.envs.guess_number:GuessNumberEnv", 10),
    "winnowrl/Math-v0": ("winnowrl.envs.math:MathEnv", 1),
    "winnowrl/CCR-v0": ("winnowrl.envs.ccr:CCREnv", 1),
    "winnowrl/Code-v0": ("winnowrl.envs.code:CodeEnv", 8),
    "winnowrl/ALFWorld-v0": ("winnowrl.envs.alfworld:ALFWorldEnv", 50),
    "winnowrl/ReasoningGym-v0": ("winnowrl.envs.reasoning_gym:ReasoningGymEnv", 1),
}


def register_all() -> None:
    """Register the built-in environments with Gymnasium; calling it twice changes nothing."""
    from gymnasium.envs.registration import register, registry

    for env_id, (entry_point, max_episode_steps) in BUILT_IN.items():
        if env_id not in registry:
            register(env_id, entry_point=entry_point, max_episode_steps=max_episode_steps)


def is_registered(env_id: str) -> bool:
    """True when Gymnasium can make ``env_id`` (``module:Namespace/Name-v0`` imports the module first)."""
    try:
        gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError, ValueError):
        return False
    return True
