"""Per-token estimators of KL(policy || reference) from the sampled token alone.

With d = log p - log p_ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1. As a *value* k1 and k3 are unbiased, k3 is never
negative. As a *loss* on on-policy samples only the gradient counts: k1's has mean zero (it teaches nothing), k2's is
that of KL(policy || reference), k3's that of KL(reference || policy). ``k1+`` and ``k3+`` report k1 or k3 and carry
k2's gradient.

Source: J. Schulman, "Approximating KL divergence"; k3 in DeepSeekMath eq. 4.
"""

from __future__ import annotations

from torch import Tensor

KL_TYPES = ("k1", "k2", "k3", "k1+", "k3+")
LOG_RATIO_LIMIT = 20.0


def kl_penalty(policy_logprobs: Tensor, ref_logprobs: Tensor, *, estimator: str) -> Tensor:
    """Estimate of the KL at each token.

    Args:
        policy_logprobs: Any shape, with gradient.
        ref_logprobs: Same shape.
        estimator: k1, k2, k3, k1+ or k3+.

    Returns:
        Same shape, float32. The difference is clamped to +-20 before ``exp``.

    Raises:
        ValueError: unknown estimator.
    """
    difference = (policy_logprobs.float() - ref_logprobs.float()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return difference
    k2 = 0.5 * difference.square()
    if estimator == "k2":
        return k2
    if estimator == "k1+":
        return difference.detach() + (k2 - k2.detach())
    k3 = difference.neg().expm1() + difference
    if estimator == "k3":
        return k3
    if estimator == "k3+":
        return k3.detach() + (k2 - k2.detach())
    raise ValueError(f"kl_type is {estimator!r}; allowed: {', '.join(KL_TYPES)}")
