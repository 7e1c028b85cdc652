"""What a gate is: a pure decision about one group at one turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

Number = TypeVar("Number", "float", "npt.NDArray[np.float64]")


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The answer for one group.

    Attributes:
        stop: True = every live member is to be cancelled and the group dropped.
        distance: the group's distance at the turn of the gate; None where there was nothing to compare.
        reason: one line for the log, with the numbers that decided.
    """

    stop: bool
    distance: float | None
    reason: str


@runtime_checkable
class Gate(Protocol):
    """Judges a group once, when each live member has taken ``turn`` actions or has ended."""

    @property
    def turn(self) -> int:
        """K, the turn at which a group waits for its members and is judged."""
        ...

    def decide(self, action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool]) -> GateDecision:
        """Judge one group; the same input always gives the same answer.

        Args:
            action_prefixes: [G] canonical action strings of each member so far; leave failed members out.
            finished: [G] whether the member's episode has ended.

        Raises:
            ValueError: the lengths differ, or a live member has not reached ``turn`` yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """When a group counts as converged, from its distance d and termination fraction t.

    Fires where ``d < distance_low``, or ``d > distance_high`` and (``t < termination_low`` or
    ``t >= termination_high``). The defaults switch each clause off. ``termination_low_inclusive`` turns the strict
    ``t <`` into ``t <=``.
    """

    distance_low: float = -math.inf
    distance_high: float = math.inf
    termination_low: float = -math.inf
    termination_high: float = math.inf
    termination_low_inclusive: bool = False

    def fires(self, distance: Number, termination: Number) -> bool | npt.NDArray[np.bool_]:
        """Apply the rule to one group, or to arrays [N] of groups."""
        if self.termination_low_inclusive:
            ends_early = termination <= self.termination_low
        else:
            ends_early = termination < self.termination_low
        diverged = (distance > self.distance_high) & (ends_early | (termination >= self.termination_high))
        return (distance < self.distance_low) | diverged


def check_barrier(action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool], turn: int) -> None:
    """Raise ``ValueError`` unless each live member has reached ``turn``."""
    if len(action_prefixes) != len(finished):
        raise ValueError(
            f"action_prefixes has {len(action_prefixes)} members and finished {len(finished)}; give both per member"
        )
    for index, (actions, is_finished) in enumerate(zip(action_prefixes, finished, strict=True)):
        if not is_finished and len(actions) < turn:
            raise ValueError(
                f"member {index} is live after {len(actions)} actions; "
                f"a group is judged when each live member has taken {turn}"
            )
