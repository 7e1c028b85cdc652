"""What an update has to compute, counted from the model's shape, and what the machine can do.

Counted are products: 2 per weight and token forward, 4 backward (2 where the weight is frozen), and attention over the
query-key pairs there are. Recomputation (the head's chunks, checkpointing) is work, but not counted: it is overhead.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

# A product of the usual size that takes longer is not measured: it says nothing new, and may take minutes.
SLOW_PRODUCT_S = 2.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Products per token (``linear``), per head row (``head``) and per query-key pair (``pair``), forward, in FLOPs."""

    linear: float
    head: float
    pair: float
    is_frozen: bool = False

    @classmethod
    def of(cls, model: Any) -> ModelShape:
        config = model.config
        head = model.get_output_embeddings()
        linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            linear=2.0 * sum(_size(module.weight) for module in linear),
            head=2.0 * _size(head.weight),
            pair=4.0 * config.num_hidden_layers * config.num_attention_heads * head_size,
            is_frozen=not head.weight.requires_grad,
        )

    def forward(self, *, tokens: int, head_rows: int, pairs: int) -> float:
        return self.linear * tokens + self.head * head_rows + self.pair * pairs

    def update(self, *, tokens: int, head_rows: int, pairs: int) -> float:
        """Forward and backward."""
        weights = self.linear * tokens + self.head * head_rows
        return (2.0 if self.is_frozen else 3.0) * weights + 3.0 * self.pair * pairs


def _size(parameter: Any) -> int:
    """Elements of a weight; under ZeRO-3 the parameter itself is empty and carries its whole size aside."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def matmul_peak(dtype: torch.dtype, device: str = "cpu", *, size: int = 2048, repeats: int = 7) -> float:
    """Measured FLOP/s of a square matrix product, the median of ``repeats``."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    torch.mm(a, b, out=out)
    seconds = []
    for _ in range(repeats):
        _synchronize(device)
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2.0 * size**3 / median(seconds)


@functools.cache
def machine_peak(dtype: torch.dtype, device: str) -> float:
    """:func:`matmul_peak`, measured once a process; a machine that emulates ``dtype`` gets by with a small product."""
    size = 2048
    small = matmul_peak(dtype, device, size=256, repeats=1)
    if 2.0 * size**3 / small > SLOW_PRODUCT_S:
        return small
    return matmul_peak(dtype, device, size=size, repeats=3)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
