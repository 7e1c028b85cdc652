"""Collects the rollouts of a step, and those of an evaluation, with every live episode in flight together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from winnowrl.agents.collecting.environments import EnvironmentPool
from winnowrl.agents.collecting.outcome import FailureRateError, StepRollouts
from winnowrl.agents.collecting.settings import EpisodeSettings
from winnowrl.agents.collecting.step import StepRun
from winnowrl.agents.collecting.watchdog import Deadlines

if TYPE_CHECKING:
    from winnowrl.agents.collecting.contracts import AuditDraw, GateRule, RolloutAllocator, TaskSource
    from winnowrl.agents.conversation import Conversation
    from winnowrl.agents.engines.base import Engine, Sampling
    from winnowrl.agents.rollout import Group
    from winnowrl.configs.sections.collector import CollectorConfig
    from winnowrl.envs.tasks import Task, TaskSet

__all__ = ["Collector", "FailureRateError", "StepRollouts", "build_collector"]


class Collector:
    """Runs groups of episodes against one engine and one environment. Use it from one event loop.

    Args:
        engine: Writes the replies.
        environments: Lends environment instances, which are reused from step to step.
        new_conversation: Makes the conversation of one episode.
        sampling: How replies are drawn in training.
        run_seed: Every seed is derived from it.
        allocator: Lays out the rollouts of a step.
        gate: Stops groups in flight; None stops none, and changes nothing else.
        audit: Which stopped groups run on all the same.
        deadlines: Seconds a turn, an episode and a step may take.
        max_concurrent_episodes: 0 sets no limit.
        failure_rate_limit: A step of which a larger share fails raises :class:`FailureRateError`.
    """

    def __init__(
        self,
        engine: Engine,
        environments: EnvironmentPool,
        new_conversation: Callable[[], Conversation],
        sampling: Sampling,
        *,
        run_seed: int,
        allocator: RolloutAllocator,
        gate: GateRule | None = None,
        audit: AuditDraw | None = None,
        deadlines: Deadlines | None = None,
        max_concurrent_episodes: int = 0,
        failure_rate_limit: float = 0.5,
    ) -> None:
        self.engine, self.environments, self._new_conversation = engine, environments, new_conversation
        self.sampling, self.run_seed, self.allocator = sampling, run_seed, allocator
        self.gate, self.audit = gate, audit
        self._deadlines = deadlines or Deadlines()
        self._max_concurrent, self._failure_rate_limit = max_concurrent_episodes, failure_rate_limit

    def task_set(self, split: str) -> TaskSet:
        """Tasks of a split of the environment."""
        return self.environments.task_set(split)

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        policy_version: int,
        features: Any = None,
        next_task: TaskSource | None = None,
        first_group: int = 0,
        on_episode_over: Callable[[], object] | None = None,
    ) -> StepRollouts:
        """The groups of one step: the allocator's rounds, all written by one policy version.

        Args:
            tasks: One group each.
            step: Seeds and ids are derived from it; the same step of the same run collects the same rollouts.
            policy_version: Version the engine carries; a reply written by another one is a failure.
            features: [len(tasks), D] for an allocator that predicts from them.
            next_task: Called for a fresh task that takes the rollouts of a stopped group; None leaves them unspent.
            first_group: Groups that earlier collections of the same step made (a refill goes on behind them).
            on_episode_over: Called once for each episode that has ended, for progress.

        Raises:
            ValueError: no tasks, or the engine carries another version.
            FailureRateError: more rollouts failed than the limit allows.
        """
        if not tasks:
            raise ValueError("tasks is empty; a step needs at least one")
        if self.engine.policy_version != policy_version:
            raise ValueError(
                f"policy_version is {policy_version} and the engine carries {self.engine.policy_version}; load the "
                "weights of that version into the engine before collecting"
            )
        allocator = self.allocator
        first_round = allocator.first_round(len(tasks), features)
        if next_task is not None and len(set(first_round)) > 1:
            raise ValueError(
                "next_task respends the rollouts of stopped groups, which needs first rounds of equal size; this allocator "
                f"laid out {min(first_round)} to {max(first_round)}: set gate.respend to false"
            )
        run = self._new_run(
            step,
            policy_version,
            self.sampling,
            gate=self.gate,
            audit=self.audit,
            next_task=next_task,
            first_group=first_group,
            on_episode_over=on_episode_over,
        )
        result = await run.collect(tasks, first_round, allocator.next_round)
        groups = result.groups[: len(tasks)]
        for group, mask in zip(groups, allocator.baseline_masks(), strict=True):
            _apply_baseline_mask(group, mask)
        if features is not None:
            allocator.observe(features, [group.rewards for group in groups], [group.was_gated for group in groups])
        return result

    async def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        samples_per_task: int = 1,
        sampling: Sampling | None = None,
        label: str = "evaluation",
        on_episode_over: Callable[[], object] | None = None,
    ) -> StepRollouts:
        """``samples_per_task`` rollouts of each task, all in flight together, under the engine's present weights.

        The same episodes as in training, without gate, allocator or audit. Seeds are derived from (run seed, ``label``,
        task, sample), so two evaluations of one policy agree, and none shares its seeds with a training step.
        """
        run = self._new_run(
            0, self.engine.policy_version, sampling or self.sampling, label=label, on_episode_over=on_episode_over
        )
        return await run.collect(tasks, [samples_per_task] * len(tasks), lambda rewards, stopped: None)

    def _new_run(
        self, step: int, policy_version: int, sampling: Sampling, *, label: str | None = None, **parts: Any
    ) -> StepRun:
        settings = EpisodeSettings(
            self.engine, self.environments, self._new_conversation, sampling, self._max_concurrent
        )
        return StepRun(
            settings,
            step=step,
            policy_version=policy_version,
            seed_parts=(self.run_seed, step if label is None else label),
            deadlines=self._deadlines,
            failure_rate_limit=self._failure_rate_limit,
            **parts,
        )

    async def close(self) -> None:
        """Close the environments and their workers, not the engine; calling it twice is fine."""
        await self.environments.close()


def _apply_baseline_mask(group: Group, mask: Sequence[bool]) -> None:
    """Keep rounds out of a group's baseline, unless failures left fewer than two valid rewards in what would remain."""
    pairs = list(zip(group.rollouts, mask, strict=True))
    is_enough = sum(is_in_baseline and rollout.is_valid for rollout, is_in_baseline in pairs) >= 2
    for rollout, is_in_baseline in pairs:
        rollout.is_in_baseline = is_in_baseline or not is_enough


def build_collector(
    config: CollectorConfig,
    *,
    engine: Engine,
    new_conversation: Callable[[], Conversation],
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    sampling: Sampling,
    allocator: RolloutAllocator,
    run_seed: int,
    gate: GateRule | None = None,
    audit: AuditDraw | None = None,
) -> Collector:
    """A collector from the ``collector`` section and the objects it works with; see :class:`Collector`."""
    environments = EnvironmentPool(
        env_id,
        env_kwargs,
        max_turns=config.max_turns,
        num_workers=config.num_env_workers,
        deadline_s=config.turn_deadline_s,
    )
    deadlines = Deadlines(
        config.turn_deadline_s, config.episode_deadline_s, config.step_deadline_s, config.report_every_s
    )
    return Collector(
        engine,
        environments,
        new_conversation,
        sampling,
        run_seed=run_seed,
        allocator=allocator,
        gate=gate,
        audit=audit,
        deadlines=deadlines,
        max_concurrent_episodes=config.max_concurrent_episodes,
        failure_rate_limit=config.failure_rate_limit,
    )
