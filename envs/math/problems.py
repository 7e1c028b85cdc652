"""Problem sets for the mathematics environments: read, checked, filtered and split so that no problem is in both."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.verifier import check_gold
from winnowrl.envs.tasks import Task, TaskSet, load_tasks

STARTER_SET = Path(__file__).with_name("problems.jsonl")
UNREADABLE_GOLD = ("refuse", "drop")

LARGEST_OPERAND = 39

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProblemSource:
    """Where problems come from and which of them are used.

    Attributes:
        source: A ``.jsonl`` or ``.parquet`` file or the name of a Hugging Face data set; None is the starter set, ``sums``
            are sums of numbers up to 39, for models too small for the starter set.
        eval_source: Another one to evaluate on; None holds out a fraction of ``source``.
        heldout_fraction: The fraction held out when there is no ``eval_source``, decided by a hash of each problem.
        min_level, max_level: Keep problems whose ``level`` is in this range; a problem without a level is dropped.
        limit, eval_limit: At most this many problems of each split.
        unreadable_gold: ``refuse`` to load a reference answer that cannot be judged, naming its row, or ``drop`` it.
    """

    source: str | None = None
    eval_source: str | None = None
    heldout_fraction: float = 0.2
    min_level: float | None = None
    max_level: float | None = None
    limit: int | None = None
    eval_limit: int | None = None
    unreadable_gold: str = "refuse"

    def __post_init__(self) -> None:
        if not 0 < self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction is {self.heldout_fraction}; allowed: between 0 and 1, both excluded")
        if self.unreadable_gold not in UNREADABLE_GOLD:
            raise ValueError(f"unreadable_gold is {self.unreadable_gold!r}; allowed: {', '.join(UNREADABLE_GOLD)}")
        for name in ("limit", "eval_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; allowed: None, or 1 or more")


def load_splits(source: ProblemSource, policy: VerifierPolicy) -> dict[str, TaskSet]:
    """The ``train`` and ``eval`` problems of ``source``; read once per process for each file version.

    Raises:
        FileNotFoundError: a file that does not exist.
        ValueError: a row without problem or answer, an unreadable reference answer, or a split left empty.
    """
    paths = [Path(name).expanduser() for name in (source.source, source.eval_source) if name]
    versions = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
    return _load_splits(source, policy, versions)


@lru_cache(maxsize=16)
def _load_splits(source: ProblemSource, policy: VerifierPolicy, versions: tuple[int, ...]) -> dict[str, TaskSet]:
    train = _read(source.source, "train", source, policy)
    if source.eval_source is not None:
        held_out = _read(source.eval_source, "test", source, policy)
        keys = {_key(task) for task in held_out}
        kept = [task for task in train if _key(task) not in keys]
        if len(kept) < len(train):
            logger.warning("%d train problems also stand in %s; left out", len(train) - len(kept), source.eval_source)
        train = kept
    else:
        held_out = [task for task in train if _is_held_out(task, source.heldout_fraction)]
        train = [task for task in train if not _is_held_out(task, source.heldout_fraction)]
    return {
        "train": _task_set(train[: source.limit], "train", source),
        "eval": _task_set(held_out[: source.eval_limit], "eval", source),
    }


def sum_problems() -> list[Task]:
    """``What is a + b?`` for all a and b up to 39, shuffled; level 1, one more for each operand of two digits."""
    numbers = range(LARGEST_OPERAND + 1)
    pairs = [(a, b) for a in numbers for b in numbers]
    order = np.random.default_rng(len(pairs)).permutation(len(pairs)).tolist()
    return [
        Task(f"sum-{a}+{b}", f"What is {a} + {b}?", str(a + b), MappingProxyType({"level": 1 + (a > 9) + (b > 9)}))
        for a, b in (pairs[i] for i in order)
    ]


def _read(name: str | None, split: str, source: ProblemSource, policy: VerifierPolicy) -> list[Task]:
    if name == "sums":
        return [_labelled(task) for task in sum_problems() if _has_level(task, source)]
    # The starter set's answers are checked by a test; a user's are checked here.
    check = None if name is None else lambda task: check_gold(task.answer or "", policy)
    refuses = source.unreadable_gold == "refuse"
    tasks = load_tasks(STARTER_SET if name is None else name, split=split, check=check if refuses else None)
    kept = [_labelled(task) for task in tasks if _has_level(task, source)]
    if check is None or refuses:
        return kept
    readable = [task for task in kept if check(task) is None]
    if len(readable) < len(kept):
        logger.warning(
            "%s: %d of %d reference answers cannot be judged; dropped", name, len(kept) - len(readable), len(kept)
        )
    return readable


def _task_set(tasks: Sequence[Task], split: str, source: ProblemSource) -> TaskSet:
    if not tasks:
        raise ValueError(
            f"the {split} split of {source.source or 'the starter set'} is empty; widen min_level and max_level, change "
            "heldout_fraction, or give more problems"
        )
    return TaskSet(tasks, f"math/{split}")


def _has_level(task: Task, source: ProblemSource) -> bool:
    if source.min_level is None and source.max_level is None:
        return True
    level = level_of(task)
    low = source.min_level if source.min_level is not None else float("-inf")
    high = source.max_level if source.max_level is not None else float("inf")
    return level is not None and low <= level <= high


def level_of(task: Task) -> float | None:
    """The difficulty of a problem: the number in its ``level`` ("Level 3" counts as 3), or None."""
    found = re.search(r"-?\d+(?:\.\d+)?", str(task.metadata.get("level", "")))
    return float(found.group()) if found else None


def _labelled(task: Task) -> Task:
    """With a ``task_type`` (subject, else level) by which results are grouped."""
    if task.task_type:
        return task
    level = task.metadata.get("level")
    label = str(task.metadata.get("subject") or ("" if level is None else f"level {level}"))
    return Task(task.id, task.prompt, task.answer, MappingProxyType({**task.metadata, "task_type": label}))


def _key(task: Task) -> str:
    return re.sub(r"\s+", " ", task.prompt).strip().casefold()


def _is_held_out(task: Task, fraction: float) -> bool:
    digest = hashlib.blake2b(_key(task).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
