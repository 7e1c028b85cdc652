"""Registers corridor/Corridor-v0 with Gymnasium."""

from gymnasium.envs.registration import register, registry

ENV_ID = "corridor/Corridor-v0"


def register_environments() -> None:
    """Called by the plugin hook, and when this package is imported."""
    if ENV_ID not in registry:
        register(ENV_ID, entry_point="corridor.environment:CorridorEnv", max_episode_steps=12)


register_environments()
