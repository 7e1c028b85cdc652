"""How many rollouts each task of a step gets."""

from __future__ import annotations

from winnowrl.gates.allocation.base import Allocator
from winnowrl.gates.allocation.success_model import embed_prompts
from winnowrl.gates.allocation.uniform import UniformAllocator
from winnowrl.gates.allocation.vigor import VigorAllocator
from winnowrl.gates.allocation.vip import VipAllocator

__all__ = ["Allocator", "UniformAllocator", "VigorAllocator", "VipAllocator", "embed_prompts"]
