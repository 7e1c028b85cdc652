import dataclasses

import pytest

from winnowrl.configs.sections.allocator import AllocatorConfig
from winnowrl.configs.sections.gate import GateConfig
from winnowrl.gates import (
    PrefixEditDistanceGate,
    TwoAxisGate,
    UniformAllocator,
    VigorAllocator,
    VipAllocator,
    build_allocator,
    build_audit,
    build_gate,
)
from winnowrl.gates.build import ALLOCATORS, GATES


def test_no_gate_by_default():
    assert build_gate(GateConfig()) is None


def test_gates_take_their_settings():
    config = GateConfig(type="prefix_edit_distance", turn=7, threshold=0.3, padding="none", termination_fraction=0.8)
    assert build_gate(config) == PrefixEditDistanceGate(7, 0.3, "none", 0.8)
    config = GateConfig(type="two_axis", turn=7, distance_low=0.2, distance_high=0.5, termination_low=0.1)
    assert build_gate(config) == TwoAxisGate(7, 0.2, 0.5, 0.1, 0.9, "end")


def test_allocators_take_their_settings():
    assert isinstance(build_allocator(AllocatorConfig(), 4, 8), UniformAllocator)
    vigor = build_allocator(
        AllocatorConfig(type="vigor", rounds=2, first_round_rollouts=4, fraction=0.25, growth=4), 64, 8
    )
    assert isinstance(vigor, VigorAllocator)
    assert vigor.plan(64) == [(64, 256), (16, 256)]
    vip = build_allocator(AllocatorConfig(type="vip", objective="rloo", least_rollouts=2, most_rollouts=9), 4, 8)
    assert isinstance(vip, VipAllocator)
    assert (vip.least, vip.most, vip.objective) == (2, 9, "rloo")
    assert vip.needs_features
    assert not vigor.needs_features


def test_the_audit_takes_its_settings():
    sampler, ledger = build_audit(GateConfig(type="two_axis", audit_fraction=0.25, precision_floor=0.7), seed=3)
    assert (sampler.fraction, sampler.seed, ledger.precision_floor) == (0.25, 3, 0.7)


@pytest.mark.parametrize("config", [GateConfig, AllocatorConfig])
def test_every_type_is_built_and_names_real_fields(config):
    fields = {field.name for field in dataclasses.fields(config)}
    assert all(set(names) <= fields for names in config.TYPES.values())
    used = {name for names in config.TYPES.values() for name in names}
    assert used | {"type"} == fields
    assert set(config.TYPES) - {"none"} == set(GATES if config is GateConfig else ALLOCATORS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"type": "hamming"}, "gate.type is 'hamming'; allowed: none, prefix_edit_distance, two_axis"),
        ({"turn": 0}, "gate.turn is 0"),
        ({"threshold": 0.0}, "gate.threshold is 0"),
        ({"padding": "left"}, "gate.padding is 'left'"),
        ({"termination_fraction": 2.0}, "gate.termination_fraction is 2"),
        ({"audit_fraction": -0.1}, "gate.audit_fraction is -0.1"),
        ({"precision_floor": 1.1}, "gate.precision_floor is 1.1"),
        ({"audit_window": 0}, "gate.audit_window is 0"),
        ({"distance_low": 0.7}, "gate.distance_low is 0.7 and gate.distance_high 0.6"),
        ({"termination_low": 0.95}, "gate.termination_low is 0.95"),
    ],
)
def test_gate_settings_out_of_range_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        GateConfig(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"type": "greedy"}, "allocator.type is 'greedy'; allowed: uniform, vigor, vip"),
        ({"rounds": 0}, "allocator.rounds is 0"),
        ({"first_round_rollouts": 1}, "allocator.first_round_rollouts is 1; allowed: 2"),
        ({"fraction": 0.0}, "allocator.fraction is 0"),
        ({"growth": -1.0}, "allocator.growth is -1"),
        ({"objective": "grpo"}, "allocator.objective is 'grpo'"),
        ({"least_rollouts": 2}, "allowed with dr_grpo: 3 <= least <= most"),
        ({"most_rollouts": 2}, "allocator.most_rollouts 2"),
        ({"length_scale": 0.0}, "allocator.length_scale is 0"),
        ({"success_clip": 0.5}, "allocator.success_clip is 0.5"),
        ({"reward_low": 1.0}, "allocator.reward_low is 1"),
    ],
)
def test_allocator_settings_out_of_range_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        AllocatorConfig(**options)
