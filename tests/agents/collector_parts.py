"""Environments, engines and a collector for the collector's tests, on real conversations over a tiny tokenizer."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from winnowrl.agents.collector import Collector, StepRollouts, build_collector
from winnowrl.agents.conversation import Conversation, TokenBudgets
from winnowrl.agents.engines.base import Completion, Sampling
from winnowrl.agents.errors import EngineFailure
from winnowrl.agents.templates import PlainTemplate
from winnowrl.agents.text_codec import TextCodec
from winnowrl.configs.sections.collector import CollectorConfig
from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict
from winnowrl.gates.allocation import UniformAllocator

Script = Callable[[str, int], "str | Completion | Awaitable[str] | None"]


class ScriptEngine:
    """Replies with what ``script(prompt text, seed)`` returns, encoded; an awaitable is awaited first."""

    def __init__(self, codec: Any, script: Script, policy_version: int = 0) -> None:
        self.codec, self.script, self.policy_version = codec, script, policy_version
        self.num_in_flight = self.most_in_flight = self.num_calls = self.num_aborted = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        self.num_calls += 1
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            reply: Any = self.script(self.codec.decode(list(prompt_ids)), seed)
            if asyncio.iscoroutine(reply):
                reply = await reply
        except asyncio.CancelledError:
            self.num_aborted += 1
            raise
        finally:
            self.num_in_flight -= 1
        if not isinstance(reply, str):
            return reply
        ids = self.codec.encode_text(reply)
        reason = "length" if len(ids) > sampling.max_tokens else "stop"
        ids = ids[: sampling.max_tokens]
        return Completion(
            ids, [-0.5 - 1e-6 * (seed % 1000)] * len(ids), reason, self.policy_version, len(prompt_ids) // 2
        )

    async def close(self) -> None: ...


class WalkEnv(TextEnv):
    """Walks ``length`` turns. What an action says happens: raise, quit, sleep S, die, end REWARD, undecided, nan, mark."""

    def __init__(self, length: int = 4, is_unequal: bool = False, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.length, self.is_unequal = length, is_unequal
        self.resets = 0

    def task_set(self, split: str) -> TaskSet:
        return TaskSet([Task(f"{split}-{i}", f"walk {i}:", metadata={"task_type": f"type{i % 2}"}) for i in range(64)])

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        self.resets += 1
        noise = self.resets if self.is_unequal else self.np_random.integers(100)
        return f"{task.prompt} {noise}\n", {}

    def respond(self, action: str) -> StepResult:
        self.turn += 1
        word, _, rest = action.strip().partition(" ")
        info: dict[str, Any] = {"action": word}
        reward, is_last = 0.0, self.turn >= self.length
        if word == "raise":
            raise RuntimeError("the walker fell")
        if word == "quit":
            raise SystemExit(3)
        if word == "die":
            os._exit(3)
        if word == "sleep":
            time.sleep(float(rest))
        if word == "nan":
            reward = float("nan")
        if word == "end":
            reward, is_last = float(rest), True
        if word == "undecided":
            info["verdict"] = Verdict("undecided", "it timed out")
            is_last = True
        if word == "mark":
            info["loss_text_end"] = rest.split()[0]
        info["reward_parts"] = {"step": 1.0}
        info["success"] = reward > 0
        return f"saw {word}\n", reward, is_last, False, info


class ThreadWalkEnv(WalkEnv):
    execution = "thread"


class ProcessWalkEnv(WalkEnv):
    execution = "process"


for name in ("Walk", "ThreadWalk", "ProcessWalk"):
    env_id = f"collectortests/{name}-v0"
    gymnasium.registry.pop(env_id, None)
    gymnasium.register(env_id, f"collector_parts:{name}Env", max_episode_steps=20)


def make_collector(
    codec: Any,
    script: Script,
    *,
    env: str = "Walk",
    env_kwargs: dict[str, Any] | None = None,
    rollouts_per_task: int = 4,
    budgets: TokenBudgets | None = None,
    engine: Any = None,
    allocator: Any = None,
    run_seed: int = 0,
    gate: Any = None,
    audit: Any = None,
    **config: Any,
) -> Collector:
    """A collector over a scripted engine; ``config`` are fields of the collector section."""
    template, limits = PlainTemplate(codec, ()), budgets or TokenBudgets(64, 4096, 4096)
    return build_collector(
        CollectorConfig(**{"failure_rate_limit": 1.0, **config}),
        engine=engine or ScriptEngine(codec, script),
        new_conversation=lambda: Conversation(template, limits),
        env_id=f"collectortests/{env}-v0",
        env_kwargs=env_kwargs,
        sampling=Sampling(64),
        allocator=allocator or UniformAllocator(rollouts_per_task),
        run_seed=run_seed,
        gate=gate,
        audit=audit,
    )


def make_codec(folder: Path) -> TextCodec:
    """A tokenizer of 384 tokens, trained in ``folder``."""
    spec = importlib.util.spec_from_file_location("winnowrl_tests_tiny", Path(__file__).parents[1] / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    return TextCodec(tiny.build_tiny_tokenizer(folder))


def collect(collector: Collector, num_tasks: int = 3, *, step: int = 0, **arguments: Any) -> StepRollouts:
    """One step over the first train tasks, then the collector is closed."""

    async def play() -> StepRollouts:
        try:
            tasks = collector.task_set("train")[:num_tasks]
            return await collector.collect(tasks, step=step, policy_version=0, **arguments)
        finally:
            await collector.close()

    return asyncio.run(play())


def engine_fails(prompt: str, seed: int) -> str:
    raise EngineFailure("out of memory")
