"""Evaluation on held-out tasks: samples, rows that survive an interruption, pass@k and intervals, JSON and Markdown."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.base import Sampling
from winnowrl.agents.evaluation import Interval, bootstrap_interval, pass_at_k, score_interval
from winnowrl.training.run_folder import finite, write_atomically

if TYPE_CHECKING:
    from winnowrl.agents.collector import Collector
    from winnowrl.agents.rollout import Group
    from winnowrl.configs.sections.run import EvaluationConfig
    from winnowrl.envs.tasks import Task

ROWS = "rows.jsonl"
REPORT = "report.json"
IDENTITY = "evaluation.json"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """How one task went.

    Attributes:
        scores: One per decided sample: success as 1 or 0 where the environment says so, else the reward.
        num_undecided: Samples left out because they failed or could not be judged.
        tokens: Sampled tokens of each decided sample.
    """

    task_id: str
    task_type: str
    scores: list[float]
    rewards: list[float]
    tokens: list[int]
    num_undecided: int
    replies: list[str]

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def num_correct(self) -> int:
        return sum(score >= 1.0 for score in self.scores)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Numbers over tasks. Tasks without a decided sample are counted in ``num_undecided_tasks`` and are in no mean."""

    rows: list[TaskRow]
    samples_per_task: int
    confidence: float

    @property
    def decided(self) -> list[TaskRow]:
        return [row for row in self.rows if row.scores]

    @property
    def num_tasks(self) -> int:
        return len(self.decided)

    @property
    def mean(self) -> Interval:
        """mean@k: mean over tasks of the mean score of their samples, with an interval over tasks."""
        return score_interval([row.mean for row in self.decided], confidence=self.confidence)

    @property
    def tokens_per_answer(self) -> float:
        tokens = [count for row in self.decided for count in row.tokens]
        return sum(tokens) / len(tokens) if tokens else 0.0

    def pass_at_k(self) -> dict[int, Interval]:
        """Unbiased pass@k for k = 1, 2, 4, … up to the samples of a task.

        Over the tasks with at least k decided samples (``tasks_at_k``). Where samples fail on hard tasks, those of a larger
        k are easier ones.
        """
        return {
            k: score_interval(
                [pass_at_k(len(row.scores), row.num_correct, k) for row in self.decided if len(row.scores) >= k],
                confidence=self.confidence,
            )
            for k in self.tasks_at_k()
        }

    def tasks_at_k(self) -> dict[int, int]:
        """For each k of ``pass_at_k`` the number of tasks with at least k decided samples."""
        powers = [2**i for i in range(self.samples_per_task.bit_length())]
        return {k: sum(len(row.scores) >= k for row in self.decided) for k in powers}

    def measures(self) -> dict[str, Interval]:
        """mean@k and pass@k under their names, with the number of tasks where it is not that of all."""
        found = {f"mean@{self.samples_per_task}": self.mean}
        counts = self.tasks_at_k()
        for k, interval in self.pass_at_k().items():
            is_partial = counts[k] < self.num_tasks
            found[f"pass@{k}" + (f" ({counts[k]} of {self.num_tasks} tasks)" if is_partial else "")] = interval
        return found

    def pass_at_k_metrics(self) -> dict[str, float]:
        return {f"eval/pass@{k}": interval.mean for k, interval in self.pass_at_k().items()}

    def by_type(self) -> dict[str, Interval]:
        """mean@k for each task type."""
        groups: dict[str, list[float]] = defaultdict(list)
        for row in self.decided:
            groups[row.task_type].append(row.mean)
        return {name: score_interval(values, confidence=self.confidence) for name, values in sorted(groups.items())}

    def gain_interval(self, before: EvaluationReport) -> tuple[float, float]:
        """Interval of the gain over ``before``, paired by task."""
        earlier = {row.task_id: row.mean for row in before.decided}
        gains = [row.mean - earlier[row.task_id] for row in self.decided if row.task_id in earlier]
        interval = bootstrap_interval(gains, confidence=self.confidence)
        return interval.low, interval.high

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": _interval(self.mean),
            "pass_at_k": {str(k): _interval(interval) for k, interval in self.pass_at_k().items()},
            "tasks_at_k": {str(k): count for k, count in self.tasks_at_k().items()},
            "by_type": {name: _interval(interval) for name, interval in self.by_type().items()},
            "num_tasks": self.num_tasks,
            "num_undecided_tasks": len(self.rows) - self.num_tasks,
            "num_undecided_samples": sum(row.num_undecided for row in self.rows),
            "samples_per_task": self.samples_per_task,
            "tokens_per_answer": self.tokens_per_answer,
            "confidence": self.confidence,
        }

    def to_markdown(self) -> str:
        percent = f"{self.confidence:.0%}"
        lines = [
            "# Evaluation",
            "",
            f"{self.num_tasks} tasks, {self.samples_per_task} sample(s) each, {self.tokens_per_answer:.1f} tokens an answer.",
            "",
            f"| measure | mean | {percent} interval |",
            "| --- | ---: | ---: |",
        ]
        lines += [_markdown_row(name, interval) for name, interval in self.measures().items()]
        types = self.by_type()
        if len(types) > 1:
            lines += ["", f"| task type | mean | {percent} interval |", "| --- | ---: | ---: |"]
            lines += [_markdown_row(name or "(none)", interval) for name, interval in types.items()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        write_atomically(folder / REPORT, json.dumps(finite(self.to_dict()), indent=2) + "\n")
        write_atomically(folder / "report.md", self.to_markdown())

    @classmethod
    def read(cls, folder: Path) -> EvaluationReport | None:
        """The report written to ``folder``, or None when there is none or it was not finished."""
        try:
            head = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls(list(read_rows(folder / ROWS)), head["samples_per_task"], head["confidence"])


def evaluate_policy(
    collector: Collector,
    tasks: Sequence[Task],
    settings: EvaluationConfig,
    *,
    policy: Mapping[str, Any],
    sampling: Sampling,
    folder: Path,
    run_async: Callable[..., Any],
    on_episode_over: Callable[[], None] | None = None,
    reuse_finished: bool = False,
) -> EvaluationReport:
    """Evaluate the engine's present weights on ``tasks``.

    Rows of the same evaluation of the same policy that was cut short are not made again; those of another are removed.

    Args:
        policy: What tells the present weights from others (JSON).
        sampling: How replies are drawn.
        folder: Gets ``rows.jsonl`` (a row a task, written chunk by chunk), ``report.json`` and ``report.md``.
        run_async: Runs a coroutine on the loop the engine lives in.
        reuse_finished: Whether rows of a finished evaluation are taken too; else it is made anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = {
        "policy": dict(policy),
        "tasks": _digest(tasks),
        "samples": settings.samples_per_task,
        "sampling": str(sampling),
    }
    rows = _resumable_rows(folder, identity, reuse_finished=reuse_finished)
    missing = [task for task in tasks if task.id not in rows]
    for start in range(0, len(missing), settings.max_parallel_tasks):
        chunk = missing[start : start + settings.max_parallel_tasks]
        result = run_async(
            collector.evaluate(
                chunk,
                samples_per_task=settings.samples_per_task,
                sampling=sampling,
                on_episode_over=on_episode_over,
            )
        )
        with (folder / ROWS).open("a", encoding="utf-8") as file:
            for group in result.groups:
                row = _row_of(group)
                rows[row.task_id] = row
                file.write(json.dumps(finite(_plain(row))) + "\n")
    report = EvaluationReport([rows[task.id] for task in tasks], settings.samples_per_task, settings.confidence)
    report.write(folder)
    return report


def _digest(tasks: Sequence[Task]) -> str:
    """Of all that a task is, so that one whose answer was mended is evaluated anew."""
    parts = [repr((task.id, task.prompt, task.answer, sorted(task.metadata.items(), key=repr))) for task in tasks]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def read_rows(path: Path) -> Iterator[TaskRow]:
    """Rows of ``rows.jsonl``; a last line cut by a crash is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield TaskRow(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                return


def _resumable_rows(folder: Path, identity: dict[str, Any], *, reuse_finished: bool) -> dict[str, TaskRow]:
    """Rows of an evaluation of the same policy with the same tasks and settings; another one's are removed."""
    is_finished = (folder / REPORT).exists()
    if _read_identity(folder) == identity and (reuse_finished or not is_finished):
        rows = {row.task_id: row for row in read_rows(folder / ROWS)}
        write_atomically(folder / ROWS, "".join(json.dumps(finite(_plain(row))) + "\n" for row in rows.values()))
        return rows
    for name in (ROWS, REPORT, "report.md"):
        (folder / name).unlink(missing_ok=True)
    write_atomically(folder / IDENTITY, json.dumps(identity))
    return {}


def _read_identity(folder: Path) -> object:
    try:
        return json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _row_of(group: Group) -> TaskRow:
    valid = group.valid_rollouts
    return TaskRow(
        task_id=group.task.id,
        task_type=group.task.task_type,
        scores=[float(r.success) if r.success is not None else r.reward for r in valid],
        rewards=[r.reward for r in valid],
        tokens=[r.num_completion_tokens for r in valid],
        num_undecided=len(group.rollouts) - len(valid),
        replies=["\n".join(turn.text for turn in r.turns) for r in valid],
    )


def _plain(row: TaskRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in TaskRow.__dataclass_fields__}


def _interval(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def _markdown_row(name: str, interval: Interval) -> str:
    return f"| {name} | {interval.mean:.3f} | {interval.low:.3f} to {interval.high:.3f} |"
