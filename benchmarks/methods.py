"""Real training with every method, side by side: held-out accuracy at equal rollouts and at equal update seconds.

    python benchmarks/methods.py                                  # 9 methods x 3 seeds, about 50 minutes on two cores
    python benchmarks/methods.py --methods grpo vigor --seeds 0 1 2
    python benchmarks/methods.py --table                          # the table of what has run so far

Each run is ``winnowrl train configs/quickstart.yaml`` (SmolLM2-135M, two-digit sums) with a constant learning rate and a
held-out evaluation every few steps. Seeds are the outer loop, so that a disturbance of the machine meets all methods.
Runs that have ended are kept and not repeated.

Accuracy between two evaluations is interpolated. Intervals: 95 % bootstrap over seeds and, within them, held-out tasks;
with three seeds they say little about seeds not tried.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from winnowrl.training.efficiency import accuracy_efficiency_score

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COMMON = (
    "learner.schedule=constant", "evaluation.before=false", "evaluation.num_tasks=200", "checkpoint.every_steps=0",
    "run.save_rollouts=false", "run.trackers=[]",
)  # fmt: skip
# Rollouts of earlier steps have ratios away from 1, which must be bounded at a negative advantage.
BOUNDED = "objective.dual_clip=10"
METHODS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "vigor": ("allocator.type=vigor",),
    "cbs_star": ("selector.type=cbs_star",),
    "random": ("selector.type=random",),
    "cbs": ("selector.type=cbs", BOUNDED),
    "replay": ("selector.replay.type=advantage_prioritized", "selector.replay.warmup_steps=2", BOUNDED),
    # Refills a step with up to as many tasks again, so that it takes half the steps.
    "dapo": (
        "objective.loss_type=dapo", "selector.dynamic_sampling.type=refill",
        "selector.dynamic_sampling.max_tasks_factor=2",
    ),
    # With one optimizer step a batch every ratio is 1 and GSPO is GRPO; with two they part.
    "grpo_2": ("learner.num_minibatches=2",),
    "gspo_2": ("objective.loss_type=gspo", "learner.num_minibatches=2"),
}  # fmt: skip
STEPS, EVALUATE_EVERY = 15, 5
SHORTER = {"dapo": (8, 3)}


@dataclass(frozen=True)
class Point:
    """A held-out evaluation: what had been spent by then, and every task's score."""

    rollouts: float
    update_s: float
    scores: tuple[float, ...]
    tokens_per_answer: float


@dataclass(frozen=True)
class Curve:
    """One run."""

    points: tuple[Point, ...]
    informative_share: float
    trained_share: float
    update_s_per_step: float
    step_s: float
    trained_tokens: float


def run(method: str, seed: int, folder: Path) -> Path:
    """Train unless it was done; returns the run folder."""
    target = folder / f"{method}-{seed}"
    if (target / "summary.json").exists() and json.loads((target / "summary.json").read_text())["is_finished"]:
        return target
    steps, every = SHORTER.get(method, (STEPS, EVALUATE_EVERY))
    if target.exists():
        shutil.rmtree(target)
    command = [
        sys.executable, "-m", "winnowrl.training.cli", "train", str(ROOT / "configs" / "quickstart.yaml"), *COMMON,
        f"run.folder={folder}", f"run.name={method}-{seed}", f"run.seed={seed}", f"run.num_steps={steps}",
        f"evaluation.every_steps={every}", *METHODS[method],
    ]  # fmt: skip
    log = folder / f"{method}-{seed}.log"
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}; see {log}")
    # Weights and optimizer are 1.6 GB a run, and the table needs none of them.
    shutil.rmtree(target / "checkpoints", ignore_errors=True)
    return target


def read_curve(folder: Path) -> Curve:
    """What a run folder says."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    spent = {0: (0.0, 0.0)}
    for row in rows:
        rollouts, seconds = spent[row["step"] - 1]
        spent[row["step"]] = (rollouts + row["collect/rollouts"], seconds + row["seconds/train"])
    points = []
    for evaluation in sorted((folder / "evaluations").iterdir()):
        step = rows[-1]["step"] if evaluation.name == "after" else int(evaluation.name.removeprefix("step_"))
        scores = [fmean(json.loads(line)["scores"]) for line in (evaluation / "rows.jsonl").read_text().splitlines()]
        length = json.loads((evaluation / "report.json").read_text())["tokens_per_answer"]
        points.append(Point(*spent[step], tuple(scores), length))
    return Curve(
        points=tuple(sorted(points, key=lambda point: point.rollouts)),
        informative_share=fmean(row["groups/informative_share"] for row in rows),
        trained_share=fmean(row["ledger/trained_share"] for row in rows),
        update_s_per_step=fmean(row["seconds/train"] for row in rows),
        step_s=fmean(row["seconds/step"] for row in rows),
        trained_tokens=fmean(row["learner/tokens_trained"] for row in rows),
    )


def scores_at(curve: Curve, spent: float, what: Callable[[Point], float]) -> list[float]:
    """Every task's score when ``spent`` had been spent, interpolated; the ends of the curve beyond it."""
    points = curve.points
    for before, after in itertools.pairwise(points):
        low, high = what(before), what(after)
        if low <= spent <= high:
            share = (spent - low) / (high - low)
            return [(1 - share) * a + share * b for a, b in zip(before.scores, after.scores, strict=True)]
    return list(points[0].scores if spent < what(points[0]) else points[-1].scores)


def interval(by_seed: Sequence[Sequence[float]], resamples: int = 2000) -> tuple[float, float, float]:
    """Mean and 95 % bootstrap interval over seeds and, within them, tasks (the same tasks for all seeds)."""
    rng = random.Random(0)
    tasks = range(len(by_seed[0]))
    means = []
    for _ in range(resamples):
        chosen = rng.choices(tasks, k=len(tasks))
        seeds = rng.choices(by_seed, k=len(by_seed))
        means.append(fmean(fmean(seed[task] for task in chosen) for seed in seeds))
    means.sort()
    return fmean(map(fmean, by_seed)), means[int(0.025 * resamples)], means[int(0.975 * resamples)]


def summarize(curves: dict[str, list[Curve]]) -> dict[str, Any]:
    """The table, at the most rollouts and the most update seconds that every run reached."""
    every = [curve for found in curves.values() for curve in found]
    rollouts = min(curve.points[-1].rollouts for curve in every)
    seconds = min(curve.points[-1].update_s for curve in every)
    table: dict[str, Any] = {"rollouts": rollouts, "update_s": seconds, "methods": {}}
    base = curves.get("grpo")
    for method, found in curves.items():
        at_rollouts = [scores_at(curve, rollouts, lambda point: point.rollouts) for curve in found]
        at_seconds = [scores_at(curve, seconds, lambda point: point.update_s) for curve in found]
        row: dict[str, Any] = {
            "seeds": len(found),
            "at_equal_rollouts": interval(at_rollouts),
            "at_equal_update_s": interval(at_seconds),
            "by_seed": [fmean(scores) for scores in at_rollouts],
            "informative_share": fmean(curve.informative_share for curve in found),
            "trained_share": fmean(curve.trained_share for curve in found),
            "update_s_per_step": fmean(curve.update_s_per_step for curve in found),
            "step_s": fmean(curve.step_s for curve in found),
            "trained_tokens_per_step": fmean(curve.trained_tokens for curve in found),
        }
        if base is not None and len(base) == len(found):
            base_scores = [scores_at(curve, rollouts, lambda point: point.rollouts) for curve in base]
            row["minus_grpo"] = interval(
                [
                    [a - b for a, b in zip(ours, theirs, strict=True)]
                    for ours, theirs in zip(at_rollouts, base_scores, strict=True)
                ]
            )
            row["aes_135"] = accuracy_efficiency_score(
                fmean(map(fmean, base_scores)),
                fmean(map(fmean, at_rollouts)),
                fmean(curve.points[-1].tokens_per_answer for curve in base),
                fmean(curve.points[-1].tokens_per_answer for curve in found),
            )
        table["methods"][method] = row
    return table


def print_table(table: dict[str, Any]) -> None:
    print(f"\nheld-out accuracy after {table['rollouts']:.0f} rollouts, and after {table['update_s']:.1f} s of updates")
    print(
        f"{'method':10}{'at equal rollouts':>21}{'minus GRPO':>24}{'at equal update s':>21}{'informative':>12}"
        f"{'trained':>8}{'update s':>9}{'step s':>8}{'tokens':>8}{'AES':>7}"
    )
    for method, row in table["methods"].items():
        minus = row.get("minus_grpo")
        print(
            f"{method:10}{_interval_text(row['at_equal_rollouts']):>21}"
            f"{_interval_text(minus, '+') if minus and method != 'grpo' else '':>24}"
            f"{_interval_text(row['at_equal_update_s']):>21}{row['informative_share']:12.2f}"
            f"{row['trained_share']:8.2f}{row['update_s_per_step']:9.2f}{row['step_s']:8.2f}{row['trained_tokens_per_step']:8.0f}"
            f"{row.get('aes_135', float('nan')):7.2f}"
        )
    print("informative: share of groups with unequal rewards; trained: share of the step's tokens that were trained on")
    print("update s, step s, tokens trained on: a step's mean")
    print("AES: accuracy-efficiency score against GRPO, coefficients (1, 3, 5), lengths of held-out answers")


def _interval_text(found: Sequence[float], sign: str = "") -> str:
    return f"{found[0]:{sign}.3f} [{found[1]:{sign}.3f}, {found[2]:{sign}.3f}]".replace("0.", ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "methods", help="where the runs are kept")
    parser.add_argument("--table", action="store_true", help="only the table of the runs that are there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    loads = []
    wanted = [(method, seed) for seed in options.seeds for method in options.methods]
    for number, (method, seed) in enumerate([] if options.table else wanted, 1):
        curve = read_curve(run(method, seed, options.folder))
        loads.append(os.getloadavg()[0])
        print(
            f"{number}/{len(wanted)} {method} seed {seed}: held-out {fmean(curve.points[-1].scores):.3f}, "
            f"step {curve.step_s:.2f} s, update {curve.update_s_per_step:.2f} s, load {loads[-1]:.1f}",
            flush=True,
        )
    curves: dict[str, list[Curve]] = {}
    for method in options.methods:
        ended = [options.folder / f"{method}-{seed}" for seed in options.seeds]
        found = [read_curve(folder) for folder in ended if (folder / "summary.json").exists()]
        if found:
            curves[method] = found
    if not curves:
        sys.exit(f"no run has ended in {options.folder}")
    table = summarize(curves) | {"loads": loads}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "methods.json").write_text(json.dumps(table, indent=1))
    print_table(table)


if __name__ == "__main__":
    main()
