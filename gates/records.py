"""Reads the groups a run recorded, for replaying a gate over them.

One JSON object per rollout and line. Read are ``step``, ``group_id``, ``task_id``, ``task_type``, ``index``,
``actions``, ``reward``, ``stop_reason``, ``was_gated``, ``is_audit``, ``error``, ``verdict``, ``round_index``,
``tokens_per_turn`` and ``num_completion_tokens``; other fields are ignored.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.gates.intervals import has_variance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_OPTIONAL = (
    "task_type",
    "stop_reason",
    "was_gated",
    "is_audit",
    "error",
    "verdict",
    "round_index",
    "tokens_per_turn",
    "num_completion_tokens",
)


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One group as it was recorded. A gate judges the members an allocator's first round gave it.

    Attributes:
        size: G, rollouts begun in the first round, failed ones included.
        actions: one sequence of action strings per member of the first round that did not fail.
        tokens_per_turn: sampled tokens of each of those actions.
        rewards: of members of all rounds that did not fail and whose verdict was decided.
        was_gated: a gate stopped the group, so its rewards are those of unfinished episodes.
        is_audit: the gate said stop, and the group ran on to measure it.
    """

    step: int
    group_id: int
    task_id: str
    task_type: str
    size: int
    actions: tuple[tuple[str, ...], ...]
    tokens_per_turn: tuple[tuple[float, ...], ...]
    rewards: tuple[float, ...]
    was_gated: bool = False
    is_audit: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether its rewards are equal, so that it teaches nothing."""
        return not has_variance(self.rewards)

    @property
    def is_usable(self) -> bool:
        """Whether its end is known: it was not stopped, and two members have a reward."""
        return not self.was_gated and len(self.rewards) >= 2 and len(self.actions) >= 2


def read_groups(run_dir: Path | str) -> list[RecordedGroup]:
    """All groups of a run, by step and group id.

    A rollout recorded twice (a step repeated after a crash) counts once, as recorded last. A last line cut short by a
    crash is passed over.

    Args:
        run_dir: a run folder with ``rollouts/``, a folder of recordings, or one recording. Plain, gzip and zstandard.

    Raises:
        ValueError: no recordings there, a file that cannot be read, or a line that is not a rollout, named by file and number.
    """
    files = find_recordings(Path(run_dir))
    rows: dict[tuple[int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for file in files:
        for number, line in _numbered_lines(file):
            row = _parse(line, f"{file.name} line {number}")
            rows[row["step"], row["group_id"]][row["index"]] = row
    return [_to_group(list(members.values())) for _, members in sorted(rows.items())]


def find_recordings(path: Path) -> list[Path]:
    """The recording files under a path, in order of their names."""
    if path.is_file():
        return [path]
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    files = sorted(file for file in folder.glob("*") if file.name.endswith(SUFFIXES)) if folder.is_dir() else []
    if not files:
        raise ValueError(
            f"{path} has no recorded rollouts ({', '.join(SUFFIXES)}); "
            "give a run folder that has them: they are recorded with run.save_rollouts"
        )
    return files


@contextmanager
def _open_text(file: Path) -> Iterator[TextIO]:
    if file.name.endswith(".zst"):
        import zstandard

        try:
            with zstandard.open(file, "rt", encoding="utf-8") as stream:
                yield stream
        except zstandard.ZstdError as error:
            raise ValueError(f"{file} is damaged or no zstandard file: {error}") from error
    elif file.name.endswith(".gz"):
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            yield stream
    else:
        with file.open(encoding="utf-8") as stream:
            yield stream


def _numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Whole lines of a file; a compressed stream that breaks off ends there."""
    with _open_text(file) as stream:
        lines = enumerate(stream, start=1)
        while True:
            try:
                number, line = next(lines)
            except (StopIteration, EOFError):
                return
            except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
                raise ValueError(f"{file} is damaged: {error}") from error
            if line.endswith("\n") and line.strip():
                yield number, line


def _parse(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        return {
            **{name: row.get(name) for name in _OPTIONAL},
            "step": int(row["step"]),
            "group_id": int(row["group_id"]),
            "index": int(row["index"]),
            "task_id": str(row["task_id"]),
            "actions": [str(action) for action in row["actions"]],
            "reward": float(row["reward"]),
        }
    except KeyError as error:
        raise ValueError(
            f"{place} has no field {error}; needed: step, group_id, task_id, index, actions, reward"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{place} is not a rollout record: {error}") from error


def _to_group(rows: list[dict[str, Any]]) -> RecordedGroup:
    survivors = [row for row in rows if not row.get("error") and row.get("stop_reason") != "error"]
    judged = [row for row in survivors if not row.get("round_index")]
    first = rows[0]
    return RecordedGroup(
        step=first["step"],
        group_id=first["group_id"],
        task_id=first["task_id"],
        task_type=str(first.get("task_type") or ""),
        size=sum(not row.get("round_index") for row in rows),
        actions=tuple(tuple(row["actions"]) for row in judged),
        tokens_per_turn=tuple(_tokens_per_turn(row) for row in judged),
        rewards=tuple(row["reward"] for row in survivors if row.get("verdict") != "undecided"),
        was_gated=any(row.get("was_gated") or row.get("stop_reason") == "gate" for row in rows),
        is_audit=any(row.get("is_audit") for row in rows),
    )


def _tokens_per_turn(row: dict[str, Any]) -> tuple[float, ...]:
    """Tokens of each action: as recorded, else the rollout's total in equal parts, else one per action."""
    num_actions = len(row["actions"])
    recorded = row.get("tokens_per_turn")
    if recorded is not None and len(recorded) == num_actions:
        return tuple(float(count) for count in recorded)
    total = row.get("num_completion_tokens")
    share = float(total) / num_actions if total is not None and num_actions else 1.0
    return (share,) * num_actions
