"""Putting N problems in one prompt: which go together, and how the prompt is written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from winnowrl.envs.math.problems import level_of
from winnowrl.envs.tasks import Task

GROUPINGS = ("random", "stratified")

INSTRUCTIONS = (
    "Solve the {count} problems below, in order, within one reply of limited length. As soon as problem k is solved, write "
    "its answer on a line of its own as\nAnswer k: \\boxed{{...}}\nand go on to the next problem."
)


def group_problems(
    problems: Sequence[Task], num_problems: int, num_groups: int | None, grouping: str, seed: int
) -> list[list[Task]]:
    """Groups of ``num_problems`` different problems.

    ``random`` shuffles. ``stratified`` sorts by level, cuts that order in N equal parts and takes one problem from each
    for every group, so that groups are of similar mean difficulty. Each pass over the problems uses each at most once;
    passes are repeated, shuffled anew, until there are ``num_groups`` (None: one pass).

    Raises:
        ValueError: fewer problems than a group needs, an unknown grouping, or a level missing for ``stratified``.
    """
    if grouping not in GROUPINGS:
        raise ValueError(f"grouping is {grouping!r}; allowed: {', '.join(GROUPINGS)}")
    if len(problems) < num_problems:
        raise ValueError(f"{len(problems)} problems are fewer than num_problems = {num_problems}; give more problems")
    strata = _strata(problems, num_problems) if grouping == "stratified" else None
    wanted = num_groups or len(problems) // num_problems
    generator = np.random.default_rng([seed, num_problems])
    groups: list[list[Task]] = []
    while len(groups) < wanted:
        groups += _one_pass(problems, strata, num_problems, generator)
    return groups[:wanted]


def _one_pass(
    problems: Sequence[Task], strata: list[list[Task]] | None, num_problems: int, generator: np.random.Generator
) -> list[list[Task]]:
    if strata is None:
        order = [problems[i] for i in generator.permutation(len(problems))]
        last = len(order) - len(order) % num_problems
        return [order[i : i + num_problems] for i in range(0, last, num_problems)]
    shuffled = [[stratum[i] for i in generator.permutation(len(stratum))] for stratum in strata]
    # Positions in the prompt must not follow difficulty.
    return [[group[i] for i in generator.permutation(num_problems)] for group in zip(*shuffled, strict=False)]


def _strata(problems: Sequence[Task], num_problems: int) -> list[list[Task]]:
    levels: dict[str, float] = {}
    for task in problems:
        level = level_of(task)
        if level is None:
            raise ValueError(
                f"problem {task.id} has no level, which grouping 'stratified' needs; use grouping 'random'"
            )
        levels[task.id] = level
    ordered = sorted(problems, key=lambda task: (levels[task.id], task.id))
    size = len(ordered) // num_problems
    return [ordered[k * size : (k + 1) * size] for k in range(num_problems)]


def worked_example(number: int, num_problems: int) -> str:
    """Problems and their answers as they are wanted; no operand above 50 is in the ``sums`` that come with the package."""
    sums = [(51 + (11 * number + 7 * k) % 45, 3 + (8 * number + 5 * k) % 29) for k in range(1, num_problems + 1)]
    asked = [f"### Problem {k}\nWhat is {a} + {b}?" for k, (a, b) in enumerate(sums, start=1)]
    answers = [f"{a} + {b} = {a + b}\nAnswer {k}: \\boxed{{{a + b}}}" for k, (a, b) in enumerate(sums, start=1)]
    return "\n\n".join([*asked, "\n".join(answers)])


def concurrent_task(problems: Sequence[Task], number: int, num_examples: int = 0) -> Task:
    """One task of several problems; its prompt is written in the markup of BCR: ``### Problem k``."""
    heads = [INSTRUCTIONS.format(count=len(problems))]
    heads += [worked_example(example, len(problems)) for example in range(num_examples)]
    body = [f"### Problem {k}\n{task.prompt}" for k, task in enumerate(problems, start=1)]
    digest = hashlib.blake2b("\n".join(task.id for task in problems).encode(), digest_size=6).hexdigest()
    metadata = {
        "task_type": f"{len(problems)} problems",
        "style": "concurrent",
        "num_problems": len(problems),
        "problem_ids": tuple(task.id for task in problems),
        "answers": tuple(task.answer or "" for task in problems),
        "levels": tuple(level_of(task) for task in problems),
    }
    # A model that continues the text begins its answers on a new line.
    tail = [""] if num_examples else []
    answer = "; ".join(f"{k}: {task.answer}" for k, task in enumerate(problems, start=1))
    return Task(f"ccr-{number}-{digest}", "\n\n".join([*heads, *body, *tail]), answer, MappingProxyType(metadata))
