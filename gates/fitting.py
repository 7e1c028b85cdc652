"""Replays a gate over recorded groups: what it would have stopped, saved and lost, and which settings are best.

N groups, K the turn, d the distance and t the termination fraction of a group at K. A group the gate would stop is a
true positive (tp) when its rewards are equal, else a false one (fp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from winnowrl.gates.base import Rule
from winnowrl.gates.distance import group_distance, termination_fraction
from winnowrl.gates.intervals import wilson_interval
from winnowrl.gates.records import RecordedGroup, read_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    BoolArray = npt.NDArray[np.bool_]

__all__ = ["RecordedGroup", "RuleScore", "SweepRow", "TurnTable", "best_row", "read_groups", "sweep", "turn_table"]

# Least share of the advantages' L2 norm that a chosen gate leaves. The published gate leaves 0.967.
KEPT_FLOOR = 0.9


@dataclass(frozen=True, slots=True)
class TurnTable:
    """All groups as a gate at one turn sees them, and how they ended; every array is [N].

    Attributes:
        turn: K.
        distance, termination: d and t.
        can_stop: some member goes on after turn K.
        is_equal: the rewards came out equal.
        tokens_after: sampled tokens after turn K.
        tokens_total: all sampled tokens of the group.
        weight: groups the recorded one stands for, above 1 only for audited groups of a gated run.
        task_ids, task_types: strings.
    """

    turn: int
    distance: FloatArray
    termination: FloatArray
    can_stop: BoolArray
    is_equal: BoolArray
    tokens_after: FloatArray
    tokens_total: FloatArray
    weight: FloatArray
    task_ids: npt.NDArray[np.str_]
    task_types: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.distance)

    def subset(self, keep: BoolArray) -> TurnTable:
        """The groups where ``keep`` [N] is True."""
        arrays = {name: getattr(self, name)[keep] for name in self.__slots__ if name != "turn"}
        return replace(self, **arrays)


@dataclass(frozen=True, slots=True)
class RuleScore:
    """Weighted counts of groups and tokens under a rule; scores of disjoint groups add up.

    ``tokens_saved`` counts all stopped groups, ``tokens_saved_safe`` the true positives alone; ``squared_weights`` is
    summed over stopped groups.
    """

    tp: float = 0.0
    fp: float = 0.0
    fn: float = 0.0
    tn: float = 0.0
    tokens_saved: float = 0.0
    tokens_saved_safe: float = 0.0
    tokens_total: float = 0.0
    squared_weights: float = 0.0

    @property
    def precision(self) -> float:
        """Share of stopped groups that had equal rewards; 0 where nothing is stopped."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0

    @property
    def recall(self) -> float:
        """Share of groups with equal rewards that are stopped; 0 where there are none."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp else 0.0

    @property
    def saved(self) -> float:
        """Share of all tokens not sampled."""
        return self.tokens_saved / self.tokens_total if self.tokens_total else 0.0

    @property
    def saved_safe(self) -> float:
        """Share of all tokens not sampled, without false positives."""
        return self.tokens_saved_safe / self.tokens_total if self.tokens_total else 0.0

    @property
    def precision_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the precision; weighted groups count as (sum w)^2 / sum w^2 observations."""
        stopped = self.tp + self.fp
        trials = stopped**2 / self.squared_weights if stopped else 0.0
        return wilson_interval(self.precision * trials, trials)

    @property
    def advantage_kept(self) -> float:
        """Share of the advantages' L2 norm left, for groups of one size: sqrt(tn / (tn + fp)); 1 where none teaches."""
        return float(np.sqrt(self.tn / (self.tn + self.fp))) if self.tn + self.fp else 1.0

    def __add__(self, other: RuleScore) -> RuleScore:
        return RuleScore(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One setting of the gate and its score."""

    turn: int
    threshold: float
    score: RuleScore


def turn_table(
    groups: Sequence[RecordedGroup],
    turn: int,
    *,
    padding: str = "end",
    weights: Sequence[float] | None = None,
) -> TurnTable:
    """What a gate at turn K reads of each group. Groups must be usable: see :attr:`RecordedGroup.is_usable`.

    Args:
        weights: [N] groups each one stands for; None = 1.
    """
    return TurnTable(
        turn=turn,
        distance=np.array([group_distance(group.actions, turn, padding=padding) for group in groups]),
        termination=np.array([termination_fraction(group.actions, turn) for group in groups]),
        can_stop=np.array([any(len(actions) > turn for actions in group.actions) for group in groups], dtype=bool),
        is_equal=np.array([group.is_equal for group in groups], dtype=bool),
        tokens_after=np.array([sum(sum(tokens[turn:]) for tokens in group.tokens_per_turn) for group in groups]),
        tokens_total=np.array([sum(map(sum, group.tokens_per_turn)) for group in groups]),
        weight=np.ones(len(groups)) if weights is None else np.asarray(weights, dtype=np.float64),
        task_ids=np.array([group.task_id for group in groups]),
        task_types=np.array([group.task_type for group in groups]),
    )


def score_rule(table: TurnTable, rule: Rule) -> RuleScore:
    """Count what the rule would have stopped, kept, saved and lost."""
    stopped = rule.fires(table.distance, table.termination) & table.can_stop
    hits = stopped & table.is_equal
    saved = table.weight * table.tokens_after
    return RuleScore(
        tp=float(table.weight[hits].sum()),
        fp=float(table.weight[stopped & ~table.is_equal].sum()),
        fn=float(table.weight[table.is_equal & ~stopped].sum()),
        tn=float(table.weight[~table.is_equal & ~stopped].sum()),
        tokens_saved=float(saved[stopped].sum()),
        tokens_saved_safe=float(saved[hits].sum()),
        tokens_total=float((table.weight * table.tokens_total).sum()),
        squared_weights=float((table.weight[stopped] ** 2).sum()),
    )


def score_by_type(table: TurnTable, rule: Rule) -> dict[str, RuleScore]:
    """The score within each task type."""
    return {str(kind): score_rule(table.subset(table.task_types == kind), rule) for kind in np.unique(table.task_types)}


def candidate_thresholds(distances: FloatArray, *, limit: int = 64) -> list[float]:
    """Thresholds that tell apart the groups at hand: one above each different distance, ``limit`` of them at most.

    Each lies between two neighbouring distances and has as few decimals as fit there.
    """
    values = np.unique(np.round(distances, 12))
    if len(values) > limit:
        values = values[np.unique(np.linspace(0, len(values) - 1, limit).round().astype(int))]
    above = np.append(values[1:], min(1.0, values[-1] + 0.05))
    pairs = zip(values.tolist(), above.tolist(), strict=True)
    return [_shortest_between(low, high) for low, high in pairs if low < high]


def sweep(tables: Iterable[TurnTable], thresholds: Sequence[float] | None = None) -> list[SweepRow]:
    """Score the gate ``d < threshold`` at each turn; thresholds None = :func:`candidate_thresholds` of each turn."""
    return [
        SweepRow(table.turn, threshold, score_rule(table, Rule(distance_low=threshold)))
        for table in tables
        if len(table)
        for threshold in (candidate_thresholds(table.distance) if thresholds is None else thresholds)
    ]


def best_row(rows: Iterable[SweepRow], precision_floor: float, kept_floor: float = KEPT_FLOOR) -> SweepRow | None:
    """The setting that saves most tokens on groups of equal rewards, among those that reach both floors.

    Precision alone does not do: where nine groups in ten have equal rewards, stopping all of them has precision 0.9, and
    nothing is left to learn from. So ``kept_floor`` bounds :attr:`RuleScore.advantage_kept` from below as well.

    Equal savings go to the higher precision, then the earlier turn, then the lower threshold. None where no setting
    that stops anything reaches the floors.
    """
    good = [
        row
        for row in rows
        if row.score.tokens_saved_safe > 0.0
        and row.score.precision >= precision_floor
        and row.score.advantage_kept >= kept_floor
    ]
    order = [(-row.score.tokens_saved_safe, -row.score.precision, row.turn, row.threshold) for row in good]
    return good[min(range(len(good)), key=order.__getitem__)] if good else None


def best_per_turn(
    rows: Iterable[SweepRow], precision_floor: float, kept_floor: float = KEPT_FLOOR
) -> dict[int, SweepRow | None]:
    """:func:`best_row` of each turn on its own."""
    by_turn: dict[int, list[SweepRow]] = {}
    for row in rows:
        by_turn.setdefault(row.turn, []).append(row)
    return {turn: best_row(own, precision_floor, kept_floor) for turn, own in sorted(by_turn.items())}


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """What choosing the best setting on some tasks gives on others.

    Attributes:
        score: summed over the held-out parts.
        picks: (turn, threshold) chosen without each part; None where no setting reached the floor, and then nothing of
            the part is stopped.
    """

    score: RuleScore
    picks: tuple[tuple[int, float] | None, ...]


def cross_validate(
    tables: Sequence[TurnTable],
    precision_floor: float,
    kept_floor: float = KEPT_FLOOR,
    *,
    folds: int = 5,
    seed: int = 0,
) -> CrossValidation:
    """Choose on all parts but one and score on that one, in turn. Groups of one task stay in one part.

    Args:
        tables: one per turn, over the same groups.
        folds: parts; at most as many as tasks.

    Raises:
        ValueError: fewer than two tasks.
    """
    parts = assign_folds(tables[0].task_ids, folds=folds, seed=seed)
    total, picks = RuleScore(), []
    for part in range(int(parts.max()) + 1):
        best = best_row(sweep(table.subset(parts != part) for table in tables), precision_floor, kept_floor)
        picks.append((best.turn, best.threshold) if best else None)
        table = next(table for table in tables if best is None or table.turn == best.turn)
        rule = Rule(distance_low=best.threshold) if best else Rule()
        total += score_rule(table.subset(parts == part), rule)
    return CrossValidation(total, tuple(picks))


def assign_folds(task_ids: npt.NDArray[np.str_], *, folds: int, seed: int) -> npt.NDArray[np.intp]:
    """[N] part of each group: tasks are shuffled by ``seed`` and dealt out in turn."""
    tasks, owner = np.unique(task_ids, return_inverse=True)
    folds = min(folds, len(tasks))
    if folds < 2:
        raise ValueError(f"{len(tasks)} task(s) in {folds} part(s); cross-validation needs at least 2 of each")
    part_of_task = np.empty(len(tasks), dtype=np.intp)
    part_of_task[np.random.default_rng(seed).permutation(len(tasks))] = np.arange(len(tasks)) % folds
    return part_of_task[owner.reshape(-1)]


def _shortest_between(low: float, high: float) -> float:
    """A number strictly between the two with as few decimals as possible, two at least."""
    middle = (low + high) / 2.0
    for digits in range(2, 15):
        rounded = round(middle, digits)
        if low < rounded < high:
            return rounded
    return middle
