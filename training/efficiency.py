"""Accuracy-efficiency score: one number for a model that answers shorter, or better, than a base."""

from __future__ import annotations


def accuracy_efficiency_score(
    base_accuracy: float,
    accuracy: float,
    base_tokens: float,
    tokens: float,
    *,
    coefficients: tuple[float, float, float] = (1.0, 3.0, 5.0),
) -> float:
    """AES = a (saved length) + b (gain in accuracy), or - c (its loss); both relative to the base.

    Args:
        base_accuracy, accuracy: In one unit, the base above 0. base_tokens, tokens: Mean completion length.
        coefficients: (a, b, c). (1, 3, 5) is common, (1, 5, 10) is in use too: state them with every score.

    Raises:
        ValueError: a base of 0.

    Source: O1-Pruner (Luo et al. 2025).
    """
    if base_accuracy <= 0 or base_tokens <= 0:
        raise ValueError(
            f"base_accuracy is {base_accuracy} and base_tokens {base_tokens}: the score is relative to them; give both above 0"
        )
    a, b, c = coefficients
    saved = (base_tokens - tokens) / base_tokens
    gain = (accuracy - base_accuracy) / base_accuracy
    return a * saved + (b * gain if gain >= 0 else c * gain)
