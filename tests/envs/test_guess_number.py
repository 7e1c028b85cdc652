from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from winnowrl.envs.guess_number import GuessNumberEnv


def _env(secret: int, **kwargs: int) -> GuessNumberEnv:
    env = GuessNumberEnv(**kwargs)
    tasks = [*env.task_set("train"), *env.task_set("eval")]
    env.reset(seed=0, options={"task": next(task for task in tasks if task.answer == str(secret))})
    return env


def test_passes_gymnasium_checks() -> None:
    check_env(gymnasium.make("winnowrl/GuessNumber-v0").unwrapped, skip_render_check=True)


def test_bisection_always_wins_within_seven_guesses() -> None:
    for secret in range(1, 101):
        env = _env(secret)
        low, high, reward = 1, 100, 0.0
        for _ in range(7):
            guess = (low + high) // 2
            observation, reward, terminated, truncated, _ = env.step(str(guess))
            assert not truncated
            if terminated:
                break
            low, high = (guess + 1, high) if "Higher" in observation else (low, guess - 1)
        assert reward == 1.0


def test_the_last_wrong_guess_ends_the_game_without_reward() -> None:
    env = _env(50, max_guesses=2)
    assert env.step("1")[2] is False
    _, reward, terminated, truncated, info = env.step("no idea")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["action"] == "none"


def test_splits_are_disjoint() -> None:
    env = GuessNumberEnv()
    assert not {t.answer for t in env.task_set("train")} & {t.answer for t in env.task_set("eval")}
    with pytest.raises(ValueError, match="train, eval"):
        env.task_set("test")
