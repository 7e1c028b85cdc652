"""The parts of a run, built from its configuration: task sets, engine, conversation, collector, learner, selector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from winnowrl.agents.collector import Collector, build_collector
from winnowrl.agents.conversation import ConversationFactory, build_conversations
from winnowrl.agents.engines.base import Engine, Sampling
from winnowrl.agents.engines.build import base_sampling, build_engine
from winnowrl.agents.ledger import Ledger
from winnowrl.agents.seeding import derive_seed
from winnowrl.configs.load import ConfigError
from winnowrl.gates import AuditLedger, build_allocator, build_audit, build_gate
from winnowrl.training.adapter_targets import check_adapter_targets
from winnowrl.training.preflight import (
    Tasks,
    check_gate_turn,
    check_prompt_lengths,
    load_task_sets,
    make_env,
    refuse_trained,
)
from winnowrl.training.selection.build import build_selector
from winnowrl.training.task_cursor import TaskCursor
from winnowrl.training.trackers import check_trackers

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig
    from winnowrl.gates.allocation import Allocator
    from winnowrl.training.learner.learner import DeepSpeedLearner
    from winnowrl.training.selection.base import Selector


@dataclass(frozen=True, slots=True)
class Foundations:
    """What is checked and cheap: no model is loaded for it."""

    tasks: Tasks
    model_path: str
    tokenizer: Any
    conversations: ConversationFactory


@dataclass(slots=True)
class Components:
    """The live parts of a run. ``audit`` counts how gated groups ended; None without a gate."""

    tasks: Tasks
    cursor: TaskCursor
    conversations: ConversationFactory
    engine: Engine
    learner: DeepSpeedLearner
    collector: Collector
    allocator: Allocator
    audit: AuditLedger | None
    selector: Selector
    ledger: Ledger


def lay_foundations(config: RunConfig) -> Foundations:
    """Check everything that can be checked before a model is loaded.

    Raises:
        ConfigError: one clear sentence.
    """
    from winnowrl.training.model_loading import load_tokenizer, resolve_model_path
    from winnowrl.training.quiet import quiet_progress_bars

    quiet_progress_bars()
    tasks = load_task_sets(config.environment)
    check_gate_turn(config)
    try:
        model_path = resolve_model_path(config.model.path)
        tokenizer = load_tokenizer(model_path)
        build_allocator(config.allocator, config.collector.tasks_per_step, config.collector.rollouts_per_task)
        conversations = build_conversations(config.conversation, tokenizer, model_path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    configured = config.conversation.system_prompt
    system_prompt = make_env(config.environment).system_prompt if configured is None else configured or None

    def count_tokens(prompt: str) -> int:
        return len(conversations.template.first_prompt(system_prompt, prompt))

    check_prompt_lengths(tasks, config, count_tokens)
    return Foundations(tasks, model_path, tokenizer, conversations)


def lay_training_foundations(config: RunConfig) -> Foundations:
    """As :func:`lay_foundations`, with what training alone needs: trackers, and the layers that get adapters.

    Raises:
        ConfigError: one clear sentence.
    """
    check_trackers(config.run.trackers)
    foundations = lay_foundations(config)
    refuse_trained(foundations.model_path, foundations.tasks.heldout)
    check_adapter_targets(config.learner.lora, foundations.model_path)
    return foundations


def reply_sampling(
    config: RunConfig,
    conversations: ConversationFactory,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
) -> Sampling:
    """How a reply is drawn; ``temperature`` and ``top_p`` (evaluation's) take the place of training's."""
    sampling = base_sampling(config.sampling, conversations)
    return replace(
        sampling,
        temperature=sampling.temperature if temperature is None else temperature,
        top_p=sampling.top_p if top_p is None else top_p,
    )


def build_run_engine(config: RunConfig, foundations: Foundations, *, for_training: bool = True) -> Engine:
    """The engine of a run, loaded with the model's initial weights."""
    try:
        return build_engine(config.engine, foundations.model_path, foundations.conversations, for_training=for_training)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"engine.type is {config.engine.type!r}: {error}") from None


def build_run_collector(config: RunConfig, foundations: Foundations, engine: Engine, **parts: Any) -> Collector:
    """A collector over the run's environment; without ``allocator`` in ``parts`` it serves evaluation alone."""
    counts = (config.collector.tasks_per_step, config.collector.rollouts_per_task)
    parts.setdefault("allocator", build_allocator(config.allocator, *counts))
    return build_collector(
        config.collector,
        engine=engine,
        new_conversation=foundations.conversations,
        env_id=config.environment.id,
        env_kwargs=config.environment.kwargs,
        sampling=reply_sampling(config, foundations.conversations),
        run_seed=config.run.seed,
        **parts,
    )


def build_components(config: RunConfig, foundations: Foundations) -> Components:
    """Load the models and build every part."""
    from winnowrl.training.learner.build import build_learner

    engine = build_run_engine(config, foundations)
    try:
        learner = build_learner(config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    gate = build_gate(config.gate)
    audit_draw, audit = build_audit(config.gate, config.run.seed) if gate is not None else (None, None)
    allocator = build_allocator(config.allocator, config.collector.tasks_per_step, config.collector.rollouts_per_task)
    collector = build_run_collector(config, foundations, engine, allocator=allocator, gate=gate, audit=audit_draw)
    return Components(
        tasks=foundations.tasks,
        cursor=TaskCursor(foundations.tasks.train, derive_seed(config.run.seed, "tasks")),
        conversations=foundations.conversations,
        engine=engine,
        learner=learner,
        collector=collector,
        allocator=allocator,
        audit=audit,
        selector=build_selector(config.selector, seed=config.run.seed, max_tokens=config.conversation.rollout_tokens),
        ledger=Ledger(reward_tolerance=config.objective.reward_tolerance),
    )
