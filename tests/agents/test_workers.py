"""Worker processes: many instances each, a hung or dead one costs its own episodes only, nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest

from winnowrl.agents.errors import DeadlineExceeded, EnvironmentFailure
from winnowrl.agents.workers import WorkerPool
from winnowrl.envs.tasks import Task

ENVIRONMENT = '''
import os, subprocess, sys, time
import gymnasium
from winnowrl.envs.base import TextEnv
from winnowrl.envs.tasks import Task, TaskSet

class ObeyEnv(TextEnv):
    """Does what the action says."""
    execution = "process"
    def task_set(self, split):
        return TaskSet([Task("a", "prompt a"), Task("b", "prompt b")])
    def begin(self, task):
        self.count = 0
        return f"{task.prompt} {self.np_random.integers(1000)}", {}
    def respond(self, action):
        self.count += 1
        if action == "raise":
            raise RuntimeError("broken on purpose")
        if action == "exit":
            print("my last words", flush=True)
            os._exit(7)
        if action == "chat":
            print("x" * 300_000, flush=True)
        if action == "flood":
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                subprocess.run(["echo", "y" * 100_000])
        if action.startswith("sleep"):
            time.sleep(float(action.split()[1]))
        if action == "spawn":
            inside = subprocess.Popen(["sleep", "600"])
            outside = subprocess.Popen(["sleep", "600"], start_new_session=True)
            return f"{inside.pid} {outside.pid}", 0.0, False, False, {}
        secret = f" {os.getpid()}" if action == "secret" else ""
        return f"{self.count} {action}{secret}", 1.0, self.count == 5, False, {"action": action}

gymnasium.register("obey/Obey-v0", "obey_env:ObeyEnv", max_episode_steps=100)
'''


@pytest.fixture
def env_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "obey_env.py").write_text(textwrap.dedent(ENVIRONMENT))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("obey_env", None)
    gymnasium.registry.pop("obey/Obey-v0", None)
    return "obey_env:obey/Obey-v0"


def make_pool(env_id: str, **fields: Any) -> WorkerPool:
    settings = {"kwargs": {}, "num_workers": 1, "deadline_s": 20.0, **fields}
    return WorkerPool(env_id, **settings)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_gone(pids: list[int]) -> None:
    give_up = time.monotonic() + 5
    while any(map(is_alive, pids)):
        assert time.monotonic() < give_up, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.01)


TASK = Task("a", "prompt a", metadata={"level": 1})


def test_instances_of_one_worker_keep_their_own_state(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        first, second = await pool.acquire("g"), await pool.acquire("g")
        start_a, _ = await first.reset(5, TASK)
        start_b, _ = await second.reset(5, TASK)
        assert start_a == start_b
        assert start_a.startswith("prompt a ")
        assert (await first.step("x"))[0].split()[0] == "1"
        assert (await first.step("x"))[0].split()[0] == "2"
        observation, reward, terminated, truncated, info = await second.step("x")
        assert (observation.split()[0], reward, terminated, truncated, info) == (
            "1",
            1.0,
            False,
            False,
            {"action": "x"},
        )
        await pool.close()
        await pool.close()

    asyncio.run(play())


def test_a_released_instance_is_reused_and_a_failed_one_is_made_anew(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        with pytest.raises(EnvironmentFailure, match="RuntimeError: broken on purpose"):
            await lease.step("raise")
        lease.release(is_sound=False)
        again = await pool.acquire("g")
        assert again.worker.num_slots == 1
        with pytest.raises(EnvironmentFailure, match="before reset"):
            await again.step("x")
        await again.reset(1, TASK)
        assert (await again.step("x"))[0].startswith("1 ")
        await pool.close()

    asyncio.run(play())


def test_a_hung_step_costs_its_worker_and_leaves_no_process(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id, deadline_s=2.0)
        hung, neighbour = await pool.acquire("g"), await pool.acquire("h")
        await neighbour.reset(1, TASK)
        await neighbour.step("x")
        await neighbour.step("y")
        await hung.reset(1, TASK)
        children = [int(pid) for pid in (await hung.step("spawn"))[0].split()]
        worker = hung.worker.process.pid
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"step\(\) took over 2 s"):
            await hung.step("sleep 60")
        assert time.monotonic() - begun < 30
        # The neighbour goes on in another worker from where it was.
        observation, *_ = await neighbour.step("x")
        assert observation.startswith("3 ")
        assert neighbour.worker.process.pid != worker
        for lease in (hung, neighbour):
            lease.release(is_sound=False)
        fresh = await pool.acquire("g")
        await fresh.reset(1, TASK)
        assert (await fresh.step("x"))[0].startswith("1 ")
        second = fresh.worker.process.pid
        await pool.close()
        await asyncio.to_thread(wait_gone, [worker, second, *children])
        assert not psutil.Process().children()

    asyncio.run(play())


def test_waiting_behind_a_slow_step_costs_an_episode_no_deadline(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id, deadline_s=0.6)
        leases = [await pool.acquire(number) for number in range(4)]
        for lease in leases:
            await lease.reset(1, TASK)
        # Four steps of 0.3 s in one worker: the last waits 0.9 s, longer than the deadline.
        await asyncio.gather(*(lease.step("sleep 0.3") for lease in leases))
        await pool.close()

    asyncio.run(play())


def test_a_crash_names_how_the_worker_died_and_what_it_last_wrote(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        children = [int(pid) for pid in (await lease.step("spawn"))[0].split()]
        with pytest.raises(EnvironmentFailure, match=r"(?s)exited with code 7; it last wrote: my last words"):
            await lease.step("exit")
        lease.release(is_sound=False)
        other = await pool.acquire("g")
        await other.reset(1, TASK)
        asyncio.get_running_loop().call_later(0.1, os.kill, other.worker.process.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailure, match="killed by SIGKILL"):
            await other.step("sleep 30")
        await pool.close()
        await asyncio.to_thread(wait_gone, children)
        assert not psutil.Process().children()

    asyncio.run(play())


def printed_bytes(worker: Any) -> int:
    return os.fstat(worker._output.fileno()).st_size


def test_what_a_worker_prints_does_not_pile_up_and_its_last_words_are_kept(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        for _ in range(20):
            await lease.step("chat")
            # A mebibyte, and what one step adds.
            assert printed_bytes(lease.worker) < (1 << 20) + 400_000
        with pytest.raises(EnvironmentFailure, match=r"(?s)exited with code 7; it last wrote: x+\s+my last words"):
            await lease.step("exit")
        await pool.close()

    asyncio.run(play())


def test_what_one_step_prints_is_cut_while_it_runs(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnowrl.agents.worker_link.TRIM_EVERY_S", 0.05)

    async def play() -> list[int]:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        step, sizes = asyncio.ensure_future(lease.step("flood")), [0]
        while not step.done():
            sizes.append(printed_bytes(lease.worker))
            await asyncio.sleep(0.01)
        await step
        await pool.close()
        return sizes

    sizes = asyncio.run(play())
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes[:-1]))


def test_an_environment_that_does_not_repeat_itself_cannot_be_restored(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        guilty, odd = await pool.acquire("g"), await pool.acquire("h")
        await guilty.reset(1, TASK)
        await odd.reset(1, TASK)
        await odd.step("secret")
        with pytest.raises(EnvironmentFailure, match="exited with code 7"):
            await guilty.step("exit")
        with pytest.raises(EnvironmentFailure, match="answered otherwise than before"):
            await odd.step("x")
        await pool.close()

    asyncio.run(play())


def test_what_an_environment_left_running_ends_with_the_pool(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        children = [int(pid) for pid in (await lease.step("spawn"))[0].split()]
        await pool.close()
        await asyncio.to_thread(wait_gone, children)

    asyncio.run(play())


def test_a_cancelled_step_does_not_reach_the_next_episode(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        lease = await pool.acquire("g")
        await lease.reset(1, TASK)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.step("sleep 0.3"), 0.05)
        lease.release(is_sound=False)
        following = await pool.acquire("g")
        await following.reset(2, TASK)
        assert (await following.step("x"))[0].startswith("1 ")
        await pool.close()

    asyncio.run(play())


def test_members_of_a_group_share_a_worker_where_the_environment_asks_for_it(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id, num_workers=2, shares_by_group=True)
        leases = {key: [await pool.acquire(key) for _ in range(3)] for key in ("g", "h")}
        assert all(len({lease.worker for lease in group}) == 1 for group in leases.values())
        assert leases["g"][0].worker is not leases["h"][0].worker
        await pool.close()

    asyncio.run(play())


def test_an_environment_that_cannot_be_imported_fails_with_its_reason(env_id: str) -> None:
    async def play() -> None:
        pool = make_pool(env_id)
        gymnasium.register("obey/Absent-v0", "no_such_module:Env")
        pool.env_id = "obey/Absent-v0"
        for _ in range(3):
            with pytest.raises(EnvironmentFailure, match=r"(?s)did not start.*no_such_module"):
                await pool.acquire("g")
        with pytest.raises(EnvironmentFailure, match=r"(?s)no environment worker could be started.*no_such_module"):
            await pool.acquire("g")
        await pool.close()

    asyncio.run(play())


def test_workers_end_with_their_parent(env_id: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, os, signal, sys
            from winnowrl.agents.workers import WorkerPool
            from winnowrl.envs.tasks import Task
            async def play():
                pool = WorkerPool("obey_env:obey/Obey-v0", {}, 1, 60.0)
                lease = await pool.acquire("g")
                await lease.reset(1, Task("a", "p"))
                print(lease.worker.process.pid, flush=True)
                asyncio.ensure_future(lease.step("sleep 600"))
                await asyncio.sleep(0.2)
                os.kill(os.getpid(), signal.SIGKILL)
            asyncio.run(play())
            """
        )
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_gone([int(done.stdout)])
