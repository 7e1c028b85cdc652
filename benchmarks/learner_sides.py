"""The sides that learner.py compares: batches, a padded update, and a process of its own for each way to update."""

from __future__ import annotations

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

from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.training.aggregation import BatchTotals
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.cli.preload import GLIBC_KEEPS_BLOCKS, MARK
from winnowrl.training.learner import assemble_learner
from winnowrl.training.learner.flops import ModelShape, matmul_peak
from winnowrl.training.learner.optimizer import build_adamw
from winnowrl.training.logprobs import token_logprobs
from winnowrl.training.losses import ObjectiveSpec, policy_objective
from winnowrl.training.model_loading import load_model, resolve_model_path
from winnowrl.training.packing import build_pack

HERE = Path(__file__).resolve().parent
# Rows of one padded micro-batch: at most 8, and about as many tokens as fit beside the others in 24 GiB.
PADDED_ROWS, PADDED_TOKENS = 8, 2304
CONFIG = {"learning_rate": 1e-6}
WAYS = ("tree", "rows", "padded")
# Settings of the process that TRL's has not.
OURS = {*GLIBC_KEEPS_BLOCKS, "LD_PRELOAD", MARK}


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
        return Worker(way, [sys.executable, "-W", "ignore", str(HERE / "learner.py"), "--worker", way, *arguments])
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
    peer = str(HERE / "learner_peer.py")
    model = resolve_model_path("smollm2-135m")
    dtype = arguments[arguments.index("--dtype") + 1]
    return Worker("trl", [str(trl_python()), "-W", "ignore", peer, str(path), model, str(PADDED_ROWS), dtype])
