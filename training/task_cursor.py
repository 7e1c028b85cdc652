"""The order in which tasks are drawn: a seeded permutation an epoch, and a position that survives a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from winnowrl.envs.tasks import Task


class TaskCursor:
    """Draws tasks without replacement; every epoch has its own permutation, derived from (seed, epoch).

    A draw may cross the end of an epoch. Within one draw no task comes twice unless the set is smaller than the draw.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        if not tasks:
            raise ValueError("the task set is empty; a run needs at least one train task")
        self._tasks = tasks
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._permutation(0)

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def num_drawn(self) -> int:
        return self._epoch * len(self._tasks) + self._position

    def draw(self, count: int) -> list[Task]:
        """The next ``count`` tasks."""
        drawn: list[Task] = []
        taken: set[int] = set()
        while len(drawn) < count:
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._permutation(self._epoch)
            index = self._order[self._position]
            self._position += 1
            # At an epoch's border the new permutation may start with a task just drawn: it swaps places with a later one.
            if index in taken and len(taken) < len(self._tasks):
                self._swap_with_later(taken)
                index = self._order[self._position - 1]
            taken.add(index)
            drawn.append(self._tasks[index])
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "num_tasks": len(self._tasks),
            "epoch": self._epoch,
            "position": self._position,
            "order": list(self._order),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["num_tasks"] != len(self._tasks):
            raise ValueError(
                f"the checkpoint was made with {state['num_tasks']} train tasks, the task set now has {len(self._tasks)}; "
                "resume with the same task source"
            )
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["position"]
        self._order = list(state["order"])

    def metrics(self) -> dict[str, float]:
        return {"tasks/epoch": self.num_drawn / len(self._tasks), "tasks/drawn": float(self.num_drawn)}

    def _permutation(self, epoch: int) -> list[int]:
        order: list[int] = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks)).tolist()
        return order

    def _swap_with_later(self, taken: set[int]) -> None:
        here = self._position - 1
        for later in range(self._position, len(self._order)):
            if self._order[later] not in taken:
                self._order[here], self._order[later] = self._order[later], self._order[here]
                return
