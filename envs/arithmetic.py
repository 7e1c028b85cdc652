"""``winnowrl/Arithmetic-v0``: generated one-line sums, seeded, with train and held-out tasks disjoint by construction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

OPERATORS: dict[str, Callable[[int, int], int]] = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
PromptStyle = Literal["few_shot", "chat"]
MAX_PROBLEMS = 1_000_000
HELDOUT_PERCENT = 30


class ArithmeticEnv(TextEnv):
    """Sums, differences or products of non-negative integers; the reply's first integer is the answer.

    Args:
        max_operand: Operands go from 0 to this, inclusive (1 to 999,999).
        num_terms: Operands in one problem, joined by the same operator (2 to 4).
        operators: Which of ``+``, ``-``, ``*`` occur.
        num_shots: Solved examples in the prompt (``few_shot`` style), drawn from the train problems.
        style: ``few_shot`` shows ``3+4=7`` lines for a base model; ``chat`` asks in a sentence.
        num_train: Most train tasks; ``num_eval``: most held-out ones.
        seed: Decides which problems are drawn and in what order.

    A problem is held out when a hash of its text says so (30 % are), whatever the seed and counts: a train set and a
    held-out set never share one.
    """

    def __init__(
        self,
        max_operand: int = 9,
        num_terms: int = 2,
        operators: str = "+",
        num_shots: int = 6,
        style: PromptStyle = "few_shot",
        num_train: int = 4096,
        num_eval: int = 512,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        if not 1 <= max_operand <= 999_999:
            raise ValueError(f"max_operand is {max_operand}; allowed: 1 to 999999")
        if not 2 <= num_terms <= 4:
            raise ValueError(f"num_terms is {num_terms}; allowed: 2 to 4")
        if not operators or set(operators) - set(OPERATORS):
            raise ValueError(f"operators is {operators!r}; allowed: one or more of {' '.join(OPERATORS)}")
        if style not in ("few_shot", "chat"):
            raise ValueError(f"style is {style!r}; allowed: few_shot, chat")
        if num_shots < 0:
            raise ValueError(f"num_shots is {num_shots}; allowed: 0 or more")
        self.max_operand, self.num_terms, self.operators = max_operand, num_terms, operators
        self.num_shots, self.style = num_shots, style
        self.counts = {"train": num_train, "eval": num_eval}
        self.seed = seed
        self.stop = ("\n",) if style == "few_shot" else ()
        self._sets: dict[str, TaskSet] = {}

    def task_set(self, split: str) -> TaskSet:
        if split not in self.counts:
            raise ValueError(f"Arithmetic has no split {split!r}; it has: train, eval")
        if not self._sets:
            self._sets = {name: TaskSet(self._generate(name), f"arithmetic/{name}") for name in self.counts}
        return self._sets[split]

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        return task.prompt, {}

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        found = re.search(r"-?\d+", action)
        answer = found.group() if found else ""
        is_correct = bool(answer) and len(answer) < 64 and int(answer) == int(self.task.answer or "")
        verdict = Verdict("correct" if is_correct else "wrong", f"answered {answer[:64] or 'nothing'}")
        info = {
            "action": answer,
            "verdict": verdict,
            "success": is_correct,
            "reward_parts": {"accuracy": float(is_correct)},
        }
        return "", float(is_correct), True, False, info

    def _generate(self, split: str) -> list[Task]:
        import numpy as np

        generator = np.random.default_rng([self.seed, self.max_operand, self.num_terms])
        shots = self._shots(generator)
        num_problems = (self.max_operand + 1) ** self.num_terms * len(self.operators)
        if num_problems <= MAX_PROBLEMS:
            order = generator.permutation(num_problems)
        else:
            order = generator.integers(0, num_problems, size=MAX_PROBLEMS)
        tasks: list[Task] = []
        seen: set[str] = set(shots)
        for index in order.tolist():
            if len(tasks) >= self.counts[split]:
                break
            problem = self._problem(index)
            if problem in seen or _is_held_out(problem) != (split == "eval"):
                continue
            seen.add(problem)
            tasks.append(self._task(problem, shots))
        return tasks

    def _problem(self, index: int) -> str:
        """The problem with this number, in mixed radix: operator, then the operands."""
        index, operator = divmod(index, len(self.operators))
        operands = []
        for _ in range(self.num_terms):
            index, operand = divmod(index, self.max_operand + 1)
            operands.append(str(operand))
        return self.operators[operator].join(operands)

    def _shots(self, generator: Any) -> list[str]:
        """Example problems: from the train side, so that no held-out answer stands in a prompt."""
        shots: list[str] = []
        num_problems = (self.max_operand + 1) ** self.num_terms * len(self.operators)
        for _ in range(1000 * self.num_shots if self.style == "few_shot" else 0):
            if len(shots) == self.num_shots:
                break
            problem = self._problem(int(generator.integers(num_problems)))
            if problem not in shots and not _is_held_out(problem):
                shots.append(problem)
        return shots

    def _task(self, problem: str, shots: list[str]) -> Task:
        if self.style == "chat":
            prompt = f"What is {problem}? Reply with the number alone."
        else:
            prompt = "".join(f"{shot}={_solve(shot)}\n" for shot in shots) + f"{problem}="
        metadata = {"task_type": _operator_of(problem), "problem": problem}
        return Task(f"arithmetic-{problem}", prompt, str(_solve(problem)), metadata)


def _operator_of(problem: str) -> str:
    return next(operator for operator in OPERATORS if operator in problem)


def _solve(problem: str) -> int:
    operator = _operator_of(problem)
    return reduce(OPERATORS[operator], map(int, problem.split(operator)))


def _is_held_out(problem: str) -> bool:
    digest = hashlib.blake2b(problem.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < HELDOUT_PERCENT
