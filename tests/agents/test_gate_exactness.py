"""A gate changes nothing but where it stops: what it lets run, and what it audits, is the ungated run to the last bit."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from winnowrl.agents.collector import Collector, StepRollouts, build_collector
from winnowrl.agents.conversation import build_conversations
from winnowrl.agents.engines.base import Sampling
from winnowrl.agents.rollout import Group
from winnowrl.agents.text_codec import TextCodec
from winnowrl.configs.sections.collector import CollectorConfig
from winnowrl.configs.sections.engine import ConversationConfig
from winnowrl.envs.base import StepResult
from winnowrl.envs.tasks import Task
from winnowrl.gates import PrefixEditDistanceGate, group_distance
from winnowrl.gates.allocation import UniformAllocator
from winnowrl.gates.audit import AuditSampler

sys.path.insert(0, str(Path(__file__).parent))
parts = importlib.import_module("collector_parts")
SUPPORT = Path(__file__).parents[1] / "support"
# Times and memory differ from run to run, and what the gate judged from gated to ungated.
OWN = ("seconds", "time/", "memory/", "/mfu", "_per_s", "_s_", "audit", "saved")
TURN = 3


class ScoredWalkEnv(parts.WalkEnv):  # type: ignore[misc, name-defined]
    """A walk whose every action is its first character and scores something."""

    def respond(self, action: str) -> StepResult:
        self.turn += 1
        word = action[:1]
        return f"saw {word}\n", float(len(action) % 3), self.turn >= self.length, False, {"action": word}


gymnasium.registry.pop("collectortests/ScoredWalk-v0", None)
gymnasium.register("collectortests/ScoredWalk-v0", entry_point=ScoredWalkEnv, max_episode_steps=20)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return parts.make_codec(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """On a model this small a second thread only spins, and on a busy machine for minutes. Set before the engine."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def facts(group: Group) -> list[tuple[Any, ...]]:
    """All that equal groups share; times and what the gate said of them differ."""
    return [
        (r.rollout_id, r.seed, r.token_ids, r.completion_mask, r.sampler_logprobs, r.actions, r.reward, r.stop_reason,
         r.terminated, r.truncated, r.num_prefill_tokens, group.task.id, group.env_seed)
        for r in group
    ]  # fmt: skip


def median_distance(groups: list[Group], turn: int) -> float:
    """A threshold that stops about half of the groups."""
    distances = sorted({group_distance([r.actions[:turn] for r in group], turn) for group in groups})
    assert len(distances) > 2, f"groups too much alike to tell apart: {distances}"
    return distances[len(distances) // 2]


def check_exact(gated: StepRollouts, ungated: StepRollouts) -> None:
    """Every group of the ungated run is there again, whole, or up to the stop; and all three fates occurred."""
    shared = gated.groups[: len(ungated.groups)]
    assert {(g.gate_stop, g.is_audit) for g in shared} == {(False, False), (True, False), (True, True)}
    for group, whole in zip(shared, ungated.groups, strict=True):
        if not group.was_gated:
            assert facts(group) == facts(whole)
            continue
        for rollout, other in zip(group, whole, strict=True):
            length = len(rollout.token_ids)
            assert (rollout.seed, rollout.rollout_id) == (other.seed, other.rollout_id)
            assert rollout.token_ids == other.token_ids[:length]
            assert rollout.sampler_logprobs == other.sampler_logprobs[:length]
            assert rollout.stop_reason == "gate" or facts(group)[rollout.index] == facts(whole)[rollout.index]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("respends", [False, True])
def test_groups_that_run_on_are_those_of_the_ungated_run(codec: TextCodec, seed: int, respends: bool) -> None:
    delays = random.Random(seed)

    async def script(prompt: str, reply_seed: int) -> str:
        # Members of a group agree the more, the lower the number of its task; replies come back in any order.
        await asyncio.sleep(delays.choice([0.0, 0.0, 0.001, 0.003]))
        dice, number = random.Random(reply_seed), int(prompt.split()[1].rstrip(":"))
        return "north" if dice.random() > number / 16 else dice.choice(["east", "south", "west way", "end 1"])

    def run(**gating: Any) -> StepRollouts:
        more = iter(Task(f"fresh-{n}", f"walk {n}:") for n in range(16))
        given = {"next_task": lambda: next(more)} if respends and gating else {}
        collector = parts.make_collector(
            codec,
            script,
            env="ScoredWalk",
            env_kwargs={"length": 7},
            run_seed=seed,
            max_concurrent_episodes=9,
            **gating,
        )
        result: StepRollouts = parts.collect(collector, 16, step=seed, **given)
        return result

    ungated = run()
    gate = PrefixEditDistanceGate(turn=TURN, threshold=median_distance(ungated.groups, TURN))
    gated = run(gate=gate, audit=AuditSampler(0.4, 1))
    check_exact(gated, ungated)
    num_stopped = sum(group.was_gated for group in gated.groups)
    assert (len(gated.groups) > 16) is respends
    assert num_stopped >= 2
    # Turned off again, nothing of it is left.
    again = run()
    assert [facts(group) for group in again.groups] == [facts(group) for group in ungated.groups]
    assert not any(group.gate_stop or group.gate_turn for group in again.groups)


@pytest.mark.usefixtures("_one_thread")
def test_groups_of_a_real_model_that_run_on_are_those_of_the_ungated_run(tiny_model_path: Path) -> None:
    from transformers import AutoTokenizer

    from winnowrl.agents.engines.transformers import TransformersEngine

    talk = build_conversations(
        ConversationConfig(template="plain", turn_tokens=4, rollout_tokens=24, context_tokens=128),
        AutoTokenizer.from_pretrained(str(tiny_model_path)),
    )
    engine = TransformersEngine(tiny_model_path, max_context_tokens=128, dtype="float32", is_deterministic=True)

    def make(**gating: Any) -> Collector:
        return build_collector(
            CollectorConfig(turn_deadline_s=280.0),
            engine=engine,
            new_conversation=talk,
            env_id="collectortests/ScoredWalk-v0",
            env_kwargs={"length": 4},
            sampling=Sampling(4, temperature=0.7),
            allocator=UniformAllocator(3),
            run_seed=3,
            **gating,
        )

    async def play() -> tuple[StepRollouts, StepRollouts]:
        async def collect(collector: Collector) -> StepRollouts:
            try:
                return await collector.collect(collector.task_set("train")[:6], step=1, policy_version=0)
            finally:
                await collector.close()

        try:
            ungated = await collect(make())
            gate = PrefixEditDistanceGate(turn=2, threshold=median_distance(ungated.groups, 2))
            return await collect(make(gate=gate, audit=AuditSampler(0.5, 0))), ungated
        finally:
            await engine.close()

    gated, ungated = asyncio.run(play())
    check_exact(gated, ungated)
    assert len({tuple(r.token_ids) for r in ungated.rollouts}) == 18
    assert gated.num_completion_tokens < ungated.num_completion_tokens


def test_a_run_whose_gate_audits_all_it_stops_trains_as_the_ungated_run(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnowrl.training.run import train

    monkeypatch.syspath_prepend(str(SUPPORT))
    gates = {
        "ungated": {},
        "audited": {"type": "prefix_edit_distance", "turn": 2, "threshold": 0.9, "audit_fraction": 1.0},
    }
    rows = {}
    for name, gate in gates.items():
        train(
            {
                "run": {"folder": str(tmp_path), "num_steps": 3, "name": name, "trackers": []},
                "model": {"path": str(tiny_model_path), "dtype": "float32"},
                "environment": {"id": "winnowrl_test_env:WinnowTest/Parity-v0", "kwargs": {"num_turns": 3}},
                "conversation": {"template": "plain", "turn_tokens": 3, "rollout_tokens": 12, "context_tokens": 96},
                "engine": {"type": "transformers", "dtype": "float32", "is_deterministic": True},
                "collector": {"tasks_per_step": 3, "rollouts_per_task": 4},
                "learner": {"learning_rate": 1e-3},
                "evaluation": {"before": False, "after": False},
                "gate": gate,
            }
        )
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows[name] = [json.loads(line) for line in lines]
    for ungated, audited in zip(rows["ungated"], rows["audited"], strict=True):
        compared = [key for key in ungated if not any(mark in key for mark in OWN)]
        assert {"loss/total", "learner/grad_norm", "reward/mean", "ledger/run_trained"} <= set(compared)
        assert {key: audited[key] for key in compared} == {key: ungated[key] for key in compared}
    assert rows["audited"][-1]["gate/tp"] + rows["audited"][-1]["gate/fp"] > 0
