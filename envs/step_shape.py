"""The shape that every step of an environment must have, and what it says when one has another."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

from winnowrl.envs.verdict import Verdict


class CheckError(Exception):
    """What an environment does wrong, in one sentence that says how to mend it."""


class CheckWarning(Exception):  # noqa: N818 - reported as a warning, not an error
    """Training works, but not well."""


def check_step(result: Any) -> None:
    """Raise :class:`CheckError` unless ``result`` is what ``step`` must return."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise CheckError("step() must return (observation, reward, terminated, truncated, info)")
    observation, reward, terminated, truncated, info = result
    if not isinstance(observation, str):
        raise CheckError(f"the observation is a {type(observation).__name__}; allowed: str")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise CheckError(f"the reward is {reward!r}; allowed: a finite float")
    if not isinstance(terminated, bool) or not isinstance(truncated, bool):
        raise CheckError(f"terminated and truncated are {terminated!r} and {truncated!r}; allowed: bool")
    check_info(info)


def check_info(info: Any) -> None:
    """What the collector reads of info must have the shape it reads."""
    if not isinstance(info, dict):
        raise CheckError(f"info is a {type(info).__name__}; allowed: dict")
    for name, (is_right, allowed) in INFO_VALUES.items():
        if name in info and not is_right(info[name]):
            raise CheckError(f"info[{name!r}] is {str(info[name])[:80]!r}; allowed: {allowed}")
    try:
        pickle.dumps(info)
    except Exception as error:
        raise CheckError(f"info cannot be pickled ({error}); keep plain values in it") from error


def _is_parts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(part, (int, float)) and math.isfinite(part) for name, part in value.items()
    )


INFO_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "action": (lambda value: isinstance(value, str), "str"),
    "admissible_actions": (
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(action, str) for action in value),
        "a list of str",
    ),
    "reward_parts": (_is_parts, "a dict of names to finite floats"),
    "verdict": (lambda value: isinstance(value, Verdict), "winnowrl.envs.Verdict"),
    "success": (lambda value: isinstance(value, bool), "bool"),
}
