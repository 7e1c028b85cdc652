"""From token losses to one number. Every aggregation is a weighted sum over tokens whose weights need no forward pass.

Legend: N tokens in the loss, flat, any order; S sequences of this micro-batch. The denominators are those of the whole
optimizer step (all micro-batches, all ranks), so the micro-batch losses add up to the loss of the full batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
    group_ids: Sequence[int],
    token_counts: Sequence[int],
    *,
    weighting: str,
    aggregation: str,
    rollout_ids: Sequence[Hashable] | None = None,
) -> list[float]:
    """Factors that give every rollout, task or token the same say when groups differ in size.

    An aggregation gives rollout r the weight u_r (its tokens n_r for ``token-mean``, else 1). The factor is w_r / u_r,
    with w_r = 1 (``rollout``), n_r (``token``) or u_r over its group's sum (``task``), normalised so that the total
    weight, and so the size of the gradient, stays. ``auto`` leaves the aggregation's own weights.

    The sequences of a rollout that forked count together as the one sequence that it would otherwise be: a mean over its
    tokens is over those of all of them, and S counts rollouts.

    Args:
        group_ids: One per sequence of the optimizer step.
        token_counts: Tokens in the loss, one per sequence; a sequence with none gets 0 and counts nowhere.
        rollout_ids: One per sequence; None = each is a rollout of its own.

    Raises:
        ValueError: unknown weighting or aggregation, or lengths differ.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is {weighting!r}; allowed: {', '.join(WEIGHTINGS)}")
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation is {aggregation!r}; allowed: {', '.join(AGGREGATIONS)}")
    rollouts: Sequence[Hashable] = range(len(group_ids)) if rollout_ids is None else rollout_ids
    if not len(group_ids) == len(token_counts) == len(rollouts):
        raise ValueError(
            f"{len(group_ids)} group ids but {len(token_counts)} token counts and {len(rollouts)} rollout ids; "
            "give one of each a sequence"
        )
    tokens: dict[Hashable, int] = {}
    for rollout, count in zip(rollouts, token_counts, strict=True):
        tokens[rollout] = tokens.get(rollout, 0) + count
    groups = dict(zip(rollouts, group_ids, strict=True))
    factors = _rollout_factors(tokens, groups, weighting, aggregation)
    # From a mean over sequences to one over rollouts: 1 where none forked.
    per_rollout = sum(n > 0 for n in token_counts) / max(sum(n > 0 for n in tokens.values()), 1)
    scales = []
    for rollout, count in zip(rollouts, token_counts, strict=True):
        scale = factors[rollout] if count else 0.0
        if aggregation == "seq-mean-token-mean" and count:
            scale *= count / tokens[rollout]
        scales.append(scale if aggregation == "token-mean" else scale * per_rollout)
    return scales


def _rollout_factors(
    tokens: dict[Hashable, int], groups: dict[Hashable, int], weighting: str, aggregation: str
) -> dict[Hashable, float]:
    """w_r / u_r of each rollout, from its number of tokens in the loss and its group."""
    if weighting == "auto":
        return {rollout: float(n > 0) for rollout, n in tokens.items()}
    own = {rollout: float(n if aggregation == "token-mean" else n > 0) for rollout, n in tokens.items()}
    group_weight: dict[int, float] = {}
    for rollout, weight in own.items():
        group_weight[groups[rollout]] = group_weight.get(groups[rollout], 0.0) + weight
    wanted = {
        "rollout": {rollout: float(n > 0) for rollout, n in tokens.items()},
        "token": {rollout: float(n) for rollout, n in tokens.items()},
        "task": {rollout: u / group_weight[groups[rollout]] if u else 0.0 for rollout, u in own.items()},
    }[weighting]
    total = sum(wanted.values())
    norm = sum(own.values()) / total if total else 0.0
    return {rollout: norm * wanted[rollout] / u if u else 0.0 for rollout, u in own.items()}
