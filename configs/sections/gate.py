"""The ``gate`` section: stopping a group in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

_COMMON = ("turn", "padding", "audit_fraction", "respend", "precision_floor", "audit_window")


@dataclass(frozen=True)
class GateConfig:
    """Stops a group whose members have converged, and audits how often that was right."""

    type: str = "none"
    """none | prefix_edit_distance | two_axis"""
    turn: int = 10
    """Turn K at which a group is judged (actions)."""
    threshold: float = 0.12
    """Stop when the group's distance at that turn is strictly below this (share, 0-1). Fit it per group size."""
    padding: str = "end"
    """end = prefixes that ended early are filled up to turn K | none = each pair is divided by its longer prefix."""
    termination_fraction: float | None = None
    """Stop as well when at least this share of members ended before turn K (0-1); null = off."""
    distance_low: float = 0.12
    """Two-axis: stop when the distance is strictly below this (share, 0-1)."""
    distance_high: float = 0.6
    """Two-axis: above this distance (share, 0-1) the share of ended members decides."""
    termination_low: float = 0.05
    """Two-axis: a scattered group is stopped when less than this share of its members ended before turn K (0-1)."""
    termination_high: float = 0.9
    """Two-axis: a scattered group is stopped when at least this share of its members ended before turn K (0-1)."""
    audit_fraction: float = 0.1
    """Share of stopped groups that run on to their end all the same, to measure the gate (0-1)."""
    precision_floor: float = 0.8
    """Warn when the audits rule out that the gate's precision reaches this (share, 0-1)."""
    audit_window: int = 200
    """The warning looks at this many latest audited groups."""
    respend: bool = False
    """Give the rollouts of stopped groups to fresh tasks within the same step (at most as many groups again)."""

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "none": (),
        "prefix_edit_distance": (*_COMMON, "threshold", "termination_fraction"),
        "two_axis": (*_COMMON, "distance_low", "distance_high", "termination_low", "termination_high"),
    }

    def __post_init__(self) -> None:
        if self.type not in self.TYPES:
            raise ValueError(f"gate.type is {self.type!r}; allowed: {', '.join(self.TYPES)}")
        if self.padding not in ("end", "none"):
            raise ValueError(f"gate.padding is {self.padding!r}; allowed: end, none")
        if self.turn < 1:
            raise ValueError(f"gate.turn is {self.turn}; allowed: 1 or more actions")
        if self.audit_window < 1:
            raise ValueError(f"gate.audit_window is {self.audit_window}; allowed: 1 or more groups")
        self._check_shares()

    def _check_shares(self) -> None:
        for name in ("audit_fraction", "precision_floor"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"gate.{name} is {value}; allowed: 0 to 1")
        for name in ("threshold", "distance_low", "distance_high", "termination_low", "termination_high"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ValueError(f"gate.{name} is {value}; allowed: above 0, at most 1")
        share = self.termination_fraction
        if share is not None and not 0.0 < share <= 1.0:
            raise ValueError(f"gate.termination_fraction is {share}; allowed: above 0, at most 1, or null for off")
        for axis in ("distance", "termination"):
            low, high = getattr(self, f"{axis}_low"), getattr(self, f"{axis}_high")
            if low >= high:
                raise ValueError(
                    f"gate.{axis}_low is {low} and gate.{axis}_high {high}; set the low one below the high one"
                )
