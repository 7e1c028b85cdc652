"""The collector: what is recorded of episodes, seeds and order, deadlines, failures, rounds, concurrency."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from winnowrl.agents.collector import FailureRateError, StepRollouts
from winnowrl.agents.conversation import TokenBudgets
from winnowrl.agents.engines.base import Completion
from winnowrl.agents.seeding import derive_seed
from winnowrl.agents.text_codec import TextCodec
from winnowrl.envs.tasks import Task
from winnowrl.gates.allocation import VigorAllocator

sys.path.insert(0, str(Path(__file__).parent))
parts = importlib.import_module("collector_parts")
make_collector, collect = parts.make_collector, parts.collect


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return parts.make_codec(tmp_path_factory.mktemp("tokenizer"))


def walk(prompt: str, seed: int) -> str:
    return "end 1" if seed % 5 == 0 else f"go {seed % 7}"


def facts(result: StepRollouts) -> list[Any]:
    """Everything of a collection that must not depend on timing."""
    return [
        (
            r.rollout_id,
            r.seed,
            r.token_ids,
            r.completion_mask,
            r.sampler_logprobs,
            r.reward,
            r.stop_reason,
            r.actions,
            r.turns[0].text,
        )
        for r in result.rollouts
    ]


def test_tokens_masks_and_turns_are_what_engine_and_environment_said(codec: TextCodec) -> None:
    result = collect(make_collector(codec, walk))
    assert [len(group.rollouts) for group in result.groups] == [4, 4, 4]
    for group in result.groups:
        for rollout in group.rollouts:
            text = codec.decode(rollout.token_ids)
            expected = f"{group.task.prompt} "
            assert text.startswith(expected)
            for turn in rollout.turns:
                ids = rollout.token_ids[turn.start : turn.end]
                assert codec.decode(ids) == turn.text
                assert all(rollout.completion_mask[turn.start : turn.end])
                assert all(p < 0 for p in rollout.sampler_logprobs[turn.start : turn.end])
            replies = "".join(turn.text + turn.observation for turn in rollout.turns[:-1]) + rollout.turns[-1].text
            assert text.endswith(replies)
            assert sum(rollout.completion_mask) == sum(turn.num_tokens for turn in rollout.turns)
            assert len(rollout.token_ids) == len(rollout.completion_mask) == len(rollout.sampler_logprobs)
            assert rollout.reward_parts == {"step": float(len(rollout.turns))}
            assert rollout.stop_reason == "env_done"
            assert (rollout.terminated, rollout.truncated) == (True, False)
            assert rollout.num_prefill_tokens > 0


def test_members_share_the_environment_seed_and_every_reply_has_its_own(codec: TextCodec) -> None:
    seen: list[int] = []

    def script(prompt: str, seed: int) -> str:
        seen.append(seed)
        return "go"

    result = collect(make_collector(codec, script, run_seed=9), num_tasks=2, step=3)
    for group in result.groups:
        assert group.env_seed == derive_seed(9, 3, group.task.id)
        for rollout in group.rollouts:
            assert rollout.seed == derive_seed(9, 3, group.task.id, rollout.index)
            assert {derive_seed(9, 3, group.task.id, rollout.index, turn) for turn in range(4)} <= set(seen)
    assert len(set(seen)) == len(seen) == 2 * 4 * 4


def test_results_do_not_depend_on_the_order_in_which_episodes_end(codec: TextCodec) -> None:
    def delayed(scale: float) -> Callable[[str, int], Any]:
        async def reply(prompt: str, seed: int) -> str:
            await asyncio.sleep(scale * (seed % 13) / 13)
            return walk(prompt, seed)

        return reply

    async def backwards(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.02 * (13 - seed % 13) / 13)
        return walk(prompt, seed)

    at_once = facts(collect(make_collector(codec, walk)))
    assert at_once == facts(collect(make_collector(codec, delayed(0.02))))
    assert at_once == facts(collect(make_collector(codec, backwards)))
    assert at_once == facts(collect(make_collector(codec, backwards, max_concurrent_episodes=2)))
    assert at_once == facts(collect(make_collector(codec, walk, env="ThreadWalk")))


def test_a_task_that_stands_twice_in_a_step_is_not_the_same_group_twice(codec: TextCodec) -> None:
    collector = make_collector(codec, walk)
    task = collector.task_set("train")[0]

    async def play() -> StepRollouts:
        return await collector.collect([task, task], step=0, policy_version=0)

    first, second = asyncio.run(play()).groups
    assert first.env_seed != second.env_seed
    assert not {r.seed for r in first} & {r.seed for r in second}
    assert not {r.rollout_id for r in first} & {r.rollout_id for r in second}


def test_a_step_collected_in_two_calls_repeats_no_id_and_no_seed(codec: TextCodec) -> None:
    collector = make_collector(codec, walk)
    ended: list[int] = []
    tasks = collector.task_set("train")[:2]

    async def play() -> list[StepRollouts]:
        first = await collector.collect(tasks, step=4, policy_version=0, on_episode_over=lambda: ended.append(1))
        return [first, await collector.collect(tasks, step=4, policy_version=0, first_group=2)]

    first, second = asyncio.run(play())
    assert len(ended) == 8
    assert [group.group_id for group in first.groups + second.groups] == [400_000, 400_001, 400_002, 400_003]
    assert not {r.seed for r in first.rollouts} & {r.seed for r in second.rollouts}
    assert not {r.rollout_id for r in first.rollouts} & {r.rollout_id for r in second.rollouts}


def test_what_ended_an_episode_is_told_apart(codec: TextCodec) -> None:
    turn_limit = collect(make_collector(codec, lambda p, s: "go", env_kwargs={"length": 99}, max_turns=3), 1)
    for rollout in turn_limit.rollouts:
        assert (rollout.stop_reason, rollout.terminated, rollout.truncated, len(rollout.turns)) == (
            "turn_limit",
            False,
            True,
            3,
        )
    # The environment ends on the very turn at which the limit would cut it: it has ended, not been cut.
    both = collect(make_collector(codec, lambda p, s: "go", env_kwargs={"length": 3}, max_turns=3), 1)
    for rollout in both.rollouts:
        assert (rollout.stop_reason, rollout.terminated, rollout.truncated) == ("env_done", True, False)
    budgets = TokenBudgets(turn=64, rollout=2, context=4096)
    token_limit = collect(make_collector(codec, lambda p, s: "go go go go", budgets=budgets), 1)
    for rollout in token_limit.rollouts:
        assert (rollout.stop_reason, rollout.terminated, rollout.truncated) == ("token_limit", False, True)
        assert rollout.num_completion_tokens == 2
        assert rollout.turns[0].finish_reason == "length"
        assert rollout.has_cut_reply


def test_a_prompt_that_leaves_no_room_is_a_failure_that_says_so(codec: TextCodec) -> None:
    result = collect(make_collector(codec, walk, budgets=TokenBudgets(4, 8, 5)), 1)
    assert result.failures == {"environment": 4}
    assert "conversation.context_tokens" in result.rollouts[0].error.message  # type: ignore[union-attr]


def test_an_undecided_verdict_takes_a_rollout_out_of_its_group_and_counts_as_a_verifier_failure(
    codec: TextCodec,
) -> None:
    result = collect(make_collector(codec, lambda p, s: "undecided" if s % 2 else "end 1"))
    undecided = [r for r in result.rollouts if r.verdict == "undecided"]
    assert result.failures == {"verifier": len(undecided)}
    assert 0 < len(undecided) < 12
    assert not any(r.is_valid for r in undecided)
    assert all(r.error is None and r.stop_reason == "env_done" for r in undecided)


def test_the_loss_may_end_inside_a_reply_that_was_cut(codec: TextCodec) -> None:
    cut = TokenBudgets(9, 64, 256)
    reply = "mark 7 and a tail that is cut off somewhere"
    result = collect(make_collector(codec, lambda p, s: reply, env_kwargs={"length": 2}, budgets=cut), 1)
    rollout = result.rollouts[0]
    for turn in rollout.turns:
        kept = rollout.token_ids[turn.start : turn.loss_end]
        assert codec.decode(kept).startswith("mark 7 ")
        assert turn.loss_end is not None
        assert len(codec.decode(kept[:-1])) < 7
        assert not any(rollout.loss_mask()[turn.loss_end : turn.end])
        assert all(rollout.loss_mask()[turn.start : turn.loss_end])
    assert rollout.num_completion_tokens > sum(rollout.loss_mask())
    assert sum(rollout.completion_mask) == rollout.num_completion_tokens


def test_a_reply_that_ended_by_itself_keeps_its_end_in_the_loss(codec: TextCodec) -> None:
    result = collect(make_collector(codec, lambda p, s: "mark 7 and a tail", env_kwargs={"length": 2}), 1)
    rollout = result.rollouts[0]
    assert {turn.finish_reason for turn in rollout.turns} == {"stop"}
    assert rollout.loss_mask() == rollout.completion_mask


def wrong_version(prompt: str, seed: int) -> Completion:
    return Completion([1], [-1.0], "stop", 5)


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (parts.engine_fails, "engine", "out of memory"),
        (lambda p, s: 1 / 0, "engine", "ZeroDivisionError"),
        (lambda p, s: None, "engine", "returned nothing"),
        (lambda p, s: Completion([], [], "stop", 0), "engine", "returned nothing"),
        (lambda p, s: Completion([1, 2], [-1.0], "stop", 0), "engine", "2 tokens and 1 log-probabilities"),
        (lambda p, s: Completion([1], [-1.0], "abort", 0), "engine", "aborted"),
        (
            lambda p, s: Completion([1, 2], [-1.0, math.nan], "stop", 0),
            "engine",
            "not finite in a reply of policy version 0",
        ),
        (lambda p, s: Completion([1, 2], [-math.inf, -1.0], "stop", 0), "engine", "not finite in a reply"),
        (wrong_version, "engine", "policy version 5"),
        (lambda p, s: "raise", "environment", "the walker fell"),
        (lambda p, s: "quit", "environment", r"raised SystemExit: 3"),
        (lambda p, s: "nan", "environment", "a number within ±1e+15"),
        (lambda p, s: "end -1e308", "environment", "the reward -1e+308; allowed"),
        (lambda p, s: "mark x " + "and on " * 500, "environment", "cannot be read"),
    ],
)
def test_a_failure_is_recorded_with_its_cause(codec: TextCodec, script: Any, kind: str, message: str) -> None:
    result = collect(make_collector(codec, script), 1)
    assert result.failures == {kind: 4}
    for rollout in result.rollouts:
        assert rollout.stop_reason == "error"
        assert rollout.error is not None
        assert (rollout.error.kind, message in rollout.error.message) == (kind, True)
        assert not rollout.is_valid


def test_a_failed_member_leaves_its_group_and_the_others_go_on(codec: TextCodec) -> None:
    result = collect(make_collector(codec, lambda p, s: "raise" if s % 3 == 0 else f"end {s % 2}", rollouts_per_task=8))
    for group in result.groups:
        failed = [r for r in group if r.error]
        assert len(group.rewards) == 8 - len(failed)
    assert 0 < sum(result.failures.values()) < 24


def test_too_many_failures_stop_the_run_and_name_the_commonest_cause(codec: TextCodec) -> None:
    def script(prompt: str, seed: int) -> Any:
        return "raise" if seed % 4 == 0 else parts.engine_fails(prompt, seed)

    with pytest.raises(FailureRateError, match=r"12 of 12 rollouts failed.*Commonest kind: engine .*out of memory"):
        collect(make_collector(codec, script, failure_rate_limit=0.5))
    collect(make_collector(codec, lambda p, s: "raise" if s % 2 else "end 1", failure_rate_limit=0.9))


def test_unequal_starts_fail_the_whole_group(codec: TextCodec) -> None:
    result = collect(make_collector(codec, walk, env_kwargs={"is_unequal": True}, max_concurrent_episodes=1), 2)
    # One instance serves all episodes in turn, so every reset of it begins differently.
    assert result.failures == {"environment": 8}
    assert all("started from different observations" in r.error.message for r in result.rollouts if r.error)


def test_slow_replies_and_slow_steps_end_at_their_deadline_and_abort_the_request(codec: TextCodec) -> None:
    async def hang(prompt: str, seed: int) -> str:
        await asyncio.sleep(60)
        return "never"

    collector = make_collector(codec, hang, turn_deadline_s=0.15)
    result = collect(collector, 1)
    assert result.failures == {"timeout": 4}
    assert "the engine took over 0.15 s (turn 1)" in result.rollouts[0].error.message  # type: ignore[union-attr]
    assert result.rollouts[0].was_request_lost
    assert (collector.engine.num_aborted, collector.engine.num_in_flight) == (4, 0)
    slow = make_collector(codec, lambda p, s: "sleep 1.5", env="ThreadWalk", turn_deadline_s=0.2, rollouts_per_task=2)
    result = collect(slow, 1)
    assert result.failures == {"timeout": 2}
    assert "the environment's step took over" in result.rollouts[0].error.message  # type: ignore[union-attr]


def test_a_deadline_names_the_inline_step_that_held_everything_up(codec: TextCodec) -> None:
    async def script(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.05)
        return "sleep 1.2" if seed % 2 else "end 1"

    collector = make_collector(codec, script, turn_deadline_s=0.4, rollouts_per_task=8)
    result = collect(collector, 1)
    messages = [rollout.error.message for rollout in result.rollouts if rollout.error]
    assert any("held up by an inline environment; set its `execution` to process" in message for message in messages)


def test_episode_and_step_deadlines_end_what_goes_on_too_long(codec: TextCodec) -> None:
    async def dawdle(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.05)
        return "go"

    settings: dict[str, Any] = {
        "env_kwargs": {"length": 99},
        "max_turns": 99,
        "turn_deadline_s": 0.3,
        "episode_deadline_s": 0.3,
    }
    result = collect(make_collector(codec, dawdle, **settings), 1)
    assert result.failures == {"timeout": 4}
    assert "the episode took over 0.3 s" in result.rollouts[0].error.message  # type: ignore[union-attr]
    assert len(result.rollouts[0].turns) >= 2
    # One at a time, 0.2 s each: the step ends when two or three of four have.
    settings = {"turn_deadline_s": 0.5, "episode_deadline_s": 0.5, "step_deadline_s": 0.5}
    result = collect(make_collector(codec, dawdle, max_concurrent_episodes=1, **settings), 1)
    assert 1 <= result.failures["timeout"] <= 3
    assert any("the step took over 0.5 s" in r.error.message for r in result.rollouts if r.error)


def test_an_engine_that_ignores_its_cancellation_does_not_hold_the_step_up(codec: TextCodec, monkeypatch: Any) -> None:
    monkeypatch.setattr("winnowrl.agents.collecting.step.CLEANUP_S", 0.2)

    async def deaf(prompt: str, seed: int) -> str:
        for _ in range(8):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "late"

    result = collect(make_collector(codec, deaf, turn_deadline_s=0.1), 1)
    assert result.failures == {"timeout": 4}
    assert all(not r.turns for r in result.rollouts)


def test_a_request_that_is_torn_down_under_its_episode_is_an_engine_failure(codec: TextCodec) -> None:
    async def torn(prompt: str, seed: int) -> str:
        raise asyncio.CancelledError

    assert collect(make_collector(codec, torn), 1).failures == {"engine": 4}


def test_the_watchdog_reports_the_oldest_episodes_and_what_they_wait_for(codec: TextCodec, caplog: Any) -> None:
    async def hang(prompt: str, seed: int) -> str:
        await asyncio.sleep(60)
        return "never"

    with caplog.at_level(logging.WARNING, "winnowrl.collector"):
        collect(make_collector(codec, hang, turn_deadline_s=0.4, report_every_s=0.1), 1)
    assert "4 episodes in flight" in caplog.text
    assert "4 on the engine" in caplog.text
    assert "task train-0 rollout" in caplog.text


def test_episodes_in_flight_are_bounded_and_otherwise_all_together(codec: TextCodec) -> None:
    async def reply(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.005)
        return "go"

    bounded = make_collector(codec, reply, max_concurrent_episodes=3)
    collect(bounded)
    assert bounded.engine.most_in_flight == 3
    free = make_collector(codec, reply, rollouts_per_task=20)
    collect(free, 16)
    assert free.engine.most_in_flight == 320


def test_environment_instances_are_reused_from_step_to_step(codec: TextCodec) -> None:
    collector = make_collector(codec, walk)

    async def play() -> None:
        tasks = collector.task_set("train")[:3]
        for step in range(3):
            await collector.collect(tasks, step=step, policy_version=0)
        # With an engine that answers at once an episode plays through before the next begins.
        assert len(collector.environments._free) <= 12
        assert sum(env.unwrapped.resets for env in collector.environments._free) == 36
        await collector.close()
        await collector.close()

    asyncio.run(play())


def test_rounds_follow_the_rewards_and_keep_the_exact_budget(codec: TextCodec) -> None:
    def script(prompt: str, seed: int) -> str:
        # Only odd tasks have rewards that vary.
        number = int(prompt.split()[1].rstrip(":"))
        return f"end {seed % 2}" if number % 2 else "end 1"

    allocator = VigorAllocator(8, rounds=3, first_round_rollouts=4, fraction=0.5, growth=2.0)
    result = collect(make_collector(codec, script, allocator=allocator), 8)
    assert result.rounds == [32, 32]
    assert len(result.rollouts) == 64
    for group in result.groups:
        assert [r.index for r in group] == list(range(len(group.rollouts)))
        assert [r.round_index for r in group] == sorted(r.round_index for r in group)
        assert {r.policy_version for r in group} == {0}
    sizes = [len(group.rollouts) for group in result.groups]
    assert sum(sizes[1::2]) > sum(sizes[0::2])


def test_an_engine_of_another_version_and_an_empty_step_are_refused(codec: TextCodec) -> None:
    collector = make_collector(codec, walk)
    with pytest.raises(ValueError, match="the engine carries 0"):
        asyncio.run(collector.collect([Task("a", "b")], step=0, policy_version=1))
    with pytest.raises(ValueError, match="tasks is empty"):
        asyncio.run(collector.collect([], step=0, policy_version=0))


def test_cancelling_a_collection_leaves_nothing_in_flight(codec: TextCodec) -> None:
    async def hang(prompt: str, seed: int) -> str:
        await asyncio.sleep(60)
        return "never"

    collector = make_collector(codec, hang)

    async def play() -> None:
        collection = asyncio.create_task(collector.collect(collector.task_set("train")[:2], step=0, policy_version=0))
        await asyncio.sleep(0.05)
        collection.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collection
        assert collector.engine.num_in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await collector.close()

    asyncio.run(play())


def test_an_evaluation_runs_all_its_tasks_together_and_repeats_itself(codec: TextCodec) -> None:
    async def reply(prompt: str, seed: int) -> str:
        await asyncio.sleep(0.001)
        return f"end {seed % 2}"

    collector = make_collector(codec, reply, gate=object())

    async def play() -> list[StepRollouts]:
        tasks = [Task(f"t{i}", f"walk {i}:") for i in range(150)]
        return [await collector.evaluate(tasks, samples_per_task=2) for _ in range(2)]

    first, second = asyncio.run(play())
    assert collector.engine.most_in_flight == 300
    assert [g.rewards for g in first.groups] == [g.rewards for g in second.groups]
    training = {r.seed for r in collect(make_collector(codec, walk)).rollouts}
    assert not training & {r.seed for r in first.rollouts}


def test_wrappers_and_arguments_of_the_registration_are_honoured(codec: TextCodec) -> None:
    collector = make_collector(codec, walk, env_kwargs={"length": 2}, max_turns=7)
    assert collector.environments.max_turns == 7
    assert isinstance(collector.environments.prototype, gymnasium.wrappers.TimeLimit)


def test_failures_in_the_last_round_bring_the_others_back_into_the_baseline(codec: TextCodec) -> None:
    allocator = VigorAllocator(4, rounds=2, first_round_rollouts=2, fraction=1.0, exclude_selection_rounds=True)
    seeds: dict[str, list[int]] = {}

    def walks(prompt: str, seed: int) -> str:
        seeds.setdefault(prompt, []).append(seed)
        return f"end {seed % 2}"

    result = collect(make_collector(codec, walks, allocator=allocator))
    assert [[r.is_in_baseline for r in g.rollouts] for g in result.groups] == [[False, False, True, True]] * 3
    # The same step again, in which the last request of the first task fails.
    fatal = next(iter(seeds.values()))[-1]
    script = lambda prompt, seed: parts.engine_fails(prompt, seed) if seed == fatal else walks(prompt, seed)  # noqa: E731
    failed, *others = collect(make_collector(codec, script, allocator=allocator)).groups
    assert [r.is_valid for r in failed.rollouts].count(False) == 1
    assert [r.is_in_baseline for r in failed.rollouts] == [True] * 4
    assert all([r.is_in_baseline for r in g.rollouts] == [False, False, True, True] for g in others)
