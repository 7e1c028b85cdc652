"""The Gymnasium ids this package brings; third parties register theirs with Gymnasium itself."""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

PLUGIN_GROUP = "gymnasium.envs"
PACKAGE = str(Path(__file__).parents[1]) + os.sep
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
        ValueError: the module cannot be imported (the file and line at fault are named), or nothing is registered under
            the id.
    """
    faults = load_plugins()
    module, colon, bare = env_id.rpartition(":")
    if colon:
        _import(module)
    try:
        return gymnasium.spec(bare)
    except gymnasium.error.Error as error:
        hint = f" ({'; '.join(faults)})" if faults else ""
        raise ValueError(f"{error}{hint}") from None


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's module may raise anything, or leave
        raise ValueError(f"module {module!r} cannot be imported: {describe_fault(error)}") from None


def describe_fault(error: BaseException) -> str:
    """What was raised, in one sentence, and by which of the user's lines."""
    if error.__context__ is not None and "was raised from the environment creator" in str(error):
        error = error.__context__  # Gymnasium raises it again, with all arguments appended and the lines lost
    kind, said = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{kind}: {error.msg} ({error.filename}, line {error.lineno})"
    told = f"{kind}: {said}" if said else kind
    line = users_line(traceback.extract_tb(error.__traceback__))
    return f"{told} ({line})" if line else told


def users_line(frames: traceback.StackSummary) -> str:
    """File and line of the last frame outside this package, Gymnasium and Python; empty without one.

    A file of the user's goes before one of an installed package.
    """
    skipped = (PACKAGE, str(Path(gymnasium.__file__).parent), sysconfig.get_path("stdlib") + os.sep, "<")
    others = [frame for frame in frames if not frame.filename.startswith(skipped)]
    own = [frame for frame in others if not frame.filename.startswith(sysconfig.get_path("purelib"))] or others
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium can make ``env_id``."""
    try:
        find_spec(env_id)
    except ValueError:
        return False
    return True
