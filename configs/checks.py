"""Combinations that cannot work, found before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig

# Families of the metrics of a step (docs/metrics.md).
STEP_METRICS = frozenset({
    "allocator", "batch", "ccr", "clip", "collect", "correction", "gate", "groups", "kl", "learner", "ledger", "length",
    "loss", "max", "memory", "mismatch", "policy", "ratio", "replay", "reward", "seconds", "selector", "staleness", "tasks",
    "time", "tokens",
})  # fmt: skip


def check_combinations(config: RunConfig) -> None:
    """Raise ``ConfigError`` for fields that contradict each other across sections."""
    for check in (
        _group_size,
        _gate,
        _budgets,
        _sampling,
        _engine,
        _reuse,
        _steps,
        _best_metric,
        _overlong,
        _unused,
        _warmups,
    ):
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


def _best_metric(config: RunConfig) -> None:
    name, settings = config.checkpoint.best_metric, config.evaluation
    if name is None:
        return
    family, slash, _ = name.partition("/")
    if family != "eval":
        if name != "ess" and not (slash and family in STEP_METRICS):
            _refuse(
                f"checkpoint.best_metric is {name!r}, which no step logs; allowed: eval/mean, eval/pass@k, or a name out of "
                "docs/metrics.md such as reward/mean"
            )
        return
    samples = settings.samples_per_task
    known = ["eval/mean", *(f"eval/pass@{2**power}" for power in range(samples.bit_length()))]
    if name not in known:
        _refuse(
            f"checkpoint.best_metric is {name!r}, which evaluations of evaluation.samples_per_task = {samples} do not give; "
            f"allowed: {', '.join(known)}"
        )
    if not settings.after and not 0 < settings.every_steps <= config.run.num_steps:
        _refuse(
            f"checkpoint.best_metric is {name!r}, but no trained step is evaluated; set evaluation.every_steps to 1 to "
            f"{config.run.num_steps} (run.num_steps), or evaluation.after to true"
        )


def _overlong(config: RunConfig) -> None:
    objective, limit = config.objective, config.conversation.rollout_tokens
    if objective.overlong_penalty > 0 and objective.overlong_cache_of(limit) > limit:
        _refuse(
            f"objective.overlong_cache is {objective.overlong_cache}, above conversation.rollout_tokens ({limit}), so the "
            f"penalty would begin below a length of 0; set it to 1 to {limit}, or to null for {limit // 5}"
        )


def _unused(config: RunConfig) -> None:
    from winnowrl.configs.unused import unused_fields

    for sentence in unused_fields(config):
        _refuse(sentence)


def _warmups(config: RunConfig) -> None:
    learner, replay, num_steps = config.learner, config.selector.replay, config.run.num_steps
    if num_steps == 0:
        return
    optimizer_steps = num_steps * learner.num_iterations * learner.num_minibatches
    if learner.warmup_steps >= optimizer_steps:
        _refuse(
            f"learner.warmup_steps is {learner.warmup_steps} and the run has {optimizer_steps} optimizer steps: it would end "
            "within its warm-up; lower learner.warmup_steps, or raise run.num_steps"
        )
    if replay.type != "none" and replay.warmup_steps > num_steps:
        _refuse(
            f"selector.replay.warmup_steps is {replay.warmup_steps}, above run.num_steps ({num_steps}): nothing would ever be "
            "replayed; lower selector.replay.warmup_steps, or raise run.num_steps"
        )


def _refuse(message: str) -> None:
    from winnowrl.configs.load import ConfigError

    raise ConfigError(message)
