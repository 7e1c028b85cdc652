"""Faults of every kind together: the step ends in time, nothing is lost or counted twice, nothing is left behind."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from winnowrl.agents.ledger import Ledger
from winnowrl.agents.seeding import derive_seed
from winnowrl.agents.text_codec import TextCodec
from winnowrl.envs.tasks import Task
from winnowrl.gates import GateDecision, PrefixEditDistanceGate

sys.path.insert(0, str(Path(__file__).parent))
parts = importlib.import_module("collector_parts")

KINDS = ("raises", "hangs", "worker dies", "engine errors", "returns nothing", "verifier undecided")


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return parts.make_codec(tmp_path_factory.mktemp("tokenizer"))


def make_script(percent: int, hang_s: float) -> Any:
    """Each kind of fault befalls ``percent`` % of the replies of a second turn, decided by the reply's seed."""

    def script(prompt: str, seed: int) -> Any:
        if "saw" not in prompt or prompt.count("saw") > 1:
            return "go on"
        number = seed % 100 // percent if percent else len(KINDS)
        kind = KINDS[number] if number < len(KINDS) else ""
        replies = {
            "raises": "raise",
            "hangs": f"sleep {hang_s}",
            "worker dies": "die",
            "verifier undecided": "undecided",
        }
        if kind == "engine errors":
            return parts.engine_fails(prompt, seed)
        if kind == "returns nothing":
            return None
        return replies.get(kind, f"end {seed % 2}")

    return script


def expected_kind(run_seed: int, rollout: Any, percent: int) -> str:
    number = derive_seed(run_seed, 0, rollout.task_id, rollout.index, 1) % 100 // percent
    return KINDS[number] if number < len(KINDS) else ""


def open_files() -> set[str]:
    return {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}


def run_faulty(codec: TextCodec, *, num_tasks: int, group_size: int, percent: int, **config: Any) -> None:
    before, in_temp = open_files(), set(os.listdir(tempfile.gettempdir()))
    collector = parts.make_collector(
        codec, make_script(percent, hang_s=600), env="ProcessWalk", rollouts_per_task=group_size, **config
    )
    tasks = [Task(f"t{i}", f"walk {i}:", metadata={"task_type": f"type{i % 3}"}) for i in range(num_tasks)]

    async def play() -> Any:
        result = await collector.collect(tasks, step=0, policy_version=0)
        await collector.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    result = asyncio.run(play())
    # Nothing lost, nothing twice.
    assert len(result.rollouts) == num_tasks * group_size == len({r.rollout_id for r in result.rollouts})
    assert all(r.stop_reason is not None for r in result.rollouts)
    # Each episode ends as its own reply decides; a neighbour's crash or hang costs it nothing.
    seen = dict.fromkeys((*KINDS, ""), 0)
    for rollout in result.rollouts:
        kind = expected_kind(0, rollout, percent)
        seen[kind] += 1
        error = (rollout.error.kind, rollout.error.message) if rollout.error else ("", "")
        wanted = {
            "raises": ("environment", "the walker fell"),
            "hangs": ("timeout", "step() took over"),
            "worker dies": ("environment", "exited with code 3"),
            "engine errors": ("engine", "out of memory"),
            "returns nothing": ("engine", "returned nothing"),
        }.get(kind, ("", ""))
        assert error[0] == wanted[0], (kind, error)
        assert wanted[1] in error[1]
        assert (rollout.verdict == "undecided") == (kind == "verifier undecided")
    assert all(seen.values()), f"a kind of fault never showed: {seen}"
    ledger = Ledger()
    ledger.record_collection(result)
    assert ledger.total.generated == result.num_completion_tokens
    assert ledger.total.num_rollouts == len(result.rollouts)
    ledger.record_update(
        {r.rollout_id: r.num_completion_tokens for g in result.informative_groups for r in g.valid_rollouts}
    )
    # No process, no file, no open descriptor.
    assert not psutil.Process().children(recursive=True)
    assert {path for path in open_files() - before if "socket:" in path or "/tmp" in path} == set()
    assert not {name for name in set(os.listdir(tempfile.gettempdir())) - in_temp if "winnowrl" in name}


def test_faults_of_every_kind_together(codec: TextCodec) -> None:
    begun = time.monotonic()
    run_faulty(codec, num_tasks=8, group_size=5, percent=10, num_env_workers=2, turn_deadline_s=1.0)
    assert time.monotonic() - begun < 60


class QueueEngine(parts.ScriptEngine):  # type: ignore[misc, name-defined]
    """Takes 0.05 s a reply and writes one at a time; one that says "hang" never comes."""

    async def generate(self, prompt_ids: Any, sampling: Any, seed: int, on_admitted: Any = None) -> Any:
        async with self.place:
            on_admitted()
            reply = await super().generate(prompt_ids, sampling, seed)
            await asyncio.sleep(60 if "hang" in self.codec.decode(reply.token_ids) else 0.05)
            return reply


def collect_through_queue(codec: TextCodec, num_hanging: int, **deadlines: float) -> list[Any]:
    """16 episodes of two turns, all together in flight: 1.6 s of writing, and most of each episode in the queue."""
    replies = iter(["hang"] * num_hanging + ["go"] * 32)
    engine = QueueEngine(codec, lambda p, s: next(replies))
    engine.place = asyncio.Semaphore(1)
    collector = parts.make_collector(codec, None, engine=engine, env_kwargs={"length": 2}, **deadlines)
    rollouts: list[Any] = parts.collect(collector, 4).rollouts
    return rollouts


@pytest.mark.parametrize("num_hanging", [0, 1])
def test_time_in_the_engines_queue_costs_no_turn_and_no_episode_its_deadline(
    codec: TextCodec, num_hanging: int
) -> None:
    rollouts = collect_through_queue(codec, num_hanging, turn_deadline_s=0.5, episode_deadline_s=0.7)
    failed = [rollout for rollout in rollouts if rollout.error]
    assert len(failed) == num_hanging
    assert all("the engine took over 0.5 s (turn 1)" in rollout.error.message for rollout in failed)
    assert all(rollout.was_request_lost for rollout in failed)


def test_the_steps_deadline_ends_what_is_still_in_the_engines_queue(codec: TextCodec) -> None:
    rollouts = collect_through_queue(codec, 0, turn_deadline_s=0.4, episode_deadline_s=0.4, step_deadline_s=0.4)
    assert sum("the step took over 0.4 s" in rollout.error.message for rollout in rollouts if rollout.error) > 8
    # A request that never left the queue has lost no token.
    assert sum(rollout.was_request_lost for rollout in rollouts) <= 1


class BrokenGate:
    """A third party's gate with a bug."""

    turn = 2

    def decide(self, action_prefixes: Any, finished: Any) -> GateDecision:
        raise ZeroDivisionError("no members")


def break_off(*_: Any) -> Any:
    raise BrokenPipeError("the reader of the progress is gone")


FAULTS: dict[str, tuple[type[Exception], dict[str, Any], dict[str, Any]]] = {
    "the gate": (ZeroDivisionError, {"gate": BrokenGate()}, {}),
    "the task source": (BrokenPipeError, {"gate": PrefixEditDistanceGate(turn=2)}, {"next_task": break_off}),
    "the progress": (BrokenPipeError, {}, {"on_episode_over": break_off}),
}


# A group that failed as a whole is not stopped, so no task takes its place.
@pytest.mark.parametrize(
    ("what", "hangs"),
    [(what, hangs) for what in FAULTS for hangs in (0, 1, 4) if (what, hangs) != ("the task source", 4)],
)
def test_a_fault_in_what_the_caller_gave_ends_the_step_at_once(codec: TextCodec, what: str, hangs: int) -> None:
    kind, gating, arguments = FAULTS[what]
    calls: list[int] = []

    async def script(prompt: str, seed: int) -> str:
        # With hanging members it is the watchdog that runs the faulty code, as it ends them.
        calls.append(seed)
        await asyncio.sleep(60 if len(calls) <= hangs else 0)
        return "go"

    collector = parts.make_collector(codec, script, turn_deadline_s=0.2, episode_deadline_s=30, **gating)

    async def play() -> None:
        tasks = collector.task_set("train")[:1]
        with pytest.raises(kind):
            await asyncio.wait_for(collector.collect(tasks, step=0, policy_version=0, **arguments), 20)
        assert collector.engine.num_in_flight == 0
        await collector.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    begun = time.monotonic()
    asyncio.run(play())
    assert time.monotonic() - begun < 4, "waited for something that had ended"


def test_the_watchdog_ends_with_a_collection_whose_clean_up_is_cancelled(codec: TextCodec, caplog: Any) -> None:
    async def deaf(prompt: str, seed: int) -> str:
        for _ in range(8):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "late"

    collector = parts.make_collector(codec, deaf, report_every_s=0.05, turn_deadline_s=0.5)

    async def play() -> None:
        collection = asyncio.create_task(collector.collect(collector.task_set("train")[:1], step=0, policy_version=0))
        for _ in range(2):
            await asyncio.sleep(0.1)
            collection.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collection
        caplog.clear()
        await asyncio.sleep(0.3)
        await collector.close()

    asyncio.run(play())
    assert "episodes in flight" not in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_episodes_with_five_percent_of_each_fault(codec: TextCodec) -> None:
    begun = time.monotonic()
    run_faulty(
        codec,
        num_tasks=625,
        group_size=8,
        percent=5,
        num_env_workers=8,
        max_concurrent_episodes=16,
        turn_deadline_s=1.0,
        episode_deadline_s=600,
    )
    assert time.monotonic() - begun < 1500
