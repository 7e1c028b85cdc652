"""A policy without a model whose groups converge as those of a trained model do, for the scripted engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from winnowrl.agents.seeding import derive_seed
from winnowrl.agents.text_codec import TextCodec
from winnowrl.envs.tasks import Task

MARK = "\nActions: "
# The last observation stands in so many last tokens of a prompt; where it does not, the whole prompt is read.
TAIL_TOKENS = 512
PLANS = ("solve", "detour", "slip", "wander")


@dataclass(frozen=True, slots=True)
class Habit:
    """How the members of one group act.

    Attributes:
        follow: chance that a member takes the action its group shares.
        skill: chance that a member on its own takes a step of the solution, else any admissible action.
        plan: what the group shares: "solve" the solution; "detour" a walk of ``until`` turns, then the solution; "slip"
            the solution's first ``until`` steps, then a walk; "wander" a walk. A walk takes the same admissible action
            at the same turn in the same state.
    """

    follow: float
    skill: float
    plan: str
    until: int

    @classmethod
    def draw(cls, seed: int, solution: Sequence[str], max_turns: int) -> Habit:
        """Three of eight groups follow their plan at 95 % or more, one of five at less than half."""
        dice = random.Random(seed)
        follow, skill, plan = 1.0 - dice.random() ** 3, dice.random(), dice.choice(PLANS)
        return cls(follow, skill, plan, dice.randrange(len(solution) if plan == "slip" else max_turns // 2))

    def is_walking(self, turn: int, position: int) -> bool:
        if self.plan == "detour":
            return turn < self.until
        return self.plan == "wander" or (self.plan == "slip" and position >= self.until)


class ConvergingPolicy:
    """The script of a :class:`ScriptedEngine`. What a member does depends on its own seeds and prompts alone.

    Args:
        codec: Reads the prompts.
        run_seed, num_members, max_turns: Of the collections, whose seeds tell which member asks, at which turn.
    """

    def __init__(self, codec: TextCodec, *, run_seed: int, num_members: int, max_turns: int) -> None:
        self._codec, self._run_seed = codec, run_seed
        self._num_members, self._max_turns = num_members, max_turns
        self._places: dict[int, tuple[str, int, int]] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._habits: dict[str, Habit] = {}
        self._solutions: dict[str, list[str]] = {}
        self._walk_seeds: dict[str, int] = {}

    def begin(self, step: int, tasks: Sequence[Task], solutions: Sequence[list[str]]) -> None:
        """Make ready for the collection of a step; beginning it again replays it."""
        self._positions, self._places = {}, {}
        for task, solution in zip(tasks, solutions, strict=True):
            key = (self._run_seed, step, task.id)
            self._solutions[task.id] = solution
            self._habits[task.id] = Habit.draw(derive_seed(*key, "habit"), solution, self._max_turns)
            self._walk_seeds[task.id] = derive_seed(*key, "walk")
            for member in range(self._num_members):
                for turn in range(self._max_turns):
                    self._places[derive_seed(*key, member, turn)] = (task.id, member, turn)

    def __call__(self, prompt_ids: Sequence[int], seed: int) -> str:
        task_id, member, turn = self._places[seed]
        admissible, habit, dice = self._admissible(prompt_ids), self._habits[task_id], random.Random(seed)
        action = None
        if dice.random() < habit.follow:
            if habit.is_walking(turn, self._positions.get((task_id, member), 0)):
                return random.Random(self._walk_seeds[task_id] + turn).choice(admissible)
            action = self._solve(task_id, member, admissible)
        elif dice.random() < habit.skill:
            action = self._solve(task_id, member, admissible)
        return action or dice.choice(admissible)

    def _admissible(self, prompt_ids: Sequence[int]) -> list[str]:
        text = self._codec.decode(prompt_ids[-TAIL_TOKENS:])
        if MARK not in text:
            text = self._codec.decode(prompt_ids)
        line = text.rpartition(MARK)[2].partition("\n")[0].partition("<|im_end|>")[0]
        return line.split(", ")

    def _solve(self, task_id: str, member: int, admissible: list[str]) -> str | None:
        """The next step of the solution that can be taken; where none can, back to the last place it went to."""
        solution = self._solutions[task_id]
        position = min(self._positions.get((task_id, member), 0), len(solution) - 1)
        back = next((index for index in range(position, -1, -1) if solution[index].startswith("go to ")), position)
        for index in (position, position + 1, back, back + 1):
            if index < len(solution) and solution[index] in admissible:
                self._positions[task_id, member] = index + 1
                return solution[index]
        return None
