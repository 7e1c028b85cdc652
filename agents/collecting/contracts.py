"""What the collector needs of the parts it is given, beside the engine: gates, audits, allocators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from winnowrl.envs.tasks import Task
    from winnowrl.gates.base import GateDecision


class GateRule(Protocol):
    """Judges a group at turn K; see :class:`winnowrl.gates.base.Gate`."""

    @property
    def turn(self) -> int: ...
    def decide(self, action_prefixes: Sequence[Sequence[str]], finished: Sequence[bool]) -> GateDecision: ...


class AuditDraw(Protocol):
    """Lets some stopped groups run on; see :class:`winnowrl.gates.audit.AuditSampler`."""

    def should_audit(self, step: int, task_id: str) -> bool: ...


class RolloutAllocator(Protocol):
    """Hands out the rollouts of a step in rounds; see :class:`winnowrl.gates.allocation.base.Allocator`."""

    def first_round(self, num_tasks: int, features: Any = None) -> list[int]: ...
    def next_round(self, rewards_so_far: Sequence[Sequence[float]], stopped: Sequence[bool]) -> list[int] | None: ...
    def observe(self, features: Any, rewards: Sequence[Sequence[float]], stopped: Sequence[bool]) -> None: ...
    def baseline_masks(self) -> list[list[bool]]: ...


TaskSource = Callable[[], "Task | None"]
