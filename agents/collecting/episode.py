"""One episode: the agent's replies and the environment's answers, until one of them, a budget or a gate ends it."""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from winnowrl.agents.errors import EngineFailure, EnvironmentFailure, ErrorRecord, RolloutError
from winnowrl.agents.rollout import Rollout, Turn

if TYPE_CHECKING:
    from winnowrl.agents.collecting.environments import Lease
    from winnowrl.agents.collecting.group import GroupRun
    from winnowrl.agents.collecting.settings import EpisodeSettings
    from winnowrl.agents.conversation import Conversation
    from winnowrl.agents.engines.base import Completion
    from winnowrl.agents.rollout import StopReason

# What an episode waits for; the watchdog reads it.
SLOT, LEASE, RESET, STEP = "slot", "worker", "reset", "step"
QUEUE, ENGINE, GATE, OVER = "queue", "engine", "gate", "over"


class Episode:
    """Runs one rollout. ``run`` never raises for what happens to the episode: that is recorded on the rollout."""

    __slots__ = (
        "_asked",
        "_conversation",
        "_lease",
        "_seeds",
        "group",
        "phase",
        "phase_since",
        "rollout",
        "settings",
        "started",
        "task",
        "waited_s",
    )

    def __init__(self, settings: EpisodeSettings, group: GroupRun, index: int, round_index: int) -> None:
        self.settings, self.group = settings, group
        self._seeds = group.seeds.child(index)
        record = group.record
        self.rollout = Rollout(
            task_id=record.task.id,
            group_id=record.group_id,
            index=index,
            seed=self._seeds.own(),
            policy_version=record.policy_version,
            task_type=record.task.task_type,
            rollout_id=record.group_id * 10_000 + index,
            round_index=round_index,
        )
        self.task: asyncio.Task[None] | None = None
        self.phase = SLOT
        self.started = self.phase_since = perf_counter()
        self.waited_s = 0.0
        self._asked = 0.0
        self._lease: Lease | None = None
        self._conversation: Conversation | None = None

    @property
    def is_over(self) -> bool:
        return self.rollout.stop_reason is not None

    def interrupt(self, error: RolloutError) -> None:
        """End the episode with ``error``, whatever it waits for; its engine request is aborted.

        The end is recorded here, not where the cancellation lands: a task that had not begun never hears of it, and
        one that does not heed it must not hold the step up.
        """
        if not self.is_over:
            try:
                self.end("error", error)
            finally:
                if self.task is not None:
                    self.task.cancel()

    async def run(self) -> None:
        """Play to the end. Only a cancellation from outside, or a fault of ours, is raised."""
        try:
            if not self.is_over:
                await self._enter()
                self.end(await self._play())
        except RolloutError as error:
            self.end("error", error)
        except asyncio.CancelledError:
            if not self.is_over:
                if self.task is not None and self.task.cancelling():
                    raise
                # Nobody cancelled this episode: what it waited for was torn down under it.
                self.end("error", EngineFailure(f"what it waited for ({self.phase}) was cancelled"))
        finally:
            self._leave()

    async def _enter(self) -> None:
        slots = self.settings.slots
        if slots is not None:
            await slots.acquire()
        self.started = self._enter_phase(LEASE)
        self._lease = await self.settings.environments.acquire(self.group.record.group_id)

    def _leave(self) -> None:
        holds_slot = self.phase not in (SLOT, GATE)
        if self._lease is not None:
            self._lease.release(is_sound=self.rollout.error is None and self.is_over)
            self._lease = None
        if self.settings.slots is not None and holds_slot:
            self.settings.slots.release()
        self._enter_phase(OVER)

    async def _play(self) -> StopReason:
        rollout, group, settings = self.rollout, self.group, self.settings
        conversation = self._conversation = settings.new_conversation()
        conversation.start(settings.environments.system_prompt, await self._reset())
        rollout.sequences = conversation.sequences
        turns = rollout.turns
        while (budget := conversation.reply_budget()) > 0:
            completion = await self._generate(conversation.prompt_ids, budget, self._seeds.seed(len(turns)))
            turn = conversation.add_reply(completion)
            turn.generate_s = self.phase_since - self._asked
            turns.append(turn)
            terminated, truncated = await self._step(turn)
            turn.env_s = perf_counter() - self.phase_since
            rollout.env_s += turn.env_s
            if terminated:
                rollout.terminated = True
                return "env_done"
            if truncated:
                rollout.truncated = True
                return "turn_limit" if len(turns) == settings.environments.max_turns else "env_done"
            conversation.add_observation(turn.observation)
            # A member without room for another reply has ended: nothing of it is left to save.
            if len(turns) == group.gate_turn and conversation.can_continue and not await self._pass_gate():
                return "gate"
        if not turns:
            raise EnvironmentFailure(
                "the first prompt leaves no room for a reply; raise conversation.context_tokens, or leave out tasks with "
                "longer prompts"
            )
        rollout.truncated = True
        return "token_limit"

    async def _generate(self, prompt_ids: list[int], budget: int, seed: int) -> Completion:
        """Ask the engine; afterwards the phase is the environment's, begun when the reply was there."""
        rollout = self.rollout
        self._asked = self._enter_phase(QUEUE)
        try:
            completion = await self.settings.generate(prompt_ids, budget, seed, self._on_admitted)
        except (RolloutError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise EngineFailure(f"the engine raised {type(error).__name__}: {error}") from error
        if rollout.stop_reason is not None:
            raise EngineFailure("the reply came after the episode had been given up")
        _check_completion(completion, rollout.policy_version)
        rollout.num_prefill_tokens += len(prompt_ids)
        rollout.num_cached_tokens += completion.num_cached_tokens
        rollout.generate_s += self._enter_phase(STEP) - self._asked
        return completion

    def _on_admitted(self) -> None:
        if self.phase == QUEUE:
            self.waited_s += self._enter_phase(ENGINE) - self._asked

    async def _reset(self) -> str:
        assert self._lease is not None
        begin = self._enter_phase(RESET)
        record = self.group.record
        try:
            result = self._lease.reset(record.env_seed, record.task)
            observation, _ = result if self._lease.is_inline else await result
        except (RolloutError, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"reset() raised {type(error).__name__}: {error}") from error
        if not isinstance(observation, str):
            raise EnvironmentFailure(
                f"reset() returned an observation of type {type(observation).__name__}, not a string"
            )
        self.rollout.env_s += perf_counter() - begin
        self.group.check_first_observation(self, observation)
        return observation

    async def _step(self, turn: Turn) -> tuple[bool, bool]:
        """Let the environment answer; returns terminated and truncated."""
        lease, rollout = self._lease, self.rollout
        assert lease is not None
        try:
            result = lease.step(turn.text)
            observation, reward, terminated, truncated, info = result if lease.is_inline else await result
        except (RolloutError, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"step() raised {type(error).__name__}: {error}") from error
        if rollout.stop_reason is not None:
            raise EnvironmentFailure("the answer came after the episode had been given up")
        try:
            turn.reward = float(reward)
            self._read_info(turn, info, is_last=terminated or truncated)
        except (TypeError, ValueError, AttributeError) as error:
            raise EnvironmentFailure(
                f"step() returned the reward {reward!r} or an info that cannot be read: {error}"
            ) from error
        # Not a number fails the comparison too.
        if not isinstance(observation, str) or not abs(turn.reward) <= LARGEST_REWARD:
            raise EnvironmentFailure(
                f"step() returned an observation of type {type(observation).__name__} and the reward {reward!r}; "
                f"allowed: a string and a number within ±{LARGEST_REWARD:g}"
            )
        turn.observation = observation
        rollout.reward += turn.reward
        return bool(terminated), bool(truncated)

    def _read_info(self, turn: Turn, info: dict[str, Any], *, is_last: bool) -> None:
        rollout = self.rollout
        turn.action = str(info.get("action", turn.text))
        for name, value in info.get("reward_parts", {}).items():
            rollout.reward_parts[name] = rollout.reward_parts.get(name, 0.0) + float(value)
        if (verdict := info.get("verdict")) is not None:
            rollout.verdict, rollout.verdict_reason = verdict.status, verdict.reason
        if (success := info.get("success")) is not None:
            rollout.success = bool(success)
        # A reply that ended by itself keeps its end token in the loss.
        if turn.finish_reason == "length" and (loss_text_end := info.get("loss_text_end")) is not None:
            assert self._conversation is not None
            turn.loss_end = self._conversation.token_at(turn, int(loss_text_end))
        if is_last:
            rollout.info = {name: value for name, value in info.items() if name not in _OWN_FIELDS}

    async def _pass_gate(self) -> bool:
        """Wait for the group's decision at turn K; the slot is free for others meanwhile. False: the group stops."""
        decision = self.group.arrive(self)
        if isinstance(decision, bool):
            return decision
        slots, begin = self.settings.slots, self._enter_phase(GATE)
        if slots is not None:
            slots.release()
        goes_on = await decision
        if goes_on and slots is not None:
            await slots.acquire()
            self.waited_s += self._enter_phase(STEP) - begin
        elif goes_on:
            self.waited_s += perf_counter() - begin
        return goes_on

    def end(self, reason: StopReason, error: RolloutError | None = None) -> None:
        """Record what ended the episode, once; what comes later is not heard."""
        rollout = self.rollout
        if self.is_over:
            return
        rollout.was_request_lost = self.phase == ENGINE
        rollout.stop_reason = reason
        rollout.total_s = perf_counter() - self.started
        if error is not None:
            rollout.error = ErrorRecord.of(error)
        self.group.member_over(self)

    def _enter_phase(self, phase: str) -> float:
        now = perf_counter()
        self.phase, self.phase_since = phase, now
        return now


# Beyond it, variances of rewards leave float32.
LARGEST_REWARD = 1e15

_OWN_FIELDS = frozenset({"action", "admissible_actions", "reward_parts", "verdict", "success", "loss_text_end"})


def _check_completion(completion: Completion | None, policy_version: int) -> None:
    if completion is None or not completion.token_ids:
        raise EngineFailure("the engine returned nothing")
    if len(completion.logprobs) != len(completion.token_ids):
        raise EngineFailure(
            f"the engine returned {len(completion.token_ids)} tokens and {len(completion.logprobs)} log-probabilities"
        )
    # Not a number throughout: an engine that has none to give, which serves evaluations alone.
    if not math.isfinite(sum(completion.logprobs)) and not all(map(math.isnan, completion.logprobs)):
        raise EngineFailure(
            f"the engine returned a log-probability that is not finite in a reply of policy version "
            f"{completion.policy_version}"
        )
    if completion.finish_reason == "abort":
        raise EngineFailure("the engine aborted the request")
    if completion.policy_version != policy_version:
        raise EngineFailure(
            f"the reply was written by policy version {completion.policy_version}; the step collects version {policy_version}"
        )
