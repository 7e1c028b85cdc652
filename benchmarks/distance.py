"""Cost of judging one group: ``group_distance`` against the same mean over a loop of pairs, in one run.

    python benchmarks/distance.py [--repeats 200]

The case is a group of 64 at turn 50 with all prefixes different (nothing to save by counting equal ones once), then one
that has converged. Medians in milliseconds; the target is 2 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from rapidfuzz.distance import Levenshtein

from winnowrl.gates import group_distance

if TYPE_CHECKING:
    from collections.abc import Callable

Group = list[list[str]]
TARGET_MS = 2.0


def pairwise_loop(group: Group, turn: int) -> float:
    """The direct way: one library call per pair on lists of strings."""
    distances = [Levenshtein.distance(a, b) / turn for a, b in combinations(group, 2)]
    return sum(distances) / len(distances)


def make_group(size: int, turn: int, num_plans: int, seed: int) -> Group:
    """``size`` members following ``num_plans`` different plans over 40 action strings of ALFWorld's length."""
    rng = random.Random(seed)
    actions = [f"go to countertop {i} and open cabinet {i}" for i in range(40)]
    plans = [[rng.choice(actions) for _ in range(turn)] for _ in range(num_plans)]
    return [list(plans[i % num_plans]) for i in range(size)]


def median_ms(ways: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Median time of each way, alternating between them so that a busy machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    results = {}
    for name, size, turn, plans in [("all different", 64, 50, 64), ("four plans", 64, 50, 4), ("G=8 K=10", 8, 10, 8)]:
        group = make_group(size, turn, plans, seed=1)
        assert abs(group_distance(group, turn) - pairwise_loop(group, turn)) < 1e-12
        ways: dict[str, Callable[[], float]] = {
            "group_distance": lambda group=group, turn=turn: group_distance(group, turn),  # type: ignore[misc]
            "pair loop": lambda group=group, turn=turn: pairwise_loop(group, turn),  # type: ignore[misc]
        }
        times = median_ms(ways, repeats)
        ratio = times["pair loop"] / times["group_distance"]
        results[name] = {**times, "ratio": ratio}
        print(f"{name:14s} {times['group_distance']:.3f} ms, pair loop {times['pair loop']:.3f} ms, {ratio:.1f}x")
    print(f"target for a group of 64 at turn 50: {TARGET_MS} ms")
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "distance.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
