"""``winnowrl/Math-v0``: problem sets, splits, rewards."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import winnowrl.envs  # noqa: F401 - registers the environments
from winnowrl.envs.math import MathEnv
from winnowrl.envs.math.exact import numbers_equal, read_number
from winnowrl.envs.math.policy import DEFAULT_POLICY


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows(count: int, **extra: Any) -> list[dict[str, Any]]:
    return [{"id": f"p{i}", "problem": f"What is {i} + 1?", "answer": str(i + 1), **extra} for i in range(count)]


def test_passes_gymnasium_check() -> None:
    check_env(gymnasium.make("winnowrl/Math-v0").unwrapped, skip_render_check=True)


def test_right_and_wrong_replies() -> None:
    environment = MathEnv()
    task = next(task for task in environment.task_set("train") if task.answer == r"25\pi")
    observation, _ = environment.reset(seed=0, options={"task": task})
    assert task.prompt in observation
    assert r"\boxed{}" in observation
    _, reward, terminated, truncated, info = environment.step(r"r = 5, so the area is \boxed{25\pi}.")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["action"] == r"25\pi"
    assert info["reward_parts"] == {"accuracy": 1.0}
    environment.reset(options={"task": task})
    _, reward, _, _, info = environment.step("I could not do it, sorry.")
    assert (reward, info["success"], info["verdict"].reason) == (0.0, False, "no answer found")


def test_undecided_verdict_is_reported_and_not_rewarded() -> None:
    environment = MathEnv(verifier={"time_limit_s": 0.3})
    task = next(task for task in environment.task_set("train") if task.answer == r"25\pi")
    environment.reset(options={"task": task})
    _, reward, _, _, info = environment.step(r"\boxed{\binom{1000000000}{100000000}}")
    assert (reward, info["verdict"].status) == (0.0, "undecided")


def test_format_weight_rewards_the_box_alone() -> None:
    environment = MathEnv(format_weight=0.25)
    environment.reset(seed=1)
    _, reward, _, _, info = environment.step(r"\boxed{nothing of the kind}")
    assert reward == 0.25
    assert info["reward_parts"] == {"accuracy": 0.0, "format": 1.0}


def test_held_out_problems_are_disjoint_and_near_the_fraction(tmp_path: Path) -> None:
    source = write(tmp_path / "problems.jsonl", rows(1000))
    environment = MathEnv(source, heldout_fraction=0.3)
    train, held_out = ({task.prompt for task in environment.task_set(split)} for split in ("train", "eval"))
    assert len(train | held_out) == 1000
    assert not train & held_out
    # Binomial(1000, 0.3): five standard deviations are 72.
    assert abs(len(held_out) - 300) < 72


def test_split_of_a_problem_does_not_depend_on_the_others(tmp_path: Path) -> None:
    few = MathEnv(write(tmp_path / "few.jsonl", rows(50)))
    many = MathEnv(write(tmp_path / "many.jsonl", rows(500)))
    assert {task.id for task in few.task_set("eval")} <= {task.id for task in many.task_set("eval")}


def test_train_leaves_out_what_stands_in_the_eval_source(tmp_path: Path) -> None:
    held_out = rows(5)
    held_out[0]["problem"] = "  what is 0 +  1?"
    environment = MathEnv(write(tmp_path / "train.jsonl", rows(20)), write(tmp_path / "eval.jsonl", held_out))
    assert [task.id for task in environment.task_set("train")] == [f"p{i}" for i in range(5, 20)]
    assert len(environment.task_set("eval")) == 5


def test_levels_and_limits(tmp_path: Path) -> None:
    levels = [row | {"level": f"Level {i % 5}"} for i, row in enumerate(rows(100))]
    source = write(tmp_path / "levels.jsonl", [*levels, {"id": "none", "problem": "?", "answer": "1"}])
    environment = MathEnv(source, min_level=2, max_level=3, limit=7, eval_limit=3)
    assert {task.metadata["level"] for task in environment.task_set("train")} == {"Level 2", "Level 3"}
    assert (len(environment.task_set("train")), len(environment.task_set("eval"))) == (7, 3)
    assert environment.task_set("train")[0].task_type.startswith("level Level")


def test_unreadable_gold_is_refused_with_its_row_or_dropped(tmp_path: Path) -> None:
    bad = [
        *rows(40),
        {"id": "bad", "problem": "What is it?", "answer": r"\frac{1}{"},
        {"id": "text", "problem": "Give it.", "answer": "A^T"},
    ]
    source = write(tmp_path / "bad.jsonl", bad)
    with pytest.raises(ValueError, match=r"row 41: gold unparseable"):
        MathEnv(source).task_set("train")
    environment = MathEnv(source, unreadable_gold="drop")
    assert sum(len(environment.task_set(split)) for split in ("train", "eval")) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_template": "solve it"}, r"must contain \{problem\}"),
        ({"heldout_fraction": 1.0}, "heldout_fraction is 1.0"),
        ({"limit": 0}, "limit is 0"),
        ({"unreadable_gold": "ignore"}, "unreadable_gold is 'ignore'; allowed: refuse, drop"),
        ({"verifier": {"time_limit": 3}}, "verifier.time_limit is no option; allowed: .*time_limit_s"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MathEnv(**options)


def test_unknown_split_and_missing_file() -> None:
    with pytest.raises(ValueError, match="no split 'test'; it has: train, eval"):
        MathEnv().task_set("test")
    with pytest.raises(FileNotFoundError):
        MathEnv("nowhere.jsonl").task_set("train")


def test_environment_and_tasks_pickle() -> None:
    environment = MathEnv()
    task = environment.task_set("train")[0]
    copy = pickle.loads(pickle.dumps(environment))
    assert (
        copy.reset(options={"task": pickle.loads(pickle.dumps(task))})[0]
        == environment.reset(options={"task": task})[0]
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234.5", "2469/2"), ("-3", "-3"), (r"\frac{-1}{2}", "-1/2"), ("50%", "1/2"), ("2^{-3}", "1/8"), ("1e-2", "1/100"),
     (r".1\overline{6}", "1/6"), ("(7)", "7"), ("1/0", None), ("2^99999", None), ("1.2.3", None), ("x", None), ("", None)],
)  # fmt: skip
def test_exact_numbers_are_read(text: str, value: str | None) -> None:
    number = read_number(text)
    assert (None if number is None else str(number.value)) == value


def test_six_digits_stand_for_an_unending_number_and_five_do_not() -> None:
    third, five, six = (read_number(text) for text in ("1/3", "0.33333", "0.333333"))
    assert third
    assert five
    assert six
    assert not numbers_equal(third, five, DEFAULT_POLICY)
    assert numbers_equal(third, six, DEFAULT_POLICY)
