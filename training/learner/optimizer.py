"""AdamW with weight-decay groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameter_groups(model: nn.Module, *, weight_decay: float, decays_embeddings: bool = False) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices decay; norms, biases and (unless asked for) embeddings do not.

    A head tied to the input embedding is that embedding.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_kept = parameter.ndim < 2 or (id(parameter) in embeddings and not decays_embeddings)
            (kept if is_kept else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_adamw(
    model: nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decays_embeddings: bool,
) -> torch.optim.AdamW:
    """torch's own AdamW, one fused pass over the weights; no compiled extension is needed."""
    groups = parameter_groups(model, weight_decay=weight_decay, decays_embeddings=decays_embeddings)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=True)
