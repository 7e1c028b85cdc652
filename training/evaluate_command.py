"""What ``winnowrl eval`` and :func:`winnowrl.evaluate` do: find the policy and the tasks, refuse trained ones, evaluate."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.training.checkpoint import Checkpoint, CheckpointStore
from winnowrl.training.console import RunConsole
from winnowrl.training.preflight import load_task_sets, make_env, refuse_overlap, refuse_trained
from winnowrl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from winnowrl.agents.engines.base import Engine
    from winnowrl.configs.schema import RunConfig
    from winnowrl.configs.sections.run import EvaluationConfig
    from winnowrl.envs.tasks import Task
    from winnowrl.training.components import Foundations
    from winnowrl.training.evaluate import EvaluationReport

DEFAULT_SAMPLED_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What to evaluate and on what; fields as the options of ``winnowrl eval``."""

    run: Path | None = None
    step: int | None = None
    model: str = ""
    config: str = ""
    tasks: str = ""
    samples: int = 0
    temperature: float | None = None
    num_tasks: int | None = None
    output: Path | None = None
    overrides: tuple[str, ...] = ()


def run_evaluation(request: EvaluationRequest, console: RunConsole | None = None) -> dict[str, Any]:
    """Evaluate and print the report.

    Returns:
        What ``report.json`` holds.

    Raises:
        ConfigError: the user's mistake.
    """
    console = console or RunConsole()
    config, checkpoint = _policy(request)
    foundations = _foundations(config)
    tasks = _heldout_tasks(request, config, foundations)
    settings = _settings(request, config.evaluation)
    output = request.output or _default_output(request, checkpoint)
    console.say(f"evaluating {_policy_name(request, checkpoint)} on {len(tasks)} tasks of {config.environment.id}")
    report = _evaluate(config, foundations, checkpoint, tasks, settings, output, console)
    _show(report, console)
    console.say(f"written to {output}: report.md, report.json, rows.jsonl")
    return report.to_dict()


def _policy(request: EvaluationRequest) -> tuple[RunConfig, Checkpoint | None]:
    if (request.run is None) == (not request.model):
        raise ConfigError("give either --run RUN or --model MODEL: one policy is evaluated at a time")
    if request.run is None:
        if request.step is not None:
            raise ConfigError("--step names a checkpoint of a run; give --run, or leave it out")
        return load_config(request.config or {}, (*request.overrides, f"model.path={request.model}")), None
    if request.config:
        raise ConfigError("--config goes with --model; with --run the run's own configuration is used")
    folder = RunFolder.open(request.run)
    return folder.read_config(request.overrides), _checkpoint(folder, request.step)


def _checkpoint(folder: RunFolder, step: int | None) -> Checkpoint | None:
    if step == 0:
        return None
    checkpoints = CheckpointStore(folder.checkpoints).all()
    chosen = [c for c in checkpoints if step is None or c.step == step]
    if not chosen:
        there = ", ".join(str(c.step) for c in checkpoints) or "none"
        wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        raise ConfigError(f"{folder.path} has not {wanted}; there are: {there} (and 0, the untrained model)")
    return chosen[-1]


def _foundations(config: RunConfig) -> Foundations:
    from winnowrl.training.components import lay_foundations

    return lay_foundations(config)


def _heldout_tasks(request: EvaluationRequest, config: RunConfig, foundations: Foundations) -> Sequence[Task]:
    tasks = _named_tasks(request.tasks, config) if request.tasks else foundations.tasks.heldout
    if request.run is not None:
        # What the run was trained on, whatever the overrides of this evaluation say.
        stored = RunFolder.open(request.run).read_config()
        trained = load_task_sets(stored.environment).train if request.overrides else foundations.tasks.train
        refuse_overlap(trained, tasks, f"the train tasks of {request.run}")
    refuse_trained(foundations.model_path, tasks)
    limit = config.evaluation.num_tasks if request.num_tasks is None else request.num_tasks
    return tasks[:limit] if limit else tasks


def _named_tasks(name: str, config: RunConfig) -> Sequence[Task]:
    from winnowrl.envs.tasks import load_tasks

    try:
        if Path(name).suffix in (".jsonl", ".json", ".ndjson", ".parquet"):
            return load_tasks(name)
        return make_env(config.environment).task_set(name)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"--tasks {name}: {error}") from None


def _settings(request: EvaluationRequest, configured: EvaluationConfig) -> EvaluationConfig:
    samples = request.samples or configured.samples_per_task
    temperature = request.temperature
    if temperature is None:
        temperature = configured.temperature
        if samples > 1 and temperature == 0:
            temperature = DEFAULT_SAMPLED_TEMPERATURE
    try:
        return dataclasses.replace(configured, samples_per_task=samples, temperature=temperature)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _default_output(request: EvaluationRequest, checkpoint: Checkpoint | None) -> Path:
    # What is asked for stands in the name: another question does not overwrite a finished answer.
    asked: dict[str, str | float | None] = {
        "tasks": Path(request.tasks).stem if request.tasks else None,
        "most": request.num_tasks,
        "samples": request.samples or None,
        "temperature": request.temperature,
    }
    label = "".join(f"_{name}_{value}" for name, value in asked.items() if value is not None)
    # What a name has no room for: overrides, and where files and models lie.
    rest = [*request.overrides, request.config, *(name for name in (request.tasks, request.model) if "/" in name)]
    if any(rest):
        label += "_" + hashlib.sha256(repr(rest).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    if request.run is not None:
        step = checkpoint.step if checkpoint else 0
        return RunFolder.open(request.run).evaluations / f"eval_step_{step:06d}{label}"
    return Path("evaluations") / f"{Path(request.model).name}{label}"


def _policy_name(request: EvaluationRequest, checkpoint: Checkpoint | None) -> str:
    if request.run is None:
        return request.model
    return f"{request.run} at step {checkpoint.step}" if checkpoint else f"{request.run} before training"


def _evaluate(
    config: RunConfig,
    foundations: Foundations,
    checkpoint: Checkpoint | None,
    tasks: Sequence[Task],
    settings: EvaluationConfig,
    output: Path,
    console: RunConsole,
) -> EvaluationReport:
    from winnowrl.training.components import build_run_collector, build_run_engine, reply_sampling
    from winnowrl.training.evaluate import evaluate_policy

    with asyncio.Runner() as runner:
        with console.phase("loading"):
            engine = runner.run(_in_loop(lambda: build_run_engine(config, foundations, for_training=False)))
            if checkpoint is not None:
                runner.run(engine.load_weights(_weights_of(config, checkpoint), checkpoint.step))
        collector = build_run_collector(config, foundations, engine)
        try:
            with console.phase("evaluate", len(tasks) * settings.samples_per_task) as phase:
                return evaluate_policy(
                    collector,
                    tasks,
                    settings,
                    policy=_policy_identity(config, Path(foundations.model_path), checkpoint),
                    sampling=reply_sampling(
                        config, foundations.conversations, temperature=settings.temperature, top_p=settings.top_p
                    ),
                    folder=output,
                    run_async=runner.run,
                    on_episode_over=phase.advance,
                )
        finally:
            runner.run(collector.close())
            runner.run(engine.close())


def _policy_identity(config: RunConfig, model: Path, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Which weights answer, and under which settings: what an evaluation that goes on must find unchanged."""
    folder = model if checkpoint is None else checkpoint.path / "learner"
    sections = (config.environment, config.conversation, config.sampling, config.engine, config.collector)
    settings = json.dumps([config.run.seed, *(dataclasses.asdict(section) for section in sections)], default=str)
    files = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir()) if p.is_file()]
    return {
        "weights": str(folder.resolve()),
        "files": hashlib.sha256(repr(files).encode()).hexdigest(),
        "settings": hashlib.sha256(settings.encode()).hexdigest(),
    }


def _weights_of(config: RunConfig, checkpoint: Checkpoint) -> Any:
    from winnowrl.training.learner.build import build_learner

    learner = build_learner(config)
    learner.load(checkpoint.path / "learner")
    return learner.named_weights()


async def _in_loop(build: Callable[[], Engine]) -> Engine:
    """Build what belongs to the event loop it was made in."""
    return build()


def _show(report: EvaluationReport, console: RunConsole) -> None:
    percent = f"{report.confidence:.0%}"
    named = report.measures()
    types = report.by_type()
    named |= {f"mean of {name}": interval for name, interval in types.items()} if len(types) > 1 else {}
    rows = [[name, f"{i.mean:.3f}", f"{i.low:.3f} to {i.high:.3f}"] for name, i in named.items()]
    console.table(f"{report.num_tasks} tasks, {report.tokens_per_answer:.1f} tokens an answer",
                  ["", "mean", f"{percent} interval"], rows)  # fmt: skip
    undecided = len(report.rows) - report.num_tasks
    if undecided:
        console.warn(f"{undecided} tasks could not be decided (failed or unjudged) and are in no mean")
