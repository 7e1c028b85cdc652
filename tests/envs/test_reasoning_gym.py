"""``winnowrl/ReasoningGym-v0``: the data sets' own scores, without their traps."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("reasoning_gym")

import winnowrl.envs  # noqa: F401 - registers the environments
from winnowrl.envs.reasoning_gym import ReasoningGymEnv, close_pool, tagged_answer
from winnowrl.envs.reasoning_gym_scorer import _differ, is_plain


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    close_pool()


def outcome(dataset: str, reply: str | None, **options: Any) -> tuple[float, Any]:
    """Reward and verdict of a reply (None: the reference answer) to the first train task."""
    environment = ReasoningGymEnv(dataset, num_train=2, num_eval=1, **options)
    task = environment.task_set("train")[0]
    environment.reset(options={"task": task})
    answer = task.answer if reply is None else reply
    _, reward, terminated, _, info = environment.step(f"so <answer>{answer}</answer>")
    assert terminated
    return reward, info["verdict"]


def test_passes_gymnasium_check() -> None:
    check_env(gymnasium.make("winnowrl/ReasoningGym-v0", num_train=8, num_eval=2).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    "dataset",
    [
        "leg_counting",
        "countdown",
        "polynomial_multiplication",
        "spiral_matrix",
        "prime_factorization",
        "game_of_life_halting",
    ],
)
def test_reference_answer_gets_full_marks_and_garbage_none(dataset: str) -> None:
    assert outcome(dataset, None)[0] == 1.0
    # countdown gives garbage 0.01, prime_factorization raises, game_of_life_halting gives it full marks.
    reward, verdict = outcome(dataset, "garbage of another kind", reward="score")
    assert (reward, verdict.status) == (0.0, "wrong")


@pytest.mark.parametrize("dataset", ["time_intervals", "polynomial_equations", "gcd", "letter_counting", "coin_flip"])
def test_what_is_written_without_reading_the_question_earns_nothing(dataset: str) -> None:
    # time_intervals gives 0.95 for any short time, polynomial_equations half for one of two roots, letter_counting and gcd
    # a half for 10 when the answer is 1, coin_flip full marks for the beginning of the answer's decimals.
    environment = ReasoningGymEnv(dataset, num_train=8, num_eval=1, reward="score")
    for task in environment.task_set("train"):
        typed = ("0", "1", "10", "0 days", "1 second", "00:00", *task.metadata["others"])
        for reply in dict.fromkeys((*typed, task.answer or "")):
            environment.reset(options={"task": task})
            _, reward, _, _, info = environment.step(f"<answer>{reply}</answer>")
            is_right = reply == task.answer or is_same_number(reply, task.answer or "")
            assert reward == pytest.approx(float(is_right), abs=1e-9), (task.answer, reply, info["verdict"])


def is_same_number(first: str, second: str) -> bool:
    try:
        return abs(float(first) - float(second)) <= 1e-4
    except ValueError:
        return False


def test_the_floor_is_the_same_for_every_member_of_a_group() -> None:
    # A close answer earns a part, and the same part every time, whichever process scores it.
    environment = ReasoningGymEnv("time_intervals", num_train=8, num_eval=1, reward="score")
    task = next(task for task in environment.task_set("train") if (task.answer or "").endswith(" days"))
    close = f"{int((task.answer or '').split()[0]) + 1} days"
    rewards = set()
    for _ in range(4):
        close_pool()
        environment.reset(options={"task": task})
        rewards.add(environment.step(f"<answer>{close}</answer>")[1])
    assert len(rewards) == 1
    assert 0 < rewards.pop() < 1


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ("0", "0.375", True),
        ("3/8", "0.375", False),
        ("1.0", "1", False),
        ("-1", "1", True),
        ("1/0", "1", None),
        ("1e9", "1", None),
        ("5 days", "5", None),
        ("", "", None),
    ],
)
def test_numbers_are_compared_by_value(first: str, second: str, differ: bool | None) -> None:
    assert _differ(first, second) is differ


@pytest.mark.parametrize("dataset", ["spiral_matrix", "countdown", "polynomial_multiplication"])
def test_answer_is_never_run_as_code(dataset: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    for attack in (f"__import__('os').system('touch {file}')", f"open('{file}', 'w')", f"[open({str(file)!r}, 'w')]"):
        assert outcome(dataset, attack)[1].status == "wrong"
    assert not file.exists()


def test_endless_answer_is_undecided_within_its_limit() -> None:
    reward, verdict = outcome("countdown", "9**9**9**9", time_limit_s=1.0)
    assert (reward, verdict.status) == (0.0, "undecided")
    assert outcome("countdown", None)[0] == 1.0


def test_splits_are_disjoint_seeded_and_bounded_by_the_generator() -> None:
    environment = ReasoningGymEnv("leg_counting", num_train=40, num_eval=10, seed=3)
    train, held_out = ([task.prompt for task in environment.task_set(split)] for split in ("train", "eval"))
    assert (len(set(train)), len(set(held_out))) == (40, 10)
    assert not set(train) & set(held_out)
    again = ReasoningGymEnv("leg_counting", num_train=40, num_eval=10, seed=3)
    assert [task.prompt for task in again.task_set("train")] == train
    assert [
        task.prompt for task in ReasoningGymEnv("leg_counting", num_train=40, num_eval=10, seed=4).task_set("train")
    ] != train


def test_tasks_pickle() -> None:
    task = ReasoningGymEnv("leg_counting", num_train=2, num_eval=1).task_set("train")[0]
    assert pickle.loads(pickle.dumps(task)).prompt == task.prompt


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer>1</answer> no <answer> 2 </answer>", "2"),
        ("\\boxed{3}", "3"),
        ("<think><answer>1</answer></think> four", None),
        ("<answer>1", None),
        ("<answer>1<answer>2</answer><answer>", "2"),
    ],
)
def test_tagged_answer(reply: str, answer: str | None) -> None:
    assert tagged_answer(reply) == answer


@pytest.mark.parametrize("unit", ["<answer>", "</answer>", "<answer></answer>", "\\boxed{", "<think>"])
def test_a_reply_of_tags_is_read_in_linear_time(unit: str) -> None:
    started = time.process_time()
    tagged_answer(unit * (131_072 // len(unit)))
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        *((answer, True) for answer in ("[1, 2, [3]]", "['a', 'b']", "(3 + 4)*2/x**2", "sin(x) + C", "")),
        *((answer, False) for answer in ("__import__('os')", "exec(x)", "x.y", "'a'.join(b)", "lambda: 1", "S('x')")),
    ],
)
def test_only_literals_and_arithmetic_are_plain(answer: str, plain: bool) -> None:
    assert is_plain(answer) is plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "leg_count"}, "dataset is 'leg_count'.*nearest: leg_counting"),
        ({"reward": "marks"}, "reward is 'marks'; allowed: exact, score"),
        ({"num_train": 0}, "num_train is 0"),
        ({"time_limit_s": 0}, "time_limit_s is 0"),
        ({"time_limit_s": "a"}, "time_limit_s is 'a'; allowed: a number"),
        ({"num_train": 1.5}, "num_train is 1.5; allowed: a whole number"),
        ({"seed": -1}, "seed is -1; allowed: 0 or more"),
        ({"config": 3}, "config is 3; allowed: a mapping"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReasoningGymEnv(**options)


def test_refused_config_says_so() -> None:
    with pytest.raises(ValueError, match=r"config of leg_counting is .*refuses it"):
        ReasoningGymEnv("leg_counting", {"no_such_option": 1}).task_set("train")
