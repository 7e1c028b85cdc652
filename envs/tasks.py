"""Tasks and task sets: immutable rows, sized, indexable, read from JSONL, parquet or a Hugging Face data set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a task set.

    Attributes:
        id: Unique in its task set and stable between runs.
        prompt: What the agent is asked, in text.
        answer: The reference answer, or None where the environment itself decides.
        metadata: Anything else (level, source, tests, seed); read-only. ``task_type`` groups results.
    """

    id: str
    prompt: str
    answer: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def task_type(self) -> str:
        return str(self.metadata.get("task_type", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # mappingproxy does not pickle; tasks travel to worker processes.
        return Task, (self.id, self.prompt, self.answer, dict(self.metadata))


class TaskSet(Sequence[Task]):
    """A sized, indexable sequence of tasks with a name."""

    def __init__(self, tasks: Sequence[Task], name: str = "tasks") -> None:
        self.name = name
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        if isinstance(index, slice):
            return TaskSet(self._tasks[index], self.name)
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, {len(self)} tasks)"


PROMPT_KEYS = ("prompt", "problem", "question", "input")
ANSWER_KEYS = ("answer", "solution", "target", "output")


def load_tasks(
    source: str | Path,
    *,
    split: str = "train",
    prompt_key: str | None = None,
    answer_key: str | None = None,
    requires_answer: bool = True,
    limit: int | None = None,
    check: Callable[[Task], str | None] | None = None,
) -> TaskSet:
    """Read a task set from a ``.jsonl`` or ``.parquet`` file, or a Hugging Face data set by name.

    Args:
        source: Path of a file, or the name of a data set (needs the ``datasets`` extra).
        split: Split of a Hugging Face data set; a file has one split and ignores it.
        prompt_key: Column of the prompt; by default the first of prompt, problem, question, input.
        answer_key: Column of the answer; by default the first of answer, solution, target, output.
        requires_answer: Refuse rows without an answer.
        limit: Keep the first ``limit`` rows.
        check: Called with each task; a returned sentence is the reason to refuse it.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: an empty source, a row without prompt or answer, a repeated id, a row that ``check`` refuses.
    """
    rows = _read_rows(source, split)
    tasks: list[Task] = []
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if limit is not None and len(tasks) >= limit:
            break
        where = f"{source}, row {number}"
        prompt = _field(row, prompt_key, PROMPT_KEYS, "prompt", where)
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"{where}: the prompt is empty; give every row a non-empty prompt")
        answer = _field(row, answer_key, ANSWER_KEYS, "answer", where, required=requires_answer)
        if requires_answer and (answer is None or not str(answer).strip()):
            raise ValueError(f"{where}: the answer is empty; remove the row or give it an answer")
        task_id = str(row.get("id", f"{Path(str(source)).stem}-{number - 1}"))
        if task_id in seen:
            raise ValueError(f"{where}: the id {task_id!r} stands twice; ids must be unique in a task set")
        seen.add(task_id)
        used = {prompt_key, answer_key, "id"}
        metadata = {k: v for k, v in row.items() if k not in used and v is not prompt and v is not answer}
        task = Task(task_id, prompt, None if answer is None else str(answer), MappingProxyType(metadata))
        if check is not None and (reason := check(task)):
            raise ValueError(f"{where}: {reason}")
        tasks.append(task)
    if not tasks:
        raise ValueError(f"{source}: no rows; a task set needs at least one")
    return TaskSet(tasks, name=str(source))


def _field(
    row: Mapping[str, Any], key: str | None, usual: Sequence[str], what: str, where: str, *, required: bool = True
) -> Any:
    for candidate in (key,) if key else usual:
        if candidate in row:
            return row[candidate]
    if not required:
        return None
    wanted = repr(key) if key else " or ".join(map(repr, usual))
    raise ValueError(f"{where}: no {what} column (looked for {wanted}; the row has {', '.join(map(repr, row))})")


def _read_rows(source: str | Path, split: str) -> Iterator[Mapping[str, Any]]:
    path = Path(source).expanduser()
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        yield from _read_jsonl(path)
    elif path.suffix == ".parquet":
        if not path.exists():
            raise FileNotFoundError(f"task file {path} does not exist")
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    elif path.exists():
        raise ValueError(f"task file {path} has the suffix {path.suffix!r}; allowed: .jsonl, .parquet")
    else:
        yield from _read_hub(str(source), split)


def _read_jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"task file {path} does not exist")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not JSON ({error.msg}); write one JSON object a line"
                ) from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: a {type(row).__name__}; write one JSON object a line")
            yield row


def _read_hub(name: str, split: str) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise FileNotFoundError(
            f"{name!r} is no file, and reading it as a Hugging Face data set needs: pip install 'winnowrl[datasets]'"
        ) from None
    name, _, config = name.partition(":")
    try:
        yield from datasets.load_dataset(name, config or None, split=split)
    except Exception as error:
        raise FileNotFoundError(f"{name!r} is no file and no data set that could be loaded: {error}") from error
