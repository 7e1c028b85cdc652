"""Verdicts stay bounded and the same everywhere: threads, event loops, forks, subprocesses, hostile answers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from winnowrl.envs.isolation.pool import WorkerPool
from winnowrl.envs.math import VerifierPolicy, verify
from winnowrl.envs.math.pool import SERVICE, close_pool, get_pool

# Needs algebra, so that a worker must answer.
GOLD, PREDICTION = r"\frac{x+2}{7}", r"\boxed{\frac{x}{7}+\frac{2}{7}}"
SLOW = r"\boxed{\binom{1000000000}{100000000}}"


@pytest.fixture(scope="module", autouse=True)
def _no_worker_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    close_pool()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{9^{9^{9^{9}}}}",
        "\\boxed{" + "7" * 200_000 + "}",
        "\\boxed{" + "\\frac{1}{" * 5000 + "2" + "}" * 5000 + "}",
        r"\boxed{__import__('os').system('touch {file}')+\pi}",
        "__import__('os').system('touch {file}')",
        r"\boxed{10^{10^{10^{10}}}!}",
        "\\boxed{" + "\\sqrt{" * 35 + "x" + "}" * 35 + "}",
        "\\boxed{" + "x_{1}+" * 160 + "x}",
        r"\boxed{(x+1)^{10000000}}",
        SLOW,
    ],
    ids=lambda reply: reply[:24],
)
def test_hostile_answer_is_bounded_and_leaves_nothing(reply: str, tmp_path: Path) -> None:
    limit_s = 1.0
    assert verify(GOLD, PREDICTION).is_correct  # brings a worker up, whose start is not part of the limit
    file = tmp_path / "written"
    start = time.monotonic()
    verdict = verify("x+3", reply.replace("{file}", str(file)), VerifierPolicy(time_limit_s=limit_s))
    assert time.monotonic() - start < 1.5 * limit_s
    assert verdict.status != "correct"
    assert not file.exists()
    assert verify(GOLD, PREDICTION).is_correct


def test_time_limit_gives_undecided_and_says_so() -> None:
    verdict = verify("x+3", SLOW, VerifierPolicy(time_limit_s=0.5))
    assert (verdict.status, verdict.reason) == ("undecided", "timed out after 0.5 s")


def test_same_verdict_from_worker_thread_and_event_loop() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(verify(GOLD, PREDICTION).status)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    async def in_loop() -> list[str]:
        other = await asyncio.to_thread(verify, GOLD, PREDICTION)
        return [verify(GOLD, PREDICTION).status, other.status]

    assert found + asyncio.run(in_loop()) == ["correct"] * 8


def test_same_verdict_from_a_subprocess_that_leaves_no_worker() -> None:
    code = (
        "from winnowrl.envs.math import verify\n"
        "from winnowrl.envs.math.pool import get_pool\n"
        f"print(verify({GOLD!r}, {PREDICTION!r}).status, *get_pool().pids)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    status, *pids = done.stdout.split()
    assert status == "correct"
    assert len(pids) == 2
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_forked_child_gets_workers_of_its_own() -> None:
    assert verify(GOLD, PREDICTION).is_correct
    ours = set(get_pool().pids)
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        verdict = verify(GOLD, PREDICTION)
        os.write(sending, f"{verdict.status} {len(ours & set(get_pool().pids))}".encode())
        close_pool()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiving, 100) == b"correct 0"
    assert verify(GOLD, PREDICTION).is_correct


@pytest.fixture(scope="module")
def small_pool() -> Iterator[WorkerPool]:
    """One worker whose jobs get 64 MiB."""
    pool = WorkerPool(SERVICE, 1, memory_limit_mb=64)
    yield pool
    pool.close()
    pool.close()


def test_memory_of_a_job_is_limited(small_pool: WorkerPool) -> None:
    # 300 million terms would be gigabytes; whatever ends it, the answer comes and the next job works.
    job = {"gold": "x", "prediction": r"\sum_{k=1}^{300000000} \sin(k x)^{k}", "policy": _policy(time_limit_s=2.0)}
    assert small_pool.run(job, 2.0).status != "correct"
    assert psutil.Process(small_pool.pids[0]).memory_info().rss < 500 * 2**20
    assert small_pool.run({"gold": "x+1", "prediction": "1+x", "policy": _policy()}, 5.0).status == "correct"


def test_killed_worker_is_replaced(small_pool: WorkerPool) -> None:
    job = {"gold": "x+1", "prediction": "1+x", "policy": _policy()}
    assert small_pool.run(job, 5.0).status == "correct"
    supervisor, child = small_pool.pids
    os.kill(child, signal.SIGKILL)
    time.sleep(0.1)
    assert small_pool.run(job, 5.0).status == "correct"
    assert small_pool.pids[0] == supervisor
    os.kill(supervisor, signal.SIGKILL)
    os.kill(small_pool.pids[1], signal.SIGKILL)
    assert small_pool.run(job, 5.0).status == "correct"
    assert small_pool.pids[0] != supervisor


def test_worker_may_not_write_or_start_anything(tmp_path: Path) -> None:
    file = tmp_path / "written"
    attempts = (f"open({str(file)!r}, 'w')", f"os.system('touch {file}')", "subprocess.run(['true'])", "os.fork()")
    code = (
        "import os, subprocess, sys\n"
        "from winnowrl.envs.isolation import server\n"
        "server.limit_resources(512)\n"
        "sys.addaudithook(server.refuse)\n"
        f"for attempt in {attempts!r}:\n"
        "    try:\n"
        "        eval(attempt)\n"
        "        print('allowed', attempt)\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["refused"] * len(attempts)
    assert not file.exists()


@pytest.mark.slow
def test_resident_memory_stays_flat_over_many_verdicts() -> None:
    def resident() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in [os.getpid(), *get_pool().pids])

    def judge(numbers: range) -> None:
        for number in numbers:
            verify(f"x+{number}", f"\\boxed{{{number}+x}}" if number % 4 == 0 else f"\\boxed{{{number}}}")

    judge(range(1000))
    before = resident()
    judge(range(1000, 10_000))
    assert resident() - before < 40 * 2**20


def test_pool_refuses_no_workers() -> None:
    with pytest.raises(ValueError, match="num_workers is 0"):
        WorkerPool(SERVICE, 0)


def _policy(**options: float) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(VerifierPolicy(**options))  # type: ignore[arg-type]
