"""Low-rank adapters through peft: injected into the model, merged on the way out, the base weights untouched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.learner.masters import dithered, dithered_bfloat16

ADAPTER = "default"


def add_lora(model: nn.Module, *, rank: int, alpha: float, target_modules: Sequence[str] = ()) -> None:
    """Freeze ``model`` and inject adapters of ``rank`` into its linear layers (all but the head, unless named).

    Raises:
        ImportError: peft is not installed.
        ValueError: ``target_modules`` names none of the model's linear layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError(f"learner.lora needs peft ({error}); run `pip install 'winnowrl[learner]'`") from None
    linear = linear_names(model)
    chosen = list(target_modules) or sorted(linear)
    unknown = [name for name in chosen if name not in linear]
    if unknown:
        raise ValueError(f"learner.lora.target_modules names {unknown[0]!r}; allowed: {', '.join(sorted(linear))}")
    model.requires_grad_(False)
    settings = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=chosen)
    inject_adapter_in_model(settings, model, adapter_name=ADAPTER)


def linear_names(model: nn.Module) -> set[str]:
    """Last parts of the names of the decoder's linear layers."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


def lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers that carry an adapter, by name."""
    return [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The base model inside: what the run started from."""
    layers = lora_layers(model)
    for _, layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for _, layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Weights under their plain names; where there is an adapter, base + B A alpha / rank in a new tensor.

    In half precision a young adapter's part is far smaller than the distance between two values of a weight, and the sum
    would round back to the base: the engine would sample from another policy than the learner trains. So the part is added
    to a value among those that round to the base, fixed by the weight's name (see :mod:`.masters`): what arrives is right
    on average over the weights, a part of zero leaves the base as it is, and the same adapter always gives the same weights.
    """
    adapted = dict(lora_layers(model))
    weights: list[tuple[str, Tensor]] = []
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if ".lora_" in name:
            continue
        layer = owner.removesuffix(".base_layer")
        if layer in adapted and owner.endswith(".base_layer"):
            merged = parameter.detach()
            if kind == "weight":
                merged = _merged(layer, merged, adapted[layer].get_delta_weight(ADAPTER))
            weights.append((f"{layer}.{kind}", merged))
        else:
            weights.append((name, parameter.detach()))
    return weights


def _merged(name: str, base: Tensor, delta: Tensor) -> Tensor:
    """``base`` plus ``delta``, in the dtype of ``base``."""
    if base.dtype == torch.float32:
        return base + delta.float()
    generator = torch.Generator(device=base.device).manual_seed(derive_seed(0, "merge", name))
    if base.dtype == torch.bfloat16:
        start = dithered_bfloat16(base, generator)
    else:
        start = dithered(base.float(), base.dtype, generator)
    return start.add_(delta).to(base.dtype)
