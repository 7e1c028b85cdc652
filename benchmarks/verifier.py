"""Verdicts a second and hostile answers: our verifier beside math-verify alone, alternating in one run.

    python benchmarks/verifier.py [--rounds 5] [--num-workers 2] [--skip-memory]

Prints medians over the rounds and writes benchmarks/results/verifier.json. math-verify is measured as its users call it:
parse and verify in the main thread, with its own signal timeouts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from winnowrl.envs.math import VerifierPolicy, close_pool, configure_pool, verify
from winnowrl.envs.math.pool import get_pool

RESULTS = Path(__file__).parent / "results"

SIMPLE = [
    ("42", "Adding both parts gives 30 + 12, so the answer is \\boxed{42}."),
    ("7425000", "In total this is $7{,}425{,}000$ units.\n\nFinal answer: \\boxed{7,425,000}"),
    ("\\frac{3}{4}", "We simplify and get \\boxed{0.75}."),
    ("71/6", "So x equals \\boxed{11\\frac{5}{6}}."),
    ("(3, -2)", "The point is \\boxed{\\left(3, -2\\right)}."),
    ("18", "She makes 9 * 2 = 18 dollars.\n#### 18"),
    ("28\\%", "The loss is \\boxed{28\\%} of the value."),
    ("\\{1, 23\\}", "Both roots are \\boxed{\\{23, 1\\}}."),
    ("36", "That would be \\boxed{37}."),
    ("[0, 8]", "Hence the range is \\boxed{[0, 9]}."),
]
# K becomes another number for every four pairs: in training the rollouts of a group share one gold answer.
SYMBOLIC = [
    ("\\frac{x+K}{7}", "\\boxed{\\frac{x}{7}+\\frac{K}{7}}"),
    ("K\\tan^2(y)+K", "\\boxed{K\\sec^2(y)}"),
    ("2\\sqrt{K}", "\\boxed{\\sqrt{4 \\cdot K}}"),
    ("K - \\frac{1}{e}", "\\boxed{K - e^{-1}}"),
    ("e^{K} - 1", "\\boxed{-1 + exp(K)}"),
    ("34x+45y-20z+K=0", "\\boxed{-34x-45y+20z-K=0}"),
    ("n(n+1)K^{n-3}", "\\boxed{(n^2+n)K^{n-3}}"),
    ("\\frac{K\\pi}{8}", "\\boxed{\\frac{8\\pi}{K}}"),
    ("(0, 12, -5\\pi K)", "\\boxed{(0, 12, -\\frac{10K\\pi}{2})}"),
    ("x^2 \\sin(K\\ln x)", "\\boxed{x^2 \\cos(K\\ln x)}"),
]
HOSTILE = {
    "power tower": "\\boxed{9^{9^{9^{9}}}}",
    "200 kB of digits": "\\boxed{" + "7" * 200_000 + "}",
    "frac nested 5,000 deep": "\\boxed{" + "\\frac{1}{" * 5000 + "2" + "}" * 5000 + "}",
    "poisoned import": "\\boxed{__import__('os').system('touch verifier_was_here')+\\pi}",
    "binomial of 10^9": "\\boxed{\\binom{1000000000}{100000000}}",
    "integral without end": "\\boxed{\\int_0^1 \\sin(\\sin(\\sin(x^x))) dx}",
}


def symbolic_pairs(count: int, first: int = 11) -> list[tuple[str, str]]:
    """``count`` pairs from the templates, with a new number for every four."""
    pairs = []
    for index in range(count):
        gold, prediction = SYMBOLIC[index // 4 % len(SYMBOLIC)]
        number = str(first + index // 4)
        pairs.append((gold.replace("K", number), prediction.replace("K", number) + " " * (index % 4)))
    return pairs


def math_verify_alone(pairs: list[tuple[str, str]]) -> None:
    from math_verify import parse
    from math_verify import verify as grade

    for gold, prediction in pairs:
        grade(parse(f"${gold}$"), parse(prediction))


def ours(pairs: list[tuple[str, str]]) -> None:
    for gold, prediction in pairs:
        verify(gold, prediction)


def ours_threaded(num_workers: int) -> Callable[[list[tuple[str, str]]], None]:
    def judge(pairs: list[tuple[str, str]]) -> None:
        with ThreadPoolExecutor(num_workers) as threads:
            list(threads.map(lambda pair: verify(*pair), pairs))

    return judge


def rate(judge: Callable[[list[tuple[str, str]]], None], pairs: list[tuple[str, str]]) -> float:
    start = time.perf_counter()
    judge(pairs)
    return len(pairs) / (time.perf_counter() - start)


def cpu_ms(judge: Callable[[list[tuple[str, str]]], None], pairs: list[tuple[str, str]]) -> float:
    """Processor milliseconds a verdict, workers included: what a busy machine does not distort."""
    before = _cpu_seconds()
    judge(pairs)
    return 1000 * (_cpu_seconds() - before) / len(pairs)


def _cpu_seconds() -> float:
    processes = [psutil.Process(), *map(psutil.Process, get_pool().pids)]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def speeds(rounds: int, num_workers: int) -> dict[str, dict[str, float]]:
    """Median verdicts a second of each, measured in turn within every round."""
    runs = {
        "simple": (SIMPLE * 200, SIMPLE * 10, ours),
        "symbolic": (symbolic_pairs(400), symbolic_pairs(100), ours_threaded(num_workers)),
    }
    results = {}
    for name, (our_pairs, their_pairs, judge) in runs.items():
        judge(our_pairs[:50])
        math_verify_alone(their_pairs)
        rates = [(rate(judge, our_pairs), rate(math_verify_alone, their_pairs)) for _ in range(rounds)]
        mine, theirs = (statistics.median(values) for values in zip(*rates, strict=True))
        our_cpu, their_cpu = cpu_ms(judge, our_pairs), cpu_ms(math_verify_alone, their_pairs)
        results[name] = {
            "winnowrl": mine,
            "math_verify": theirs,
            "ratio": mine / theirs,
            "winnowrl_cpu_ms": our_cpu,
            "math_verify_cpu_ms": their_cpu,
        }
        print(f"{name:>9}: winnowrl {mine:8.0f}/s   math-verify alone {theirs:6.0f}/s   ratio {mine / theirs:.1f}")
        print(f"{'':>9}  processor time a verdict: {our_cpu:.2f} ms against {their_cpu:.2f} ms")
    return results


def hostile(limit_s: float) -> dict[str, dict[str, Any]]:
    """Seconds until a verdict on each hostile answer, and whether the next verdict is unaffected."""
    policy = VerifierPolicy(time_limit_s=limit_s)
    results: dict[str, dict[str, Any]] = {}
    for name, reply in HOSTILE.items():
        start = time.perf_counter()
        verdict = verify("\\pi", reply, policy)
        seconds = time.perf_counter() - start
        is_next_right = verify("x+1", "\\boxed{1+x}").is_correct
        wrote = [str(path) for folder in (Path(), Path("/")) for path in folder.glob("verifier_was_here")]
        results[name] = {
            "seconds": seconds,
            "within_limit": seconds <= 1.5 * limit_s,
            "status": verdict.status,
            "next_right": is_next_right,
            "files": wrote,
        }
        print(f"{name:>24}: {verdict.status:9} in {seconds:.2f} s (limit {limit_s:.1f}), next right: {is_next_right}")
    return results


def memory(num_verdicts: int) -> dict[str, float]:
    """Resident MiB of this process and of its workers over many verdicts, at a tenth of the way and at the end."""
    readings = []
    pairs = [pair for group in zip(symbolic_pairs(num_verdicts), SIMPLE * num_verdicts, strict=False) for pair in group]
    for number, (gold, prediction) in enumerate(pairs[:num_verdicts], start=1):
        verify(gold, prediction)
        if number in (num_verdicts // 10, num_verdicts):
            readings.append((_resident(), _resident_of_workers()))
    (start, workers_start), (end, workers_end) = readings
    print(f"resident: {start:.0f} -> {end:.0f} MiB here, {workers_start:.0f} -> {workers_end:.0f} MiB in workers")
    return {"start": start, "end": end, "workers_start": workers_start, "workers_end": workers_end}


def _resident() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def _resident_of_workers() -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in get_pool().pids) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=2.0)
    parser.add_argument("--skip-memory", action="store_true", help="leave out the 10,000 verdicts (a minute or two)")
    arguments = parser.parse_args()
    configure_pool(arguments.num_workers)
    result: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count()}
    result["verdicts_per_s"] = speeds(arguments.rounds, arguments.num_workers)
    result["hostile"] = hostile(arguments.limit_s)
    if not arguments.skip_memory:
        result["resident_mib"] = memory(10_000)
    close_pool()
    result["children_left"] = len(psutil.Process().children(recursive=True))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "verifier.json").write_text(json.dumps(result, indent=1))
    print(f"children left: {result['children_left']}; written to {RESULTS / 'verifier.json'}")


if __name__ == "__main__":
    main()
