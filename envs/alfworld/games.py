"""Where the games are: ``$ALFWORLD_DATA``, a folder, or those shipped here; listed once and remembered."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnowrl.envs.alfworld.rooms import SHIPPED_GAMES, read_room_games
from winnowrl.envs.alfworld.saving import write_whole
from winnowrl.envs.tasks import Task, TaskSet

logger = logging.getLogger(__name__)

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen", "eval": "valid_unseen"}
GAME_FILE = "game.tw-pddl"
INDEX_VERSION = 2
PROGRESS_FROM = 200
MAX_NAMED = 5

_GOAL = re.compile(r"Your task is to: (.*?)\.?\"")


def cache_folder() -> Path:
    """Where lists of games and translations are kept: ``$WINNOWRL_CACHE``, else ``~/.cache/winnowrl``."""
    return Path(os.environ.get("WINNOWRL_CACHE") or Path.home() / ".cache" / "winnowrl") / "alfworld"


def find_games(games: str | Path | None) -> Path | None:
    """The folder that holds the splits, or None for the shipped games.

    Args:
        games: a folder (with ``json_2.1.1`` in it, or that folder itself), ``"shipped"``, or None: ``$ALFWORLD_DATA``
            where that is set, else the shipped ones.

    Raises:
        FileNotFoundError: the folder has no games.
    """
    named = os.environ.get("ALFWORLD_DATA") if games is None else str(games)
    if not named or named == "shipped":
        return None
    root = Path(named).expanduser()
    for folder in (root / "json_2.1.1", root):
        if any((folder / split).is_dir() for split in SPLITS.values()):
            return folder.resolve()
    # Importing the alfworld package sets the variable to this folder, games or no games.
    if games is None and root == Path.home() / ".cache" / "alfworld":
        return None
    source = "$ALFWORLD_DATA" if games is None else "games"
    raise FileNotFoundError(
        f"{source} is {named!r}, where no json_2.1.1/{{train,valid_seen,valid_unseen}} is; run alfworld-download, "
        "give another folder, or games='shipped' for the small games of this package"
    )


def game_tasks(folder: Path | None, split: str, task_types: Sequence[str], cache: Path) -> TaskSet:
    """The tasks of ``split``; ``Task.metadata`` has ``task_type``, ``game`` (what a worker opens) and ``split``.

    A game whose file is damaged is left out, with a warning that names it.

    Raises:
        ValueError: no such split, or no game of these types in it that can be read.
    """
    if split not in SPLITS:
        raise ValueError(f"ALFWorld has no split {split!r}; it has: {', '.join(SPLITS)} (eval is unseen)")
    damaged: list[str] = []
    if folder is None:
        rows: Iterable[dict[str, Any]] = _shipped_rows(SPLITS[split])
    else:
        rows, damaged = _listed_rows(folder, SPLITS[split], cache)
    tasks = [_task(row, split) for row in rows if row["task_type"] in task_types]
    told = f"{len(damaged)} of its games are damaged and left out: {'; '.join(damaged[:MAX_NAMED])}"
    told += "; …" if len(damaged) > MAX_NAMED else ""
    if not tasks:
        named = f"no game of {', '.join(task_types)} in {folder or 'the shipped games'}, split {split!r}"
        raise ValueError(f"{named}; {told}" if damaged else named)
    if damaged:
        logger.warning("ALFWorld, split %s: %s", split, told)
    return TaskSet(tasks, f"alfworld/{split}")


def _task(row: dict[str, Any], split: str) -> Task:
    metadata = {"task_type": row["task_type"], "game": row["game"], "split": split}
    return Task(row["id"], row["goal"], None, MappingProxyType(metadata))


def _shipped_rows(split: str) -> Iterator[dict[str, Any]]:
    for game in read_room_games():
        if game.id.startswith(f"{split}/"):
            source = f"{SHIPPED_GAMES}#{game.id}"
            yield {"id": game.id, "task_type": game.task_type, "goal": game.goal, "game": source}


def _listed_rows(folder: Path, split: str, cache: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The games under ``folder/split`` and what is wrong with the others.

    Both are remembered, and read again when the folder has changed.
    """
    trials = sorted(path for path in (folder / split).glob("*/*") if (path / GAME_FILE).exists())
    # The names and times of all trials: opening thousands of files is what takes long, not looking at them.
    seen = hashlib.blake2b(digest_size=16)
    for trial in trials:
        seen.update(f"{trial} {(trial / GAME_FILE).stat().st_mtime_ns}\n".encode(errors="surrogateescape"))
    name = hashlib.blake2b(f"{INDEX_VERSION} {folder}/{split}".encode(), digest_size=8).hexdigest()
    index = cache / f"games-{name}.json"
    try:
        remembered = json.loads(index.read_text(encoding="utf-8"))
        if remembered["seen"] == seen.hexdigest():
            return list(remembered["games"]), list(remembered["damaged"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    rows: list[dict[str, Any]] = []
    damaged: list[str] = []
    for trial in _with_progress(trials, split):
        try:
            row = _read_row(trial, folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            damaged.append(f"{trial / GAME_FILE} ({type(error).__name__}: {error})")
            continue
        rows += [row] if row else []
    content = {"seen": seen.hexdigest(), "games": rows, "damaged": damaged}
    write_whole(index, json.dumps(content).encode())
    return rows, damaged


def _read_row(trial: Path, folder: Path) -> dict[str, Any] | None:
    """One row, or None for a game that ALFWorld leaves out too: not known solvable, or of another type."""
    task_type = trial.parent.name.split("-")[0]
    if task_type not in TASK_TYPES or "movable" in str(trial) or "Sliced" in str(trial):
        return None
    game = json.loads((trial / GAME_FILE).read_text(encoding="utf-8"))
    if not game.get("solvable"):
        return None
    goal = _GOAL.search(game["grammar"])
    text = goal.group(1) if goal else task_type.replace("_", " ")
    row_id = str(trial.relative_to(folder))
    return {"id": row_id, "task_type": task_type, "goal": text, "game": str(trial / GAME_FILE)}


def _with_progress(trials: Sequence[Path], split: str) -> Iterable[Path]:
    if len(trials) < PROGRESS_FROM or not sys.stderr.isatty():
        return trials
    from rich.console import Console
    from rich.progress import track

    return track(trials, f"Listing ALFWorld games ({split})", console=Console(stderr=True), transient=True)
