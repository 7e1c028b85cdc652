"""What learner.py measures of our learner alone: growth with size, and updates on what CBS* keeps."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from statistics import median

import torch
from learner_sides import CONFIG, flat_group_batch

from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.configs.sections.selector import SelectorConfig
from winnowrl.training.candidates import Candidate
from winnowrl.training.learner import assemble_learner
from winnowrl.training.losses import ObjectiveSpec
from winnowrl.training.model_loading import load_model, resolve_model_path
from winnowrl.training.selection.build import build_selector

RESULTS = Path(__file__).resolve().parent / "results"


def growth(repeats: int, dtype: str) -> list[dict[str, float]]:
    """Update time against group size and reply length, one group a batch."""
    learner = assemble_learner(
        load_model(resolve_model_path("smollm2-135m"), dtype=dtype), LearnerConfig(**CONFIG), ObjectiveSpec()
    )
    cases = [(members, 32) for members in (2, 4, 8, 16, 24)] + [(8, reply) for reply in (8, 16, 64, 96)]
    points: list[dict[str, float]] = []
    for repeat in range(repeats + 1):
        for number, (members, reply) in enumerate(cases):
            batch = flat_group_batch(1, members, 75, reply)
            start, cpu = time.perf_counter(), time.process_time()
            metrics = learner.update(batch).metrics
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
            if repeat == 0:
                tokens = metrics["learner/tokens_distinct"]
                points.append(
                    {"members": members, "reply": reply, "tokens": tokens, "seconds": 1e9, "cpu_seconds": 1e9}
                )
            else:
                points[number]["seconds"] = min(points[number]["seconds"], seconds)
                points[number]["cpu_seconds"] = min(points[number]["cpu_seconds"], cpu_seconds)
    learner.close()
    _plot(points)
    return points


def selection(repeats: int, dtype: str) -> dict[str, float]:
    """Update time on what CBS* keeps of a step (p = 50) over the time on all of it, alternated; medians."""
    learner = assemble_learner(
        load_model(resolve_model_path("smollm2-135m"), dtype=dtype), LearnerConfig(**CONFIG), ObjectiveSpec()
    )
    selector = build_selector(SelectorConfig(type="cbs_star", keep_fraction=0.5), seed=0, max_tokens=128)
    rng = random.Random(3)
    found: dict[str, list[float]] = {"all_s": [], "kept_s": [], "selector_s": []}
    for repeat in range(repeats + 1):
        batch = flat_group_batch(4, 8, 75, 128, seed=repeat)
        candidates = [
            Candidate(
                sequence.rollout_id, sequence.group_id, [sequence], float(sequence.advantage > 0), sequence.advantage,
                0.5, 0.5, sequence.num_completion_tokens, False, repeat + 1, rng.uniform(0.2, 1.0),
            )
            for sequence in batch
        ]  # fmt: skip
        start = time.perf_counter()
        kept = selector.select(candidates, repeat + 1)
        chosen = time.perf_counter()
        result = learner.update(kept)
        updated = time.perf_counter()
        selector.observe(result, repeat + 1)
        observed = time.perf_counter()
        learner.update(batch)
        ended = time.perf_counter()
        times = {"all_s": ended - observed, "kept_s": updated - chosen}
        times["selector_s"] = chosen - start + observed - updated
        print(f"  selection {repeat}/{repeats} " + ", ".join(f"{name} {value:.3f}" for name, value in times.items()))
        sys.stdout.flush()
        if repeat:
            for name, value in times.items():
                found[name].append(value)
    learner.close()
    medians = {name: median(values) for name, values in found.items()}
    medians["kept_over_all"] = median(a / b for a, b in zip(found["kept_s"], found["all_s"], strict=True))
    medians["selector_share_of_update"] = medians["selector_s"] / medians["kept_s"]
    return medians


def _plot(points: list[dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6))
    by_size = sorted((p["members"], p["cpu_seconds"]) for p in points if p["reply"] == 32)
    axes[0].plot(*zip(*by_size, strict=True), "o-")
    axes[0].set_xlabel("rollouts in the group (75 + 32 tokens)")
    by_tokens = sorted((p["tokens"], p["cpu_seconds"]) for p in points)
    axes[1].plot(*zip(*by_tokens, strict=True), "o")
    axes[1].set_xlabel("distinct tokens (sizes 2-24, replies 8-96)")
    for axis in axes:
        axis.set_ylabel("processor seconds per update")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(RESULTS / "learner_growth.png", dpi=130)


def linearity(points: list[dict[str, float]]) -> dict[str, float]:
    """Least-squares line of processor seconds over distinct tokens, and its R squared."""
    x = torch.tensor([p["tokens"] for p in points], dtype=torch.float64)
    y = torch.tensor([p["cpu_seconds"] for p in points], dtype=torch.float64)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    intercept = y.mean() - slope * x.mean()
    residual = (y - intercept - slope * x).square().sum() / (y - y.mean()).square().sum()
    return {"seconds_per_token": float(slope), "seconds_fixed": float(intercept), "r_squared": float(1 - residual)}
