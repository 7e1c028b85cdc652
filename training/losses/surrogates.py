"""The policy surrogates, token by token, to be minimised.

Legend: N tokens in the loss, flat; S sequences. ``advantages`` here are per token [N]; every other knob is a float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnowrl.training.aggregation import segment_mean, segment_sum
from winnowrl.training.kl import LOG_RATIO_LIMIT

IMPORTANCE_LEVELS = ("token", "sequence", "sequence_product")


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Losses and what bounded them, all [N].

    Attributes:
        losses: float32 with gradient.
        clipped_low: The ratio was below the lower bound and that bound decided the loss.
        clipped_high: The same above. bounded: The bound on large ratios at A < 0 (dual clip or delta) decided it.
    """

    losses: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    bounded: Tensor


def importance_log_ratio(
    policy_logprobs: Tensor, old_logprobs: Tensor, sequence_ids: Tensor, num_sequences: int, *, level: str
) -> Tensor:
    """Log of the importance ratio each token is weighted by, clamped to +-20.

    Args:
        policy_logprobs: [N] with gradient. old_logprobs: [N], no gradient flows into it.
        sequence_ids: [N] long in 0..num_sequences-1; all tokens of a sequence are here.
        level: ``token`` its own; ``sequence`` the mean over its sequence (GSPO: the geometric mean ratio);
            ``sequence_product`` the sum over its sequence (the likelihood ratio of the sequence).

    Returns:
        [N] float32.

    Raises:
        ValueError: unknown level.
    """
    log_ratio = policy_logprobs.float() - old_logprobs.detach().float()
    if level == "sequence":
        log_ratio = segment_mean(log_ratio, sequence_ids, num_sequences)[sequence_ids]
    elif level == "sequence_product":
        log_ratio = segment_sum(log_ratio, sequence_ids, num_sequences)[sequence_ids]
    elif level != "token":
        raise ValueError(f"importance_level is {level!r}; allowed: {', '.join(IMPORTANCE_LEVELS)}")
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_bound: float | None = None,
) -> Surrogate:
    """PPO's pessimistic bound: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    Args:
        ratio: [N] with gradient. advantages: [N].
        clip_low: Distance of the lower bound below 1. clip_high: Of the upper above 1 (larger = clip-higher).
        ratio_bound: For A < 0 the loss is at most -ratio_bound * A, with no gradient beyond. This is dual clip's c and,
            where it exceeds 1 + clip_high, INTELLECT-2's delta: the two are one function. None = unbounded.

    Source: PPO (Schulman et al. 2017); clip-higher, DAPO (Yu et al. 2025); dual clip (Ye et al. 2020).
    """
    bounded_ratio = ratio if ratio_bound is None else ratio.clamp(max=ratio_bound)
    clipped_ratio = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    # At A > 0 the inner clip is lower anyway, so bounding the first term changes A < 0 alone.
    losses = -torch.minimum(bounded_ratio * advantages, clipped_ratio * advantages)
    is_bounded = torch.zeros_like(ratio, dtype=torch.bool)
    if ratio_bound is not None:
        is_bounded = (ratio > ratio_bound) & (advantages < 0)
    return Surrogate(
        losses,
        clipped_low=(ratio < 1.0 - clip_low) & (advantages < 0),
        clipped_high=(ratio > 1.0 + clip_high) & (advantages > 0),
        bounded=is_bounded,
    )


def cispo_surrogate(
    ratio: Tensor, policy_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Surrogate:
    """REINFORCE under a clipped, detached weight: -sg[clip(r, 1 - clip_low, 1 + clip_high)] A log p.

    No token loses its gradient; a clipped one has its weight cut. ``clip_low`` = 1 leaves the lower side free.

    Args:
        ratio: [N]. policy_logprobs: [N] with gradient. advantages: [N].

    Source: MiniMax-M1, eq. 4.
    """
    weights = ratio.detach().clamp(1.0 - clip_low, 1.0 + clip_high)
    has_advantage = advantages != 0
    return Surrogate(
        -weights * advantages * policy_logprobs.float(),
        clipped_low=(ratio < 1.0 - clip_low) & has_advantage,
        clipped_high=(ratio > 1.0 + clip_high) & has_advantage,
        bounded=torch.zeros_like(has_advantage),
    )
