"""Shows a fitted gate: tables for the console, lines for the configuration, a plot and the whole sweep as CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

from winnowrl.gates.base import Rule
from winnowrl.gates.fitting import best_per_turn, score_by_type

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from winnowrl.gates.fit_run import GateFit
    from winnowrl.gates.fitting import RuleScore

_SCORE_COLUMNS = ("stops", "right", "wrong", "prec.", "recall", "saved", "safe", "L2 kept")
_MOST_ROWS = 20
LEGEND = (
    "right: stopped groups of equal rewards. saved: share of all sampled tokens not sampled; safe: of right stops alone. "
    "L2 kept: norm of all advantages that is left."
)


def size_warning(fit: GateFit) -> str:
    """The sentence that belongs beside every fitted threshold."""
    return (
        f"Fitted on groups of {fit.group_size}. Thresholds do not carry over between group sizes (nor models or "
        "environments): fit again when rollouts_per_task changes."
    )


def summary_lines(fit: GateFit) -> list[str]:
    """What came out, in sentences."""
    num_equal = sum(float((table.weight * table.is_equal).sum()) for table in fit.tables[:1])
    num_groups = float(fit.tables[0].weight.sum())
    lines = [
        f"{num_groups:g} groups of {fit.group_size}, {num_equal:g} of them with equal rewards: stopping groups at random "
        f"would have precision {num_equal / num_groups:.3f}.",
        *fit.notes,
    ]
    if fit.best is None:
        lines.append(f"No setting reaches {_floors(fit)}: leave the gate off, or lower a floor.")
        return [*lines, size_warning(fit)]
    low, high = fit.best.score.precision_interval
    lines.append(
        f"Best at {_floors(fit)}: turn {fit.best.turn}, threshold {fit.best.threshold:g}; "
        f"precision {fit.best.score.precision:.3f} (95% interval {low:.2f} to {high:.2f}), "
        f"{fit.best.score.advantage_kept:.3f} of the advantages' norm left, "
        f"{fit.best.score.saved_safe:.1%} of tokens saved without wrong stops."
    )
    if fit.cross_validation is not None:
        lines.append(_cross_validation_line(fit))
    return [*lines, size_warning(fit)]


def _floors(fit: GateFit) -> str:
    return f"precision {fit.precision_floor:g} and L2 kept {fit.kept_floor:g} or more"


def sweep_table(fit: GateFit) -> Table:
    """The best threshold of each turn at the floors."""
    table = _table(f"Best threshold per turn at {_floors(fit)}", ("turn", "d below"))
    for turn, row in best_per_turn(fit.rows, fit.precision_floor, fit.kept_floor).items():
        cells = [f"{row.threshold:g}", *_score_cells(row.score)] if row else ["none"] + [""] * len(_SCORE_COLUMNS)
        style = "bold" if row is not None and row == fit.best else ""
        table.add_row(str(turn), *cells, style=style)
    return table


def threshold_table(fit: GateFit, turn: int) -> Table:
    """Thresholds at one turn, thinned to about 20; the chosen one is always among them."""
    rows = [row for row in fit.rows if row.turn == turn]
    stride = -(-len(rows) // _MOST_ROWS)
    shown = [row for number, row in enumerate(rows) if number % stride == 0 or row == fit.best]
    table = _table(f"Thresholds at turn {turn} ({len(shown)} of {len(rows)})", ("d below",))
    for row in shown:
        table.add_row(f"{row.threshold:g}", *_score_cells(row.score), style="bold" if row == fit.best else "")
    return table


def type_table(fit: GateFit) -> Table:
    """The chosen setting within each task type."""
    from rich.markup import escape

    table = _table("The chosen setting by task type", ("task type",))
    for task_type, score in sorted(fit.by_type.items()):
        table.add_row(escape(task_type) or "(none)", *_score_cells(score))
    return table


def signal_table(fit: GateFit, turn: int) -> Table:
    """How well each signal at one turn orders groups by reward variance."""
    table = _table(f"Signals at turn {turn} against reward variance", ("signal",), ("spearman", "p", "auroc"))
    for row in fit.signals:
        if row.turn == turn:
            table.add_row(
                row.signal, *("-" if math.isnan(v) else f"{v:.3g}" for v in (row.spearman, row.p_value, row.auroc))
            )
    return table


def config_lines(fit: GateFit) -> str:
    """The ``gate`` section to paste, empty without a chosen setting."""
    if fit.best is None:
        return ""
    return (
        f"# Fitted on groups of {fit.group_size}; thresholds do not carry over to another rollouts_per_task.\n"
        "gate:\n"
        "  type: prefix_edit_distance\n"
        f"  turn: {fit.best.turn}\n"
        f"  threshold: {fit.best.threshold!r}\n"
        f"  padding: {fit.padding}\n"
        "  audit_fraction: 0.1\n"
        f"  precision_floor: {fit.precision_floor!r}\n"
    )


def sweep_csv(fit: GateFit) -> str:
    """Every turn and threshold, over all groups (empty task type) and within each task type."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("tp", "fp", "fn", "tn", "precision", "recall", "f1", "saved", "saved_safe", "advantage_kept")
    writer.writerow(("turn", "threshold", "task_type", *names))
    tables = {table.turn: table for table in fit.tables}
    for row in fit.rows:
        scores = {"": row.score, **score_by_type(tables[row.turn], Rule(distance_low=row.threshold))}
        for task_type, score in scores.items():
            writer.writerow((row.turn, row.threshold, task_type, *(getattr(score, name) for name in names)))
    return out.getvalue()


def write_plot(fit: GateFit, path: Path) -> None:
    """Left: tokens saved against precision, a line per turn. Right: distances at the chosen turn by outcome."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for table in fit.tables:
        rows = [row for row in fit.rows if row.turn == table.turn and row.score.tokens_saved > 0.0]
        shade = str(0.8 * (1.0 - table.turn / fit.tables[-1].turn))
        left.plot(
            [row.score.precision for row in rows],
            [100 * row.score.saved_safe for row in rows],
            ".-", color=shade, linewidth=0.8, label=f"turn {table.turn}",
        )  # fmt: skip
    if fit.best is not None:
        left.plot(fit.best.score.precision, 100 * fit.best.score.saved_safe, "o", color="tab:red", label="chosen")
    left.axvline(fit.precision_floor, color="tab:blue", linewidth=0.8, linestyle="--", label="precision floor")
    left.set(xlabel="precision", ylabel="tokens saved without wrong stops (%)", title=f"Groups of {fit.group_size}")
    left.legend(fontsize=7, ncols=2)
    shown = next((table for table in fit.tables if fit.best and table.turn == fit.best.turn), fit.tables[0])
    samples = [shown.distance[shown.is_equal], shown.distance[~shown.is_equal]]
    right.hist(samples, bins=30, range=(0.0, 1.0), stacked=True, label=["equal rewards", "rewards differ"])
    if fit.best is not None:
        right.axvline(fit.best.threshold, color="tab:red", linewidth=0.8, label="threshold")
    right.set(xlabel=f"distance at turn {shown.turn}", ylabel="groups", title="What the gate sees")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def _cross_validation_line(fit: GateFit) -> str:
    assert fit.cross_validation is not None
    score, picks = fit.cross_validation.score, fit.cross_validation.picks
    low, high = score.precision_interval
    chosen = ", ".join("none" if pick is None else f"({pick[0]}, {pick[1]:g})" for pick in picks)
    line = (
        f"Cross-validated over tasks in {len(picks)} parts: precision {score.precision:.3f} (95% interval {low:.2f} to "
        f"{high:.2f}), recall {score.recall:.3f}, {score.saved_safe:.1%} saved without wrong stops; chosen {chosen}."
    )
    if score.tp + score.fp and score.precision < fit.precision_floor:
        line += (
            " On unseen tasks the precision is below the floor: keep gate.audit_fraction up, or ask for a higher floor."
        )
    return line


def _table(title: str, first: tuple[str, ...], columns: tuple[str, ...] = _SCORE_COLUMNS) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in (*first, *columns):
        is_text = name in ("task type", "signal")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    return table


def _score_cells(score: RuleScore) -> list[str]:
    return [
        f"{score.tp + score.fp:.4g}",
        f"{score.tp:.4g}",
        f"{score.fp:.4g}",
        f"{score.precision:.3f}" if score.tp + score.fp else "-",
        f"{score.recall:.3f}" if score.tp + score.fn else "-",
        f"{score.saved:.1%}",
        f"{score.saved_safe:.1%}",
        f"{score.advantage_kept:.3f}",
    ]
