"""From a run's configuration to a learner."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from winnowrl.training.lean_layers import use_lean_layers
from winnowrl.training.learner.engine import TrainingEngine
from winnowrl.training.learner.learner import DeepSpeedLearner
from winnowrl.training.learner.lora import add_lora
from winnowrl.training.learner.optimizer import build_adamw
from winnowrl.training.learner.policy import Policy
from winnowrl.training.learner.update import Updater, UpdateSettings
from winnowrl.training.losses import ObjectiveSpec, build_objective
from winnowrl.training.model_loading import disable_dropout, load_model, resolve_model_path

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig
    from winnowrl.configs.sections.learner import LearnerConfig


def build_learner(config: RunConfig, *, model: Any = None, device: str | None = None) -> DeepSpeedLearner:
    """The learner of a run, on this process's device.

    Args:
        model: An already loaded transformers model; None loads ``config.model.path``.
        device: None takes this rank's GPU if there is one.

    Raises:
        ValueError: the model cannot be had or cannot be trained, or settings contradict each other.
    """
    config.sampling.require_trainable()
    device = device or (f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu")
    folder = Path(resolve_model_path(config.model.path)) if model is None else None
    if model is None:
        model = load_model(str(folder), dtype=config.model.dtype, device=device)
    return assemble_learner(
        model,
        config.learner,
        build_objective(config.objective, max_completion_tokens=config.conversation.rollout_tokens),
        temperature=config.sampling.temperature,
        num_updates=config.run.num_steps,
        weighting=config.objective.weighting,
        overlong_filter=config.objective.overlong_filter,
        seed=config.run.seed,
        model_folder=folder,
    )


def assemble_learner(
    model: Any,
    config: LearnerConfig,
    spec: ObjectiveSpec,
    *,
    temperature: float = 1.0,
    num_updates: int = 1,
    weighting: str = "auto",
    overlong_filter: bool = False,
    seed: int = 0,
    model_folder: Path | None = None,
) -> DeepSpeedLearner:
    """A learner around ``model``, which it changes and owns from now on; its dropout is switched off.

    Args:
        num_updates: Calls of ``update`` in the whole run; the schedule ends with the last.
    """
    device_type = next(model.parameters()).device.type
    if config.attention == ("flex" if device_type == "cpu" else "blocks"):
        here = "auto, blocks, dense" if device_type == "cpu" else "auto, flex, dense"
        raise ValueError(
            f"learner.attention is {config.attention!r}, which does not train on {device_type}; allowed here: {here}"
        )
    disable_dropout(model)
    torch.manual_seed(seed)
    reference = _reference_copy(model, config, spec, temperature)
    if config.lora.rank:
        add_lora(
            model, rank=config.lora.rank, alpha=config.lora.alpha, target_modules=tuple(config.lora.target_modules)
        )
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    if device_type == "cpu":
        use_lean_layers(model)
    policy = Policy(model, temperature=temperature, chunk_rows=config.head_chunk_rows).train()
    optimizer = build_adamw(
        policy,
        learning_rate=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        decays_embeddings=config.decays_embeddings,
    )
    settings = UpdateSettings(
        learning_rate=config.learning_rate,
        total_steps=max(1, num_updates * config.num_iterations * config.num_minibatches),
        schedule=config.schedule,
        warmup_steps=config.warmup_steps,
        min_learning_rate_ratio=config.min_learning_rate_ratio,
        num_iterations=config.num_iterations,
        num_minibatches=config.num_minibatches,
        tokens_per_microbatch=config.packed_tokens(str(model.dtype).removeprefix("torch.")),
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        prefix_sharing=config.prefix_sharing,
        attention=None if config.attention == "auto" else config.attention,
        weighting=weighting,
        overlong_filter=overlong_filter,
        seed=seed,
    )
    engine = TrainingEngine(
        policy, optimizer, zero_stage=config.zero_stage, grad_clip=config.grad_clip, timeout_s=config.timeout_s
    )
    if config.dither_masters and model.dtype == torch.bfloat16:
        engine.dither_masters(policy, seed)
    updater = Updater(policy, engine, spec, settings, reference=reference)
    return DeepSpeedLearner(policy, engine, updater, model_folder=model_folder)


def _reference_copy(model: Any, config: LearnerConfig, spec: ObjectiveSpec, temperature: float) -> Policy | None:
    """A frozen copy for the KL, unless there is none or switching the adapters off gives the same."""
    if not spec.needs_reference or config.lora.rank:
        return None
    frozen = copy.deepcopy(model).requires_grad_(False)
    return Policy(frozen, temperature=temperature, chunk_rows=config.head_chunk_rows).eval()
