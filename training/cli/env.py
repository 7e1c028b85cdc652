"""``winnowrl env``: list, write, check and play environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnowrl.configs.load import ConfigError
from winnowrl.training.cli.options import LARGEST_SEED, check_option

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")

app = typer.Typer(help="List, write, check and play environments.", no_args_is_help=True)

Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments of the environment as name=value, e.g. max_turns=3.", show_default=False),
]
EnvId = Annotated[str, typer.Argument(help="Gymnasium id; module:Namespace/Name-v0 imports the module first.")]


@app.callback()
def env() -> None:
    """Environments: the built-in ones, those of installed packages, and your own."""


@app.command("list")
def list_environments(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also what packages register that is no text environment.")
    ] = False,
) -> None:
    """Show the built-in environments and those that installed packages register."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from winnowrl.envs.registry import BUILT_IN, load_plugins

    faults = load_plugins()
    table = Table(Column("id", no_wrap=True), "from", "turns", "runs", "what it is", title="Environments")
    for spec in _specs():
        runs, what = _describe(spec)
        if runs or show_all or spec.id in BUILT_IN:
            origin = "built in" if spec.id in BUILT_IN else _origin(spec.entry_point)
            table.add_row(
                escape(spec.id), escape(origin), str(spec.max_episode_steps or "unlimited"), runs, escape(what)
            )
    console = Console()
    console.print(table)
    for fault in faults:
        console.print(fault, style="yellow", markup=False, highlight=False)


def _origin(entry_point: object) -> str:
    """The package an environment comes from."""
    name = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return name.partition(".")[0].partition(":")[0]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the package, e.g. word_sorting.")],
    folder: Annotated[Path, typer.Option(help="Where its folder is made.")] = Path(),
) -> None:
    """Write a small installable package with an environment, tasks, a configuration and a test. It trains as it stands."""
    from winnowrl.envs.scaffold import write_package

    try:
        written, env_id = write_package(name, folder)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"--folder is {str(folder)!r}, where the package cannot be written ({error.strerror or error}); name a folder "
            "you may write to"
        ) from None
    print(f"written to {written}. Next:\n")
    print(f"    pip install -e {written}")
    print(f"    winnowrl env check {env_id}")
    print(f"    winnowrl train {written / 'train.yaml'}\n")
    print(f"Then make {written / 'src' / written.name / 'environment.py'} and the tasks beside it yours.")


@app.command()
def check(
    env_id: EnvId,
    arguments: Arguments = None,
    deadline_s: Annotated[float, typer.Option(help="Seconds one check may take.")] = 300.0,
) -> None:
    """Try everything training will ask of an environment: seeding, groups, pickling, garbage, splits, time.

    Exit code 0 when it may be trained in, 1 when a check failed, 2 when there is no such environment or an argument is
    wrong.
    """
    from rich.console import Console
    from rich.table import Table

    from winnowrl.envs.checking import CHECKS
    from winnowrl.training.check_process import check_apart

    check_option("--deadline-s", deadline_s, least=1)
    kwargs = _parse_arguments(arguments or ())
    console = Console()
    with console.status("checking ...") as status:
        results = check_apart(env_id, kwargs, deadline_s, lambda name: status.update(f"checking: {_plain(name)} ..."))
    styles = {"passed": "green", "warning": "yellow", "failed": "bold red"}
    table = Table("check", "", "found", "seconds", title=env_id)
    for result in results:
        style = styles[result.status]
        table.add_row(
            result.name, f"[{style}]{result.status}[/{style}]", _plain(result.detail), f"{result.seconds:.2f}"
        )
    console.print(table)
    counts = {status: sum(result.status == status for result in results) for status in styles}
    console.print(
        f"{counts['passed']} passed, {counts['warning']} warnings, {counts['failed']} failed", highlight=False
    )
    if len(results) < len(CHECKS):
        console.print(f"{len(CHECKS) - len(results)} checks after the last one were not tried", highlight=False)
    if counts["failed"]:
        raise typer.Exit(1)


@app.command()
def play(
    env_id: EnvId,
    arguments: Arguments = None,
    model: Annotated[
        str, typer.Option(help="Let this model play: a Hugging Face folder or name, or smollm2-135m.")
    ] = "",
    split: Annotated[str, typer.Option(help="Split the task is taken from.")] = "train",
    task: Annotated[int, typer.Option(help="Number of the task in its split.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the episode.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one reply of the model.")] = 256,
    temperature: Annotated[float, typer.Option(help="Of the model; 0 is greedy.")] = 0.0,
) -> None:
    """Play an episode in the terminal, or watch a model play it."""
    from winnowrl.envs.registry import find_spec
    from winnowrl.training.play import ModelPlayer, PersonPlayer, play_episode

    check_option("--seed", seed, most=LARGEST_SEED)
    check_option("--max-tokens", max_tokens, least=1)
    check_option("--temperature", temperature)
    environment = _make(env_id, _parse_arguments(arguments or ()))
    tasks = _task_set(environment, env_id, split)
    if not 0 <= task < len(tasks):
        raise ConfigError(f"--task is {task}; allowed: 0 to {len(tasks) - 1} in split {split!r}")
    if model:
        try:
            player: Any = ModelPlayer(model, environment, max_tokens=max_tokens, temperature=temperature, seed=seed)
        except ValueError as error:
            raise ConfigError(f"--model: {error}") from None
        except ImportError as error:
            raise ConfigError(f"--model needs: pip install 'winnowrl[learner]' ({error})") from None
    else:
        player = PersonPlayer()
    play_episode(environment, tasks[task], player, seed=seed, max_turns=find_spec(env_id).max_episode_steps)
    environment.close()


def _specs() -> list[EnvSpec]:
    from gymnasium.envs.registration import registry

    # Gymnasium's own environments are arrays, not text.
    return [spec for spec in registry.values() if not str(spec.entry_point).startswith(("gymnasium.", "gym."))]


def _describe(spec: EnvSpec) -> tuple[str, str]:
    """Where its steps run (empty when it is no text environment) and the first line of its description."""
    from gymnasium.envs.registration import load_env_creator

    from winnowrl.envs.base import TextEnv

    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except Exception as error:  # noqa: BLE001 - a stranger's module may raise anything while it is imported
        return "", _plain(f"cannot be loaded: {error}")
    if not (isinstance(creator, type) and issubclass(creator, TextEnv)):
        return "", "no text environment"
    return creator.execution, _plain((creator.__doc__ or "").strip().partition("\n")[0])


def _make(env_id: str, kwargs: dict[str, Any]) -> Any:
    from winnowrl.configs.sections.environment import EnvironmentConfig
    from winnowrl.training.preflight import make_env

    return make_env(EnvironmentConfig(id=env_id, kwargs=kwargs))


def _task_set(environment: Any, env_id: str, split: str) -> Any:
    from winnowrl.training.preflight import read_task_set

    return read_task_set(environment, split, env_id)


def _parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    import yaml

    kwargs: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"argument {argument!r}; allowed: name=value, e.g. max_turns=3")
        try:
            # YAML reads 1e-5 as text.
            kwargs[name] = float(value) if EXPONENT.fullmatch(value) else yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"argument {argument!r}: the value is no YAML; put quotes around it") from None
    return kwargs


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
