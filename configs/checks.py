"""Combinations that cannot work, found before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig


def check_combinations(config: RunConfig) -> None:
    """Raise ``ConfigError`` for fields that contradict each other across sections."""
    for check in (_group_size, _gate, _budgets, _sampling, _engine, _reuse, _steps):
        check(config)


def _group_size(config: RunConfig) -> None:
    size = config.collector.rollouts_per_task
    if size < 2:
        _refuse(
            f"collector.rollouts_per_task is {size}, but the advantage is relative to the group's mean, which needs at "
            "least 2 rollouts of a task; set collector.rollouts_per_task to 2 or more"
        )


def _gate(config: RunConfig) -> None:
    gate, allocator = config.gate, config.allocator
    if gate.type == "none":
        return
    if gate.respend and allocator.type == "vip":
        _refuse(
            "gate.respend is true with allocator.type vip, which gives each task another number of rollouts: what a fresh "
            "task would take is not defined; set gate.respend to false"
        )
    size = allocator.first_round_size(config.collector.rollouts_per_task)
    share = gate.termination_fraction
    if share is not None and allocator.type != "vip" and share > (size - 1) / size:
        _refuse(
            f"gate.termination_fraction is {share:g} with groups of {size}: at least {share:.0%} of them have ended only when "
            f"all have, and then nothing is left to stop; set it to {(size - 1) / size:g} or less, or to null"
        )


def _budgets(config: RunConfig) -> None:
    conversation = config.conversation
    if conversation.rollout_tokens < conversation.turn_tokens:
        _refuse(
            f"conversation.rollout_tokens is {conversation.rollout_tokens}, below conversation.turn_tokens "
            f"({conversation.turn_tokens}); a turn could never use its budget: raise it or lower the other"
        )


def _sampling(config: RunConfig) -> None:
    try:
        config.sampling.require_trainable()
    except ValueError as error:
        _refuse(str(error))


def _engine(config: RunConfig) -> None:
    if config.engine.type == "openai":
        _refuse(
            "engine.type is 'openai', which gives no token ids and no weights can be loaded into; it serves `winnowrl eval` "
            "alone: use vllm or transformers to train"
        )


def _reuse(config: RunConfig) -> None:
    from winnowrl.configs.sections.selector import check_reuse

    try:
        check_reuse(config.objective, config.selector)
    except ValueError as error:
        _refuse(str(error))


def _steps(config: RunConfig) -> None:
    if config.run.num_steps == 0 and not (config.evaluation.before or config.evaluation.after):
        _refuse("run.num_steps is 0 and no evaluation is asked for; there is nothing to do: raise run.num_steps")


def _refuse(message: str) -> None:
    from winnowrl.configs.load import ConfigError

    raise ConfigError(message)
