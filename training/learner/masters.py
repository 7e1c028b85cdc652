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
