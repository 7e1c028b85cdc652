"""From the ``selector`` section to the object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.replay import ReplayBuffer
from winnowrl.training.selection.bandit import BanditOptions, CbsSelector, CbsStarSelector
from winnowrl.training.selection.base import AllSelector, RandomSelector, Selector
from winnowrl.training.selection.replaying import ReplaySelector

if TYPE_CHECKING:
    from winnowrl.configs.sections.selector import SelectorConfig

SELECTORS: dict[str, Callable[[SelectorConfig, int, int], Selector]] = {
    "all": lambda config, seed, max_tokens: AllSelector(),
    "random": lambda config, seed, max_tokens: RandomSelector(keep_fraction=config.keep_fraction, seed=seed),
    "cbs_star": lambda config, seed, max_tokens: CbsStarSelector(
        bandit_options(config, seed, max_tokens), keep_fraction=config.keep_fraction
    ),
    "cbs": lambda config, seed, max_tokens: CbsSelector(
        bandit_options(config, seed, max_tokens),
        buffer_rounds=config.buffer_rounds,
        birth_logprobs=config.birth_logprobs,
    ),
}


def build_selector(config: SelectorConfig, *, seed: int, max_tokens: int) -> Selector:
    """The selector of a run, with replay around it where the config asks for it.

    Args:
        seed: The run's; parts derive their own from it.
        max_tokens: Longest completion of the run, tokens (scales the length feature).
    """
    selector = SELECTORS[config.type](config, derive_seed(seed, "selector"), max_tokens)
    if config.replay.type == "none":
        return selector
    replay = config.replay
    buffer = ReplayBuffer(
        capacity=replay.capacity,
        max_age=replay.max_age,
        priority_exponent=replay.priority_exponent,
        priority_eps=replay.priority_eps,
        seed=derive_seed(seed, "replay buffer"),
    )
    return ReplaySelector(
        selector,
        buffer,
        ratio=replay.ratio,
        warmup_steps=replay.warmup_steps,
        birth_logprobs=config.birth_logprobs,
        multiple_of=replay.multiple_of,
    )


def bandit_options(config: SelectorConfig, seed: int, max_tokens: int) -> BanditOptions:
    """The bandit's settings; its names are the config's."""
    shared = {each.name for each in fields(BanditOptions)} - {"seed", "max_tokens"}
    return BanditOptions(seed=seed, max_tokens=max_tokens, **{name: getattr(config, name) for name in shared})
