from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from winnowrl.envs.arithmetic import ArithmeticEnv


def test_passes_gymnasium_checks() -> None:
    check_env(gymnasium.make("winnowrl/Arithmetic-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("kwargs", [{}, {"max_operand": 39, "operators": "+-"}, {"num_terms": 3, "operators": "*"}])
@pytest.mark.parametrize("seeds", [(0, 0), (0, 7)])
def test_train_and_heldout_problems_never_meet_whatever_the_seed(kwargs: dict, seeds: tuple[int, int]) -> None:
    train = ArithmeticEnv(**kwargs, seed=seeds[0]).task_set("train")
    heldout = ArithmeticEnv(**kwargs, seed=seeds[1]).task_set("eval")
    assert len(train) > 20
    assert len(heldout) > 5
    problems = {task.metadata["problem"] for task in train}
    assert not problems & {task.metadata["problem"] for task in heldout}


def test_no_heldout_problem_stands_in_a_prompt() -> None:
    env = ArithmeticEnv(num_shots=10)
    heldout = {task.metadata["problem"] for task in env.task_set("eval")}
    shots = {line.split("=")[0] for line in env.task_set("train")[0].prompt.splitlines()[:-1]}
    assert len(shots) == 10
    assert not shots & heldout


def test_the_same_seed_gives_the_same_tasks() -> None:
    assert list(ArithmeticEnv(seed=3).task_set("train")) == list(ArithmeticEnv(seed=3).task_set("train"))
    assert list(ArithmeticEnv(seed=3).task_set("train")) != list(ArithmeticEnv(seed=4).task_set("train"))


@pytest.mark.parametrize(
    ("reply", "reward"),
    [("12\n", 1.0), (" 12", 1.0), ("12 or 13", 1.0), ("13\n12", 0.0), ("", 0.0), ("-12", 0.0), ("9" * 100_000, 0.0)],
)
def test_the_first_integer_of_the_reply_is_the_answer(reply: str, reward: float) -> None:
    env = ArithmeticEnv()
    task = next(task for task in env.task_set("train") if task.answer == "12")
    env.reset(options={"task": task})
    _, got, terminated, truncated, info = env.step(reply)
    assert (got, terminated, truncated) == (reward, True, False)
    assert info["success"] == bool(reward)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"max_operand": 0}, "max_operand"),
        ({"num_terms": 1}, "num_terms"),
        ({"operators": "/"}, "operators"),
        ({"operators": ""}, "operators"),
        ({"style": "poem"}, "style"),
        ({"num_shots": -1}, "num_shots"),
    ],
)
def test_a_bad_argument_is_named(kwargs: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ArithmeticEnv(**kwargs)


def test_an_unknown_split_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="train, eval"):
        ArithmeticEnv().task_set("test")
