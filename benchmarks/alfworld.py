"""A group of ALFWorld members that share what they compute, beside plain TextWorld processes, alternating in one run.

    python benchmarks/alfworld.py [--games FOLDER] [--repeats 3] [--members 8] [--steps 30] [--follow 0.9]

A recorded policy plays: with probability ``follow`` a member takes the next action of a plan that all members know, else
an admissible action of its own (the plan visits each place in turn and opens and looks into what is there). Members part
where their dice part. Both sides replay the same recorded actions, and what they are told must be equal character by
character. Plain: one process a member with TextWorld loaded before the clock starts, all at once, as TextWorld's own batch
environment runs them; our fork server is likewise up, with no worker. Processor time stands beside wall time: it does not
hang on what else the machine does. Prints medians and ratios; writes benchmarks/results/alfworld.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from winnowrl.envs.alfworld import ALFWorldEnv, transition_counts
from winnowrl.envs.alfworld.transitions import GameBook
from winnowrl.envs.tasks import Task

RESULTS = Path(__file__).parent / "results" / "alfworld.json"
TARGETS = {"speed_up": 5.0, "first_reset_s": 0.3, "further_reset_s": 0.05, "group_mb": 150.0}

PLAIN = """
import json, sys, time
out, sys.argv = sys.__stdout__, ["translate.py", "domain", "task"]
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv
from winnowrl.envs.alfworld.game_session import load_game
print("ready", file=out, flush=True)
for line in sys.stdin:
    source, actions = json.loads(line)
    started, cpu_started = time.perf_counter(), time.process_time()
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    env.load(load_game(source))
    told = [env.reset().feedback]
    reset_s = time.perf_counter() - started
    told += [env.step(action)[0].feedback for action in actions]
    print(json.dumps([reset_s, told, time.process_time() - cpu_started]), file=out, flush=True)
"""


class PlainGroup:
    """One TextWorld process a member."""

    def __init__(self, members: int) -> None:
        command = [sys.executable, "-W", "ignore", "-c", PLAIN]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(members)
        ]
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()

    def play(self, task: Task, actions: list[list[str]]) -> dict[str, Any]:
        started = time.perf_counter()
        for process, own in zip(self.processes, actions, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps([task.metadata["game"], own]) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes if process.stdout is not None]
        wall_s = time.perf_counter() - started
        memory = [psutil.Process(process.pid).memory_full_info().pss / 2**20 for process in self.processes]
        resets, told, cpu_s = zip(*answers, strict=True)
        return {
            "wall_s": wall_s,
            "cpu_s": sum(cpu_s),
            "resets": resets,
            "told": list(told),
            "group_mb": sum(memory[1:]),
        }

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def play_shared(envs: list[ALFWorldEnv], task: Task, actions: list[list[str]]) -> dict[str, Any]:
    """The members as threads of this process, as the collector runs them; nothing is known when the clock starts."""
    book = envs[0]._book()
    for env in envs:
        env.close()
    book.clear()
    counts, cpu_started = transition_counts(), _cpu_s(book)
    started = time.perf_counter()
    resets, reset_cpu_s = list[float](), 0.0
    for env in envs:
        reset_started = time.perf_counter()
        env.reset(seed=0, options={"task": task})
        resets.append(time.perf_counter() - reset_started)
        reset_cpu_s = reset_cpu_s or _cpu_s(book) - cpu_started
    memory_before = _memory_mb()
    openings = [env._graph.opening for env in envs if env._graph is not None]
    with ThreadPoolExecutor(len(envs)) as threads:
        told = list(threads.map(lambda pair: [pair[0].step(a)[0] for a in pair[1]], zip(envs, actions, strict=True)))
    wall_s, cpu_s = time.perf_counter() - started, _cpu_s(book) - cpu_started
    computed = transition_counts()["computed"] - counts["computed"]
    told = [[opening, *rest] for opening, rest in zip(openings, told, strict=True)]
    group_mb = _memory_mb() - memory_before
    times = {"wall_s": wall_s, "cpu_s": cpu_s, "resets": resets, "reset_cpu_s": reset_cpu_s}
    return {**times, "told": told, "group_mb": group_mb, "computed": computed}


def record(env: ALFWorldEnv, task: Task, members: int, steps: int, follow: float) -> list[list[str]]:
    """The actions of each member."""
    recorded = []
    for member in range(members):
        dice = random.Random(f"{task.id} {member}")
        env.reset(seed=0, options={"task": task})
        plan, actions, terminated = _tour(env), list[str](), False
        while len(actions) < steps and not terminated:
            assert env._node is not None
            planned = next((action for action in plan if action in env._node.admissible), "look")
            if dice.random() < follow:
                action = planned
                if action in plan:
                    plan.remove(action)
            else:
                action = dice.choice(env._node.admissible)
            actions.append(action)
            terminated = env.step(action)[2]
        recorded.append(actions)
    env.close()
    return recorded


def _tour(env: ALFWorldEnv) -> list[str]:
    assert env._node is not None
    places = [action.removeprefix("go to ") for action in env._node.admissible if action.startswith("go to ")]
    return [word.format(place) for place in places for word in ("open {}", "examine {}", "go to {}")]


def _cpu_s(book: GameBook) -> float:
    """Processor time of this process and of the workers it has now."""
    times = [psutil.Process(pid).cpu_times() for pid in [os.getpid(), *book.workers.pids()]]
    return sum(time.user + time.system for time in times)


def _memory_mb() -> float:
    """This process and its workers, shared pages counted once."""
    here = psutil.Process()
    return sum(p.memory_full_info().pss for p in [here, *here.children(recursive=True)]) / 2**20


def measure(task: Task, envs: list[ALFWorldEnv], plain: PlainGroup, args: argparse.Namespace) -> dict[str, Any]:
    actions = record(envs[0], task, args.members, args.steps, args.follow)
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "shared": []}
    for _ in range(args.repeats):
        runs["plain"].append(plain.play(task, actions))
        runs["shared"].append(play_shared(envs, task, actions))
        assert runs["plain"][-1]["told"] == runs["shared"][-1]["told"], (
            f"{task.id}: the two sides were told different things"
        )
    median = {side: statistics.median(run["wall_s"] for run in rows) for side, rows in runs.items()}
    cpu = {side: statistics.median(run["cpu_s"] for run in rows) for side, rows in runs.items()}
    return {
        "task": task.id,
        "steps": sum(map(len, actions)),
        "computed": runs["shared"][-1]["computed"],
        "plain_s": median["plain"],
        "shared_s": median["shared"],
        "speed_up": median["plain"] / median["shared"],
        "plain_cpu_s": cpu["plain"],
        "shared_cpu_s": cpu["shared"],
        "cpu_ratio": cpu["plain"] / cpu["shared"],
        "plain_reset_s": statistics.median(s for run in runs["plain"] for s in run["resets"]),
        "first_reset_s": statistics.median(run["resets"][0] for run in runs["shared"]),
        "first_reset_cpu_s": statistics.median(run["reset_cpu_s"] for run in runs["shared"]),
        "further_reset_s": max(s for run in runs["shared"] for s in run["resets"][1:]),
        "plain_group_mb": statistics.median(run["group_mb"] for run in runs["plain"]),
        "group_mb": statistics.median(run["group_mb"] for run in runs["shared"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", default=None, help="folder of games (default: $ALFWORLD_DATA, else the shipped ones)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--follow", type=float, default=0.9)
    parser.add_argument("--tasks", type=int, default=4, help="tasks to measure, spread over the train split")
    parser.add_argument("--offset", type=int, default=0, help="index of the first one")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        envs = [ALFWorldEnv(args.games, admissible="none", cache_dir=cache, linger_s=3600) for _ in range(args.members)]
        tasks = envs[0].task_set("train")
        plain = PlainGroup(args.members)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {args.members} members, follow {args.follow}")
        for index in range(args.offset, len(tasks), max(1, len(tasks) // args.tasks))[: args.tasks]:
            rows.append(row := measure(tasks[index], envs, plain, args))
            print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        plain.close()
        for env in envs:
            env.close()
        envs[0]._book().stop()
    summary = {name: statistics.median(row[name] for row in rows) for name in TARGETS}
    for name, target in TARGETS.items():
        print(
            f"{name}: median {summary[name]:.3g}, target {'at least' if name == 'speed_up' else 'at most'} {target:g}"
        )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"arguments": vars(args), "rows": rows, "median": summary}, indent=1))


if __name__ == "__main__":
    main()
