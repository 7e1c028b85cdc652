"""Weights for the mismatch between the engine that sampled a token and the learner that trains on it.

Both run the same weights, but in other kernels and precisions, so p_learner / p_sampler is not 1. The weight multiplies
the clipped surrogate and carries no gradient. It enters no denominator: a masked token still counts there, since the
denominators of a step are known before its first forward pass.

Legend: N tokens in the loss, flat; S sequences. Source: truncated importance sampling (Ionides 2008); IcePop;
off-policy sequence mask, DeepSeek-V3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winnowrl.training.aggregation import segment_mean, segment_sum
from winnowrl.training.kl import LOG_RATIO_LIMIT

CORRECTIONS = ("none", "token_tis", "token_mis", "sequence_tis", "sequence_mis")


def correction_weights(
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    sequence_ids: Tensor,
    num_sequences: int,
    *,
    kind: str,
    cap_low: float = 0.0,
    cap_high: float = 2.0,
) -> Tensor:
    """Importance weight w = p_old / p_sampler of each token, bounded.

    ``token_tis`` clamps w to [cap_low, cap_high]; ``token_mis`` sets it to 0 outside. The ``sequence_`` kinds give all
    tokens of a sequence the one weight exp(sum of log differences), the likelihood ratio of the whole sequence (not its
    geometric mean: a mean difference of 0.01 over 200 tokens is e^2).

    Args:
        old_logprobs: [N] learner, before the step. sampler_logprobs: [N] engine.
        sequence_ids: [N] long in 0..num_sequences-1.
        kind: none, token_tis, token_mis, sequence_tis or sequence_mis.

    Returns:
        [N] float32, no gradient.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in CORRECTIONS:
        raise ValueError(f"correction is {kind!r}; allowed: {', '.join(CORRECTIONS)}")
    difference = old_logprobs.detach().float() - sampler_logprobs.detach().float()
    if kind == "none":
        return torch.ones_like(difference)
    if kind.startswith("sequence"):
        difference = segment_sum(difference, sequence_ids, num_sequences)[sequence_ids]
    weights = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if kind.endswith("tis"):
        return weights.clamp(cap_low, cap_high)
    return torch.where((weights >= cap_low) & (weights <= cap_high), weights, 0.0)


def on_policy_mask(
    policy_logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    sequence_ids: Tensor,
    *,
    threshold: float,
) -> Tensor:
    """[S] bool, False where a sequence with A < 0 is too far from what sampled it to learn from.

    Too far: mean over its tokens of (log p_sampler - log p) is above ``threshold`` (nats per token).

    Args:
        policy_logprobs: [N]. sampler_logprobs: [N]. advantages: [S]. sequence_ids: [N] long.
    """
    gap = sampler_logprobs.detach().float() - policy_logprobs.detach().float()
    distance = segment_mean(gap, sequence_ids, advantages.shape[0])
    return ~((advantages < 0) & (distance > threshold))
