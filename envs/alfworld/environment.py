"""``winnowrl/ALFWorld-v0``: one household game an episode, in text; reward 1 when its goal is met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium

from winnowrl.envs.alfworld.actions import MATCHES, extract_action, group_actions, match_action
from winnowrl.envs.alfworld.games import TASK_TYPES, cache_folder, find_games, game_tasks
from winnowrl.envs.alfworld.server import HOW_TO_INSTALL
from winnowrl.envs.alfworld.transitions import GameBook, GameGraph, Node, game_book
from winnowrl.envs.arguments import check_arguments, check_range
from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet

ADMISSIBLE = ("list", "grouped", "none")
NOTHING_HAPPENS = "Nothing happens."
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"


class ALFWorldEnv(TextEnv):
    """Act in a household until the task is done.

    Args:
        games: folder of games; None = ``$ALFWORLD_DATA`` where set, else the small games shipped here ("shipped").
        task_types: keep only these of the six task types; None = all.
        match: "exact" after normalisation, or "near": the most similar admissible action counts.
        near_cutoff: least normalised similarity of a near match, 0–1.
        admissible: how an observation shows the admissible actions: "list", "grouped" (each verb once), "none".
        step_timeout_s: a worker that computes longer is killed and replaced (seconds).
        reset_timeout_s: the same for loading a game, which may translate it first (seconds).
        max_workers: worker processes of this process at a time, one a game in play, 15–45 MB each.
        max_states: game states remembered by this process, about 1 kB each.
        linger_s: how long workers outlive the last open environment (seconds).
        cache_dir: where game lists and translations are kept; None = ``$WINNOWRL_CACHE`` or ``~/.cache/winnowrl``.

    Reward: 1 when the goal is met (terminated), else 0. An action that is not admissible changes nothing, as in
    TextWorld. ``info["action"]`` is the admissible action that was played, or the normalised text of one that is not
    admissible. Splits: train, seen, unseen, eval (= unseen).
    """

    execution: ClassVar[Execution] = "thread"
    requires = MappingProxyType(dict.fromkeys(("textworld", "fast_downward", "alfworld"), HOW_TO_INSTALL))
    system_prompt = (
        "You are in a household and have one task. Each turn you read what you see and reply with exactly one action, "
        "worded as in the list of actions, and nothing else."
    )

    def __init__(
        self,
        games: str | Path | None = None,
        task_types: Sequence[str] | None = None,
        match: str = "exact",
        near_cutoff: float = 0.8,
        admissible: str = "list",
        step_timeout_s: float = 30.0,
        reset_timeout_s: float = 120.0,
        max_workers: int = 32,
        max_states: int = 50_000,
        linger_s: float = 10.0,
        cache_dir: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_arguments(ALFWorldEnv, locals())
        super().__init__(render_mode)
        _check_choice("match", match, MATCHES)
        _check_choice("admissible", admissible, ADMISSIBLE)
        for task_type in task_types or ():
            _check_choice("task_types", task_type, TASK_TYPES)
        if not 0 < near_cutoff <= 1:
            raise ValueError(f"near_cutoff is {near_cutoff}; allowed: above 0, at most 1")
        numbers = {"step_timeout_s": step_timeout_s, "reset_timeout_s": reset_timeout_s}
        for name, value in {**numbers, "max_workers": max_workers, "max_states": max_states}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; allowed: above 0")
        check_range("linger_s", linger_s)
        self.games = find_games(games)
        self.task_types = tuple(task_types or TASK_TYPES)
        self.match, self.near_cutoff, self.admissible = match, near_cutoff, admissible
        self.step_timeout_s, self.reset_timeout_s = step_timeout_s, reset_timeout_s
        self.cache = Path(cache_dir).expanduser() if cache_dir is not None else cache_folder()
        self._settings = (self.cache, max_workers, max_states, linger_s)
        self._graph: GameGraph | None = None
        self._node: Node | None = None
        self._is_over = False

    def task_set(self, split: str) -> TaskSet:
        return game_tasks(self.games, split, self.task_types, self.cache)

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        game = task.metadata.get("game")
        if not isinstance(game, str):
            raise ValueError(f"task {task.id!r} names no game in its metadata; take tasks from task_set(split)")
        self._release()
        self._is_over = False
        self._graph = self._book().acquire(game)
        self._node = self._graph.open(self.reset_timeout_s)
        opening = self._graph.opening.replace(_BANNER, "").strip()
        return self._observation(opening, self._node), self._info(self._node)

    def respond(self, action: str) -> StepResult:
        if self._graph is None or self._node is None or self._is_over:
            raise gymnasium.error.ResetNeeded("the game is over; call reset() before the next step()")
        wanted = extract_action(action)
        command = match_action(wanted, self._node.admissible, match=self.match, cutoff=self.near_cutoff)
        is_shared = True
        if command is None:
            feedback = NOTHING_HAPPENS
        else:
            feedback, self._node, is_shared = self._graph.advance(self._node, command, self.step_timeout_s)
        # A game may be won before its first action; TextWorld says so after it.
        won = self._is_over = self._node.won
        info = self._info(self._node)
        info |= {"action": command or wanted, "is_admissible": command is not None, "is_shared": is_shared}
        info["reward_parts"] = {"success": float(won)}
        observation = feedback if won else self._observation(feedback, self._node)
        return observation, float(won), won, False, info

    def close(self) -> None:
        self._release()

    def prewarm(self) -> None:
        """Start loading TextWorld in the background, so that the first reset need not wait for it."""
        self._book().server.prewarm()

    def plan(self, task: Task) -> list[str]:
        """Actions that solve ``task``, by TextWorld's planner (seconds to minutes in a large room)."""
        graph = self._book().acquire(str(task.metadata["game"]))
        try:
            return graph.plan(self.reset_timeout_s)
        finally:
            self._book().release(graph)

    def _book(self) -> GameBook:
        return game_book(*self._settings)

    def _release(self) -> None:
        graph, self._graph, self._node = self._graph, None, None
        if graph is not None:
            graph.book.release(graph)

    def _info(self, node: Node) -> dict[str, Any]:
        return {"admissible_actions": list(node.admissible), "success": node.won}

    def _observation(self, text: str, node: Node) -> str:
        if self.admissible == "none":
            return text
        shown = ", ".join(node.admissible) if self.admissible == "list" else group_actions(node.admissible)
        return f"{text}\nActions: {shown}"

    def __getstate__(self) -> dict[str, Any]:
        # Where a game stands belongs to this process: a copy in another one begins with reset().
        return {**self.__dict__, "_graph": None, "_node": None, "task": None}


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
