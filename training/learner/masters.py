"""Float32 masters that start between the points of the format the model computes in.

A model loaded in bfloat16 puts every master on a bfloat16 number. An optimizer step is far smaller than the distance to the
next one, so the weights that the model computes with round back to where they were: of a first Adam step of 2e-5,
SmolLM2's weights make 5 %, and learning starts some steps late. A master that starts anywhere among the values that round
to its weight leaves the model as it is, and moves its weight with the probability that makes every step arrive whole on
average over the weights: a non-subtractive dither, drawn once, so nothing is random later.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dithered(weight: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A uniformly random value among those that round to each weight.

    Args:
        weight: float32, any shape, holding values of ``dtype``.
        generator: Of any device; on the CPU, the draw is the same everywhere.

    Returns:
        float32, of the shape of ``weight``; zeros, and weights that are no values of ``dtype``, stay as they are.
    """
    # The exponent bits alone are the power of two below a weight; times eps, the distance to its neighbour.
    power = (weight.view(torch.int32) & 0x7F80_0000).view(torch.float32)
    offset = torch.rand(weight.shape, generator=generator, device=generator.device).to(weight.device).sub_(0.5)
    moved = offset.mul_(power).mul_(torch.finfo(dtype).eps).add_(weight)
    return torch.where(moved.to(dtype) == weight, moved, weight)


def dithered_bfloat16(weight: Tensor, generator: torch.Generator) -> Tensor:
    """The same for weights in bfloat16, several times as fast: for what is drawn again at every weight load.

    A bfloat16 number is the upper half of a float32; every odd lower half, taken as signed, rounds back to it.

    Args:
        weight: bfloat16, any shape.
        generator: Of the device of ``weight``.

    Returns:
        float32, of the shape of ``weight``; zeros stay as they are.
    """
    count = weight.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=weight.device).random_(
        -(2**63), None, generator=generator
    )
    lower = words.view(torch.int16)[:count].view(weight.shape).bitwise_or_(1)
    lower.masked_fill_(weight == 0, 0)
    upper = weight.contiguous().view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    return upper.add_(lower).view(torch.float32)
