"""Where metrics go besides metrics.jsonl: TensorBoard, and trackio or wandb when asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from winnowrl.configs.load import ConfigError

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """Scalars into ``<run>/tensorboard``. A resumed run hides the points after its checkpoint (``purge_step``)."""

    def __init__(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)  # type: ignore[no-untyped-call]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]


class WandbLikeTracker:
    """wandb, or trackio, which speaks the same calls."""

    def __init__(self, module: str, folder: Path, config: Mapping[str, Any]) -> None:
        from importlib import import_module

        self._client = import_module(module)
        self._client.init(project="winnowrl", name=folder.name, config=dict(config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._client.log(dict(metrics), step=step)

    def close(self) -> None:
        self._client.finish()


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed; TensorBoard may be missing.

    Raises:
        ConfigError: naming the tracker and what to install.
    """
    for name in names:
        if name == "tensorboard":
            continue
        spec = find_spec(name)
        # A folder of that name, such as wandb leaves where it ran, is found as well.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"run.trackers names {name!r}, which is not installed; run `pip install 'winnowrl[trackers]'`, or take it out"
            )


def build_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any], first_step: int = 0) -> list[Tracker]:
    """Trackers by name; TensorBoard missing from the installation is said once and left out."""
    trackers: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            try:
                trackers.append(TensorBoardTracker(folder, config, first_step))
            except ImportError:
                logger.warning("tensorboard is not installed; metrics go to metrics.jsonl alone")
        else:
            trackers.append(WandbLikeTracker(name, folder, config))
    return trackers
