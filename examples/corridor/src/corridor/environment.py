"""corridor/Corridor-v0: walk to the right door. Several turns, generated tasks, admissible actions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from winnowrl.envs import Task, TaskSet, TextEnv, Verdict
from winnowrl.envs.base import StepResult

COLOURS = ("red", "blue", "green", "white", "black")
ACTIONS = ("left", "right", "open")


class CorridorEnv(TextEnv):
    """A corridor of coloured doors; the agent walks left or right and opens the door it was told to.

    Args:
        length: Doors in the corridor (3 to 5).

    Reward: 1 for opening the right door, 0 for a wrong one or none. The door the agent starts at is drawn from the seed
    of the episode, so that all members of a group start at the same one. A fourth of all corridors is held out.
    """

    stop = ("\n",)

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if not 3 <= length <= len(COLOURS):
            raise ValueError(f"length is {length}; allowed: 3 to {len(COLOURS)}")
        self.length = length

    def task_set(self, split: str) -> TaskSet:
        if split not in ("train", "eval"):
            raise ValueError(f"Corridor has no split {split!r}; it has: train, eval")
        tasks = []
        for number, doors in enumerate(permutations(COLOURS[: self.length])):
            if (number % 4 == 0) == (split == "eval"):
                tasks += [Task(f"corridor-{'-'.join(doors)}-{door}", _prompt(doors, door), door) for door in doors]
        return TaskSet(tasks, f"corridor/{split}")

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self.doors = task.id.split("-")[1:-1]
        self.place = int(self.np_random.integers(self.length))
        return f"{task.prompt}\n{self._view()}", {"admissible_actions": list(ACTIONS)}

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        word = action.strip().lower().rstrip(".")
        info: dict[str, Any] = {"action": word, "admissible_actions": list(ACTIONS), "success": False}
        if word == "open":
            is_right = self.doors[self.place] == self.task.answer
            info["success"] = is_right
            info["verdict"] = Verdict("correct" if is_right else "wrong", f"opened {self.doors[self.place]}")
            return "", float(is_right), True, False, info
        if word in ("left", "right"):
            step = 1 if word == "right" else -1
            self.place = min(max(self.place + step, 0), self.length - 1)
        return self._view(), 0.0, False, False, info

    def _view(self) -> str:
        return f"You stand at the {self.doors[self.place]} door.\n> "


def _prompt(doors: Sequence[str], door: str) -> str:
    return f"From left to right the doors are {', '.join(doors)}. Open the {door} door: say left, right or open."
