"""Norms and gated feed-forwards that keep less for the backward pass, and touch memory less often, than autograd's own.

On a CPU the passes over activations between two matrix products wait for memory; and what they keep decides how many
tokens fit into a micro-batch. A layer is replaced only where a trial shows that the replacement computes the same.

Legend: T tokens, d hidden size, f feed-forward size.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winnowrl.training.precision import wide

_SILU_NAMES = ("SiLU", "SiLUActivation")
_TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 1e-2)}


class _RMSNorm(torch.autograd.Function):
    """y = w x / sqrt(mean(x^2) + eps), computed in at least float32; keeps x and one number a token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        exact = x.to(wide(x.dtype))
        scale = torch.rsqrt(torch.linalg.vecdot(exact, exact).div_(x.shape[-1]).add_(eps)).unsqueeze(-1)
        ctx.save_for_backward(x, weight, scale)
        return (exact * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # With n = x s: dx = s (w g - n mean(w g n)), dw = sum over tokens of g n.
        x, weight, scale = ctx.saved_tensors
        exact, grad = x.to(scale.dtype), grads[0].to(scale.dtype)
        weighted = grad * weight
        inner = torch.linalg.vecdot(weighted, exact).unsqueeze(-1) * scale.pow(3) / x.shape[-1]
        grad_x = weighted.mul_(scale).addcmul_(exact, inner, value=-1.0).to(x.dtype)
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None
        flat = (grad * exact).flatten(0, -2)
        return grad_x, torch.mv(flat.t(), scale.flatten()).to(weight.dtype), None


class _GatedSiLU(torch.autograd.Function):
    """h = silu(gate) up; keeps gate and up, and computes silu again."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        grad_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return grad_gate, F.silu(gate).mul_(grads[0])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` [..., d] over its root mean square, times ``weight`` [d]; in the format of ``x``."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(``gate``) ``up``, both [..., f]."""
    out: Tensor = _GatedSiLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


def use_lean_layers(model: nn.Module) -> int:
    """Replace the forward of every layer that computes one of the two; returns how many."""
    replaced = 0
    for module in model.modules():
        candidate = _candidate(module)
        if candidate is not None and _computes_the_same(module, candidate):
            module.forward = candidate  # type: ignore[method-assign]
            replaced += 1
    return replaced


def _candidate(module: nn.Module) -> Any:
    """The replacement a layer's attributes suggest; None for any other layer."""
    if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return MethodType(_norm_forward, module)
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if all(isinstance(part, nn.Linear) for part in parts):
        is_silu = type(getattr(module, "act_fn", None)).__name__ in _SILU_NAMES
        return MethodType(_feed_forward, module) if is_silu else None
    return None


def _norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _feed_forward(self: Any, x: Tensor) -> Tensor:
    out: Tensor = self.down_proj(gated_silu(self.gate_proj(x), self.up_proj(x)))
    return out


@torch.no_grad()
def _computes_the_same(module: Any, candidate: Any) -> bool:
    """Try both on a few tokens; a layer of the same look may still scale its weight or gate otherwise."""
    weight = module.weight if hasattr(module, "weight") else module.gate_proj.weight
    if weight.dtype not in _TOLERANCES or not weight.numel():
        return False
    trial = torch.linspace(-2.0, 3.0, 3 * weight.shape[-1], device=weight.device).view(1, 3, -1).to(weight.dtype)
    rtol, atol = _TOLERANCES[weight.dtype]
    return torch.allclose(module(trial), candidate(trial), rtol=rtol, atol=atol)
