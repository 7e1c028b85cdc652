"""One group in flight: its members, its common start, and the barrier at which a gate judges it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from winnowrl.agents.collecting.episode import Episode
from winnowrl.agents.errors import EnvironmentFailure, ErrorRecord
from winnowrl.agents.rollout import Group
from winnowrl.agents.seeding import SeedStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from winnowrl.agents.collecting.contracts import GateRule
    from winnowrl.agents.collecting.settings import EpisodeSettings
    from winnowrl.envs.tasks import Task


class GroupRun:
    """Members of one task. A gate judges the group once, in the first round that gives it members.

    The barrier is the group's own: it is reached when every live member has taken K actions or has ended, and members
    that are there wait without writing on, so a stop wastes no token.

    Args:
        settings: What all episodes of the step share.
        task: The task of the group.
        group_id: Unique in the run.
        policy_version: Of the weights that write it.
        seed_parts: What the group's seeds are derived from: run seed, step, task.
        gate: None judges no group.
        draw_audit: Called when the gate stops the group; True lets it run on.
        on_stopped: Called when the group is stopped.
        on_over: Called with each member that has ended.
    """

    def __init__(
        self,
        settings: EpisodeSettings,
        task: Task,
        group_id: int,
        policy_version: int,
        seed_parts: tuple[int | str, ...],
        *,
        gate: GateRule | None,
        draw_audit: Callable[[GroupRun], bool],
        on_stopped: Callable[[GroupRun], None],
        on_over: Callable[[Episode], None],
    ) -> None:
        self._settings, self._gate = settings, gate
        self._draw_audit, self._on_stopped, self._on_over = draw_audit, on_stopped, on_over
        self.seed_key, self.seeds = str(seed_parts[-1]), SeedStream(*seed_parts)
        self.record = Group(
            group_id,
            task,
            policy_version,
            gate_turn=None if gate is None else gate.turn,
            env_id=settings.environments.env_id,
            env_seed=self.seeds.own(),
        )
        self.gate_turn = self.record.gate_turn or 0
        self.members: list[Episode] = []
        self._waiting: dict[Episode, asyncio.Future[bool]] = {}
        self._goes_on: bool | None = None
        self._first_observation: str | None = None

    def add_members(self, count: int, round_index: int) -> list[Episode]:
        """Create ``count`` further episodes; they are to be started together."""
        first = len(self.members)
        new = [Episode(self._settings, self, first + offset, round_index) for offset in range(count)]
        self.members += new
        self.record.rollouts += [episode.rollout for episode in new]
        return new

    def arrive(self, episode: Episode) -> asyncio.Future[bool] | bool:
        """A live member has taken K actions: whether the group goes on, or a future of that."""
        if self._goes_on is None:
            # One future for each: cancelling a task cancels what it waits for.
            self._waiting[episode] = asyncio.get_running_loop().create_future()
            self._judge_when_complete()
        return self._waiting[episode] if self._goes_on is None else self._goes_on

    def member_over(self, episode: Episode) -> None:
        """A member has ended, for whatever reason."""
        if self._gate is not None and self._goes_on is None:
            self._waiting.pop(episode, None)
            self._judge_when_complete()
        self._on_over(episode)

    def _judge_when_complete(self) -> None:
        num_over = sum(episode.is_over for episode in self.members)
        if num_over + len(self._waiting) < len(self.members):
            return
        self._goes_on = self._judge()
        waiting, self._waiting = self._waiting, {}
        for decision in waiting.values():
            if not decision.done():
                decision.set_result(self._goes_on)

    def _judge(self) -> bool:
        assert self._gate is not None
        record = self.record
        judged = [episode for episode in self.members if episode.rollout.error is None]
        decision = self._gate.decide(
            [episode.rollout.actions for episode in judged], [episode.is_over for episode in judged]
        )
        record.gate_distance, record.gate_reason = decision.distance, decision.reason
        record.gate_stop = decision.stop and bool(self._waiting)
        if decision.stop and not self._waiting:
            record.gate_reason += "; all members have ended: nothing to stop"
        if not record.gate_stop:
            return True
        record.is_audit = self._draw_audit(self)
        if record.is_audit:
            return True
        record.was_gated = True
        self._on_stopped(self)
        return False

    def check_first_observation(self, episode: Episode, observation: str) -> None:
        """All members start from one state. If one does not, which of them is right is not known: all have failed."""
        if self._first_observation is None:
            self._first_observation = observation
        elif observation != self._first_observation:
            error = EnvironmentFailure(
                f"members of the group of task {self.record.task.id!r}, reset with the same task and seed, started from "
                f"different observations ({_difference(self._first_observation, observation)}); reset() must depend on "
                "the task and the seed alone"
            )
            self._fail_all(error, besides=episode)
            raise error

    def _fail_all(self, error: EnvironmentFailure, besides: Episode) -> None:
        for episode in self.members:
            if episode.is_over:
                episode.rollout.stop_reason, episode.rollout.error = "error", ErrorRecord.of(error)
            elif episode is not besides:
                episode.interrupt(error)


def _difference(first: str, second: str) -> str:
    position = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    around = slice(max(0, position - 20), position + 20)
    return f"at character {position}: {first[around]!r} and {second[around]!r}"
