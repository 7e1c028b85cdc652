"""Stops groups that converged, and groups that scattered while nearly none or nearly all members ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnowrl.gates.base import GateDecision, Rule
from winnowrl.gates.distance import check_padding, check_turn
from winnowrl.gates.edit_distance import check_share, decide_by_rule

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class TwoAxisGate:
    """Stop iff d < distance_low, or d > distance_high and (t < termination_low or t >= termination_high).

    The second clause reads a scattered group in which hardly anyone has finished as one that will fail as a whole, and
    one in which nearly all have finished as one that will succeed as a whole.

    Attributes:
        turn: K, in actions.
        distance_low, distance_high: on the group distance d, in (0, 1].
        termination_low, termination_high: on the termination fraction t, in (0, 1].
        padding: "end" or "none", see :func:`winnowrl.gates.group_distance`.
    """

    turn: int = 15
    distance_low: float = 0.12
    distance_high: float = 0.6
    termination_low: float = 0.05
    termination_high: float = 0.9
    padding: str = "end"

    def __post_init__(self) -> None:
        check_turn(self.turn)
        check_padding(self.padding)
        for name in ("distance_low", "distance_high", "termination_low", "termination_high"):
            check_share(name, getattr(self, name))
        check_order("distance", self.distance_low, self.distance_high)
        check_order("termination", self.termination_low, self.termination_high)

    @property
    def rule(self) -> Rule:
        """The decision as a rule on distance and termination fraction."""
        return Rule(self.distance_low, self.distance_high, self.termination_low, self.termination_high)

    def decide(self, action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool]) -> GateDecision:
        """See :meth:`winnowrl.gates.base.Gate.decide`."""
        return decide_by_rule(self.rule, self.turn, self.padding, action_prefixes, finished)


def check_order(name: str, low: float, high: float) -> None:
    """Raise ``ValueError`` unless the low bound is below the high one."""
    if low >= high:
        raise ValueError(f"{name}_low is {low} and {name}_high {high}; the low one must be below the high one")
