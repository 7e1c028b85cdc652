"""The typer application and its error handling."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from winnowrl.agents.collecting.outcome import FailureRateError
from winnowrl.configs.load import ConfigError
from winnowrl.training.batch import NonFiniteUpdateError
from winnowrl.training.cli.doctor import doctor
from winnowrl.training.cli.env import app as env_app
from winnowrl.training.cli.eval import evaluate
from winnowrl.training.cli.gate import app as gate_app
from winnowrl.training.cli.options import check_option
from winnowrl.training.quiet import quiet_libraries

app = typer.Typer(
    name="winnowrl",
    help=(
        "Train language-model agents with reinforcement learning, and spend rollouts only where they teach.\n\n"
        "Register an environment (`winnowrl env new`), launch a run (`winnowrl train quickstart`), evaluate on held-out "
        "tasks (`winnowrl eval --run RUN`)."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(env_app, name="env")
app.add_typer(gate_app, name="gate")
app.command(name="eval")(evaluate)
app.command()(doctor)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="section.field=value, e.g. run.num_steps=5 learner.learning_rate=1e-5", show_default=False),
]


@app.command()
def train(
    config: Annotated[
        str,
        typer.Argument(
            help="YAML file, or the name of a built-in one: quickstart, ccr, math_vigor, alfworld_gate, code."
        ),
    ],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and what it comes to; load no model.")
    ] = False,
) -> None:
    """Train a policy as CONFIG says; `key=value` arguments override it.

    Ctrl-C once finishes the step and saves; twice stops at once. Everything is written to the run folder it names.
    """
    from winnowrl.configs.load import load_config

    loaded = load_config(config, overrides or ())
    name = Path(config).stem
    if dry_run:
        from winnowrl.training.dry_run import print_dry_run

        print_dry_run(loaded, name)
        return
    from winnowrl.training.run import train as run_training

    run_training(loaded, name=name)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Run folder, e.g. runs/quickstart-1.")],
    overrides: Overrides = None,
) -> None:
    """Go on with a run that was interrupted or killed, from its last checkpoint.

    Only what does not change the steps already made may be overridden: run.num_steps, run.trackers, and anything in
    checkpoint, evaluation and diagnostics. More steps stretch a linear or cosine schedule.
    """
    from winnowrl.training.run import resume as resume_training

    resume_training(run, overrides or ())


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    output: Annotated[Path, typer.Argument(help="Folder to write, new or empty.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint of this step; default: the last.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best by checkpoint.best_metric.")] = False,
) -> None:
    """Write a run's policy as a plain Hugging Face folder, adapters merged."""
    from winnowrl.training.export import export_run

    check_option("--step", step)
    if best and step is not None:
        raise ConfigError(f"--step is {step} and --best is given: one checkpoint is exported; leave one of them out")
    print(f"written to {export_run(run, output, step=step, best=best)}")


def run_app() -> None:
    """Run the command; the user's mistakes become one sentence on standard error and exit code 2."""
    quiet_libraries()
    # module:Namespace/Name-v0 finds a module in the folder the command is run from.
    sys.path.append(str(Path.cwd()))
    logging.basicConfig(level=os.environ.get("WINNOWRL_LOG", "WARNING"), format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (FailureRateError, NonFiniteUpdateError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
