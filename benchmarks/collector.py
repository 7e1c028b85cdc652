"""Cost of collection itself: turns per second and memory, with an engine that answers at once, beside verifiers.

    python benchmarks/collector.py [--episodes 2000] [--repeats 5] [--no-peer] [--concurrent 10000]
    python benchmarks/collector.py --real smollm2-135m    # what collection adds to turns that vLLM really writes

Episodes of four turns in groups of eight, on one core. Ours runs the real path: chat template, tokens in and out,
environment through Gymnasium, deadlines, group seeds, ledger. The peer is verifiers' in-process ``MultiTurnEnv`` with a
client that answers at once (its later releases start a process per rollout), in an environment of its own that this
script makes under ``.cache``; the two alternate in one run, pinned to the same core. Rates are per wall-clock second and
per processor second (the same on an idle machine). Memory: 10,000 episodes in flight together.

``--real``: 128 such episodes with SmolLM2 through vLLM, 8 tokens a reply; what is not spent inside vLLM's own calls is the
collector's, the engine pump's and the environment's share.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import psutil

from winnowrl.agents.collector import Collector, build_collector
from winnowrl.agents.conversation import ConversationFactory, TokenBudgets, build_template
from winnowrl.agents.engines.base import Completion, Engine, Sampling
from winnowrl.agents.engines.scripted import ScriptedEngine
from winnowrl.agents.ledger import Ledger
from winnowrl.agents.templates import Template
from winnowrl.configs.sections.collector import CollectorConfig
from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.gates.allocation import UniformAllocator

ROOT = Path(__file__).parents[1]
PEER = "verifiers==0.3.1"
TURNS, GROUP = 4, 8
REPLY = "go to drawer 3\n"


class FourTurnsEnv(TextEnv):
    """Answers each reply with a line; over after four turns."""

    stop = ("\n",)

    def task_set(self, split: str) -> TaskSet:
        prompt = "You are in a room with ten drawers. Your task: find the key.\n"
        return TaskSet([Task(f"drawers-{i}", prompt) for i in range(2048)])

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return task.prompt, {}

    def respond(self, action: str) -> StepResult:
        self.turn += 1
        is_last = self.turn == TURNS
        observation = f"You are at drawer {self.turn}. It is closed.\n"
        return observation, float(is_last), is_last, False, {"action": action.strip()}


class HeldEngine(ScriptedEngine):
    """Answers nobody before ``everyone`` waits, so that all episodes are in flight at the same moment."""

    def __init__(self, everyone: int, **fields: Any) -> None:
        super().__init__(lambda ids, seed: REPLY, **fields)
        self._everyone, self._waiting = everyone, 0
        self._gate = asyncio.Event()
        self.peak_rss = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        self._waiting += 1
        if self._waiting == self._everyone:
            self.peak_rss = psutil.Process().memory_info().rss
            self._gate.set()
            self._gate, self._waiting = asyncio.Event(), 0
        else:
            await self._gate.wait()
        return await super().generate(prompt_ids, sampling, seed)


def load_tiny() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny", ROOT / "tests" / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_collector(folder: str, engine_of: Any = None) -> Collector:
    template = build_template("chatml", load_tiny().build_tiny_tokenizer(folder))
    fields = {"codec": template.codec, "end_token_id": template.end_token_ids[0]}
    engine = engine_of(**fields) if engine_of else ScriptedEngine(lambda ids, seed: REPLY, **fields)
    return assemble(engine, template, turn_tokens=64)


def assemble(engine: Engine, template: Template, turn_tokens: int) -> Collector:
    return build_collector(
        CollectorConfig(),
        engine=engine,
        new_conversation=ConversationFactory(template, TokenBudgets(turn_tokens, 1024, 2048)),
        env_id="benchmark/FourTurns-v0",
        sampling=Sampling(turn_tokens),
        allocator=UniformAllocator(GROUP),
        run_seed=0,
    )


async def collect(collector: Collector, num_episodes: int, step: int) -> tuple[float, float]:
    """Wall-clock and processor seconds to collect a step and to enter it into a ledger."""
    tasks = collector.task_set("train")[: num_episodes // GROUP]
    ledger = Ledger()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    result = await collector.collect(tasks, step=step, policy_version=0)
    ledger.record_collection(result)
    seconds = time.perf_counter() - begun, time.process_time() - begun_cpu
    assert result.num_turns == num_episodes * TURNS
    assert not result.failures
    return seconds


def start_peer(core: int) -> subprocess.Popen[str]:
    folder = ROOT / ".cache" / "venv-verifiers"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", PEER], check=True)
    peer = subprocess.Popen(
        [python, Path(__file__).with_name("collector_peer.py"), str(core)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert peer.stdout is not None
    assert peer.stdout.readline() == "ready\n"
    return peer


def ask_peer(peer: subprocess.Popen[str], path: str, num_episodes: int) -> tuple[float, float]:
    assert peer.stdin is not None
    assert peer.stdout is not None
    print(path, num_episodes, file=peer.stdin, flush=True)
    wall, cpu = map(float, peer.stdout.readline().split())
    return wall, cpu


def measure_speed(num_episodes: int, repeats: int, with_peer: bool) -> dict[str, dict[str, float]]:
    """Median turns per second of each way, by wall clock and by processor time."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    peer = start_peer(core) if with_peer else None
    times: dict[str, list[tuple[float, float]]] = {}
    peer_episodes = max(GROUP, num_episodes // 10 // GROUP * GROUP)
    counts = {"ours": num_episodes, "verifiers rollout": peer_episodes, "verifiers run_group": peer_episodes}
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        collector = make_collector(folder)
        for step in range(repeats + 1):
            found = {"ours": runner.run(collect(collector, num_episodes, step))}
            for path in ("rollout", "run_group") if peer else ():
                assert peer is not None
                found[f"verifiers {path}"] = ask_peer(peer, path, peer_episodes)
            for name, seconds in found.items() if step else ():  # the first round makes the environments
                times.setdefault(name, []).append(seconds)
        runner.run(collector.close())
    if peer is not None:
        assert peer.stdin is not None
        peer.stdin.close()
        peer.wait()
    return {
        name: {
            clock: statistics.median(counts[name] * TURNS / seconds[which] for seconds in values)
            for which, clock in enumerate(("wall", "processor"))
        }
        for name, values in times.items()
    }


def measure_memory(num_episodes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        collector = make_collector(folder, lambda **fields: HeldEngine(num_episodes, **fields))
        before = psutil.Process().memory_info().rss
        seconds, _ = runner.run(collect(collector, num_episodes, 0))
        peak = collector.engine.peak_rss  # type: ignore[attr-defined]
        runner.run(collector.close())
    high_water = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gib = 2.0**30
    return {
        "episodes in flight": num_episodes,
        "peak GiB": high_water / gib,
        "GiB in flight": peak / gib,
        "KiB per episode": (peak - before) / num_episodes / 1024,
        "seconds": seconds,
    }


def measure_real(model: str, num_episodes: int, repeats: int) -> dict[str, float]:
    """Share of collection's wall-clock seconds outside vLLM's own calls, and milliseconds of that a turn; medians."""
    from transformers import AutoTokenizer

    from winnowrl.agents.engines.vllm import VllmEngine
    from winnowrl.training.model_loading import resolve_model_path

    path = resolve_model_path(model)
    engine = VllmEngine(path, max_context_tokens=2048, max_concurrent_requests=64)
    inside = time_calls(engine._stepper._engine, ("step", "add_request"))  # type: ignore[attr-defined]
    collector = assemble(engine, build_template("chatml", AutoTokenizer.from_pretrained(path)), turn_tokens=8)
    shares, per_turn, per_s = [], [], []
    with asyncio.Runner() as runner:
        for step in range(repeats + 1):
            tasks = collector.task_set("train")[step * num_episodes // GROUP : (step + 1) * num_episodes // GROUP]
            inside.clear()
            began = time.perf_counter()
            result = runner.run(collector.collect(tasks, step=step, policy_version=0))
            seconds = time.perf_counter() - began
            shares.append(1 - sum(inside) / seconds)
            per_turn.append(1000 * (seconds - sum(inside)) / result.num_turns)
            per_s.append(result.num_turns / seconds)
            print(f"{step}/{repeats}: {seconds:.2f} s, {result.num_turns} turns, outside vLLM {100 * shares[-1]:.2f} %")
        runner.run(collector.close())
        runner.run(engine.close())
    # The first round makes the environments and warms vLLM up.
    return {
        "share_outside_vllm": statistics.median(shares[1:]),
        "ms_outside_vllm_per_turn": statistics.median(per_turn[1:]),
        "turns_per_s": statistics.median(per_s[1:]),
        "load": os.getloadavg()[0],
    }


def time_calls(target: Any, names: Sequence[str]) -> list[float]:
    """Wrap methods of ``target``; the returned list grows by the seconds of each call."""
    seconds: list[float] = []

    def timed(call: Any) -> Any:
        def measure(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                seconds.append(time.perf_counter() - began)

        return measure

    for name in names:
        setattr(target, name, timed(getattr(target, name)))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrent", type=int, default=10_000)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--real", metavar="MODEL", help="only the overhead on turns that vLLM writes")
    options = parser.parse_args()
    gymnasium.register("benchmark/FourTurns-v0", FourTurnsEnv, max_episode_steps=8)
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    if options.real:
        real = measure_real(options.real, num_episodes=128, repeats=options.repeats)
        print(", ".join(f"{name} {value:.3g}" for name, value in real.items()))
        (results / "collector_real.json").write_text(json.dumps(real, indent=1))
        return
    memory = measure_memory(options.concurrent) if options.concurrent else {}
    speed = measure_speed(options.episodes // GROUP * GROUP, options.repeats, not options.no_peer)
    for name, rates in speed.items():
        for clock, rate in rates.items():
            ratio = speed["ours"][clock] / rate
            print(f"{name:>20}: {rate:9,.0f} turns per {clock} second   ours is {ratio:5.1f}x")
    for name, value in memory.items():
        print(f"{name:>20}: {value:9,.2f}")
    report = {"turns_per_s": speed, "memory": memory, "load": os.getloadavg()[0], "python": sys.version.split()[0]}
    (results / "collector.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
