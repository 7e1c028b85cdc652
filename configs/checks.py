"""Combinations that cannot work, found before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig


def check_combinations(config: RunConfig) -> None:
    """Raise ``ConfigError`` for fields that contradict each other across sections."""
    for check in (_group_size, _budgets, _sampling, _steps):
        check(config)


def _group_size(config: RunConfig) -> None:
    size = config.collector.rollouts_per_task
    if size < 2:
        _refuse(
            f"collector.rollouts_per_task is {size}, but the advantage is relative to the group's mean, which needs at "
            "least 2 rollouts of a task; set collector.rollouts_per_task to 2 or more"
        )


def _budgets(config: RunConfig) -> None:
    sampling = config.sampling
    context = sampling.context_length
    if sampling.max_tokens_per_turn >= context:
        _refuse(
            f"sampling.max_tokens_per_turn is {sampling.max_tokens_per_turn} and sampling.context_length is {context}: no "
            "room is left for a prompt; raise context_length or lower max_tokens_per_turn"
        )
    if sampling.max_tokens_per_rollout is not None and sampling.max_tokens_per_rollout < sampling.max_tokens_per_turn:
        _refuse(
            f"sampling.max_tokens_per_rollout is {sampling.max_tokens_per_rollout}, below sampling.max_tokens_per_turn "
            f"({sampling.max_tokens_per_turn}); a turn can then never use its budget: raise it or lower the other"
        )


def _sampling(config: RunConfig) -> None:
    sampling = config.sampling
    if sampling.temperature <= 0:
        _refuse(
            f"sampling.temperature is {sampling.temperature}: greedy rollouts of a task are all equal and teach nothing; "
            "set it above 0 (1.0 is usual)"
        )


def _steps(config: RunConfig) -> None:
    if config.run.num_steps == 0 and not (config.evaluation.before or config.evaluation.after):
        _refuse("run.num_steps is 0 and no evaluation is asked for; there is nothing to do: raise run.num_steps")


def _refuse(message: str) -> None:
    from winnowrl.configs.load import ConfigError

    raise ConfigError(message)
