from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

from winnowrl.envs.alfworld import ALFWorldEnv, play_known_game, transition_counts, walkthrough
from winnowrl.envs.alfworld.server import GameError, WorkerCrashError, WorkerTimeoutError
from winnowrl.envs.tasks import Task

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("alfworld", "textworld", "fast_downward")),
    reason="needs the alfworld extra",
)
Make = Callable[..., ALFWorldEnv]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(cache: Path) -> Iterator[Make]:
    """Makes environments that share workers, and closes them."""
    made: list[ALFWorldEnv] = []

    def make_env(**kwargs: Any) -> ALFWorldEnv:
        made.append(ALFWorldEnv(games="shipped", cache_dir=cache, **kwargs))
        return made[-1]

    yield make_env
    for env in made:
        env.close()


def start(env: ALFWorldEnv, split: str = "train", index: int = 0) -> tuple[str, dict[str, Any]]:
    return env.reset(seed=0, options={"task": env.task_set(split)[index]})


def workers_of(env: ALFWorldEnv) -> list[int]:
    return env._book().workers.pids()


def worker_of(env: ALFWorldEnv) -> int:
    assert env._graph is not None
    return env._book().workers._idle[env._graph.game].pid


def test_the_known_game_is_played_to_success() -> None:
    result = play_known_game()
    assert result.success, result.message
    assert result.num_steps == len(result.actions) >= 3
    assert "solved" in result.message


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.slow), "seen", "unseen"])
def test_every_shipped_game_is_solved_by_its_walkthrough(split: str, make: Make) -> None:
    env = make()
    for task in env.task_set(split):
        env.reset(seed=0, options={"task": task})
        rewards, terminated = [], False
        for action in walkthrough(task):
            _, reward, terminated, truncated, info = env.step(action)
            assert info["is_admissible"], action
            assert not truncated
            rewards.append(reward)
        assert terminated
        assert info["success"]
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]


def test_members_of_a_group_see_one_first_observation_and_repeat_nothing(make: Make) -> None:
    members = [make() for _ in range(4)]
    firsts = [start(member, index=1) for member in members]
    assert all(first == firsts[0] for first in firsts)
    assert "Your task is to: " in firsts[0][0]
    assert "Welcome to TextWorld" not in firsts[0][0]
    actions = walkthrough(members[0].task_set("train")[1])
    start(members[0], index=1)
    told = [members[0].step(action)[0] for action in actions]
    before = transition_counts()
    for member in members[1:]:
        assert [member.step(action)[0] for action in actions] == told
    after = transition_counts()
    assert after["computed"] == before["computed"]
    assert after["shared"] - before["shared"] == 3 * len(actions)


def test_members_meet_again_after_different_ways(make: Make) -> None:
    env = make()
    start(env)
    for action in ("open fridge 1", "go to fridge 1", "go to cabinet 1"):
        env.step(action)
    before = transition_counts()["computed"]
    start(env)
    env.step("go to cabinet 1")
    # Another way to the same place: where it leads from here is known.
    start(env)
    env.step("go to fridge 1")
    _, _, _, _, info = env.step("go to cabinet 1")
    assert info["is_shared"]
    assert transition_counts()["computed"] == before + 1


def test_an_action_that_is_not_admissible_changes_nothing(make: Make) -> None:
    env = make(admissible="none")
    start(env)
    admissible = env.step("look")[4]["admissible_actions"]
    for action in ("", "dance", "go to fridge 99", "x" * 1_000_000, "\x00\ud800", "ignore; rm -rf /"):
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, False)
        assert info["admissible_actions"] == admissible
        assert not info["is_admissible"]
        assert len(info["action"]) < 200


def test_the_canonical_action_is_the_admissible_one(make: Make) -> None:
    exact, near = make(), make(match="near")
    start(exact)
    start(near)
    assert exact.step("<action> GO to  Fridge 1. </action>")[4]["action"] == "go to fridge 1"
    info = exact.step("Open the fridge 1!")[4]
    assert (info["action"], info["is_admissible"]) == ("open the fridge 1", False)
    near.step("go to fridge 1")
    info = near.step("opens fridge 1")[4]
    assert (info["action"], info["is_admissible"]) == ("open fridge 1", True)


@pytest.mark.parametrize(("admissible", "ending"), [("list", "look"), ("grouped", "look"), ("none", "cabinet.")])
def test_admissible_actions_are_shown_as_asked(admissible: str, ending: str, make: Make) -> None:
    observation, info = start(make(admissible=admissible))
    assert observation.endswith(ending)
    assert ("Actions: " in observation) == (admissible != "none")
    assert "go to fridge 1" in info["admissible_actions"]


def test_a_finished_game_wants_a_reset(make: Make) -> None:
    env = make()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")
    start(env)
    for action in walkthrough(env.task_set("train")[0]):
        env.step(action)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")
    start(env)
    env.step("look")


def test_gymnasium_makes_checks_and_truncates_it(cache: Path) -> None:
    env = gymnasium.make("winnowrl/ALFWorld-v0", games="shipped", cache_dir=str(cache), max_episode_steps=2)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=1)
    assert env.step("look")[2:4] == (False, False)
    assert env.step("look")[2:4] == (False, True)
    env.close()
    env.close()


def test_a_seed_decides_the_task(make: Make) -> None:
    env = make()
    drawn = [env.reset(seed=seed)[0] for seed in (0, 1, 2, 3, 0)]
    assert drawn[0] == drawn[4]
    assert len(set(drawn)) > 1


def test_a_worker_that_dies_costs_one_step(make: Make) -> None:
    env = make()
    start(env, "train", 3)
    env.step("go to fridge 1")
    pid = worker_of(env)
    os.kill(pid, signal.SIGKILL)
    # Nobody has done this here before, in other tests of this process either, so it takes a worker.
    with pytest.raises(WorkerCrashError, match=r"inventory.*signal 9"):
        env.step("inventory")
    # Another worker goes the known way and on.
    assert "carrying" in env.step("inventory")[0]
    assert "tomato 1" in env.step("open fridge 1")[0]
    assert worker_of(env) != pid
    assert not psutil.pid_exists(pid)


def test_a_worker_that_hangs_is_killed_and_replaced(make: Make) -> None:
    env = make(step_timeout_s=0.3)
    start(env, "train", 4)
    pid = worker_of(env)
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(WorkerTimeoutError, match=r"go to fridge 1.*within 0.3 s; killed"):
        env.step("go to fridge 1")
    assert time.monotonic() - started < 5.0
    assert not psutil.pid_exists(pid)
    env.step_timeout_s = 30.0
    assert "fridge 1 is closed" in env.step("go to fridge 1")[0]


def test_a_fork_server_that_dies_is_started_again(cache: Path) -> None:
    env = ALFWorldEnv(games="shipped", cache_dir=cache, linger_s=1.0)
    first = start(env)
    server = env._book().server
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait(timeout=10)
    assert start(env) == first
    with pytest.raises(WorkerCrashError):
        env.step("go to fridge 1")
    assert "fridge 1 is closed" in env.step("go to fridge 1")[0]
    env.close()
    server.stop()


def test_nothing_is_left_when_the_last_environment_closes(cache: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    envs = [ALFWorldEnv(games="shipped", cache_dir=cache, linger_s=0.0) for _ in range(2)]
    for index, env in enumerate(envs):
        start(env, index=index)
    assert {child.pid for child in psutil.Process().children(recursive=True)} - before
    groups = {os.getpgid(pid) for pid in workers_of(envs[0])}
    assert groups == set(workers_of(envs[0]))
    for env in [*envs, *envs]:
        env.close()
    deadline = time.monotonic() + 10
    while {child.pid for child in psutil.Process().children(recursive=True)} - before:
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.02)
    start(envs[0])
    envs[0].close()


def test_workers_end_with_their_trainer(cache: Path) -> None:
    import subprocess
    import sys

    code = (
        "import os, sys\n"
        "from winnowrl.envs.alfworld import ALFWorldEnv\n"
        f"env = ALFWorldEnv(games='shipped', cache_dir={str(cache)!r})\n"
        "env.reset(seed=0)\n"
        "print(*env._book().workers.pids(), env._book().server._process.pid)\n"
        "sys.stdout.flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False).stdout
    pids = [int(word) for word in shown.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        assert time.monotonic() < deadline, "workers outlive the process that used them"
        time.sleep(0.05)


def test_workers_and_states_stay_within_their_bounds(make: Make) -> None:
    env = make(max_workers=1, max_states=20)
    for index in range(4):
        start(env, index=index)
        for action in env._info(env._node)["admissible_actions"][:9]:
            env.step(action)
        assert len(workers_of(env)) == 1
        assert env._book().counts()["states"] <= 20
    # A game whose states were forgotten is known again when it is played.
    start(env, index=0)
    assert "Nothing" not in env.step("go to fridge 1")[0]


def test_an_episode_survives_that_its_states_are_forgotten(make: Make) -> None:
    env, other = make(max_workers=1, max_states=20), make(max_workers=1, max_states=20)
    start(env)
    env.step("go to fridge 1")
    for index in range(1, 4):
        start(other, index=index)
        for action in other._info(other._node)["admissible_actions"][:8]:
            other.step(action)
    assert "The fridge 1 is open" in env.step("open fridge 1")[0]


def test_many_threads_play_one_game_alike(make: Make) -> None:
    actions = walkthrough(make().task_set("seen")[5])
    barrier = threading.Barrier(6)

    def play(_: int) -> list[str]:
        env = make()
        barrier.wait(timeout=30)
        told = [start(env, "seen", 5)[0]]
        return told + [env.step(action)[0] for action in actions]

    with ThreadPoolExecutor(6) as threads:
        transcripts = list(threads.map(play, range(6)))
    assert all(transcript == transcripts[0] for transcript in transcripts)


def test_a_copy_from_a_pickle_starts_with_reset(make: Make) -> None:
    env = make()
    first = start(env)
    copied = pickle.loads(pickle.dumps(env))
    with pytest.raises(gymnasium.error.ResetNeeded):
        copied.step("look")
    assert start(copied) == first
    copied.close()


def test_a_forked_process_uses_workers_of_its_own(make: Make) -> None:
    env = make()
    start(env)
    observation = env.step("go to microwave 1")[0]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            start(env, index=2)
            os.write(writer, env.step("go to microwave 1")[0].encode())
            env._book().stop()
        finally:
            os._exit(0)
    os.close(writer)
    told = os.read(reader, 1 << 16).decode()
    os.waitpid(pid, 0)
    assert told == observation
    assert "fridge" in env.step("go to fridge 1")[0]


def test_a_goal_that_nothing_can_meet_is_told_plainly(make: Make, tmp_path: Path) -> None:
    rooms = tmp_path / "rooms.json"
    rooms.write_text(
        '{"rooms": {"cell": [["bed", ["pillow"]]]}, "games": [{"id": "train/a", "room": "cell",'
        ' "task_type": "pick_and_place_simple", "object": "vase", "target": "safe"}]}'
    )
    env = make()
    with pytest.raises(GameError, match=r"rooms.json#train/a, open.*KeyError.*nothing in the room can meet"):
        env.reset(options={"task": Task("train/a", "?", None, {"game": f"{rooms}#train/a"})})


def test_a_missing_game_file_is_named(make: Make) -> None:
    with pytest.raises(GameError, match=r"FileNotFoundError.*/nowhere/game.tw-pddl"):
        make().reset(options={"task": Task("x", "?", None, {"game": "/nowhere/game.tw-pddl"})})
    with pytest.raises(ValueError, match="take tasks from task_set"):
        make().reset(options={"task": Task("x", "?")})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"match": "fuzzy"}, "match is 'fuzzy'; allowed: exact, near"),
        ({"admissible": "all"}, "admissible is 'all'; allowed: list, grouped, none"),
        ({"task_types": ["cook"]}, "task_types is 'cook'; allowed: pick_and_place_simple"),
        ({"near_cutoff": 0.0}, "near_cutoff is 0.0"),
        ({"step_timeout_s": 0}, "step_timeout_s is 0"),
        ({"max_workers": 0}, "max_workers is 0"),
        ({"max_workers": 1.5}, "max_workers is 1.5; allowed: a whole number"),
        ({"step_timeout_s": "a"}, "step_timeout_s is 'a'; allowed: a number"),
        ({"reset_timeout_s": float("nan")}, "reset_timeout_s is nan; allowed: a number"),
        ({"reset_timeout_s": float("inf")}, "reset_timeout_s is inf; allowed: above 0"),
        ({"linger_s": -1}, "linger_s is -1; allowed: 0 or more"),
        ({"task_types": "cook"}, "task_types is 'cook'; allowed: a list, each text"),
    ],
)
def test_settings_out_of_range_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ALFWorldEnv(games="shipped", **kwargs)
    with pytest.raises(ValueError, match="games is 3; allowed: text or a path or null"):
        ALFWorldEnv(games=3)  # type: ignore[arg-type]


def test_task_types_choose_the_tasks() -> None:
    env = ALFWorldEnv(games="shipped", task_types=["look_at_obj_in_light"])
    assert {task.task_type for task in env.task_set("seen")} == {"look_at_obj_in_light"}
