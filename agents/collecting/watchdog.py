"""Deadlines of all episodes in flight by one timer, and a report of the oldest while a step runs on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from winnowrl.agents.collecting.episode import ENGINE, GATE, LEASE, QUEUE, RESET, SLOT, STEP
from winnowrl.agents.errors import DeadlineExceeded

if TYPE_CHECKING:
    from winnowrl.agents.collecting.episode import Episode

logger = logging.getLogger("winnowrl.collector")

_WAITS_FOR = {
    SLOT: "a free slot",
    LEASE: "an environment worker",
    RESET: "the environment's reset",
    QUEUE: "the engine's queue",
    ENGINE: "the engine",
    STEP: "the environment's step",
    GATE: "the gate",
}
_UNTIMED_PHASES = (SLOT, QUEUE, GATE)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a turn's half (a reply, or the answer to it), an episode and a step may take.

    A wait for a slot, for a place in the engine's batch or for a gate says nothing of the episode: the step's deadline
    alone bounds it.
    """

    turn_s: float = 120.0
    episode_s: float = 900.0
    step_s: float = 3600.0
    report_every_s: float = 30.0


class Watchdog:
    """Looks at the episodes in flight a few times per deadline, so a turn arms no timer of its own.

    Args:
        live: The episodes in flight; read at every look.
        deadlines: Seconds.
        on_fault: Called with what a look raised: ending an episode runs the gate's and the caller's code.
        has_workers: Environment calls go to worker processes, whose own clock starts when they are sent: the time a
            call queues behind others is bounded by the episode deadline alone.
    """

    def __init__(
        self,
        live: Collection[Episode],
        deadlines: Deadlines,
        on_fault: Callable[[Exception], None],
        *,
        has_workers: bool = False,
    ) -> None:
        self._live, self._deadlines, self._on_fault = live, deadlines, on_fault
        self._timed_phases = frozenset({ENGINE} if has_workers else {ENGINE, RESET, STEP})
        self._every_s = min(1.0, max(0.01, min(deadlines.turn_s, deadlines.episode_s, deadlines.step_s) / 20))
        self._begun = self._reported = self._looked = perf_counter()
        self._stall = (0.0, 0.0)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._every_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        try:
            self._end_what_is_late()
        except Exception as fault:  # noqa: BLE001 - the event loop would only log it; the step raises it
            self._on_fault(fault)
        finally:
            self._timer = self._loop.call_later(self._every_s, self._look)

    def _end_what_is_late(self) -> None:
        now, deadlines = perf_counter(), self._deadlines
        stalled_s = now - self._looked - self._every_s
        self._looked = now
        if stalled_s > deadlines.turn_s / 2:
            self._stall = (now, stalled_s)
        is_step_over = now - self._begun > deadlines.step_s
        for episode in list(self._live):
            if is_step_over:
                what = f"the step took over {deadlines.step_s:g} s"
            elif episode.phase in self._timed_phases and now - episode.phase_since > deadlines.turn_s:
                what = f"{_WAITS_FOR[episode.phase]} took over {deadlines.turn_s:g} s{self._blame(episode)}"
            elif (
                episode.phase not in _UNTIMED_PHASES and now - episode.started - episode.waited_s > deadlines.episode_s
            ):
                what = f"the episode took over {deadlines.episode_s:g} s"
            else:
                continue
            episode.interrupt(DeadlineExceeded(f"{what} (turn {len(episode.rollout.turns) + 1})"))
        if now - self._reported > deadlines.report_every_s and self._live:
            self._reported = now
            logger.warning(self.report())

    def _blame(self, episode: Episode) -> str:
        """Names what held the event loop for most of the time the episode waited, if something did."""
        until, stalled_s = self._stall
        if until < episode.phase_since or not stalled_s:
            return ""
        return f", {stalled_s:.0f} s of it held up by an inline environment; set its `execution` to process"

    def report(self, num_oldest: int = 3) -> str:
        """The oldest episodes in flight and what they wait for."""
        now = perf_counter()
        phases = Counter(_WAITS_FOR.get(episode.phase, episode.phase) for episode in self._live)
        summary = ", ".join(f"{count} on {what}" for what, count in phases.most_common())
        oldest = sorted(self._live, key=lambda episode: episode.phase_since)[:num_oldest]
        lines = [f"{len(self._live)} episodes in flight after {now - self._begun:.0f} s: {summary}. Oldest:"]
        for episode in oldest:
            rollout = episode.rollout
            lines.append(
                f"  task {rollout.task_id} rollout {rollout.index}: turn {len(rollout.turns) + 1}, "
                f"{now - episode.phase_since:.1f} s on {_WAITS_FOR.get(episode.phase, episode.phase)}"
            )
        return "\n".join(lines)
