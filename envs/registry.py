"""The Gymnasium ids this package brings; third parties register theirs with Gymnasium itself."""

from __future__ import annotations

import importlib
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PLUGIN_GROUP = "gymnasium.envs"
_loaded_plugins: set[str] = {"winnowrl.envs.registry:register_all"}

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


def load_plugins() -> list[str]:
    """Run the registration hooks that installed packages declare under the entry-point group ``gymnasium.envs``.

    Gymnasium ran these itself up to 1.3; newer releases dropped it, so we do. The entry point's name is the namespace
    (``__root__`` for none) and its value a function that calls ``gymnasium.register``.

    Returns:
        One sentence for every plugin that could not be loaded.
    """
    from importlib.metadata import entry_points

    from gymnasium.envs.registration import namespace

    faults: list[str] = []
    for plugin in entry_points(group=PLUGIN_GROUP):
        if plugin.value in _loaded_plugins:
            continue
        _loaded_plugins.add(plugin.value)
        scope = nullcontext() if plugin.name == "__root__" else namespace(plugin.name)
        try:
            with scope, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an older Gymnasium has registered the same ids already
                plugin.load()()
        except Exception as error:  # noqa: BLE001 - a stranger's package may raise anything; it must not stop the others
            faults.append(f"environment plugin {plugin.value} could not be loaded: {error!r}")
    return faults


def find_spec(env_id: str) -> EnvSpec:
    """The specification of ``env_id``; ``module:Namespace/Name-v0`` imports the module first.

    Raises:
        ValueError: the module cannot be imported, or nothing is registered under the id.
    """
    faults = load_plugins()
    module, colon, bare = env_id.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gymnasium.spec(bare)
    except ImportError as error:
        raise ValueError(f"module {module!r} cannot be imported: {error}") from None
    except gymnasium.error.Error as error:
        hint = f" ({'; '.join(faults)})" if faults else ""
        raise ValueError(f"{error}{hint}") from None


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium can make ``env_id``."""
    try:
        find_spec(env_id)
    except ValueError:
        return False
    return True
