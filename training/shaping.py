"""What a reply's length does to its reward."""

from __future__ import annotations


def soft_overlong_penalty(num_tokens: int, max_tokens: int, cache_tokens: int) -> float:
    """Reward change for length: 0, then linearly to -1 over the last ``cache_tokens``, -1 beyond ``max_tokens``.

    Args:
        num_tokens: Completion tokens of the rollout.
        max_tokens: Its limit L, tokens.
        cache_tokens: Width c of the interval before the limit, tokens.

    Raises:
        ValueError: the interval is not within the limit.

    Source: DAPO (Yu et al. 2025) eq. 13.
    """
    if not 0 < cache_tokens <= max_tokens:
        raise ValueError(f"overlong_cache is {cache_tokens}; allowed: 1 to the limit of {max_tokens} tokens")
    return max(-1.0, min(0.0, (max_tokens - cache_tokens - num_tokens) / cache_tokens))
