"""Programming problems: read, checked, and split so that no problem is in both."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnowrl.envs.code.checks import check_prelude, plan_checks
from winnowrl.envs.code.programs import head_as_module
from winnowrl.envs.tasks import Task, TaskSet, load_tasks

STARTER_SET = Path(__file__).with_name("problems.jsonl")
SPLITS = ("train", "eval")
MAX_NAMED = 5
STYLES = ("instruction", "completion")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProblemSource:
    """Where problems come from and which of them are used.

    Attributes:
        source: A ``.jsonl`` or ``.parquet`` file or the name of a Hugging Face data set; None is the starter set.
        eval_source: Another one to evaluate on. None uses the column ``split`` (train, eval) where every row has it,
            and else holds out a fraction of ``source``.
        heldout_fraction: That fraction, decided by a hash of each problem.
        limit, eval_limit: At most this many problems of each split.
    """

    source: str | None = None
    eval_source: str | None = None
    heldout_fraction: float = 0.2
    limit: int | None = None
    eval_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction is {self.heldout_fraction}; allowed: between 0 and 1, both excluded")
        for name in ("limit", "eval_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; allowed: None, or 1 or more")


def load_splits(source: ProblemSource) -> dict[str, TaskSet]:
    """The ``train`` and ``eval`` problems of ``source``; read once per process for each file version.

    Raises:
        FileNotFoundError: a file that does not exist.
        ValueError: a row without prompt, entry point or usable tests, or a split left empty.
    """
    paths = [Path(name).expanduser() for name in (source.source, source.eval_source) if name]
    versions = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
    return _load_splits(source, versions)


@lru_cache(maxsize=16)
def _load_splits(source: ProblemSource, versions: tuple[int, ...]) -> dict[str, TaskSet]:
    problems = _read(source.source, "train")
    if source.eval_source is not None:
        held_out = _read(source.eval_source, "test")
        keys = {_key(task) for task in held_out}
        train = [task for task in problems if _key(task) not in keys]
        if len(train) < len(problems):
            logger.warning(
                "%d train problems also stand in %s; left out", len(problems) - len(train), source.eval_source
            )
    elif all(task.metadata.get("split") in SPLITS for task in problems):
        train = [task for task in problems if task.metadata["split"] == "train"]
        held_out = [task for task in problems if task.metadata["split"] == "eval"]
    else:
        held_out = [task for task in problems if _is_held_out(task, source.heldout_fraction)]
        train = [task for task in problems if not _is_held_out(task, source.heldout_fraction)]
    return {
        "train": _task_set(train[: source.limit], "train", source),
        "eval": _task_set(held_out[: source.eval_limit], "eval", source),
    }


def _read(name: str | None, split: str) -> list[Task]:
    tasks = load_tasks(name or STARTER_SET, split=split, requires_answer=False, check=_fault)
    _warn_of_borrowed_names(name or "the starter set", tasks)
    return [_labelled(task) for task in tasks]


def _warn_of_borrowed_names(source: str, tasks: Sequence[Task]) -> None:
    """Name the problems whose tests use what only the program can define: it may do so as it likes."""
    found: list[str] = []
    for task in tasks:
        entry_point = str(task.metadata["entry_point"])
        columns = (str(task.metadata.get(column) or "") for column in ("tests", "visible_tests"))
        names = {name for tests in columns if tests for name in plan_checks(tests, entry_point).program_names}
        if task.metadata.get("style") == "completion":
            names -= check_prelude(head_as_module(task.prompt))
        names -= sys.stdlib_module_names
        found += [f"{task.id} ({', '.join(sorted(names))})"] if names else []
    if found:
        logger.warning(
            "%s: the tests of %d problems use names that only the program defines, as it likes: %s%s",
            source,
            len(found),
            ", ".join(found[:MAX_NAMED]),
            ", …" if len(found) > MAX_NAMED else "",
        )


def _fault(task: Task) -> str | None:
    """Why a row is no problem, or None."""
    entry_point = task.metadata.get("entry_point")
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        return f"entry_point is {entry_point!r}; give the name of the function that the tests call"
    style = task.metadata.get("style", "instruction")
    if style not in STYLES:
        return f"style is {style!r}; allowed: {', '.join(STYLES)}"
    if style == "completion":
        try:
            check_prelude(head_as_module(task.prompt))
        except ValueError as error:
            return f"the prompt is the head of the program: {error}"
    for column in ("tests", "visible_tests"):
        tests = task.metadata.get(column)
        if column == "visible_tests" and not tests:
            continue
        if not isinstance(tests, str):
            return f"{column} is {type(tests).__name__}; give Python source with assert statements"
        try:
            plan_checks(tests, entry_point)
        except ValueError as error:
            return f"{column}: {error}"
    return None


def _labelled(task: Task) -> Task:
    """With a ``task_type`` (topic, else source) by which results are grouped."""
    if task.task_type:
        return task
    label = str(task.metadata.get("topic") or task.metadata.get("source") or "")
    return Task(task.id, task.prompt, task.answer, MappingProxyType({**task.metadata, "task_type": label}))


def _task_set(tasks: Sequence[Task], split: str, source: ProblemSource) -> TaskSet:
    if not tasks:
        raise ValueError(
            f"the {split} split of {source.source or 'the starter set'} is empty; change heldout_fraction, name an "
            "eval_source, or give more problems"
        )
    return TaskSet(tasks, f"code/{split}")


def _key(task: Task) -> str:
    return re.sub(r"\s+", " ", task.prompt).strip().casefold()


def _is_held_out(task: Task, fraction: float) -> bool:
    digest = hashlib.blake2b(_key(task).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def visible_tests(task: Task) -> str:
    """The tests the agent may be shown: those given, and else those whose text stands in the prompt."""
    given = task.metadata.get("visible_tests")
    if given:
        return str(given)
    plan = plan_checks(str(task.metadata["tests"]), str(task.metadata["entry_point"]))
    prompt = _squeezed(task.prompt)
    return "\n".join(source for source in plan.sources if _squeezed(source) in prompt)


def _squeezed(text: str) -> Any:
    return re.sub(r"\s+", "", text).replace('"', "'")
