"""``winnowrl/ALFWorld-v0``: household text games. Importing this package loads neither alfworld nor TextWorld.

Those two live in worker processes only: one game, one worker, shared by all members that play it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.envs.alfworld.environment import ALFWorldEnv
    from winnowrl.envs.alfworld.known_game import KnownGameResult, play_known_game, walkthrough
    from winnowrl.envs.alfworld.transitions import shutdown, transition_counts

__all__ = ["ALFWorldEnv", "KnownGameResult", "play_known_game", "shutdown", "transition_counts", "walkthrough"]

_HOMES = {
    "ALFWorldEnv": "environment",
    "KnownGameResult": "known_game",
    "play_known_game": "known_game",
    "walkthrough": "known_game",
    "shutdown": "transitions",
    "transition_counts": "transitions",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
