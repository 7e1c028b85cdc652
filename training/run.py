"""``train``, ``resume`` and ``evaluate``: what the command line and Python call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.configs.schema import RunConfig
from winnowrl.training.console import RunConsole
from winnowrl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from winnowrl.training.checkpoint import Checkpoint
    from winnowrl.training.loop import TrainingLoop

# What a resumed run may change: nothing that decides the steps already made. Another run.num_steps stretches or shortens a
# learning-rate schedule for the steps to come, which is said.
RESUMABLE = ("run.num_steps", "checkpoint.", "evaluation.", "diagnostics.", "run.trackers", "collector.report_every_s")


def train(
    config: RunConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    name: str = "run",
    console: RunConsole | None = None,
) -> dict[str, Any]:
    """Run a configuration to its end.

    Args:
        config: A checked configuration, or what :func:`~winnowrl.configs.load.load_config` takes.
        overrides: ``section.field=value``; only with a configuration that is still to be loaded.
        name: Name of the run folder where ``run.name`` is null (a number is added).

    Returns:
        What ``summary.json`` holds.

    Raises:
        ConfigError: the user's mistake, before any model is loaded.
    """
    from winnowrl.training.components import lay_training_foundations

    loaded = config if isinstance(config, RunConfig) else load_config(config, overrides)
    if isinstance(config, str | Path):
        name = Path(config).stem
    console = console or RunConsole()
    with console.phase("checking"):
        foundations = lay_training_foundations(loaded)
    folder = RunFolder.create(loaded, name)
    with folder.locked():
        return _run(loaded, folder, foundations, console, is_resumed=False)


def resume(run: str | Path, overrides: Sequence[str] = (), *, console: RunConsole | None = None) -> dict[str, Any]:
    """Go on with a run from its last checkpoint, or from the start when it has none.

    Raises:
        ConfigError: no run folder, or an override of what decides the steps already made.
    """
    folder = RunFolder.open(run)
    for override in overrides:
        if not override.startswith(RESUMABLE):
            raise ConfigError(
                f"override {override!r} would change the steps already made; a resumed run may change: {', '.join(RESUMABLE)}"
            )
    with folder.locked():
        return _resume(folder, overrides, console or RunConsole())


def _resume(folder: RunFolder, overrides: Sequence[str], console: RunConsole) -> dict[str, Any]:
    from winnowrl.training.components import lay_training_foundations

    config = folder.read_config(overrides)
    _check_num_steps(folder, config, console)
    with console.phase("checking"):
        foundations = lay_training_foundations(config)
    if overrides:
        folder.write_config(config)
    return _run(config, folder, foundations, console, is_resumed=True)


def _check_num_steps(folder: RunFolder, config: RunConfig, console: RunConsole) -> None:
    """Refuse fewer steps than were made, and say what another number does to the learning rate."""
    from winnowrl.training.loop import latest_checkpoint

    checkpoint = latest_checkpoint(folder.path)
    if checkpoint is None:
        return
    earlier, now = folder.read_config().run.num_steps, config.run.num_steps
    if checkpoint.step <= now != earlier and config.learner.schedule != "constant":
        console.warn(
            f"run.num_steps is {now} instead of {earlier}, and learner.schedule {config.learner.schedule} goes over the whole "
            f"run: after step {checkpoint.step} the learning rate jumps to that of a run of {now} steps, and the result is "
            "not what such a run gives from its start"
        )
    if checkpoint.step > now:
        raise ConfigError(
            f"run.num_steps is {config.run.num_steps}, but {folder.path} is at step {checkpoint.step} already; give "
            f"{checkpoint.step} or more"
        )


def _run(
    config: RunConfig, folder: RunFolder, foundations: Any, console: RunConsole, *, is_resumed: bool
) -> dict[str, Any]:
    from winnowrl.training.components import build_components
    from winnowrl.training.loop import TrainingLoop, latest_checkpoint

    checkpoint = latest_checkpoint(folder.path) if is_resumed else None
    if checkpoint is not None and checkpoint.step >= config.run.num_steps:
        summary = _finished_summary(folder, config, checkpoint.step)
        if summary is not None:
            console.say(f"{folder.path} is finished at step {checkpoint.step}; raise run.num_steps to go on")
            return summary
    console.say(f"run {folder.path}: {config.environment.id}, {config.model.path}, {config.run.num_steps} steps")
    with asyncio.Runner() as runner:
        with console.phase("loading"):
            # Engines belong to the loop that made them.
            parts = runner.run(_build(build_components, config, foundations))
        loop = TrainingLoop(config, folder, parts, console, runner)
        try:
            if is_resumed:
                folder.forget_after(checkpoint.step if checkpoint else 0)
            if checkpoint is not None:
                console.say(f"resuming after step {checkpoint.step}")
                _restore(loop, checkpoint)
            return loop.run()
        finally:
            loop.close()


def _finished_summary(folder: RunFolder, config: RunConfig, step: int) -> dict[str, Any] | None:
    """What the run came to, if it was finished at ``step``; None where something is left to do."""
    path = folder.path / "summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    is_evaluated = summary["heldout_after_interval"] is not None or not config.evaluation.after
    # An earlier end of the same run is no end of a run made longer since.
    return summary if summary["is_finished"] and summary["steps"] == step and is_evaluated else None


def _restore(loop: TrainingLoop, checkpoint: Checkpoint) -> None:
    try:
        loop.restore(checkpoint)
    except Exception as error:
        raise ConfigError(
            f"cannot go on from checkpoint {checkpoint.path} ({type(error).__name__}: {error}); if a file of it is damaged, "
            "remove that folder to go on from the checkpoint before it"
        ) from error


async def _build(build: Any, config: RunConfig, foundations: Any) -> Any:
    return build(config, foundations)
