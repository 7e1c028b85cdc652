"""Diagnostics of an update that add up: over micro-batches and ranks by sum, those under ``max/`` by maximum.

Each additive metric is already divided by the totals of the whole optimizer step, so the sum *is* the step's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from winnowrl.training.aggregation import BatchTotals
from winnowrl.training.kl import LOG_RATIO_LIMIT
from winnowrl.training.losses.surrogates import Surrogate

MAXIMUM_PREFIX = "max/"


@torch.no_grad()
def objective_metrics(
    log_ratio: Tensor,
    surrogate: Surrogate,
    weights: Tensor,
    kept: Tensor,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor | None,
    entropy: Tensor | None,
    totals: BatchTotals,
    *,
    policy_logprobs: Tensor,
) -> dict[str, Tensor]:
    """Scalars of one micro-batch. All tensors [N] but ``kept`` [S], the off-policy mask.

    ``kl/step`` is the k3 estimate of KL(old || policy); ``mismatch/kl`` that of KL(sampler || old), both in nats a
    token, from the tokens' own log-probs: ``log_ratio`` is what the objective clips, which may be of a sequence. Old is
    where the ratio starts: the policy before the update, for a rollout trained on again that of its birth.
    ``weight/first`` and ``weight/second`` are the moments of the importance weight from which ``finish_metrics`` takes
    the effective sample size.
    """
    per_token = 1.0 / max(totals.num_tokens, 1)
    ratio = log_ratio.exp()
    total_weight = ratio * weights
    step = _bounded(policy_logprobs.float() - old_logprobs.float())
    found = {
        "clip/low": surrogate.clipped_low.sum() * per_token,
        "clip/high": surrogate.clipped_high.sum() * per_token,
        "clip/bound": surrogate.bounded.sum() * per_token,
        "ratio/mean": ratio.sum() * per_token,
        "max/ratio": _maximum(ratio),
        "kl/step": (step.expm1() - step).sum() * per_token,
        "weight/first": total_weight.sum() * per_token,
        "weight/second": total_weight.square().sum() * per_token,
        "correction/mean": weights.sum() * per_token,
        "correction/dropped_sequences": (~kept).sum() / max(totals.num_sequences, 1),
    }
    if sampler_logprobs is not None:
        difference = old_logprobs.float() - sampler_logprobs.float()
        bounded = _bounded(difference)
        found["mismatch/mean_abs"] = difference.abs().sum() * per_token
        found["mismatch/kl"] = (bounded.expm1() - bounded).sum() * per_token
        found["max/mismatch"] = _maximum(difference.abs())
    if entropy is not None:
        found["entropy"] = entropy.float().sum() * per_token
    return found


def combine_metrics(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the metrics of micro-batches or ranks. A name missing from one part counts there as 0."""
    combined: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in combined:
                combined[name] = value
            elif name.startswith(MAXIMUM_PREFIX):
                combined[name] = torch.maximum(combined[name], value)
            else:
                combined[name] = combined[name] + value
    return combined


def finish_metrics(combined: Mapping[str, Tensor]) -> dict[str, float]:
    """Floats for the log; ``ess`` = (mean w)^2 / mean w^2, the share of the tokens the importance weights leave."""
    values = {name: float(value) for name, value in combined.items()}
    first, second = values.pop("weight/first", 0.0), values.pop("weight/second", 0.0)
    values["ess"] = first * first / second if second > 0 else 0.0
    return values


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _maximum(values: Tensor) -> Tensor:
    return values.max() if values.numel() else values.new_zeros(())
