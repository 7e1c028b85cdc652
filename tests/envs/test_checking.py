"""The checker passes what training can use, and finds every kind of fault it looks for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import pytest

from winnowrl.envs.base import Execution, StepResult, TextEnv
from winnowrl.envs.checking import CHECKS, Subject, check_environment
from winnowrl.envs.step_shape import CheckError, CheckWarning, check_info, check_step
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict

ENV_ID = "test/Subject-v0"


class SoundEnv(TextEnv):
    """Nothing wrong with it; the faulty ones below change one thing each."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)

    def task_set(self, split: str) -> TaskSet:
        if split not in ("train", "eval"):
            raise ValueError(f"no split {split!r}; it has: train, eval")
        return TaskSet([Task(f"{split}-{n}", f"{split} {n}?", str(n)) for n in range(6)])

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        return f"{task.prompt} {self.np_random.integers(100)}", {}

    def respond(self, action: str) -> StepResult:
        return "next", 0.0, False, False, {"action": action[:20]}


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    gymnasium.register(ENV_ID, entry_point=lambda **kwargs: request.param(**kwargs), max_episode_steps=3)
    yield Subject(ENV_ID, {})
    gymnasium.registry.pop(ENV_ID)


def faulty(**members: Any) -> type[TextEnv]:
    return type("FaultyEnv", (SoundEnv,), members)


def shared_tasks(self: TextEnv, split: str) -> TaskSet:
    if split not in ("train", "eval"):
        raise ValueError(split)
    return TaskSet([Task(f"{split}-{n}", f"{n}?", str(n)) for n in range(6)])


def same_ids(self: TextEnv, split: str) -> TaskSet:
    return TaskSet([Task("a", "?", "1"), Task("a", "??", "2")])


def any_split(self: TextEnv, split: str) -> TaskSet:
    return TaskSet([Task(f"{split}-{n}", f"{split}{n}", str(n)) for n in range(3)])


def global_randomness(self: TextEnv, task: Task) -> tuple[str, dict[str, Any]]:
    return f"{task.prompt} {random.random()}", {}


def remembers(self: Any, task: Task) -> tuple[str, dict[str, Any]]:
    return f"{task.prompt} {getattr(self, 'count', 0)}", {}


def counts_steps(self: Any, action: str) -> StepResult:
    self.count = getattr(self, "count", 0) + 1
    return "next", 0.0, False, False, {}


def random_reward(self: TextEnv, action: str) -> StepResult:
    return "next", random.random(), False, False, {}


def needs_number(self: TextEnv, action: str) -> StepResult:
    return "next", float(int(action)), False, False, {}


def answers(result: Any) -> Any:
    return lambda self, action: result


FAULTS: dict[str, tuple[str, type[TextEnv], str]] = {
    "tasks under two ids": ("task sets", faulty(task_set=shared_tasks), "6 tasks of eval are train tasks"),
    "repeated ids": ("task sets", faulty(task_set=same_ids), "1 repeated ids"),
    "any split": ("task sets", faulty(task_set=any_split), "raise ValueError naming the splits"),
    "global generator": ("one start for a group", faulty(begin=global_randomness), "members of a group"),
    "state left over": ("one start for a group", faulty(begin=remembers, respond=counts_steps), "members of a group"),
    "reward by chance": ("seeding", faulty(respond=random_reward), "self.np_random"),
    "crash on garbage": ("odd actions", faulty(respond=needs_number), "an empty action raises ValueError"),
    "reward no number": (
        "odd actions",
        faulty(respond=answers(("", float("nan"), True, False, {}))),
        "the reward is nan",
    ),
    "four values": ("odd actions", faulty(respond=answers(("", 0.0, True, {}))), "observation, reward, terminated"),
    "number as truth": ("odd actions", faulty(respond=answers(("", 0.0, 1, False, {}))), "allowed: bool"),
    "action no text": ("odd actions", faulty(respond=answers(("", 0.0, True, False, {"action": 3}))), "info['action']"),
    "step not refused": ("closing", faulty(step=counts_steps), "is not refused"),
    "nothing rendered": ("rendering", faulty(render=lambda self: ""), "does not show"),
}


@pytest.mark.parametrize(
    ("check", "subject", "told"),
    [pytest.param(check, env, told, id=name) for name, (check, env, told) in FAULTS.items()],
    indirect=["subject"],
)
def test_a_fault_is_found_and_named(check: str, subject: Subject, told: str) -> None:
    with pytest.raises(CheckError) as error:
        CHECKS[check](subject)
    assert told in str(error.value)


@pytest.mark.parametrize("subject", [SoundEnv], indirect=True)
@pytest.mark.parametrize("check", [name for name in CHECKS if name != "pickling"])
def test_a_sound_environment_passes_each_check(check: str, subject: Subject) -> None:
    if check == "time":
        CHECKS["episodes end"](subject)
    assert CHECKS[check](subject)


def test_an_environment_that_another_process_can_make_passes_all() -> None:
    results = check_environment("winnowrl/Arithmetic-v0", {"max_operand": 20})
    assert [result.name for result in results] == list(CHECKS)
    assert {result.status for result in results} == {"passed"}


@pytest.mark.parametrize("subject", [SoundEnv], indirect=True)
def test_an_environment_that_another_process_cannot_make_fails_pickling(subject: Subject) -> None:
    # It is registered in this process alone, and by a function that does not pickle.
    results = {result.name: result for result in check_environment(ENV_ID)}
    assert results["pickling"].status == "failed"
    assert results["seeding"].status == "passed"


def test_an_environment_that_cannot_be_made_ends_the_checks() -> None:
    results = check_environment("winnowrl/Arithmetic-v0", {"max_operand": -1})
    assert [(result.name, result.status) for result in results] == [("made by Gymnasium", "failed")]
    assert "max_operand is -1" in results[0].detail


def test_tasks_that_cannot_be_read_end_the_checks() -> None:
    results = check_environment("winnowrl/Math-v0", {"source": "/nonexistent.jsonl"})
    assert [(result.name, result.status) for result in results] == [
        ("made by Gymnasium", "passed"),
        ("task sets", "failed"),
    ]
    assert "task file /nonexistent.jsonl does not exist" in results[1].detail


@pytest.mark.parametrize("subject", [faulty(task_set=shared_tasks)], indirect=True)
def test_tasks_that_can_be_read_and_are_wrong_do_not(subject: Subject) -> None:
    results = check_environment(ENV_ID)
    assert len(results) == len(CHECKS)


def leaves(self: TextEnv, action: str) -> StepResult:
    raise SystemExit(3)


@pytest.mark.parametrize("subject", [faulty(respond=leaves)], indirect=True)
def test_an_environment_that_ends_its_process_fails_and_ends_nothing(subject: Subject) -> None:
    results = {result.name: result for result in check_environment(ENV_ID)}
    assert results["odd actions"].status == "failed"
    assert "called sys.exit(3)" in results["odd actions"].detail
    assert "must not end the process" in results["odd actions"].detail


def test_an_unknown_id_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        check_environment("nowhere/Nothing-v0")


class SlowEnv(SoundEnv):
    execution: ClassVar[Execution] = "inline"

    def respond(self, action: str) -> StepResult:
        import time

        time.sleep(0.02)
        return "next", 0.0, True, False, {}


@pytest.mark.parametrize("subject", [SlowEnv], indirect=True)
def test_a_slow_inline_step_is_a_warning(subject: Subject) -> None:
    CHECKS["episodes end"](subject)
    with pytest.raises(CheckWarning, match="set execution = 'thread'"):
        CHECKS["time"](subject)


def test_what_the_collector_reads_has_its_shape() -> None:
    check_step(("", 1, True, False, {"verdict": Verdict("correct"), "success": True, "reward_parts": {"a": 1.0}}))
    for info in (
        {"success": 1},
        {"verdict": "correct"},
        {"reward_parts": {"a": float("inf")}},
        {"admissible_actions": "left"},
        {"extra": lambda: 0},
    ):
        with pytest.raises(CheckError, match="info"):
            check_info(info)
