"""Fits a gate to the recorded groups of one run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from winnowrl.gates.base import Rule
from winnowrl.gates.fitting import (
    KEPT_FLOOR,
    CrossValidation,
    RuleScore,
    SweepRow,
    TurnTable,
    best_row,
    cross_validate,
    score_by_type,
    sweep,
    turn_table,
)
from winnowrl.gates.signals import SIGNALS, auroc, spearman

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winnowrl.gates.records import RecordedGroup

_MOST_TURNS = 16


@dataclass(frozen=True, slots=True)
class SignalRow:
    """How well one signal at one turn orders groups by the variance of their rewards; NaN where undefined."""

    turn: int
    signal: str
    spearman: float
    p_value: float
    auroc: float


@dataclass(frozen=True, slots=True)
class GateFit:
    """What replaying the gate over a run gave.

    Attributes:
        group_size: G of the groups replayed; the thresholds hold for no other.
        notes: what the reader should know of the groups that were left out or counted more than once.
        best: the chosen setting, scored on the groups it was chosen on; None where none reaches the floors.
        by_type: the chosen setting's score within each task type.
        cross_validation: what choosing gives on tasks it has not seen; None with a single task.
    """

    group_size: int
    padding: str
    precision_floor: float
    kept_floor: float
    notes: tuple[str, ...]
    tables: tuple[TurnTable, ...]
    rows: tuple[SweepRow, ...]
    signals: tuple[SignalRow, ...]
    best: SweepRow | None
    by_type: dict[str, RuleScore]
    cross_validation: CrossValidation | None


def fit_gate(
    groups: Sequence[RecordedGroup],
    *,
    turns: Sequence[int] | None = None,
    group_size: int | None = None,
    padding: str = "end",
    precision_floor: float = 0.8,
    kept_floor: float = KEPT_FLOOR,
    folds: int = 5,
    seed: int = 0,
) -> GateFit:
    """Sweep turns and thresholds, choose, and cross-validate the choice over tasks.

    Args:
        groups: as :func:`winnowrl.gates.records.read_groups` returns them.
        turns: K to try; None = up to 16, spread over the turns after which something is left to save.
        group_size: G to fit for; None = the commonest.
        padding: "end" or "none".
        precision_floor: least share of stopped groups that must have had equal rewards.
        kept_floor: least share of the advantages' L2 norm that must be left.
        folds, seed: of the cross-validation.

    Raises:
        ValueError: no group can be used, or none goes on after any of the turns.
    """
    if not 0.0 <= precision_floor <= 1.0:
        raise ValueError(f"precision floor is {precision_floor}; allowed: 0 to 1")
    if not 0.0 <= kept_floor <= 1.0:
        raise ValueError(f"floor of the advantage kept is {kept_floor}; allowed: 0 to 1")
    chosen, weights, notes = choose_groups(groups, group_size)
    turns = spread_turns(chosen) if turns is None else sorted(set(turns))
    tables = [turn_table(chosen, turn, padding=padding, weights=weights) for turn in turns]
    if not any(table.can_stop.any() for table in tables):
        raise ValueError(f"no group goes on after turn {turns[0] if turns else 1}: there is nothing a gate could save")
    rows = sweep(tables)
    best = best_row(rows, precision_floor, kept_floor)
    best_table = next((table for table in tables if best and table.turn == best.turn), None)
    num_tasks = len(np.unique(tables[0].task_ids))
    return GateFit(
        group_size=chosen[0].size,
        padding=padding,
        precision_floor=precision_floor,
        kept_floor=kept_floor,
        notes=tuple(notes),
        tables=tuple(tables),
        rows=tuple(rows),
        signals=tuple(score_signals(chosen, turns)),
        best=best,
        by_type=score_by_type(best_table, Rule(distance_low=best.threshold)) if best and best_table else {},
        cross_validation=(
            cross_validate(tables, precision_floor, kept_floor, folds=folds, seed=seed) if num_tasks > 1 else None
        ),
    )


def choose_groups(
    groups: Sequence[RecordedGroup], group_size: int | None
) -> tuple[list[RecordedGroup], list[float], list[str]]:
    """Groups of one size whose end is known, how many groups each stands for, and notes.

    In a gated run the gate hid how most groups it stopped would have ended. The audited ones stand for them, so that the
    fit does not see only groups the gate liked: S stopped and A audited groups weigh each audited one 1 + S / A.
    """
    notes = []
    sizes = Counter(group.size for group in groups if group.is_usable)
    if not sizes:
        raise ValueError(
            f"none of {len(groups)} recorded groups has two members and a known end; record an ungated run"
        )
    size = group_size or max(sizes, key=lambda size: (sizes[size], size))
    if size not in sizes:
        raise ValueError(f"group size is {size}; recorded: {', '.join(map(str, sorted(sizes)))}")
    if len(sizes) > 1:
        others = ", ".join(f"{count} of {other}" for other, count in sorted(sizes.items()) if other != size)
        notes.append(f"groups of other sizes left out: {others}")
    own = [group for group in groups if group.size == size]
    chosen = [group for group in own if group.is_usable]
    if all(group.is_equal for group in chosen):
        notes.append(
            "no recorded group has unequal rewards, so no stop could be wrong here: record more before you trust it"
        )
    num_stopped = sum(group.was_gated for group in own)
    num_audited = sum(group.is_audit for group in chosen)
    if len(chosen) + num_stopped < len(own):
        notes.append(f"{len(own) - num_stopped - len(chosen)} groups left out: fewer than two members with a reward")
    if not num_stopped:
        return chosen, [1.0] * len(chosen), notes
    if num_audited:
        factor = 1.0 + num_stopped / num_audited
        notes.append(f"{num_stopped} groups were stopped by a gate; {num_audited} audited ones count {factor:.1f} each")
    else:
        factor = 1.0
        notes.append(
            f"{num_stopped} groups were stopped by a gate and none audited: the fit sees only groups the gate let run"
        )
    return chosen, [factor if group.is_audit else 1.0 for group in chosen], notes


def spread_turns(groups: Sequence[RecordedGroup]) -> list[int]:
    """Up to 16 turns from 1 to the last one after which some group goes on."""
    longest = max(len(actions) for group in groups for actions in group.actions)
    if longest < 2:
        raise ValueError("every recorded episode has a single turn; a gate acts between turns, so nothing can be saved")
    return sorted({round(turn) for turn in np.linspace(1, longest - 1, min(_MOST_TURNS, longest - 1)).tolist()})


def score_signals(groups: Sequence[RecordedGroup], turns: Sequence[int]) -> list[SignalRow]:
    """Every signal at every turn against the variance of the rewards."""
    variance = np.array([float(np.var(group.rewards)) if not group.is_equal else 0.0 for group in groups])
    return [
        score_signal(turn, name, np.array([signal(group.actions, turn) for group in groups]), variance)
        for turn in turns
        for name, signal in SIGNALS.items()
    ]


def score_signal(
    turn: int,
    name: str,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    variance: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> SignalRow:
    """Rank correlation of a signal [N] with the rewards' variance [N], and how it tells zero variance from the rest."""
    rho, p_value = spearman(values, variance)
    return SignalRow(turn, name, rho, p_value, auroc(values, variance > 0.0))
