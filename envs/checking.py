"""Tries an environment against everything training will ask of it; ``winnowrl env check ID`` prints what it finds."""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
from gymnasium import spaces

from winnowrl.envs.base import TextEnv
from winnowrl.envs.registry import describe_fault, find_spec, users_line
from winnowrl.envs.step_shape import CheckError, CheckWarning, check_info, check_step
from winnowrl.envs.tasks import Task, TaskSet

Status = Literal["passed", "warning", "failed"]
GROUP_SIZE = 4
NUM_TASKS = 5
MAX_TURNS = 200
START_S = 120.0
SLOW_INLINE_S = 0.005
SLOW_STEP_S = 10.0
ODD_ACTIONS: dict[str, str] = {
    "an empty action": "",
    "white space": " \n\t ",
    "a null character": "\0",
    "half a surrogate pair": "\ud800",
    "other scripts": "é 数学 🙂 \u202e\u200b",
    "braces and quotes": '{"a": [\\boxed{"}',
    "a thousand lines": "line\n" * 1000,
    "one hundred thousand digits": "9" * 100_000,
    "half a million characters": "x" * 500_000,
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the table."""

    name: str
    status: Status
    detail: str
    seconds: float


@dataclass
class Subject:
    """The environment under test."""

    env_id: str
    kwargs: dict[str, Any]
    step_times: list[float] = field(default_factory=list)
    reset_times: list[float] = field(default_factory=list)
    has_tasks: bool = True

    def make(self) -> TextEnv:
        env = gymnasium.make(self.env_id, disable_env_checker=True, **self.kwargs).unwrapped
        assert isinstance(env, TextEnv)
        return env

    def tasks(self, env: TextEnv, split: str = "train") -> list[Task]:
        tasks = env.task_set(split)
        stride = max(1, len(tasks) // NUM_TASKS)
        return [tasks[index] for index in range(0, len(tasks), stride)][:NUM_TASKS]


def check_environment(env_id: str, kwargs: Mapping[str, Any] | None = None) -> list[CheckResult]:
    """Run every check and return what each found.

    The later ones are left out when the environment cannot be made, and when its tasks cannot be read: each would only
    say so again. They run in this process; ``winnowrl env check`` runs them in another, with a deadline for each.

    Raises:
        ValueError: Gymnasium does not know ``env_id``.
    """
    return list(run_checks(env_id, kwargs))


def run_checks(
    env_id: str, kwargs: Mapping[str, Any] | None = None, on_start: Callable[[str], None] = lambda name: None
) -> Iterator[CheckResult]:
    """As :func:`check_environment`, one by one; ``on_start`` is told the name of each check before it begins."""
    find_spec(env_id)
    subject = Subject(env_id, dict(kwargs or {}))
    for name, check in CHECKS.items():
        on_start(name)
        result = _try(name, check, subject)
        yield result
        if result.status == "failed" and (name == FIRST or not subject.has_tasks):
            return


def _try(name: str, check: Callable[[Subject], str], subject: Subject) -> CheckResult:
    started = time.perf_counter()
    status: Status = "passed"
    try:
        detail = check(subject)
    except CheckError as error:
        status, detail = "failed", str(error)
    except CheckWarning as error:
        status, detail = "warning", str(error)
    except SystemExit as error:
        status, detail = "failed", f"called {describe_exit(error)}; an environment must not end the process it runs in"
    except Exception as error:  # noqa: BLE001 - an environment under test may raise anything, and that is a finding
        status, detail = "failed", f"raised {describe_fault(error)}"
    return CheckResult(name, status, detail, time.perf_counter() - started)


def describe_exit(error: SystemExit) -> str:
    """The call that ended the process, and its line."""
    line = users_line(traceback.extract_tb(error.__traceback__))
    return f"sys.exit({error.code!r})" + (f" ({line})" if line else "")


def _check_made(subject: Subject) -> str:
    env = gymnasium.make(subject.env_id, disable_env_checker=True, **subject.kwargs)
    if not isinstance(env.unwrapped, TextEnv):
        raise CheckError(f"it is a {type(env.unwrapped).__name__}; subclass winnowrl.envs.TextEnv")
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name), spaces.Text):
            raise CheckError(f"its {name} is {getattr(env, name)}; allowed: gymnasium.spaces.Text")
    limit = env.spec.max_episode_steps if env.spec else None
    env.close()
    if limit is None:
        raise CheckWarning("max_episode_steps is not set; pass it to gymnasium.register so that every episode ends")
    return f"{type(env.unwrapped).__name__}, at most {limit} turns, runs {env.unwrapped.execution}"


def _check_gymnasium(subject: Subject) -> str:
    from gymnasium.utils.env_checker import check_env

    env = subject.make()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    env.close()
    # Gymnasium's remark that a space is no Box is about arrays; ours are strings by design.
    said = [str(warning.message) for warning in found if "gym" in str(warning.filename)]
    return f"passed with {len(said)} remarks" if said else "passed"


def _check_task_sets(subject: Subject) -> str:
    env = subject.make()
    sizes = {}
    seen: dict[str, dict[str, str]] = {}
    for split in ("train", "eval"):
        subject.has_tasks = False
        tasks = env.task_set(split)
        if not isinstance(tasks, TaskSet) or len(tasks) == 0:
            raise CheckError(f"task_set({split!r}) gives {tasks!r}; return a TaskSet with at least one task")
        subject.has_tasks = True
        sizes[split] = len(tasks)
        ids = {task.id for task in tasks}
        if len(ids) < len(tasks):
            raise CheckError(f"task_set({split!r}) has {len(tasks) - len(ids)} repeated ids; make them unique")
        seen[split] = {task.id: f"{task.prompt}\0{task.answer}" for task in tasks}
    if shared := seen["train"].keys() & seen["eval"].keys():
        raise CheckError(f"{len(shared)} ids are in train and in eval, e.g. {min(shared)!r}; hold tasks out for real")
    if shared := set(seen["train"].values()) & set(seen["eval"].values()):
        raise CheckError(f"{len(shared)} tasks of eval are train tasks under another id; hold tasks out for real")
    again = subject.make()
    if [task.id for task in again.task_set("train")] != list(seen["train"]):
        raise CheckError("two environments with the same arguments have different train tasks; draw them with a seed")
    try:
        env.task_set("no such split")
    except ValueError:
        return f"{sizes['train']} train, {sizes['eval']} eval, disjoint"
    except Exception as error:
        raise CheckWarning(
            f"task_set('no such split') raises {type(error).__name__}; a ValueError naming the splits tells the user more"
        ) from error
    raise CheckError("task_set('no such split') raised nothing; raise ValueError naming the splits there are")


def _check_pickling(subject: Subject) -> str:
    env = subject.make()
    for task in subject.tasks(env):
        if pickle.loads(pickle.dumps(task)) != task:
            raise CheckError(f"task {task.id!r} comes back changed from pickle; keep plain values in metadata")
    task = subject.tasks(env)[0]
    here, _ = env.reset(seed=1, options={"task": task})
    there = _first_observation_elsewhere(pickle.dumps((find_spec(subject.env_id), subject.kwargs, task)))
    if here != there:
        raise CheckError(f"a fresh process sees another first observation: {_difference(here, there)}")
    return "tasks and construction; a fresh process sees the same"


def _first_observation_elsewhere(request: bytes) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_observe, args=(theirs, request), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_S):
            raise CheckError(f"a fresh process did not reset it within {START_S:.0f} s")
        ok, value = ours.recv()
    except EOFError:
        raise CheckError("a fresh process died while it made the environment") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if not ok:
        raise CheckError(f"a fresh process cannot make it: {value}")
    return str(value)


def _observe(pipe: Any, request: bytes) -> None:
    try:
        spec, kwargs, task = pickle.loads(request)
        env = gymnasium.make(spec, disable_env_checker=True, **kwargs).unwrapped
        pipe.send((True, env.reset(seed=1, options={"task": task})[0]))
        env.close()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told to the parent, which names it
        pipe.send((False, f"{type(error).__name__}: {error}"))


def _check_groups(subject: Subject) -> str:
    """All members of a group see one first observation, whether their environment is fresh or has been used."""
    members = [subject.make() for _ in range(GROUP_SIZE)]
    tasks = subject.tasks(members[0])
    for number, task in enumerate(tasks):
        first = ""
        for index, env in enumerate(members):
            started = time.perf_counter()
            observation, info = env.reset(seed=100 + number, options={"task": task})
            subject.reset_times.append(time.perf_counter() - started)
            check_info(info)
            if index == 0:
                first = observation
            elif observation != first:
                raise CheckError(f"members of a group of task {task.id!r} see {_difference(first, observation)}")
            for _ in range(index):  # member n enters the next reset n actions old
                if env.step("1")[2]:
                    break
    for env in members:
        env.close()
    return f"{GROUP_SIZE} members of {len(tasks)} tasks see one first observation each"


def _check_seeding(subject: Subject) -> str:
    """The same seed, task and actions give the same episode; the global generators have no part in it."""
    first, second = subject.make(), subject.make()
    tasks = subject.tasks(first)
    for number, task in enumerate(tasks):
        if (fault := _compare_episodes(first, second, task, number)) is not None:
            raise CheckError(f"task {task.id!r} with one seed and the same actions: {fault}; draw from self.np_random")
    unseeded = [env.reset(seed=5)[0] for env in (first, second)]
    if unseeded[0] != unseeded[1]:
        raise CheckError("reset(seed=5) without a task draws different tasks; call super().reset(seed=seed)")
    first.close()
    second.close()
    return f"episodes of {len(tasks)} tasks repeat exactly"


def _compare_episodes(first: TextEnv, second: TextEnv, task: Task, seed: int) -> str | None:
    pairs = [env.reset(seed=seed, options={"task": task}) for env in (first, second)]
    if pairs[0][0] != pairs[1][0]:
        return _difference(pairs[0][0], pairs[1][0])
    actions = ["1", "look", "2"] + [f"{n}" for n in range(3, 8)]
    for turn, action in enumerate(actions, start=1):
        one, two = first.step(action), second.step(action)
        for what, a, b in zip(("observation", "reward", "terminated", "truncated"), one, two, strict=False):
            if a != b:
                return f"turn {turn}: {what} is {str(a)[:80]!r} once and {str(b)[:80]!r} the other time"
        if one[2] or one[3]:
            return None
    return None


def _check_odd_actions(subject: Subject) -> str:
    env = subject.make()
    task = subject.tasks(env)[0]
    for name, action in ODD_ACTIONS.items():
        env.reset(seed=0, options={"task": task})
        started = time.perf_counter()
        try:
            result = env.step(action)
        except Exception as error:
            raise CheckError(
                f"{name} raises {type(error).__name__}: {str(error)[:120]}; a model writes anything, so answer it"
            ) from error
        seconds = time.perf_counter() - started
        check_step(result)
        if seconds > SLOW_STEP_S:
            raise CheckWarning(f"{name} takes {seconds:.1f} s; cap what is read of a reply")
    env.close()
    return f"{len(ODD_ACTIONS)} kinds of garbage, up to 500,000 characters"


def _check_episode(subject: Subject) -> str:
    """With Gymnasium's wrappers on, an episode of any actions comes to its end."""
    env = gymnasium.make(subject.env_id, disable_env_checker=True, **subject.kwargs)
    env.action_space.seed(0)
    turns = []
    tasks = subject.tasks(env.unwrapped)  # type: ignore[arg-type]
    for task in tasks:
        _, info = env.reset(seed=0, options={"task": task})
        for turn in range(1, MAX_TURNS + 1):
            allowed = info.get("admissible_actions")
            action = allowed[turn % len(allowed)] if allowed else env.action_space.sample()
            started = time.perf_counter()
            result = env.step(action)
            subject.step_times.append(time.perf_counter() - started)
            check_step(result)
            info = result[4]
            if result[2] or result[3]:
                turns.append(turn)
                break
        else:
            raise CheckError(f"task {task.id!r} did not end in {MAX_TURNS} turns; set max_episode_steps")
    env.close()
    return f"{len(tasks)} episodes ended after {min(turns)} to {max(turns)} turns"


def _check_speed(subject: Subject) -> str:
    if not subject.step_times:
        raise CheckWarning("not measured, because no episode could be played")
    env = subject.make()
    step, reset = statistics.median(subject.step_times), statistics.median(subject.reset_times or [0.0])
    told = f"step {step * 1e3:.2f} ms, reset {reset * 1e3:.2f} ms (medians)"
    if env.execution == "inline" and step > SLOW_INLINE_S:
        raise CheckWarning(
            f"{told}; inline steps stop every other episode meanwhile: set execution = 'thread' or 'process'"
        )
    if step > SLOW_STEP_S:
        raise CheckWarning(f"{told}; a step this slow starves the engine")
    return told


def _check_closing(subject: Subject) -> str:
    env = subject.make()
    env.close()
    env.close()
    env = subject.make()
    env.reset(seed=0)
    env.close()
    env.close()
    fresh = subject.make()
    try:
        fresh.step("1")
    except gymnasium.error.ResetNeeded:
        return "twice, before and after a reset; step before reset is refused"
    raise CheckError("step() before reset() is not refused; override respond(), not step()")


def _check_rendering(subject: Subject) -> str:
    env = gymnasium.make(subject.env_id, disable_env_checker=True, render_mode="ansi", **subject.kwargs)
    observation, _ = env.reset(seed=0)
    shown = env.render()
    env.close()
    if not isinstance(shown, str) or observation not in shown:
        raise CheckError("render() with render_mode='ansi' does not show the first observation")
    return "ansi"


def _difference(first: str, second: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return f"different observations from character {at} on: {first[at : at + 60]!r} and {second[at : at + 60]!r}"


FIRST = "made by Gymnasium"
CHECKS: dict[str, Callable[[Subject], str]] = {
    FIRST: _check_made,
    "task sets": _check_task_sets,
    "Gymnasium's check_env": _check_gymnasium,
    "pickling": _check_pickling,
    "one start for a group": _check_groups,
    "seeding": _check_seeding,
    "odd actions": _check_odd_actions,
    "episodes end": _check_episode,
    "time": _check_speed,
    "closing": _check_closing,
    "rendering": _check_rendering,
}
