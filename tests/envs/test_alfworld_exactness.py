"""What members read is what plain TextWorld says, character by character, however they share and part."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from winnowrl.envs.alfworld import ALFWorldEnv, walkthrough
from winnowrl.envs.tasks import Task

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld", "fast_downward")),
    reason="needs the alfworld extra",
)
SHARED = Path(os.environ.get("WINNOWRL_SHARED") or Path(__file__).parents[2].parent / "shared")

# TextWorld by itself, in a process of its own: no line of ours but the reading of the game.
PLAIN = """
import json, sys
walks, source = json.load(sys.stdin)
sys.argv = ["translate.py", "domain", "task"]
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv
from winnowrl.envs.alfworld.game_session import load_game
env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
env.load(load_game(source))
told = []
for walk in walks:
    state = env.reset()
    told.append([[state.feedback, state["admissible_commands"], state["won"]]])
    for action in walk:
        state, _, _ = env.step(action)
        told[-1].append([state.feedback, state["admissible_commands"], state["won"]])
json.dump(told, sys.__stdout__)
"""


def play_plainly(walks: list[list[str]], task: Task) -> list[Any]:
    job = json.dumps([walks, task.metadata["game"]])
    run = subprocess.run(
        [sys.executable, "-c", PLAIN], input=job, capture_output=True, text=True, timeout=300, check=True
    )
    told: list[Any] = json.loads(run.stdout)
    return told


def walk_sharing(
    env: ALFWorldEnv, task: Task, num_walks: int, num_steps: int, seed: int
) -> tuple[list[Any], list[Any]]:
    """Random walks, each following the one before for a while and parting from it: (actions, what was told)."""
    choose = random.Random(seed)
    walks: list[list[str]] = []
    told: list[Any] = []
    for _ in range(num_walks):
        env.reset(seed=0, options={"task": task})
        assert env._graph is not None
        walks.append([])
        told.append([[env._graph.opening, list(env._node.admissible), env._node.won]])
        follow = walks[-2][: choose.randrange(num_steps)] if len(walks) > 1 else []
        for turn in range(num_steps):
            # Opening, taking and using are rare among the admissible actions, and are what changes states.
            usual = env._node.admissible
            rare = [action for action in usual if not action.startswith(("go", "examine", "help", "inv"))]
            action = follow[turn] if turn < len(follow) else choose.choice(choose.choice([usual, rare or usual]))
            if choose.random() < 0.1 and turn >= len(follow):
                action = "sing"
            observation, _, terminated, _, info = env.step(action)
            walks[-1].append(action)
            told[-1].append([observation, info["admissible_actions"], info["success"]])
            if terminated:
                break
    return walks, told


@pytest.mark.parametrize(
    ("split", "index", "num_walks"),
    [
        ("train", 5, 3),
        pytest.param("train", 3, 10, marks=pytest.mark.slow),
        pytest.param("train", 5, 10, marks=pytest.mark.slow),
        pytest.param("seen", 5, 10, marks=pytest.mark.slow),
    ],
)
def test_shared_walks_read_as_plain_textworld(split: str, index: int, num_walks: int, tmp_path: Path) -> None:
    env = ALFWorldEnv(games="shipped", admissible="none", cache_dir=tmp_path, linger_s=0.0)
    task = env.task_set(split)[index]
    walks, told = walk_sharing(env, task, num_walks=num_walks, num_steps=12, seed=index)
    env.close()
    assert told == play_plainly(walks, task)


def test_a_replaced_worker_goes_on_as_plain_textworld(tmp_path: Path) -> None:
    env = ALFWorldEnv(games="shipped", admissible="none", cache_dir=tmp_path, linger_s=0.0)
    # The lamp has an effect under a condition: its states are told apart by more than the facts.
    task = env.task_set("train")[5]
    env.reset(seed=0, options={"task": task})
    actions = [
        "go to desk 1",
        "use desklamp 1",
        "use desklamp 1",
        "take pen 1 from desk 1",
        "examine desklamp 1",
        "look",
    ]
    told = []
    for action in actions:
        told.append(env.step(action)[0])
        env._book().workers.stop()
    env.close()
    assert told == [row[0] for row in play_plainly([actions], task)[0][1:]]


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "data" / "alfworld").exists(), reason="needs the handed games")
def test_twelve_walkthroughs_of_the_handed_games_replay_to_success(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, SHARED / "data" / "alfworld" / "unpack.py", tmp_path / "data"], check=True, timeout=120
    )
    env = ALFWorldEnv(games=tmp_path / "data", cache_dir=tmp_path / "cache", admissible="none", linger_s=0.0)
    solved: dict[str, int] = {}
    for split in ("train", "unseen"):
        for task in env.task_set(split):
            if solved.get(task.task_type, 0) >= (1 if split == "train" else 2):
                continue
            env.reset(seed=0, options={"task": task})
            actions = walkthrough(task)
            steps = [env.step(action) for action in actions]
            assert steps[-1][1:3] == (1.0, True), task.id
            solved[task.task_type] = solved.get(task.task_type, 0) + 1
    env.close()
    assert len(solved) == 6
    assert sum(solved.values()) == 12


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "data" / "alfworld").exists(), reason="needs the handed games")
def test_shared_walks_of_handed_games_read_as_plain_textworld(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, SHARED / "data" / "alfworld" / "unpack.py", tmp_path / "data"], check=True, timeout=120
    )
    env = ALFWorldEnv(games=tmp_path / "data", cache_dir=tmp_path / "cache", admissible="none", linger_s=0.0)
    tasks = env.task_set("train")
    for index in (0, 40, 70):
        walks, told = walk_sharing(env, tasks[index], num_walks=6, num_steps=15, seed=index)
        assert told == play_plainly(walks, tasks[index])
    env.close()
