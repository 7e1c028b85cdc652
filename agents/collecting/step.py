"""One collection: allocation rounds, groups in flight, replacements of stopped groups, until every episode is over."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from winnowrl.agents.collecting.group import GroupRun
from winnowrl.agents.collecting.outcome import StepRollouts, check_failure_rate
from winnowrl.agents.collecting.watchdog import Deadlines, Watchdog

if TYPE_CHECKING:
    from winnowrl.agents.collecting.contracts import AuditDraw, GateRule, TaskSource
    from winnowrl.agents.collecting.episode import Episode
    from winnowrl.agents.collecting.settings import EpisodeSettings
    from winnowrl.envs.tasks import Task

logger = logging.getLogger("winnowrl.collector")

MAX_GROUPS = 100_000
CLEANUP_S = 5.0
# From the rewards of the tasks so far and which of them were stopped, to the rollouts of the next round, or None.
NextRound = Callable[[Sequence[Sequence[float]], Sequence[bool]], "list[int] | None"]


class StepRun:
    """Collects one step; made anew for each.

    Args:
        settings: What its episodes share.
        step: Step number; group and rollout ids are numbered from it.
        policy_version: Version that must write every reply.
        seed_parts: What every seed of it is derived from, before the task: (run seed, step).
        deadlines: Seconds.
        failure_rate_limit: See :func:`check_failure_rate`; looked at after each round.
        gate: None stops no group.
        audit: Says which groups that the gate stops run on all the same; None for none.
        next_task: Where a stopped group's budget goes: called for a fresh task; None respends nothing.
        first_group: Groups of the same step that earlier collections made; ids and seeds go on behind them.
        on_episode_over: Called once for each episode that has ended, for progress.
    """

    def __init__(
        self,
        settings: EpisodeSettings,
        *,
        step: int,
        policy_version: int,
        seed_parts: tuple[int | str, ...],
        deadlines: Deadlines,
        failure_rate_limit: float = 1.0,
        gate: GateRule | None = None,
        audit: AuditDraw | None = None,
        next_task: TaskSource | None = None,
        first_group: int = 0,
        on_episode_over: Callable[[], object] | None = None,
    ) -> None:
        self._first_group, self._on_episode_over = first_group, on_episode_over
        self._settings, self._step, self._policy_version = settings, step, policy_version
        self._seed_parts, self._deadlines, self._failure_rate_limit = seed_parts, deadlines, failure_rate_limit
        self._gate, self._audit, self._next_task = gate, audit, next_task
        self._groups: list[GroupRun] = []
        self._replacements: list[GroupRun] = []
        self._occurrences: Counter[str] = Counter()
        self._live: set[Episode] = set()
        self._asyncio_tasks: set[asyncio.Task[None]] = set()
        self._num_live_in_round = 0
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()

    async def collect(self, tasks: Sequence[Task], first_round: Sequence[int], next_round: NextRound) -> StepRollouts:
        """Run all rounds. Whatever ends it, no episode is left in flight."""
        begun = perf_counter()
        has_workers = self._settings.environments.execution == "process"
        watchdog = Watchdog(self._live, self._deadlines, self._end_with, has_workers=has_workers)
        try:
            rounds = await self._run_rounds(tasks, first_round, next_round)
        finally:
            watchdog.stop()
            await self._clean_up()
        self._raise_fault()
        groups = [run.record for run in (*self._groups, *self._replacements)]
        result = StepRollouts(self._step, self._policy_version, groups, rounds)
        rollouts = result.rollouts
        result.failures = check_failure_rate(rollouts, self._failure_rate_limit)
        result.generate_s = sum(rollout.generate_s for rollout in rollouts)
        result.env_s = sum(rollout.env_s for rollout in rollouts)
        result.collect_s = perf_counter() - begun
        return result

    async def _run_rounds(self, tasks: Sequence[Task], first: Sequence[int], next_round: NextRound) -> list[int]:
        assert len(first) == len(tasks), f"the allocator laid out {len(first)} tasks of {len(tasks)}"
        self._groups = [self._make_group(task, number) for number, task in enumerate(tasks)]
        counts: Sequence[int] | None = first
        rounds: list[int] = []
        while counts is not None:
            new = [
                episode
                for group, count in zip(self._groups, counts, strict=True)
                for episode in group.add_members(count, len(rounds))
            ]
            rounds.append(len(new))
            self._start(new)
            await self._until(lambda: self._num_live_in_round == 0)
            check_failure_rate((r for group in self._groups for r in group.record.rollouts), self._failure_rate_limit)
            records = [group.record for group in self._groups]
            counts = next_round([record.rewards for record in records], [record.was_gated for record in records])
        await self._until(lambda: not self._live)
        return rounds

    def _make_group(self, task: Task, number: int) -> GroupRun:
        number += self._first_group
        assert number < MAX_GROUPS, f"a step has more than {MAX_GROUPS} groups"
        # A task that stands twice in a step gets other seeds the second time; so does one drawn in a refill.
        occurrence = self._occurrences[task.id]
        self._occurrences[task.id] += 1
        is_again = self._first_group or occurrence
        key = f"{task.id}#{self._first_group}.{occurrence}" if is_again else task.id
        return GroupRun(
            self._settings,
            task,
            self._step * MAX_GROUPS + number,
            self._policy_version,
            (*self._seed_parts, key),
            gate=self._gate,
            draw_audit=self._draw_audit,
            on_stopped=self._replace,
            on_over=self._on_over,
        )

    def _draw_audit(self, group: GroupRun) -> bool:
        return self._audit is not None and self._audit.should_audit(self._step, group.seed_key)

    def _replace(self, stopped: GroupRun) -> None:
        """Give a stopped group's rollouts to a fresh task, at once.

        The n-th stop draws the n-th fresh task, so which tasks are drawn does not depend on who stops first. At most as
        many groups are replaced as the step began with.
        """
        if self._next_task is None or len(self._replacements) >= len(self._groups):
            return
        task = self._next_task()
        if task is None:
            return
        fresh = self._make_group(task, len(self._groups) + len(self._replacements))
        fresh.record.is_replacement = True
        self._replacements.append(fresh)
        self._start(fresh.add_members(len(stopped.members), round_index=0))

    def _start(self, episodes: Iterable[Episode]) -> None:
        loop = asyncio.get_running_loop()
        for episode in episodes:
            self._live.add(episode)
            self._num_live_in_round += not episode.group.record.is_replacement
            episode.task = loop.create_task(episode.run())
            self._asyncio_tasks.add(episode.task)
            episode.task.add_done_callback(self._on_done)

    def _on_over(self, episode: Episode) -> None:
        self._live.remove(episode)
        self._num_live_in_round -= not episode.group.record.is_replacement
        if self._on_episode_over is not None:
            self._on_episode_over()
        if self._num_live_in_round == 0 or not self._live:
            self._changed.set()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._asyncio_tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._end_with(fault)

    def _end_with(self, fault: BaseException) -> None:
        """Have the step raise what is no episode's own failure; the first of several counts."""
        self._fault = self._fault or fault
        self._changed.set()

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while self._fault is None and not is_reached():
            self._changed.clear()
            await self._changed.wait()
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def _clean_up(self) -> None:
        """Let abandoned tasks end and give their instances back; what ends in spite of nothing is reported."""
        if not self._asyncio_tasks:
            return
        if self._live or self._fault is not None:
            for task in self._asyncio_tasks:
                task.cancel()
        _, stuck = await asyncio.wait(self._asyncio_tasks, timeout=CLEANUP_S)
        if stuck:
            logger.error("%d episode tasks did not end within %g s of being cancelled", len(stuck), CLEANUP_S)
