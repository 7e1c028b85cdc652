"""Fields that a run would accept and ignore, each with what must be set for something to read it.

A section's ``TYPES`` say which fields its chosen type uses; here are the others. A field at its default is never refused: a
written configuration spells every default out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig

# Defaults of earlier versions, which their run folders spell out.
_EARLIER_DEFAULTS: dict[str, object] = {"objective.overlong_cache": 4096}


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields that nothing reads unless ``is_used``.

    Attributes:
        governor: The field that decides.
        mend: What to set it to, after "set <governor>".
    """

    fields: tuple[str, ...]
    governor: str
    is_used: Callable[[RunConfig], bool]
    mend: str


RULES = (
    Rule(
        ("objective.kl_type", "objective.kl_ratio_weighted"),
        "objective.kl_coef",
        lambda config: config.objective.kl_coef > 0,
        "above 0",
    ),
    Rule(
        ("objective.regularize_zero_advantage",),
        "objective.kl_coef",
        lambda config: config.objective.kl_coef > 0 or config.objective.entropy_coef != 0,
        "above 0, or objective.entropy_coef",
    ),
    Rule(
        ("objective.correction_cap_low", "objective.correction_cap_high"),
        "objective.correction",
        lambda config: config.objective.correction != "none",
        "to token_tis or another kind",
    ),
    Rule(
        ("objective.advantage_eps", "objective.advantage_std"),
        "objective.advantage_scale",
        lambda config: config.objective.resolved()["advantage_scale"] != "none",
        "to group or batch",
    ),
    Rule(
        ("objective.overlong_cache",),
        "objective.overlong_penalty",
        lambda config: config.objective.overlong_penalty > 0,
        "above 0",
    ),
    Rule(
        ("learner.lora.alpha", "learner.lora.target_modules"),
        "learner.lora.rank",
        lambda config: config.learner.lora.rank > 0,
        "above 0",
    ),
    Rule(
        ("learner.decays_embeddings",),
        "learner.weight_decay",
        lambda config: config.learner.weight_decay > 0,
        "above 0",
    ),
    Rule(
        ("selector.birth_logprobs",),
        "selector.type",
        lambda config: config.selector.reuses_rollouts,
        "to cbs, or selector.replay.type to advantage_prioritized",
    ),
    Rule(
        ("selector.replay.priority_eps",),
        "selector.replay.priority_exponent",
        lambda config: config.selector.replay.type == "none" or config.selector.replay.priority_exponent > 0,
        "above 0",
    ),
    Rule(
        ("selector.ema_rate",),
        "selector.ema_mode",
        lambda config: not config.selector.type.startswith("cbs") or config.selector.ema_mode != "none",
        "to another mode",
    ),
    Rule(
        ("selector.entropy_floor",),
        "selector.entropy_weight",
        lambda config: not config.selector.type.startswith("cbs") or config.selector.entropy_weight > 0,
        "above 0",
    ),
    Rule(
        ("checkpoint.best_mode",),
        "checkpoint.best_metric",
        lambda config: config.checkpoint.best_metric is not None,
        "to a metric",
    ),
)


def unused_fields(config: RunConfig) -> Iterator[str]:
    """A sentence for each field that is set to something and read by nothing."""
    for rule in RULES:
        if rule.is_used(config):
            continue
        for field in rule.fields:
            value, default = _value(config, field), _default(config, field)
            if value not in (default, _EARLIER_DEFAULTS.get(field, default)):
                yield (
                    f"{field} is {value!r} but {rule.governor} is {_effective(config, rule.governor)}, so nothing reads it; "
                    f"remove it, or set {rule.governor} {rule.mend}"
                )


def _effective(config: RunConfig, field: str) -> Any:
    """The value of a field, with what its loss type fills in; as YAML writes an open one."""
    section, _, name = field.rpartition(".")
    value = config.objective.resolved().get(name) if section == "objective" else None
    value = _value(config, field) if value is None else value
    return "null" if value is None else value


def _value(config: RunConfig, field: str) -> Any:
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


def _default(config: RunConfig, field: str) -> Any:
    section, _, name = field.rpartition(".")
    found = next(each for each in dataclasses.fields(_value(config, section)) if each.name == name)
    return found.default_factory() if found.default_factory is not dataclasses.MISSING else found.default
