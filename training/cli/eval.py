"""``winnowrl eval``: a run's checkpoint, or any model, on held-out tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winnowrl.training.cli.options import check_option, output_folder


def evaluate(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="section.field=value, as for train; with --run they start from the run's configuration."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run folder: its last checkpoint is evaluated.")] = None,
    step: Annotated[
        int | None, typer.Option(help="With --run: the checkpoint of this step; 0 is the untrained model.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model folder, hub name, or the embedded model.")] = "",
    config: Annotated[str, typer.Option(help="With --model: configuration whose environment and prompt to use.")] = "",
    tasks: Annotated[
        str, typer.Option(help="Split of the environment, or a .jsonl/.parquet file. Default: the held-out split.")
    ] = "",
    samples: Annotated[
        int, typer.Option(help="Samples of each task (k); 1 is greedy unless --temperature is given.")
    ] = 0,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    num_tasks: Annotated[
        int | None, typer.Option(help="Most tasks; 0 takes all. Default: evaluation.num_tasks.", show_default=False)
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for rows.jsonl, report.json and report.md.")] = None,
) -> None:
    """Evaluate on held-out tasks: mean@k and unbiased pass@k with bootstrap intervals, a row per task.

    Examples: `winnowrl eval --run runs/quickstart-1`,
    `winnowrl eval --model smollm2-135m --config quickstart --samples 8`. An interrupted evaluation goes on where it
    stopped when the same command is run again. A task that was trained on is refused.
    """
    from winnowrl.training.evaluate_command import EvaluationRequest, run_evaluation

    check_option("--step", step)
    check_option("--samples", samples)
    check_option("--temperature", temperature)
    check_option("--num-tasks", num_tasks)
    request = EvaluationRequest(
        run=run,
        step=step,
        model=model,
        config=config,
        tasks=tasks,
        samples=samples,
        temperature=temperature,
        num_tasks=num_tasks,
        output=output,
        overrides=tuple(overrides or ()),
    )
    with output_folder("--output", output):
        run_evaluation(request)
