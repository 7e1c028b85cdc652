"""Environment leases: where steps run, what is reused and what is thrown away."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from winnowrl.agents.collecting.environments import EnvironmentPool
from winnowrl.agents.collecting.threads import Threads
from winnowrl.agents.errors import EnvironmentFailure
from winnowrl.agents.seeding import SeedStream, derive_seed
from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet

sys.path.insert(0, str(Path(__file__).parent))
parts = importlib.import_module("collector_parts")
TASK = Task("t", "walk 1:")


class OddEnv(TextEnv):
    execution = "elsewhere"  # type: ignore[assignment]

    def task_set(self, split: str) -> TaskSet:
        return TaskSet([TASK])

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        return "", {}

    def respond(self, action: str) -> StepResult:
        return "", 0.0, True, False, {}


def test_an_instance_goes_back_to_the_pool_only_when_it_is_sound() -> None:
    async def play() -> None:
        pool = EnvironmentPool("collectortests/Walk-v0")
        lease = await pool.acquire("g")
        assert lease.is_inline
        observation, _ = lease.reset(3, TASK)
        assert observation.startswith("walk 1:")
        lease.release(is_sound=True)
        assert len(pool._free) == 1
        again = await pool.acquire("g")
        assert len(pool._free) == 0
        again.release(is_sound=False)
        assert len(pool._free) == 0
        await pool.close()

    asyncio.run(play())


def test_steps_of_a_thread_environment_leave_the_loop_free() -> None:
    async def play() -> None:
        pool = EnvironmentPool("collectortests/ThreadWalk-v0")
        leases = [await pool.acquire("g") for _ in range(8)]
        await asyncio.gather(*(lease.reset(3, TASK) for lease in leases))
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(lease.step("sleep 0.2") for lease in leases))
        ticking.cancel()
        assert ticks >= 3
        await pool.close()

    asyncio.run(play())


def test_an_instance_whose_call_was_abandoned_is_never_lent_again() -> None:
    async def play() -> None:
        pool = EnvironmentPool("collectortests/ThreadWalk-v0")
        lease = await pool.acquire("g")
        await lease.reset(3, TASK)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.step("sleep 0.3"), 0.05)
        lease.release(is_sound=True)
        assert pool._free == []
        await pool.close()

    asyncio.run(play())


class CountedEnv(parts.ThreadWalkEnv):  # type: ignore[misc, name-defined]
    """Remembers who was closed, and whether in the middle of a call."""

    reset_s = 0.0
    closed: list[tuple[Any, bool]]
    is_busy = False

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self.is_busy = True
        time.sleep(self.reset_s)
        self.is_busy = False
        return super().begin(task)  # type: ignore[no-any-return]

    def respond(self, action: str) -> StepResult:
        self.is_busy = True
        result = super().respond(action)
        self.is_busy = False
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed.append((self, self.is_busy))


@pytest.mark.parametrize("what", ["step", "reset", "step in the queue", "nothing"])
@pytest.mark.parametrize("when", ["at once", "when it has ended", "after the pool"])
def test_an_abandoned_instance_is_closed_once_behind_its_call(
    monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    gymnasium.registry.pop("collectortests/Counted-v0", None)
    gymnasium.register("collectortests/Counted-v0", CountedEnv)
    monkeypatch.setattr(CountedEnv, "closed", [], raising=False)

    async def play() -> Any:
        pool = EnvironmentPool("collectortests/Counted-v0")
        threads = pool._threads = Threads(limit=1)
        lease, other = await pool.acquire("g"), await pool.acquire("g")
        await other.reset(3, TASK)
        if "step" in what:
            await lease.reset(3, TASK)
        monkeypatch.setattr(CountedEnv, "reset_s", 0.2)
        ahead = asyncio.create_task(other.step("sleep 0.2")) if "queue" in what else None
        await asyncio.sleep(0)
        begun = time.monotonic()
        if what != "nothing":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lease.reset(3, TASK) if what == "reset" else lease.step("sleep 0.2"), 0.05)
        if when == "when it has ended":
            await asyncio.sleep(0.6)
        if when == "after the pool":
            await pool.close()
        lease.release(is_sound=False)
        lease.release(is_sound=False)
        assert time.monotonic() - begun < 0.2 or when == "when it has ended"
        if ahead is not None:
            await ahead
        other.release(is_sound=True)
        await asyncio.sleep(0.5)
        # None is left waiting, and an abandoned call has given its place back.
        assert (threads._num_pending, threads._limit) == (0, 1)
        await pool.close()
        return lease._environment.unwrapped

    instance = asyncio.run(play())
    assert [is_busy for environment, is_busy in CountedEnv.closed if environment is instance] == [False]


def test_abandoned_calls_do_not_use_the_threads_up() -> None:
    release = threading.Event()

    async def play() -> None:
        threads = Threads(limit=2)
        hung = [threads.submit(release.wait) for _ in range(2)]
        await asyncio.sleep(0.05)
        for future in hung:
            future.cancel()
        await asyncio.sleep(0)
        assert await asyncio.wait_for(threads.submit(lambda: 7), 5) == 7
        threads.close()

    try:
        asyncio.run(play())
    finally:
        release.set()


def test_a_hung_thread_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(
        "import asyncio, time\n"
        "from winnowrl.agents.collecting.threads import Threads\n"
        "async def play():\n"
        "    threads = Threads(1)\n"
        "    future = threads.submit(lambda: time.sleep(600))\n"
        "    await asyncio.sleep(0.05)\n"
        "    future.cancel()\n"
        "    threads.submit_after(future, lambda: None)\n"
        "asyncio.run(play())\n"
    )
    begun = time.monotonic()
    subprocess.run([sys.executable, script], check=True, timeout=60)
    assert time.monotonic() - begun < 55


def test_what_cannot_be_made_or_run_is_said() -> None:
    gymnasium.registry.pop("collectortests/Odd-v0", None)
    gymnasium.register("collectortests/Odd-v0", OddEnv)
    with pytest.raises(ValueError, match=r"execution 'elsewhere'; allowed: inline, thread, process"):
        EnvironmentPool("collectortests/Odd-v0")

    async def play() -> None:
        pool = EnvironmentPool("collectortests/Walk-v0")
        pool._kwargs["length"], pool._kwargs["unknown"] = 3, 1
        with pytest.raises(EnvironmentFailure, match="could not be made: TypeError"):
            await pool.acquire("g")
        await pool.close()

    asyncio.run(play())


def test_a_seed_stream_gives_the_derived_seeds() -> None:
    stream = SeedStream(3, "task").child(5)
    assert [stream.seed(turn) for turn in range(20)] == [derive_seed(3, "task", 5, turn) for turn in range(20)]
    assert stream.own() == derive_seed(3, "task", 5)
    assert derive_seed("ab", "c") != derive_seed("a", "bc")


def test_a_text_environment_draws_what_gymnasiums_seeding_says() -> None:
    environment = gymnasium.make("collectortests/Walk-v0").unwrapped

    def draws(seed: int | None) -> list[int]:
        environment.reset(seed=seed, options={"task": TASK})
        return [int(number) for number in environment.np_random.integers(1000, size=5)]

    expected, _ = gymnasium.utils.seeding.np_random(11)
    expected.integers(100)  # the reset's own draw
    assert draws(11) == [int(number) for number in expected.integers(1000, size=5)]
    assert draws(11) == draws(11)
    assert environment.np_random_seed == 11
    before = draws(11)
    # Without a seed the generator goes on where it was.
    assert draws(None) != before
    again = copy.deepcopy(environment)
    assert int(again.np_random.integers(1000)) == int(environment.np_random.integers(1000))
    assert pickle.loads(pickle.dumps(environment)).np_random_seed == 11
    with pytest.raises(gymnasium.error.Error):
        environment.reset(seed=-1, options={"task": TASK})


def test_gymnasiums_own_checks_hold(recwarn: pytest.WarningsRecorder) -> None:
    check_env(gymnasium.make("collectortests/Walk-v0").unwrapped, skip_render_check=True)
