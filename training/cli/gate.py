"""``winnowrl gate``: fit a gate to what a run recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnowrl.configs.load import ConfigError
from winnowrl.training.cli.options import LARGEST_SEED, check_option, output_folder

if TYPE_CHECKING:
    from winnowrl.gates.fit_run import GateFit

PADDINGS = ("end", "none")
LARGEST_TURN = 100_000

app = typer.Typer(help="Fit a gate to what a run recorded.", no_args_is_help=True)


@app.callback()
def gate() -> None:
    """Stop groups in flight: fit the turn and the threshold."""


@app.command()
def fit(
    run: Annotated[Path, typer.Argument(help="Run folder, e.g. runs/quickstart-1; an ungated run tells most.")],
    turns: Annotated[str, typer.Option(help="Turns to try, e.g. 5,10,15; by default up to 16 of them.")] = "",
    precision: Annotated[float, typer.Option(help="Least share of stopped groups that must have equal rewards.")] = 0.8,
    kept: Annotated[float, typer.Option(help="Least share of the advantages' L2 norm that must be left.")] = 0.9,
    group_size: Annotated[int, typer.Option(help="Fit groups of this size; by default the commonest.")] = 0,
    padding: Annotated[str, typer.Option(help="end or none, as gate.padding.")] = "end",
    folds: Annotated[int, typer.Option(help="Parts of the cross-validation over tasks.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the split into parts.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for the files; by default the run folder.")] = None,
) -> None:
    """Replay recorded groups under every turn and threshold, and print what each would have saved and lost.

    Writes gate_fit.yaml (lines to paste into a configuration), gate_fit.csv (the whole sweep, also per task type) and
    gate_fit.png.
    """
    check_option("--precision", precision, most=1)
    check_option("--kept", kept, most=1)
    check_option("--group-size", group_size)
    check_option("--folds", folds, least=2)
    check_option("--seed", seed, most=LARGEST_SEED)
    if padding not in PADDINGS:
        raise ConfigError(f"--padding is {padding!r}; allowed: {', '.join(PADDINGS)}")
    wanted = _parse_turns(turns)
    with output_folder("--output", output):
        _fit(
            run,
            output or (run if run.is_dir() else run.parent),
            turns=wanted,
            group_size=group_size or None,
            padding=padding,
            precision_floor=precision,
            kept_floor=kept,
            folds=folds,
            seed=seed,
        )


def _fit(run: Path, folder: Path, **settings: Any) -> None:
    from rich.console import Console

    from winnowrl.gates import fit_report
    from winnowrl.gates.fit_run import fit_gate
    from winnowrl.gates.fitting import read_groups

    try:
        result = fit_gate(read_groups(run), **settings)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    console = Console()
    console.print(fit_report.sweep_table(result))
    turn = result.best.turn if result.best else result.tables[0].turn
    console.print(fit_report.threshold_table(result, turn))
    if result.best and len(result.by_type) > 1:
        console.print(fit_report.type_table(result))
    console.print(fit_report.signal_table(result, turn))
    console.print(fit_report.LEGEND, style="dim", highlight=False)
    for line in fit_report.summary_lines(result):
        console.print(line, highlight=False)
    try:
        _write(result, folder)
    except OSError as error:
        raise ConfigError(
            f"--output is {str(folder)!r}, where nothing can be written ({error.strerror or error}); name another folder"
        ) from None
    if result.best:
        console.print("\n" + fit_report.config_lines(result), highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {folder}: {'gate_fit.yaml, ' if result.best else ''}gate_fit.csv, gate_fit.png")


def _write(result: GateFit, folder: Path) -> None:
    from winnowrl.gates import fit_report

    (folder / "gate_fit.csv").write_text(fit_report.sweep_csv(result), encoding="utf-8")
    fit_report.write_plot(result, folder / "gate_fit.png")
    (folder / "gate_fit.yaml").unlink(missing_ok=True)
    if result.best:
        (folder / "gate_fit.yaml").write_text(fit_report.config_lines(result), encoding="utf-8")


def _parse_turns(text: str) -> list[int] | None:
    if not text.strip():
        return None
    try:
        turns = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--turns is {text!r}; allowed: whole numbers with commas between, e.g. 5,10,15") from None
    if not 1 <= min(turns) <= max(turns) <= LARGEST_TURN:
        raise ConfigError(f"--turns is {text!r}; allowed: 1 to {LARGEST_TURN}")
    return turns
