"""Everything that can be found wrong before a model is loaded: environment, task sets, model path, prompt lengths."""

from __future__ import annotations

import importlib.util
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from winnowrl.configs.load import ConfigError
from winnowrl.envs.arguments import check_arguments
from winnowrl.envs.base import TextEnv
from winnowrl.envs.registry import describe_fault, find_spec
from winnowrl.envs.tasks import Task, TaskSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from winnowrl.configs.schema import RunConfig
    from winnowrl.configs.sections.environment import EnvironmentConfig

TRAINED_TASKS = "winnowrl_trained_tasks.json"
NUM_LONGEST_CHECKED = 16


@dataclass(frozen=True, slots=True)
class Tasks:
    """The two task sets of a run."""

    train: TaskSet
    heldout: TaskSet


def make_env(config: EnvironmentConfig) -> TextEnv:
    """One environment of the configured kind.

    Raises:
        ConfigError: unknown id, a keyword it does not take, or a value it refuses.
    """
    try:
        spec = find_spec(config.id)
    except ValueError as error:
        hint = "; `winnowrl env list` shows those there are, and module:Namespace/Name-v0 imports a module first"
        raise ConfigError(
            f"environment.id is {config.id!r}, which Gymnasium does not know: {error}{'' if ':' in config.id else hint}"
        ) from None
    _check_kwargs(spec, config)
    try:
        env = gymnasium.make(config.id, disable_env_checker=True, **config.kwargs).unwrapped
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise ConfigError(f"environment {config.id}: {error}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's constructor may raise anything, or leave
        raise ConfigError(f"environment {config.id} cannot be made: {describe_fault(error)}") from None
    if not isinstance(env, TextEnv):
        raise ConfigError(
            f"environment.id is {config.id!r}, a {type(env).__name__}; WinnowRL trains in environments of strings: subclass "
            "winnowrl.envs.TextEnv"
        )
    for module, mend in env.requires.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"environment {config.id} needs the module {module}, which is not installed. {mend}")
    return env


def load_task_sets(config: EnvironmentConfig) -> Tasks:
    """The train and held-out task sets, not empty and disjoint.

    Raises:
        ConfigError: naming the split, and the row where the environment can.
    """
    env = make_env(config)
    try:
        train = read_task_set(env, config.train_split, config.id)
        heldout = read_task_set(env, config.eval_split, config.id)
    finally:
        env.close()
    if config.max_train_tasks is not None:
        train = train[: config.max_train_tasks]
    refuse_overlap(train, heldout, f"environment.train_split {config.train_split!r}")
    return Tasks(train, heldout)


def trained_tasks(model_path: str) -> list[Task]:
    """Tasks that an exported model carries a record of having been trained on; none for other models."""
    path = Path(model_path) / TRAINED_TASKS
    if not path.is_file():
        return []
    return [Task(row["id"], row["prompt"], row["answer"]) for row in json.loads(path.read_text(encoding="utf-8"))]


def refuse_trained(model_path: str, heldout: Sequence[Task]) -> None:
    """Raise ``ConfigError`` when an exported model was trained on a held-out task."""
    refuse_overlap(trained_tasks(model_path), heldout, f"the tasks that {model_path} was trained on")


def check_gate_turn(config: RunConfig) -> None:
    """Refuse a gate whose turn comes when every episode has reached its step limit.

    Raises:
        ConfigError: naming the turn and the limit.
    """
    limit = config.collector.max_turns or find_spec(config.environment.id).max_episode_steps
    if config.gate.type == "none" or limit is None or config.gate.turn < limit:
        return
    mend = (
        "set gate.type to none" if limit == 1 else f"set gate.turn to {limit - 1} or less, or raise collector.max_turns"
    )
    raise ConfigError(
        f"gate.turn is {config.gate.turn}, and episodes of {config.environment.id} end after {limit} turn"
        f"{'' if limit == 1 else 's'}: no group is left to stop then; {mend}"
    )


def refuse_overlap(train: Sequence[Task], heldout: Sequence[Task], what: str) -> None:
    """Raise ``ConfigError`` when a held-out task is also a train task, by id or by prompt and answer."""
    ids = {task.id for task in train}
    texts = {(task.prompt, task.answer) for task in train if task.answer is not None}
    for task in heldout:
        if task.id in ids or (task.answer is not None and (task.prompt, task.answer) in texts):
            raise ConfigError(
                f"held-out task {task.id!r} is also in {what}; an evaluation on it would measure memory: remove it from one"
            )


def check_prompt_lengths(tasks: Tasks, config: RunConfig, count_tokens: Callable[[str], int]) -> None:
    """Refuse a context that the longest prompts do not fit into.

    Args:
        count_tokens: Prompt text to the number of tokens the model would see first.

    Raises:
        ConfigError: naming the task, its length and the budget.
    """
    context = config.conversation.context_tokens
    for task_set in (tasks.train, tasks.heldout):
        longest = sorted(task_set, key=lambda task: len(task.prompt), reverse=True)[:NUM_LONGEST_CHECKED]
        for task in longest:
            length = count_tokens(task.prompt)
            if length + 1 > context:
                raise ConfigError(
                    f"task {task.id!r} has a prompt of {length} tokens and conversation.context_tokens is {context}: no "
                    "reply fits; raise conversation.context_tokens or leave long tasks out"
                )


def read_task_set(env: TextEnv, split: str, env_id: str) -> TaskSet:
    """One task set of an environment, not empty.

    Raises:
        ConfigError: the environment has no such split, or its arguments give it no task.
    """
    try:
        tasks = env.task_set(split)
        is_empty = len(tasks) == 0
    except (ValueError, OSError, ImportError) as error:
        raise ConfigError(f"environment {env_id}: {error}; check environment.kwargs") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's environment may raise anything, or leave
        raise ConfigError(f"environment {env_id}: task_set({split!r}) raised {describe_fault(error)}") from None
    if is_empty:
        raise ConfigError(f"environment {env_id}: split {split!r} holds no task; check environment.kwargs")
    return tasks


def _check_kwargs(spec: Any, config: EnvironmentConfig) -> None:
    """Name the argument that does not exist, and those that do; and the one whose value is of another type."""
    import difflib

    entry = spec.entry_point
    if isinstance(entry, str):
        try:
            entry = gymnasium.envs.registration.load_env_creator(entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's module may raise anything, or leave
            raise ConfigError(f"environment {config.id} cannot be loaded: {describe_fault(error)}") from None
    parameters = inspect.signature(entry).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in config.kwargs:
        if key not in parameters and not takes_any:
            close = difflib.get_close_matches(key, list(parameters), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(parameters)}"
            raise ConfigError(f"environment.kwargs.{key}: {config.id} has no such argument; {hint}")
    try:
        check_arguments(entry, config.kwargs, "environment.kwargs.")
    except ValueError as error:
        raise ConfigError(str(error)) from None
