"""The folder of a run: what is written where, and how it stays readable whenever the process dies.

runs/<name>/
    config.yaml        resolved configuration
    metrics.jsonl      one row a step
    tensorboard/
    rollouts/          step_000012.jsonl.zst, one row a rollout
    checkpoints/       step_000012/ with manifest.json written last
    evaluations/       before/ after/ step_000010/
    summary.json       what the run came to
    run.log
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winnowrl.configs.load import ConfigError, config_to_yaml, load_config
from winnowrl.configs.schema import RunConfig

# The first line of config.yaml, and what stands before the checksum in the last.
CONFIG_HEAD = "# The resolved configuration of this run; the last line is a checksum of those above it.\n"
_CHECKSUM = "# sha256 "


class RunFolder:
    """Paths of one run and atomic writing into them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, config: RunConfig, default_name: str) -> RunFolder:
        """A new folder; ``run.name: null`` takes the next free ``<default_name>-<n>``.

        Raises:
            ConfigError: the named folder exists already, or nothing can be written there.
        """
        parent = Path(config.run.folder).expanduser()
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = _claim(parent, config.run.name, default_name)
            folder = cls(path)
            folder.write_config(config)
        except FileExistsError:
            raise ConfigError(
                f"run folder {parent / (config.run.name or '')} exists already; continue it with `winnowrl resume "
                f"{parent / (config.run.name or '')}`, or choose another run.name"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"run folder {parent} cannot be written ({error.strerror or error}); set run.folder to a folder you may "
                "write to"
            ) from None
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder. Raises ``ConfigError`` when there is none."""
        folder = cls(Path(path).expanduser())
        if not (folder.path / "config.yaml").is_file():
            raise ConfigError(
                f"{path} is no run folder (it has no config.yaml); give a folder such as runs/quickstart-1"
            )
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while a process writes the run; the lock goes with the process, however it ends.

        Raises:
            ConfigError: another process holds it, or the folder cannot be written.
        """
        try:
            opened = (self.path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"run folder {self.path} cannot be written ({error.strerror or error})") from None
        with opened as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"run folder {self.path} is being written by another process; wait for it or stop it first"
                ) from None
            yield

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def write_text(self, name: str, text: str) -> None:
        """Write whole or not at all."""
        write_atomically(self.path / name, text)

    def write_config(self, config: RunConfig) -> None:
        """Write ``config.yaml`` with a checksum as its last line: cut short, it would still read, with defaults."""
        text = CONFIG_HEAD + config_to_yaml(config)
        self.write_text("config.yaml", f"{text}{_CHECKSUM}{_digest(text)}\n")

    def read_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """The run's configuration, ``overrides`` over it. A file without our first line is read as it is.

        Raises:
            ConfigError: the file is empty, cut, or not what was written; or a mistake in the overrides.
        """
        path = self.path / "config.yaml"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({error})") from None
        written, _, digest = text.rpartition(_CHECKSUM)
        is_ours = text.startswith(CONFIG_HEAD)
        if (is_ours and digest != f"{_digest(written)}\n") or CONFIG_HEAD.startswith(text):
            raise ConfigError(
                f"{path} was cut or changed since it was written (its checksum does not fit); put the file back as it was, and "
                "change a run through overrides of `winnowrl resume`"
            )
        return load_config(path, overrides)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(finite(value), indent=2) + "\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """Rows of metrics.jsonl; a line that a crash cut, or that is no row, is skipped."""
        if not self.metrics_file.exists():
            return
        with self.metrics_file.open(encoding="utf-8") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield row

    def forget_after(self, step: int) -> None:
        """Drop metrics rows, rollouts and the loop's evaluations of steps after ``step``: they will be made again."""
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for path in self.rollouts.glob("step_*"):
            if _step_of(path) > step:
                path.unlink()
        for path in self.evaluations.glob("*"):
            if (_evaluated_step(path) if path.name == "after" else _step_of(path)) > step:
                shutil.rmtree(path)


def _claim(parent: Path, name: str | None, default_name: str) -> Path:
    if name is not None:
        (parent / name).mkdir()
        return parent / name
    for number in range(1, 1_000_000):
        try:
            (parent / f"{default_name}-{number}").mkdir()
        except FileExistsError:
            continue
        return parent / f"{default_name}-{number}"
    raise FileExistsError(default_name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _step_of(path: Path) -> int:
    """Step in the name of a file or folder; 0 where it names none."""
    number = re.match(r"step_(\d+)", path.name)
    return int(number.group(1)) if number else 0


def _evaluated_step(folder: Path) -> int:
    """Step whose policy an evaluation of the loop was made with; 0 where none can be read."""
    try:
        return int(json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["policy"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def write_atomically(path: Path, text: str) -> None:
    """Write beside, flush to disk, rename into place."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """JSON has no NaN: not-a-number and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
