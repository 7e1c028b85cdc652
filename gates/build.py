"""From the ``gate`` and ``allocator`` sections of a configuration to objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winnowrl.gates.allocation import UniformAllocator, VigorAllocator, VipAllocator
from winnowrl.gates.audit import AuditLedger, AuditSampler
from winnowrl.gates.edit_distance import PrefixEditDistanceGate
from winnowrl.gates.two_axis import TwoAxisGate

if TYPE_CHECKING:
    from collections.abc import Callable

    from winnowrl.configs.sections.allocator import AllocatorConfig
    from winnowrl.configs.sections.gate import GateConfig
    from winnowrl.gates.allocation import Allocator
    from winnowrl.gates.base import Gate


def _prefix_edit_distance(config: GateConfig) -> Gate:
    return PrefixEditDistanceGate(
        turn=config.turn,
        threshold=config.threshold,
        padding=config.padding,
        termination_fraction=config.termination_fraction,
    )


def _two_axis(config: GateConfig) -> Gate:
    return TwoAxisGate(
        turn=config.turn,
        distance_low=config.distance_low,
        distance_high=config.distance_high,
        termination_low=config.termination_low,
        termination_high=config.termination_high,
        padding=config.padding,
    )


def _uniform(config: AllocatorConfig, rollouts_per_task: int) -> Allocator:
    return UniformAllocator(rollouts_per_task)


def _vigor(config: AllocatorConfig, rollouts_per_task: int) -> Allocator:
    return VigorAllocator(
        rollouts_per_task,
        rounds=config.rounds,
        first_round_rollouts=config.first_round_rollouts,
        fraction=config.fraction,
        growth=config.growth,
        skip_zero_variance=config.skip_zero_variance,
        exclude_selection_rounds=config.exclude_selection_rounds,
    )


def _vip(config: AllocatorConfig, rollouts_per_task: int) -> Allocator:
    return VipAllocator(
        rollouts_per_task,
        least=config.least_rollouts,
        most=config.most_rollouts,
        objective=config.objective,
        length_scale=config.length_scale,
        clip=config.success_clip,
        reward_low=config.reward_low,
        reward_high=config.reward_high,
    )


GATES: dict[str, Callable[[GateConfig], Gate]] = {"prefix_edit_distance": _prefix_edit_distance, "two_axis": _two_axis}
ALLOCATORS: dict[str, Callable[[AllocatorConfig, int], Allocator]] = {
    "uniform": _uniform,
    "vigor": _vigor,
    "vip": _vip,
}


def build_gate(config: GateConfig) -> Gate | None:
    """The configured gate; None where ``type`` is none."""
    return None if config.type == "none" else GATES[config.type](config)


def build_allocator(config: AllocatorConfig, tasks_per_step: int, rollouts_per_task: int) -> Allocator:
    """The configured allocator for steps of ``tasks_per_step`` x ``rollouts_per_task`` rollouts.

    Raises:
        ValueError: its schedule or bounds do not fit ``rollouts_per_task``.
    """
    if tasks_per_step < 1:
        raise ValueError(f"collector.tasks_per_step is {tasks_per_step}; allowed: 1 or more")
    return ALLOCATORS[config.type](config, rollouts_per_task)


def build_audit(config: GateConfig, seed: int) -> tuple[AuditSampler, AuditLedger]:
    """What decides which stopped groups run on, and what counts how they end."""
    sampler = AuditSampler(config.audit_fraction, seed)
    return sampler, AuditLedger(precision_floor=config.precision_floor, window=config.audit_window)
