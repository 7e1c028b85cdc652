"""From token losses to one number. Every aggregation is a weighted sum over tokens whose weights need no forward pass.

Legend: N tokens in the loss, flat, any order; S sequences of this micro-batch. The denominators are those of the whole
optimizer step (all micro-batches, all ranks), so the micro-batch losses add up to the loss of the full batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
WEIGHTINGS = ("auto", "rollout", "task", "token")


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Denominators of one optimizer step, over every micro-batch and rank.

    Attributes:
        num_tokens: Tokens in the loss.
        num_sequences: Sequences with at least one token in the loss; one that lost all of them (overlong filter) is in
            neither count.
    """

    num_tokens: int
    num_sequences: int

    @classmethod
    def of(cls, token_counts: Sequence[int]) -> BatchTotals:
        """From the number of tokens in the loss of each sequence of the optimizer step."""
        return cls(sum(token_counts), sum(1 for count in token_counts if count > 0))


def segment_sum(values: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Sum ``values`` [N] within each segment: [S]; an empty segment gives 0."""
    return values.new_zeros(num_segments).index_add(0, segment_ids, values)


def segment_mean(values: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Mean of ``values`` [N] within each segment: [S]; an empty segment gives 0."""
    counts = segment_counts(segment_ids, num_segments).to(values.dtype)
    return segment_sum(values, segment_ids, num_segments) / counts.clamp(min=1)


def segment_counts(segment_ids: Tensor, num_segments: int) -> Tensor:
    """Number of tokens of each segment: [S] long."""
    return segment_sum(torch.ones_like(segment_ids), segment_ids, num_segments)


def token_weights(
    sequence_ids: Tensor,
    num_sequences: int,
    totals: BatchTotals,
    *,
    mode: str,
    max_tokens: int | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Weight of each token in the step's loss, which is ``(weights * token_losses).sum()``.

    ``seq-mean-token-mean`` 1 / (S n_i) (GRPO, GSPO); ``token-mean`` 1 / N (DAPO); ``seq-mean-token-sum`` 1 / S (RLOO);
    ``seq-mean-token-sum-norm`` 1 / (S L) with the constant L = ``max_tokens`` (Dr. GRPO). S and N are ``totals``.

    Args:
        sequence_ids: [N] long in 0..num_sequences-1; all tokens of a sequence are in this call.
        num_sequences: Sequences in this call.
        max_tokens: The constant L, tokens; only for ``seq-mean-token-sum-norm``.
        scale: [S] factor per sequence (``sequence_scales``); None = 1.

    Returns:
        [N] float32. Empty totals give no tokens, so a sum of 0.

    Raises:
        ValueError: unknown mode, or the constant is missing.
    """
    sequences = max(totals.num_sequences, 1)
    if mode == "seq-mean-token-mean":
        counts = segment_counts(sequence_ids, num_sequences).clamp(min=1)
        per_sequence = 1.0 / (sequences * counts.float())
    elif mode == "token-mean":
        per_sequence = sequence_ids.new_full((num_sequences,), 1.0 / max(totals.num_tokens, 1), dtype=torch.float32)
    elif mode == "seq-mean-token-sum":
        per_sequence = sequence_ids.new_full((num_sequences,), 1.0 / sequences, dtype=torch.float32)
    elif mode == "seq-mean-token-sum-norm":
        if max_tokens is None or max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; seq-mean-token-sum-norm divides by it: give a length >= 1")
        weight = 1.0 / (sequences * max_tokens)
        per_sequence = sequence_ids.new_full((num_sequences,), weight, dtype=torch.float32)
    else:
        raise ValueError(f"aggregation is {mode!r}; allowed: {', '.join(AGGREGATIONS)}")
    if scale is not None:
        per_sequence = per_sequence * scale.to(per_sequence)
    return per_sequence[sequence_ids]


def aggregate(
    token_losses: Tensor,
    sequence_ids: Tensor,
    num_sequences: int,
    totals: BatchTotals,
    *,
    mode: str,
    max_tokens: int | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Weighted sum of ``token_losses`` [N]: this micro-batch's share of the step's loss, a scalar."""
    weights = token_weights(sequence_ids, num_sequences, totals, mode=mode, max_tokens=max_tokens, scale=scale)
    return (token_losses * weights).sum()


def aggregate_padded(token_losses: Tensor, mask: Tensor, *, mode: str, max_tokens: int | None = None) -> Tensor:
    """``aggregate`` of a whole padded batch: ``token_losses`` and bool ``mask``, both [B, T]; masked is unread."""
    totals = BatchTotals.of(mask.sum(-1).tolist())
    values, ids = flatten(mask, token_losses)
    return aggregate(values, ids, mask.shape[0], totals, mode=mode, max_tokens=max_tokens)


def flatten(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Take the tokens under ``mask`` [B, T] from each [B, T] tensor: the flat [N] tensors, then their row ids [N]."""
    rows = mask.nonzero(as_tuple=True)[0]
    return *(tensor[mask] for tensor in tensors), rows


def sequence_scales(
    group_ids: Sequence[int], token_counts: Sequence[int], *, weighting: str, aggregation: str
) -> list[float]:
    """Factors that give every rollout, task or token the same say when groups differ in size.

    An aggregation gives sequence i the weight u_i (its tokens for ``token-mean``, else 1). The factor is w_i / u_i,
    with w_i = 1 (``rollout``), n_i (``token``) or u_i over its group's sum (``task``), normalised so that the total
    weight, and so the size of the gradient, stays. ``auto`` leaves the aggregation's own weights.

    Args:
        group_ids: One per sequence of the optimizer step.
        token_counts: Tokens in the loss, one per sequence; a sequence with none gets 0 and counts nowhere.

    Raises:
        ValueError: unknown weighting or aggregation, or lengths differ.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is {weighting!r}; allowed: {', '.join(WEIGHTINGS)}")
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation is {aggregation!r}; allowed: {', '.join(AGGREGATIONS)}")
    if len(group_ids) != len(token_counts):
        raise ValueError(
            f"{len(group_ids)} group ids but {len(token_counts)} token counts; give one of each a sequence"
        )
    own = [float(n if aggregation == "token-mean" else n > 0) for n in token_counts]
    if weighting == "auto":
        return [float(n > 0) for n in token_counts]
    group_weight: dict[int, float] = {}
    for group, weight in zip(group_ids, own, strict=True):
        group_weight[group] = group_weight.get(group, 0.0) + weight
    wanted = {
        "rollout": [float(n > 0) for n in token_counts],
        "token": [float(n) for n in token_counts],
        "task": [w / group_weight[g] if w else 0.0 for g, w in zip(group_ids, own, strict=True)],
    }[weighting]
    norm = sum(own) / sum(wanted) if sum(wanted) else 0.0
    return [norm * w / u if u else 0.0 for w, u in zip(wanted, own, strict=True)]
