"""Decisions about groups: stop early, how many rollouts. Plain sequences in, decisions out."""

from __future__ import annotations

from winnowrl.gates.allocation import Allocator, UniformAllocator, VigorAllocator, VipAllocator, embed_prompts
from winnowrl.gates.audit import AuditLedger, AuditSampler
from winnowrl.gates.base import Gate, GateDecision
from winnowrl.gates.build import build_allocator, build_audit, build_gate
from winnowrl.gates.distance import group_distance, termination_fraction
from winnowrl.gates.edit_distance import PrefixEditDistanceGate
from winnowrl.gates.two_axis import TwoAxisGate

__all__ = [
    "Allocator",
    "AuditLedger",
    "AuditSampler",
    "Gate",
    "GateDecision",
    "PrefixEditDistanceGate",
    "TwoAxisGate",
    "UniformAllocator",
    "VigorAllocator",
    "VipAllocator",
    "build_allocator",
    "build_audit",
    "build_gate",
    "embed_prompts",
    "group_distance",
    "termination_fraction",
]
