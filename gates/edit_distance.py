"""Stops a group whose members have done nearly the same up to turn K."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnowrl.gates.base import GateDecision, Rule, check_barrier
from winnowrl.gates.distance import check_padding, check_turn, group_distance, termination_fraction

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class PrefixEditDistanceGate:
    """Stop iff the group's distance at turn K is strictly below the threshold, or too many members have ended.

    Attributes:
        turn: K, in actions.
        threshold: in (0, 1]; fitted for one group size and one turn (``winnowrl gate fit``).
        padding: "end" or "none", see :func:`group_distance`.
        termination_fraction: stop as well when at least this share of members ended before K; None = never. Since a
            group whose members have all ended has nothing to stop, values above (G-1)/G never fire.

    Source: arXiv 2605.05802 (K = 10, threshold 0.12 for groups of 8 on ALFWorld).
    """

    turn: int = 10
    threshold: float = 0.12
    padding: str = "end"
    termination_fraction: float | None = None

    def __post_init__(self) -> None:
        check_turn(self.turn)
        check_padding(self.padding)
        check_share("threshold", self.threshold)
        if self.termination_fraction is not None:
            check_share("termination_fraction", self.termination_fraction)

    @property
    def rule(self) -> Rule:
        """The decision as a rule on distance and termination fraction."""
        if self.termination_fraction is None:
            return Rule(distance_low=self.threshold)
        return Rule(self.threshold, distance_high=-math.inf, termination_high=self.termination_fraction)

    def decide(self, action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool]) -> GateDecision:
        """See :meth:`winnowrl.gates.base.Gate.decide`."""
        return decide_by_rule(self.rule, self.turn, self.padding, action_prefixes, finished)


def decide_by_rule(
    rule: Rule, turn: int, padding: str, action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool]
) -> GateDecision:
    """Judge a group by a rule. A group with fewer than two members, or with none left to stop, always runs on."""
    check_barrier(action_prefixes, finished, turn)
    if len(action_prefixes) < 2:
        return GateDecision(False, None, f"{len(action_prefixes)} member(s): nothing to compare")
    distance = group_distance(action_prefixes, turn, padding=padding)
    if all(finished):
        return GateDecision(False, distance, f"all {len(finished)} members have ended: nothing to stop")
    termination = termination_fraction(action_prefixes, turn)
    stop = bool(rule.fires(distance, termination))
    verb = "stopped" if stop else "runs on"
    return GateDecision(
        stop, distance, f"{verb} at turn {turn}: distance {distance:.4f}, ended early {termination:.3f}"
    )


def check_share(name: str, value: float) -> None:
    """Raise ``ValueError`` unless ``value`` is in (0, 1]."""
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; allowed: above 0, at most 1")
