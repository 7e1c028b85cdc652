"""The update's share of the machine, beside a padded update of ours and TRL's, and how its time grows.

    python benchmarks/learner.py                       # all parts; makes .cache/venv-trl the first time
    python benchmarks/learner.py --parts mfu --groups 2 --repeats 1 --ways tree padded

``mfu``: one update of SmolLM2-135M on groups of 8 rollouts of 75 + 64 tokens: packed as prefix trees, packed as rows,
padded, and by TRL's GRPOTrainer, alternated, each in a process of its own. MFU counts the products that are needed
(distinct tokens, no recomputation) over the matrix-product peak measured in the same process around each update.
``tree``: groups of 8 episodes of 12 turns that share 60 % of their tokens, trees against padding.
``growth``: update time against group size and reply length, with a plot.
``selection``: updates of 4 groups of 8 x (75 + 128) tokens: all rollouts, and the half that CBS* keeps, and its own time.

Seconds are of the wall clock; ``cpu`` columns count processor time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from losses_vs_trl import trl_python

from winnowrl.agents.engines.hardware import choose_dtype
from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.configs.sections.selector import SelectorConfig
from winnowrl.training.aggregation import BatchTotals
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.candidates import Candidate
from winnowrl.training.cli.preload import GLIBC_KEEPS_BLOCKS, MARK, start_environment
from winnowrl.training.learner import assemble_learner
from winnowrl.training.learner.flops import ModelShape, matmul_peak
from winnowrl.training.learner.optimizer import build_adamw
from winnowrl.training.logprobs import token_logprobs
from winnowrl.training.losses import ObjectiveSpec, policy_objective
from winnowrl.training.model_loading import load_model, resolve_model_path
from winnowrl.training.packing import build_pack
from winnowrl.training.selection.build import build_selector

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Rows of one padded micro-batch: at most 8, and about as many tokens as fit beside the others in 24 GiB.
PADDED_ROWS, PADDED_TOKENS = 8, 2304
CONFIG = {"learning_rate": 1e-6}
WAYS = ("tree", "rows", "padded")
# Settings of the process that TRL's has not.
OURS = {*GLIBC_KEEPS_BLOCKS, "LD_PRELOAD", MARK}
PARTS = ("mfu", "tree", "growth", "selection")


def flat_group_batch(groups: int, members: int, prompt: int, reply: int, seed: int = 0) -> list[TrainingSequence]:
    """``groups`` of ``members`` single-turn rollouts, random tokens."""
    rng = random.Random(seed)
    batch: list[TrainingSequence] = []
    for group in range(groups):
        shared = [rng.randrange(3, 49_000) for _ in range(prompt)]
        for _ in range(members):
            ids = shared + [rng.randrange(3, 49_000) for _ in range(reply)]
            batch.append(_sequence(ids, [False] * prompt + [True] * reply, rng.gauss(0, 1), group, len(batch)))
    return batch


def episode_batch(groups: int, members: int = 8, turns: int = 12, shared: float = 0.6) -> list[TrainingSequence]:
    """Groups of multi-turn episodes: 200 tokens of task, then ``turns`` of 12 sampled and 36 observed tokens.

    Members leave the common path one after another, such that ``shared`` of all tokens are someone else's prefix.
    """
    rng = random.Random(1)
    batch: list[TrainingSequence] = []
    for group in range(groups):
        task = [rng.randrange(3, 49_000) for _ in range(200)]
        common = [[rng.randrange(3, 49_000) for _ in range(48)] for _ in range(turns)]
        for member in range(members):
            # Turns taken on the common path spread evenly around the mean that gives the wanted share.
            leave = round(turns * shared * 0.94 + (member - (members - 1) / 2) * 0.8)
            ids, mask = list(task), [False] * len(task)
            for turn in range(turns):
                ids += common[turn] if turn < leave else [rng.randrange(3, 49_000) for _ in range(48)]
                mask += [True] * 12 + [False] * 36
            batch.append(_sequence(ids, mask, rng.gauss(0, 1), group, len(batch)))
    return batch


def _sequence(ids: list[int], mask: list[bool], advantage: float, group: int, rollout: int) -> TrainingSequence:
    return TrainingSequence(ids, mask, [-9.0 if m else 0.0 for m in mask], advantage, group, rollout)


class PaddedUpdate:
    """The same objective on padded rows through the model's own attention: what is usual."""

    def __init__(self, model: Any) -> None:
        self.model = model
        config = LearnerConfig(**CONFIG)
        self.optimizer = build_adamw(
            model, learning_rate=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.adam_eps,
            weight_decay=0.0, decays_embeddings=False,
        )  # fmt: skip

    def update(self, batch: Sequence[TrainingSequence]) -> float:
        totals = BatchTotals.of([sequence.num_completion_tokens for sequence in batch])
        rows = min(PADDED_ROWS, max(1, PADDED_TOKENS // max(len(sequence.token_ids) for sequence in batch)))
        for start in range(0, len(batch), rows):
            self._backward(batch[start : start + rows], totals)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def _backward(self, rows: Sequence[TrainingSequence], totals: BatchTotals) -> None:
        width = max(len(row.token_ids) for row in rows)
        pads = [width - len(row.token_ids) for row in rows]
        ids = torch.tensor([[*row.token_ids, *[0] * pad] for row, pad in zip(rows, pads, strict=True)])
        real = torch.tensor([[1] * len(row.token_ids) + [0] * pad for row, pad in zip(rows, pads, strict=True)])
        mask = torch.tensor([[*row.completion_mask, *[False] * pad] for row, pad in zip(rows, pads, strict=True)])[
            :, 1:
        ]
        hidden = self.model.get_decoder()(input_ids=ids, attention_mask=real, use_cache=False).last_hidden_state
        chosen = hidden[:, :-1][mask]
        targets = ids[:, 1:][mask]
        logprobs, entropies = token_logprobs(chosen, self.model.lm_head.weight, torch.arange(len(targets)), targets)
        terms = policy_objective(
            logprobs, None, None, torch.tensor([row.advantage for row in rows]), mask.nonzero()[:, 0], ObjectiveSpec(),
            totals=totals, entropy=entropies.detach(),
        )  # fmt: skip
        terms.loss.backward()


def work(way: str, batch: list[TrainingSequence], dtype: str) -> None:
    """Child process: one update for every line on standard input."""
    model = load_model(resolve_model_path("smollm2-135m"), dtype=dtype)
    needed = ModelShape.of(model)
    pack = build_pack(batch, range(len(batch)))
    flops = needed.update(tokens=pack.num_tokens, head_rows=len(pack.head_positions), pairs=pack.num_attention_pairs)
    runner: Any
    if way == "padded":
        runner = PaddedUpdate(model)
    else:
        config = LearnerConfig(**CONFIG, prefix_sharing=way == "tree")
        runner = assemble_learner(model, config, ObjectiveSpec())
    print(json.dumps({"ready": True, "tokens": pack.num_tokens}), flush=True)
    for _ in sys.stdin:
        peaks = [matmul_peak(model.dtype)]
        start, cpu = time.perf_counter(), time.process_time()
        result = runner.update(batch)
        report: dict[str, Any] = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        peaks.append(matmul_peak(model.dtype))
        report["mfu"] = flops / report["seconds"] / (sum(peaks) / 2)
        report["mfu_cpu"] = flops / report["cpu_seconds"] / _peak_per_cpu_second(model.dtype)
        report["peak_flops"] = sum(peaks) / 2
        if way != "padded":
            report["phases"] = {name: value for name, value in result.metrics.items() if name.startswith("time/")}
        report["grad_norm"] = result if way == "padded" else result.metrics["learner/grad_norm"]
        report["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(report), flush=True)


def _peak_per_cpu_second(dtype: torch.dtype, size: int = 2048) -> float:
    a, b, out = (torch.randn(size, size).to(dtype) for _ in range(3))
    seconds = []
    for _ in range(5):
        start = time.process_time()
        torch.mm(a, b, out=out)
        seconds.append(time.process_time() - start)
    return 2.0 * size**3 / median(seconds)


class Worker:
    """A child process that updates on demand."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.reports = name, []  # type: ignore[var-annotated]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        if name == "trl":
            env = {key: value for key, value in env.items() if key not in OURS}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        self.ready = self._read()

    def update(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.reports.append(self._read())
        return self.reports[-1]  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        self.errors.seek(0)
        raise RuntimeError(f"{self.name} ended:\n{self.errors.read()[-2000:]}")


def compare(
    part: str, batch: list[TrainingSequence], ways: Sequence[str], repeats: int, arguments: list[str]
) -> dict[str, Any]:
    """Alternate the ways ``repeats`` times after one warm-up each; medians by way."""
    workers = [_start(way, batch, arguments) for way in ways]
    try:
        for repeat in range(repeats + 1):
            for worker in workers:
                report = worker.update()
                mark = "warm-up" if repeat == 0 else f"{repeat}/{repeats}"
                print(
                    f"  {part} {worker.name:7} {mark:8} {report['seconds']:7.2f} s  {report['cpu_seconds']:7.2f} cpu s"
                )
                sys.stdout.flush()
    finally:
        for worker in workers:
            worker.close()
    found = {}
    for worker in workers:
        kept = worker.reports[1:]
        numbers = [name for name, value in kept[0].items() if isinstance(value, float | int)]
        found[worker.name] = {name: median(report[name] for report in kept) for name in numbers}
        if "phases" in kept[0]:
            found[worker.name]["phases"] = kept[-1]["phases"]
    return found


def _start(way: str, batch: list[TrainingSequence], arguments: list[str]) -> Worker:
    if way != "trl":
        return Worker(way, [sys.executable, "-W", "ignore", __file__, "--worker", way, *arguments])
    prompt = batch[0].completion_mask.index(True)  # type: ignore[attr-defined]
    data = {
        "prompt_ids": [list(s.token_ids[:prompt]) for s in batch],
        "prompt_mask": [[1] * prompt for _ in batch],
        "completion_ids": [list(s.token_ids[prompt:]) for s in batch],
        "completion_mask": [[1] * (len(s.token_ids) - prompt) for s in batch],
        "advantages": [s.advantage for s in batch],
    }
    path = Path(tempfile.mkdtemp()) / "rollouts.json"
    path.write_text(json.dumps(data))
    peer = str(ROOT / "benchmarks" / "learner_peer.py")
    model = resolve_model_path("smollm2-135m")
    dtype = arguments[arguments.index("--dtype") + 1]
    return Worker("trl", [str(trl_python()), "-W", "ignore", peer, str(path), model, str(PADDED_ROWS), dtype])


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[*WAYS, "trl"], choices=[*WAYS, "trl"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="1 gives honest processor seconds")
    parser.add_argument(
        "--dtype", default=choose_dtype(), choices=("float32", "bfloat16"), help="default: what is fast here"
    )
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--batch", default="flat", help=argparse.SUPPRESS)
    options = parser.parse_args()
    make = {
        "flat": lambda: flat_group_batch(options.groups, 8, 75, 64),
        "episodes": lambda: episode_batch(options.groups),
    }
    torch.set_num_threads(options.threads)
    # The workers, TRL's among them, read it when they start.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.worker:
        work(options.worker, make[options.batch](), options.dtype)
        return
    if MARK not in os.environ:
        # What `winnowrl train` does to itself.
        os.execve(sys.executable, sys.orig_argv, start_environment(os.environ))
    RESULTS.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
    }
    if "mfu" in options.parts:
        found["mfu"] = compare("mfu", make["flat"](), options.ways, options.repeats, _arguments(options, "flat"))
    if "tree" in options.parts:
        options.groups = min(options.groups, 2)
        batch = make["episodes"]()
        pack = build_pack(batch, range(len(batch)))
        found["tree_shared"] = 1 - pack.num_tokens / pack.num_unshared_tokens
        found["tree"] = compare("tree", batch, ["tree", "padded"], options.repeats, _arguments(options, "episodes"))
    if "growth" in options.parts:
        found["growth"] = growth(options.repeats, options.dtype)
        found["growth_line"] = linearity(found["growth"])
    if "selection" in options.parts:
        found["selection"] = selection(options.repeats, options.dtype)
    found["load_after"] = os.getloadavg()[0]
    path = RESULTS / "learner.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    # Parts measured another day stay in the file.
    path.write_text(json.dumps(kept | found, indent=1))
    _print(found)


def _arguments(options: argparse.Namespace, batch: str) -> list[str]:
    return [
        "--groups",
        str(options.groups),
        "--batch",
        batch,
        "--threads",
        str(options.threads),
        "--dtype",
        options.dtype,
    ]


def _print(found: dict[str, Any]) -> None:
    print(
        f"\nload {found['load_before']:.1f} before, {found['load_after']:.1f} after; {found['threads']} threads, {found['dtype']}"
    )
    for part in ("mfu", "tree"):
        if part not in found:
            continue
        best = found[part].get("tree", {})
        print(
            f"\n{part:8}{'seconds':>9}{'cpu s':>9}{'MFU':>7}{'MFU cpu':>9}{'GiB':>7}{'grad norm':>11}{'x tree, cpu':>13}"
        )
        for way, row in found[part].items():
            ratio = row["cpu_seconds"] / best["cpu_seconds"] if best else float("nan")
            print(
                f"{way:8}{row['seconds']:9.2f}{row['cpu_seconds']:9.2f}{row.get('mfu', float('nan')):7.2f}"
                f"{row.get('mfu_cpu', float('nan')):9.2f}{row['peak_rss_bytes'] / 2**30:7.2f}{row['grad_norm']:11.5f}"
                f"{ratio:13.2f}"
            )
    if "tree_shared" in found:
        print(f"tree: {100 * found['tree_shared']:.0f} % of the tokens are shared")
    if "growth_line" in found:
        line = found["growth_line"]
        print(
            f"\ngrowth: {1000 * line['seconds_per_token']:.2f} ms a distinct token + {line['seconds_fixed']:.2f} s, "
            f"R^2 {line['r_squared']:.4f}; plot in {RESULTS / 'learner_growth.png'}"
        )

    if "selection" in found:
        print("selection: " + ", ".join(f"{name} {value:.3g}" for name, value in found["selection"].items()))


if __name__ == "__main__":
    main()
