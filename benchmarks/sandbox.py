"""Executions a second in the sandbox beside plain processes, and how exactly a limit is kept.

    python benchmarks/sandbox.py [--seconds 6] [--workers 2]

Both sides run the same program and tests, alternating, in one run. ``none`` is the same machinery without bubblewrap, so
the ratio is the price of the sandbox itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from winnowrl.envs.code import Limits, run_tests
from winnowrl.envs.code.problems import ProblemSource, load_splits
from winnowrl.envs.code.sandbox import SandboxKind, require_sandbox

RESULTS = Path(__file__).with_name("results")
ROUNDS = 3
LATE = {
    "sleeps": "import time\ndef f(x): time.sleep(60)",
    "ignores signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nimport time\ndef f(x):\n    while True: time.sleep(0.01)",
    "busy": "def f(x):\n    while True: pass",
    "fork bomb": "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "daemons": "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n"
    "def f(x): time.sleep(60)",
}
LATE_LIMITS = Limits(wall_s=1.0, cpu_s=30.0)


def executions_per_s(kind: SandboxKind, seconds: float, workers: int) -> tuple[float, float]:
    """Executions a second over the starter problems, and the median seconds of one."""
    tasks = load_splits(ProblemSource())["train"]
    durations: list[float] = []
    deadline = time.perf_counter() + seconds

    def work(first: int) -> None:
        number = first
        while time.perf_counter() < deadline:
            task = tasks[number % len(tasks)]
            result = run_tests(
                str(task.metadata["canonical_solution"]),
                str(task.metadata["tests"]),
                str(task.metadata["entry_point"]),
                sandbox=kind,
            )
            assert result.status == "passed", result
            durations.append(result.seconds)
            number += workers

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return len(durations) / (time.perf_counter() - started), statistics.median(durations)


def kill_lateness_s(program: str) -> float:
    """Seconds from the limit to the return of ``run_tests``, everything inside dead.

    The limit begins when the sandbox is ready and does not count time the program waited for a processor.
    """
    result = run_tests(program, "assert f(1) == 2", "f", LATE_LIMITS)
    assert result.status == "timeout", result
    return result.seconds - result.start_s - result.waited_s - LATE_LIMITS.wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each measurement")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    require_sandbox()
    kinds: tuple[SandboxKind, ...] = ("bubblewrap", "none")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    latencies: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            rate, latency = executions_per_s(kind, options.seconds, options.workers)
            rates[kind].append(rate)
            latencies[kind].append(latency)
    lateness = {name: kill_lateness_s(program) for name, program in LATE.items()}
    report = {
        "executions_per_s": {kind: statistics.median(rates[kind]) for kind in kinds},
        "latency_ms": {kind: 1e3 * statistics.median(latencies[kind]) for kind in kinds},
        "rate_ratio": statistics.median(rates["bubblewrap"]) / statistics.median(rates["none"]),
        "killed_after_limit_s": lateness,
        "workers": options.workers,
        "load_average": os.getloadavg()[0],
    }
    for kind in kinds:
        print(
            f"{kind:>11}: {report['executions_per_s'][kind]:6.1f} executions/s, {report['latency_ms'][kind]:6.1f} ms each"
        )  # type: ignore[index]
    print(f"      ratio: {report['rate_ratio']:.2f}")
    for name, seconds in lateness.items():
        print(f"{name:>15}: everything dead {seconds:+.3f} s after its limit of {LATE_LIMITS.wall_s:g} s")
    print(f"load average {report['load_average']:.1f} on {os.cpu_count()} processors")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sandbox.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
