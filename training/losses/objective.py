"""The objective of one micro-batch of packed tokens: surrogate, mismatch correction, KL, entropy, aggregation.

Legend: N tokens in the loss, flat: a packed batch gives them by indexing with its mask, so what is masked is never
read. S sequences of the micro-batch, whole: a sequence is never split between two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winnowrl.training.aggregation import BatchTotals, flatten, token_weights
from winnowrl.training.correction import correction_weights, on_policy_mask
from winnowrl.training.kl import kl_penalty
from winnowrl.training.losses.metrics import objective_metrics
from winnowrl.training.losses.spec import ObjectiveSpec
from winnowrl.training.losses.surrogates import Surrogate, cispo_surrogate, clipped_surrogate, importance_log_ratio


@dataclass(frozen=True, slots=True)
class ObjectiveTerms:
    """What one micro-batch gives.

    Attributes:
        loss: Scalar with gradient; the sum over the micro-batches and ranks of a step is the loss of the full batch.
        is_clipped: [N] bool, the surrogate of the token was clipped or bounded.
        metrics: Scalars without gradient, to join with ``combine_metrics``.
    """

    loss: Tensor
    is_clipped: Tensor
    metrics: dict[str, Tensor]


def policy_objective(
    policy_logprobs: Tensor,
    old_logprobs: Tensor | None,
    sampler_logprobs: Tensor | None,
    advantages: Tensor,
    sequence_ids: Tensor,
    spec: ObjectiveSpec,
    *,
    totals: BatchTotals,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    scale: Tensor | None = None,
) -> ObjectiveTerms:
    """Loss of one micro-batch: sum of weight_t * (w_t * surrogate_t + kl_coef * kl_t - entropy_coef * entropy_t).

    Args:
        policy_logprobs: [N] learner's log p of the sampled tokens, with gradient.
        old_logprobs: [N] where the ratio starts from; None = this very policy (ratio exactly 1).
        sampler_logprobs: [N] engine's; may be None when nothing is corrected.
        advantages: [S]. sequence_ids: [N] long in 0..S-1.
        totals: Denominators of the whole optimizer step.
        ref_logprobs: [N], needed where ``spec.kl_coef`` is not 0.
        entropy: [N] full-vocabulary entropy, nats; needed with gradient where ``spec.entropy_coef`` is not 0.
        scale: [S] factors of ``sequence_scales``; None = 1.

    Returns:
        A zero loss that still has a (zero) gradient when N = 0.

    Raises:
        ValueError: an input the spec needs is missing, or shapes differ.
    """
    _check(policy_logprobs, old_logprobs, sampler_logprobs, advantages, sequence_ids, ref_logprobs, entropy, spec)
    num_sequences = advantages.shape[0]
    policy = policy_logprobs.float()
    old = policy.detach() if old_logprobs is None else old_logprobs.detach().float()
    log_ratio = importance_log_ratio(policy, old, sequence_ids, num_sequences, level=spec.importance_level)
    token_advantages = advantages.detach().float()[sequence_ids]
    surrogate = _surrogate(log_ratio.exp(), policy, token_advantages, spec)
    corrections, kept = _corrections(policy, old, sampler_logprobs, advantages, sequence_ids, spec)

    losses = torch.where(kept[sequence_ids], corrections * surrogate.losses, 0.0)
    regularizer = _regularizer(policy, log_ratio, ref_logprobs, entropy, spec)
    weights = token_weights(
        sequence_ids, num_sequences, totals, mode=spec.aggregation, max_tokens=spec.max_tokens, scale=scale
    )
    metrics = objective_metrics(
        log_ratio, surrogate, corrections, kept, old, sampler_logprobs, entropy, totals, policy_logprobs=policy
    )
    metrics["loss/policy"] = (weights * losses).sum().detach()
    if regularizer is not None:
        if not spec.regularize_zero_advantage:
            regularizer = torch.where(token_advantages != 0, regularizer, 0.0)
        losses = losses + regularizer
        metrics["loss/regularizer"] = (weights * regularizer).sum().detach()
    if ref_logprobs is not None:
        reference_kl = kl_penalty(policy.detach(), ref_logprobs.detach(), estimator="k3")
        metrics["kl/reference"] = reference_kl.sum() / max(totals.num_tokens, 1)
    is_clipped = surrogate.clipped_low | surrogate.clipped_high | surrogate.bounded
    return ObjectiveTerms((weights * losses).sum(), is_clipped, metrics)


def padded_objective(
    policy_logprobs: Tensor,
    old_logprobs: Tensor | None,
    sampler_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    spec: ObjectiveSpec,
    *,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    scale: Tensor | None = None,
) -> ObjectiveTerms:
    """``policy_objective`` of a whole padded batch: tensors and bool ``mask`` [B, T], ``advantages`` [B]."""
    totals = BatchTotals.of(mask.sum(-1).tolist())

    def pick(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[mask]

    policy, rows = flatten(mask, policy_logprobs)
    return policy_objective(
        policy,
        pick(old_logprobs),
        pick(sampler_logprobs),
        advantages,
        rows,
        spec,
        totals=totals,
        ref_logprobs=pick(ref_logprobs),
        entropy=pick(entropy),
        scale=scale,
    )


def _surrogate(ratio: Tensor, policy: Tensor, advantages: Tensor, spec: ObjectiveSpec) -> Surrogate:
    if spec.loss_type == "cispo":
        return cispo_surrogate(ratio, policy, advantages, clip_low=spec.clip_low, clip_high=spec.clip_high)
    return clipped_surrogate(
        ratio, advantages, clip_low=spec.clip_low, clip_high=spec.clip_high, ratio_bound=spec.ratio_bound
    )


def _corrections(
    policy: Tensor,
    old: Tensor,
    sampler_logprobs: Tensor | None,
    advantages: Tensor,
    sequence_ids: Tensor,
    spec: ObjectiveSpec,
) -> tuple[Tensor, Tensor]:
    """Mismatch weight of each token [N], and which sequences the off-policy mask keeps [S]."""
    kept = torch.ones_like(advantages, dtype=torch.bool)
    if sampler_logprobs is None:
        return torch.ones_like(old), kept
    corrections = correction_weights(
        old,
        sampler_logprobs,
        sequence_ids,
        advantages.shape[0],
        kind=spec.correction,
        cap_low=spec.correction_cap_low,
        cap_high=spec.correction_cap_high,
    )
    if spec.off_policy_threshold is not None:
        kept = on_policy_mask(policy, sampler_logprobs, advantages, sequence_ids, threshold=spec.off_policy_threshold)
    return corrections, kept


def _regularizer(
    policy: Tensor, log_ratio: Tensor, ref_logprobs: Tensor | None, entropy: Tensor | None, spec: ObjectiveSpec
) -> Tensor | None:
    """kl_coef * kl - entropy_coef * entropy at each token [N]; None where both are off."""
    total: Tensor | None = None
    if spec.needs_reference and ref_logprobs is not None:
        kl = kl_penalty(policy, ref_logprobs.detach(), estimator=spec.kl_type)
        total = spec.kl_coef * (kl * log_ratio.exp() if spec.kl_ratio_weighted else kl)
    if spec.needs_entropy and entropy is not None:
        bonus = spec.entropy_coef * entropy.float()
        total = -bonus if total is None else total - bonus
    return total


def _check(
    policy: Tensor,
    old: Tensor | None,
    sampler: Tensor | None,
    advantages: Tensor,
    sequence_ids: Tensor,
    ref: Tensor | None,
    entropy: Tensor | None,
    spec: ObjectiveSpec,
) -> None:
    named = {"old_logprobs": old, "sampler_logprobs": sampler, "sequence_ids": sequence_ids}
    named |= {"ref_logprobs": ref, "entropy": entropy}
    for name, tensor in named.items():
        if tensor is not None and tensor.shape != policy.shape:
            raise ValueError(
                f"{name} is {list(tensor.shape)}; policy_logprobs is {list(policy.shape)}: both must be [N]"
            )
    if advantages.ndim != 1:
        raise ValueError(f"advantages is {list(advantages.shape)}; give one per sequence: [S]")
    if spec.needs_reference and ref is None:
        raise ValueError(
            "kl_coef is not 0 but ref_logprobs is missing; pass the reference's log-probs or set kl_coef: 0"
        )
    if spec.needs_entropy and entropy is None:
        raise ValueError("entropy_coef is not 0 but entropy is missing; pass it with gradient or set entropy_coef: 0")
    if (spec.correction != "none" or spec.off_policy_threshold is not None) and sampler is None:
        raise ValueError(
            "the correction compares with sampler_logprobs, which is missing; pass it or set correction: none"
        )
