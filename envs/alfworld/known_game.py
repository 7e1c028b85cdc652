"""A game whose solution is known: what ``winnowrl doctor`` plays, and the solutions that experiments follow."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from winnowrl.envs.alfworld.environment import ALFWorldEnv
from winnowrl.envs.alfworld.rooms import read_room_games
from winnowrl.envs.tasks import Task

KNOWN_ACTION = "look"


@dataclass(frozen=True, slots=True)
class KnownGameResult:
    """What happened when the known game was played.

    Attributes:
        success: the game was solved and gave reward 1.
        num_steps: actions played, out of ``actions``.
        reset_s, step_s: seconds to the first observation, and the mean of a step.
        message: one sentence for a person.
    """

    success: bool
    num_steps: int
    actions: tuple[str, ...]
    reset_s: float
    step_s: float
    message: str


def walkthrough(task: Task) -> list[str]:
    """Actions that solve ``task``: those stored with the game, else the planner's.

    A stored one is ALFWorld's handcoded expert's, which explores: it is longer than the planner's.
    """
    path, _, game_id = str(task.metadata["game"]).partition("#")
    if game_id:
        stored = list(next(game for game in read_room_games(Path(path)) if game.id == game_id).walkthrough)
    else:
        stored = list(json.loads(Path(path).read_text(encoding="utf-8")).get("walkthrough") or [])
    if not stored:
        env = ALFWorldEnv(games="shipped")
        try:
            stored = env.plan(task)
        finally:
            env.close()
    return stored


def play_known_game() -> KnownGameResult:
    """Play the first shipped game by its solution, checking one action that every game knows.

    Returns what happened; a missing package or a broken one is told in ``message``, not raised.
    """
    env = ALFWorldEnv(games="shipped")
    try:
        return _play(env, env.task_set("train")[0])
    except (ImportError, OSError, RuntimeError) as error:
        return KnownGameResult(False, 0, (), 0.0, 0.0, str(error))
    finally:
        env.close()


def _play(env: ALFWorldEnv, task: Task) -> KnownGameResult:
    started = time.perf_counter()
    env.reset(seed=0, options={"task": task})
    reset_s = time.perf_counter() - started
    actions, reward, done, played = [KNOWN_ACTION, *walkthrough(task)], 0.0, False, 0
    for action in actions:
        _, reward, done, _, info = env.step(action)
        played += 1
        if not info["is_admissible"]:
            message = f"the game did not know {action!r} (action {played}); alfworld and textworld versions do not fit"
            return _result(False, played, actions, reset_s, started, message)
        if done:
            break
    message = f"solved {task.prompt!r} in {played} actions" if done else f"{task.prompt!r} was not solved"
    return _result(done and reward == 1.0, played, actions, reset_s, started, message)


def _result(
    success: bool, played: int, actions: list[str], reset_s: float, started: float, message: str
) -> KnownGameResult:
    step_s = (time.perf_counter() - started - reset_s) / max(1, played)
    return KnownGameResult(success, played, tuple(actions), reset_s, step_s, message)
