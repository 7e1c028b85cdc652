"""One whole training step (generate, score, update, send the weights), ours beside TRL's GRPOTrainer.

    python benchmarks/step_vs_trl.py               # makes .cache/venv-trl the first time
    python benchmarks/step_vs_trl.py --repeats 5

Both sides: SmolLM2-135M, the same prompts (about 75 tokens), 8 tasks x 8 rollouts, 8 new tokens, the same reward, learning
rate, number format (bfloat16 is TRL's mixed precision) and threads. Each side lives in a process of its own; steps
alternate, and medians are compared. Ours reports the shares of its phases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from losses_vs_trl import trl_python

from winnowrl.agents.engines.hardware import choose_dtype
from winnowrl.training.cli.preload import start_environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PHASES = ("generate", "score", "train", "sync")


def prompts(count: int) -> list[str]:
    """Few-shot sums: the longest of them has about 75 tokens."""
    from winnowrl.envs.arithmetic import ArithmeticEnv

    return [task.prompt for task in ArithmeticEnv(max_operand=39, num_shots=8).task_set("train")[:count]]


def our_worker(settings: dict[str, Any]) -> None:
    """One ``TrainingStep`` for every line on standard input."""
    import gymnasium
    import torch

    from winnowrl.configs.load import load_config
    from winnowrl.envs.base import StepResult, TextEnv
    from winnowrl.envs.tasks import Task, TaskSet
    from winnowrl.training.components import build_components, lay_foundations
    from winnowrl.training.console import RunConsole
    from winnowrl.training.quiet import quiet_libraries
    from winnowrl.training.step import TrainingStep

    class Prompts(TextEnv):
        def task_set(self, split: str) -> TaskSet:
            chosen = settings["prompts"] if split == "train" else ["held out"]
            return TaskSet([Task(f"{split}-{i}", prompt) for i, prompt in enumerate(chosen)])

        def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
            return task.prompt, {}

        def respond(self, action: str) -> StepResult:
            return "", sum(action.encode()) % 7 / 6, True, False, {}

    quiet_libraries()
    torch.set_num_threads(settings["threads"])
    gymnasium.register("Benchmark/Prompts-v0", entry_point=Prompts, max_episode_steps=1)
    new = settings["new_tokens"]
    config = load_config(
        {
            "model": {"path": settings["model"], "dtype": settings["dtype"]},
            "environment": {"id": "Benchmark/Prompts-v0"},
            "conversation": {"template": "plain", "turn_tokens": new, "rollout_tokens": new, "context_tokens": 128},
            "engine": {"type": "vllm", "dtype": settings["dtype"]},
            "collector": {"tasks_per_step": settings["tasks"], "rollouts_per_task": settings["group"]},
            "learner": {"learning_rate": settings["learning_rate"], "prefix_sharing": settings["prefix_sharing"]},
        }
    )

    async def build() -> Any:
        return build_components(config, lay_foundations(config))

    with asyncio.Runner() as runner, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        from rich.console import Console

        step = TrainingStep(config, runner.run(build()), RunConsole(Console(file=nowhere)), runner.run)
        for number, _ in enumerate(sys.stdin, start=1):
            start = time.perf_counter()
            metrics = step.run(number).metrics
            report = {name: metrics.get(f"seconds/{name}", 0.0) for name in PHASES}
            report |= {"seconds": time.perf_counter() - start, "peak_rss_bytes": metrics["memory/peak_rss_bytes"]}
            report |= {"sequences": metrics["batch/sequences"], "tokens_distinct": metrics["learner/tokens_distinct"]}
            print(json.dumps(report), flush=True)


class Worker:
    """A process that does one step when told to."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if name != "trl":
            # What `winnowrl train` does to itself.
            env = start_environment(env)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        self.reports: list[dict[str, float]] = []

    def step(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                self.reports.append(json.loads(line))
                return self.reports[-1]
        self.errors.seek(0)
        raise RuntimeError(f"{self.name} ended:\n{self.errors.read()[-3000:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4, help="counted steps of each side, after one warm-up")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--dtype", default=choose_dtype(), choices=("float32", "bfloat16"), help="default: fast here")
    parser.add_argument("--without-sharing", action="store_true", help="a third side: ours without prefix sharing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        our_worker(json.loads(options.worker))
        return
    from winnowrl.training.model_loading import resolve_model_path

    settings = {
        "model": resolve_model_path("smollm2-135m"),
        "prompts": prompts(64),
        "tasks": options.tasks,
        "group": options.group,
        "new_tokens": options.new_tokens,
        "learning_rate": 2e-5,
        "threads": len(os.sched_getaffinity(0)),
        "steps": options.repeats + 2,
        "folder": tempfile.mkdtemp(),
        "prefix_sharing": True,
        "dtype": options.dtype,
    }
    ours = [sys.executable, "-W", "ignore", __file__, "--worker"]
    peer = [str(trl_python()), "-W", "ignore", str(ROOT / "benchmarks" / "step_vs_trl_peer.py")]
    workers = [Worker("winnowrl", [*ours, json.dumps(settings)]), Worker("trl", [*peer, json.dumps(settings)])]
    if options.without_sharing:
        unshared = json.dumps({**settings, "prefix_sharing": False})
        workers.insert(1, Worker("winnowrl, no sharing", [*ours, unshared]))
    load = os.getloadavg()[0]
    try:
        for repeat in range(options.repeats + 1):
            for worker in workers:
                report = worker.step()
                print(
                    f"  {worker.name:21} {'warm-up' if repeat == 0 else repeat} {report['seconds']:7.2f} s", flush=True
                )
    finally:
        for worker in workers:
            worker.close()
    show(workers, settings, load)


def show(workers: list[Worker], settings: dict[str, Any], load: float) -> None:
    found = {w.name: {k: median(r[k] for r in w.reports[1:]) for k in w.reports[-1]} for w in workers}
    ours = found["winnowrl"]
    print(f"\n{'':21} {'s/step':>8} {'GiB':>6} {'x ours':>7}   {settings['dtype']}, load {load:.1f} before")
    for name, row in found.items():
        print(
            f"{name:21} {row['seconds']:8.2f} {row['peak_rss_bytes'] / 2**30:6.2f} {row['seconds'] / ours['seconds']:7.2f}"
        )
    shares = ", ".join(f"{phase} {ours[phase] / ours['seconds']:.0%}" for phase in PHASES)
    print(f"our step: {shares}; {ours['sequences']:.0f} sequences, {ours['tokens_distinct']:.0f} distinct tokens")
    RESULTS.mkdir(exist_ok=True)
    del settings["prompts"]
    (RESULTS / "step_vs_trl.json").write_text(
        json.dumps({"settings": settings, "load": load, "medians": found}, indent=1)
    )


if __name__ == "__main__":
    main()
