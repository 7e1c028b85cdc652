"""Gates in flight: the barrier, the stop, audits, respending, and that the gate changes nothing else."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from winnowrl.agents.conversation import TokenBudgets
from winnowrl.agents.ledger import Ledger
from winnowrl.agents.text_codec import TextCodec
from winnowrl.envs.tasks import Task
from winnowrl.gates import GateDecision, PrefixEditDistanceGate
from winnowrl.gates.allocation import VigorAllocator
from winnowrl.gates.audit import AuditSampler

sys.path.insert(0, str(Path(__file__).parent))
parts = importlib.import_module("collector_parts")
make_collector, collect = parts.make_collector, parts.collect

WALK = {"env_kwargs": {"length": 6}}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return parts.make_codec(tmp_path_factory.mktemp("tokenizer"))


def task_number(prompt: str) -> int:
    return int(prompt.split()[1].rstrip(":"))


def converging(prompt: str, seed: int) -> str:
    """Members of even tasks do the same; those of odd tasks do not."""
    return "north" if task_number(prompt) % 2 == 0 else f"go{seed}"


def gate(turn: int = 3) -> PrefixEditDistanceGate:
    return PrefixEditDistanceGate(turn=turn, threshold=0.2)


def test_a_group_that_converged_is_stopped_at_the_turn_and_others_run_on(codec: TextCodec) -> None:
    collector = make_collector(codec, converging, gate=gate(), **WALK)
    result = collect(collector, 6)
    for number, group in enumerate(result.groups):
        is_stopped = number % 2 == 0
        assert (group.was_gated, group.gate_stop, group.is_audit) == (is_stopped, is_stopped, False)
        assert group.gate_turn == 3
        assert group.gate_distance == (0.0 if is_stopped else 1.0)
        assert {len(r.turns) for r in group} == {3 if is_stopped else 6}
        assert {r.stop_reason for r in group} == {"gate" if is_stopped else "env_done"}
        assert group.is_informative() is False
        assert bool(group.rewards) is not is_stopped
    # No request is ever begun for a stopped group past its turn.
    assert collector.engine.num_calls == 3 * 4 * 3 + 3 * 4 * 6
    assert result.failures == {}


def test_without_its_stops_the_gate_changes_nothing(codec: TextCodec) -> None:
    def facts(result: Any) -> Any:
        return [
            (r.rollout_id, r.seed, r.token_ids, r.sampler_logprobs, r.reward, r.stop_reason) for r in result.rollouts
        ]

    ungated = collect(make_collector(codec, converging, **WALK), 6)
    audited = collect(make_collector(codec, converging, gate=gate(), audit=AuditSampler(1.0, 0), **WALK), 6)
    assert facts(audited) == facts(ungated)
    assert [g.gate_stop for g in audited.groups] == [True, False] * 3
    assert [g.is_audit for g in audited.groups] == [True, False] * 3
    assert not any(g.was_gated for g in audited.groups)
    gated = collect(make_collector(codec, converging, gate=gate(), **WALK), 6)
    kept = [g for g in gated.groups if not g.was_gated]
    assert [r.token_ids for g in kept for r in g] == [r.token_ids for g in ungated.groups[1::2] for r in g]
    # Up to the stop a stopped group wrote what it writes ungated.
    for stopped, whole in zip(gated.groups[0::2], ungated.groups[0::2], strict=True):
        for r, s in zip(stopped, whole, strict=True):
            assert r.token_ids == s.token_ids[: len(r.token_ids)]


def test_members_wait_at_the_barrier_and_leave_their_slot_to_others(codec: TextCodec) -> None:
    async def slow_sometimes(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.001 * (seed % 20))
        return converging(prompt, seed)

    # Two slots, groups of four: members that wait hold no slot, else nobody would ever arrive.
    result = collect(make_collector(codec, slow_sometimes, gate=gate(), max_concurrent_episodes=2, **WALK), 4)
    assert [g.was_gated for g in result.groups] == [True, False, True, False]
    assert all(r.stop_reason in ("gate", "env_done") for r in result.rollouts)


def test_a_member_that_ended_early_keeps_its_reason_in_a_stopped_group(codec: TextCodec) -> None:
    def script(prompt: str, seed: int) -> str:
        # Half of the members end with their third action: 16 of 28 pairs at 1/3, a distance of at most 0.19.
        return "end 1" if prompt.count("saw north") == 2 and seed % 2 else "north"

    result = collect(make_collector(codec, script, gate=gate(), rollouts_per_task=8, **WALK), 4)
    gated = [g for g in result.groups if g.was_gated]
    reasons = {r.stop_reason for g in gated for r in g}
    assert reasons == {"gate", "env_done"}
    assert all(not g.is_informative() for g in gated)
    assert all(r.reward == 1.0 for g in gated for r in g if r.stop_reason == "env_done")
    ledger = Ledger()
    ledger.record_collection(result)
    assert ledger.total.tokens["gated"] == sum(r.num_completion_tokens for g in gated for r in g)


def test_a_failed_member_neither_holds_the_barrier_nor_is_judged(codec: TextCodec) -> None:
    async def script(prompt: str, seed: int) -> str:
        if seed % 4 == 0:
            await asyncio.sleep(0.05)
            return "raise"
        return "north"

    result = collect(make_collector(codec, script, gate=gate(), rollouts_per_task=8, **WALK), 3)
    assert result.failures["environment"] > 0
    assert all(g.was_gated and g.gate_distance == 0.0 for g in result.groups if sum(r.error is None for r in g) >= 2)


def test_a_deadline_at_the_barrier_takes_its_own_member_only(codec: TextCodec) -> None:
    async def script(prompt: str, seed: int) -> str:
        if prompt.count("saw") == 1 and seed % 3 == 0:
            await asyncio.sleep(30)
        return "north"

    # Members that wait for the slow ones run into no deadline; the slow ones run into theirs, and the gate decides.
    collector = make_collector(codec, script, gate=gate(), rollouts_per_task=8, turn_deadline_s=0.2, **WALK)
    result = collect(collector, 2)
    assert result.failures["timeout"] > 0
    assert all(r.stop_reason == ("error" if r.error else "gate") for r in result.rollouts)


def test_a_group_that_has_ended_before_the_turn_is_not_stopped(codec: TextCodec) -> None:
    result = collect(make_collector(codec, lambda p, s: "end 1", gate=gate(), **WALK), 2)
    assert not any(g.was_gated or g.gate_stop for g in result.groups)
    assert all("nothing to stop" in g.gate_reason for g in result.groups)


def test_a_stopped_groups_rollouts_go_to_fresh_tasks_in_the_same_step(codec: TextCodec) -> None:
    def respent(delays: bool) -> Any:
        async def script(prompt: str, seed: int) -> str:
            await asyncio.sleep(0.001 * (seed % 10) if delays else 0)
            return converging(prompt, seed)

        fresh = iter([Task(f"fresh-{i}", f"walk {i}:") for i in (10, 13, 14, 15, 16, 17)])
        collector = make_collector(codec, script, gate=gate(), **WALK)
        return collect(collector, 4, next_task=lambda: next(fresh, None))

    result = respent(False)
    # Two of four are stopped; fresh 10 is stopped too and replaced in turn: 10, 13, 14 and, for 14, 15.
    assert [g.task.id for g in result.groups] == ["train-0", "train-1", "train-2", "train-3"] + [
        f"fresh-{i}" for i in (10, 13, 14, 15)
    ]
    assert [g.is_replacement for g in result.groups] == [False] * 4 + [True] * 4
    assert sum(not g.was_gated for g in result.groups) == 4
    assert result.rounds == [16]
    other = respent(True)
    assert [(r.rollout_id, r.token_ids) for r in other.rollouts] == [
        (r.rollout_id, r.token_ids) for r in result.rollouts
    ]


def test_respending_ends_even_when_every_group_is_stopped(codec: TextCodec) -> None:
    numbers = iter(range(1000))
    collector = make_collector(codec, lambda p, s: "north", gate=gate(), **WALK)
    result = collect(collector, 5, next_task=lambda: Task(f"fresh-{next(numbers)}", "walk 0:"))
    assert len(result.groups) == 10
    assert all(g.was_gated for g in result.groups)


def test_a_stopped_group_counts_as_variance_zero_and_gets_no_more_rollouts(codec: TextCodec) -> None:
    def script(prompt: str, seed: int) -> str:
        if task_number(prompt) % 2 == 0:
            return "north"
        return f"go{seed}" if "saw" not in prompt else f"end {seed % 2}"

    allocator = VigorAllocator(8, rounds=2, first_round_rollouts=4, fraction=0.5, growth=2.0)
    result = collect(make_collector(codec, script, gate=gate(2), allocator=allocator, **WALK), 6)
    for number, group in enumerate(result.groups):
        assert group.was_gated == (number % 2 == 0)
        assert len(group.rollouts) == (4 if group.was_gated else 12)
    assert sum(result.rounds) == 48 == len(result.rollouts)


class StopAll:
    """A gate that does not look at who has ended."""

    turn = 3

    def decide(self, action_prefixes: Any, finished: Any) -> GateDecision:
        return GateDecision(True, 0.0, f"{sum(finished)} of {len(finished)} have ended")


@pytest.mark.parametrize("rule", [gate(), StopAll()])
@pytest.mark.parametrize(
    ("budgets", "max_turns", "reason"),
    [
        # One token a reply: three replies use the rollout's budget up; or the context, with the prompt and two answers.
        (TokenBudgets(64, 3, 4096), 20, "token_limit"),
        (None, 20, "token_limit"),
        (TokenBudgets(64, 4096, 4096), 3, "turn_limit"),
    ],
)
def test_a_group_with_nothing_left_to_write_at_the_turn_is_not_stopped(
    codec: TextCodec, rule: Any, budgets: TokenBudgets | None, max_turns: int, reason: str
) -> None:
    if budgets is None:
        whole = collect(make_collector(codec, lambda p, s: "go", env_kwargs={"length": 3}), 1).rollouts[0]
        budgets = TokenBudgets(64, 4096, len(whole.token_ids) + 1)
    assert len(codec.encode_text("go")) == 1
    more: dict[str, Any] = {"budgets": budgets, "max_turns": max_turns, "env_kwargs": {"length": 10}}
    ungated = collect(make_collector(codec, lambda p, s: "go", **more), 2)
    gated = collect(make_collector(codec, lambda p, s: "go", gate=rule, **more), 2)
    for group in (*ungated.groups, *gated.groups):
        assert not group.was_gated
        assert not group.gate_stop
        assert [(r.stop_reason, len(r.turns), r.is_valid) for r in group] == [(reason, 3, True)] * 4
    assert [r.token_ids for r in gated.rollouts] == [r.token_ids for r in ungated.rollouts]
    assert all("nothing to stop" in group.gate_reason for group in gated.groups)


def test_a_member_that_is_full_at_the_turn_keeps_its_reward_in_a_stopped_group(codec: TextCodec) -> None:
    # Two long replies of three use the budget up at the turn; members with fewer have room and are stopped.
    long, short = "go go go", "go"
    budget = 2 * len(codec.encode_text(long)) + len(codec.encode_text(short))
    collector = make_collector(
        codec,
        lambda p, s: long if s % 2 else short,
        gate=StopAll(),
        rollouts_per_task=8,
        budgets=TokenBudgets(64, budget, 4096),
        **WALK,
    )
    groups = collect(collector, 4).groups
    assert all(group.was_gated for group in groups)
    fates = {(r.stop_reason, r.is_valid, r.num_completion_tokens == budget) for group in groups for r in group}
    assert fates == {("gate", False, False), ("token_limit", True, True)}
