"""Numbers of an evaluation: unbiased pass@k, mean@k, intervals over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from winnowrl.gates.intervals import wilson_interval


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that at least one of ``k`` samples drawn without replacement from the ``num_samples`` is correct.

    Unbiased: 1 - C(n - c, k) / C(n, k), as a product that does not overflow.

    Raises:
        ValueError: k outside 1..num_samples, or num_correct outside 0..num_samples.

    Source: Chen et al. 2021, "Evaluating large language models trained on code", eq. 1.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"k is {k}; allowed: 1 to num_samples ({num_samples})")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct is {num_correct}; allowed: 0 to num_samples ({num_samples})")
    num_wrong = num_samples - num_correct
    if num_wrong < k:
        return 1.0
    missed = 1.0
    for i in range(k):
        missed *= (num_wrong - i) / (num_samples - i)
    return 1.0 - missed


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def score_interval(scores: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Interval of the mean of scores from 0 to 1 over tasks.

    Where every score is 0 or 1, or all are equal, Wilson's interval, which stays honest with few tasks and near the ends:
    a bootstrap of five right answers has no width. Else the percentile bootstrap.

    Args:
        scores: One a task: its mean over samples, so that samples of one task are not taken for independent.

    Returns:
        Mean and interval; NaN for no scores. Scores outside 0 to 1 are bootstrapped.
    """
    data = np.asarray(scores, dtype=np.float64)
    is_share = data.size > 0 and data.min() >= 0.0 and data.max() <= 1.0
    if is_share and (np.isin(data, (0.0, 1.0)).all() or data.min() == data.max()):
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        return Interval(float(data.mean()), *wilson_interval(float(data.sum()), data.size, z=z))
    return bootstrap_interval(scores, confidence=confidence)


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the mean over tasks.

    Args:
        values: One value per task (its mean over samples), so that samples of one task are not taken for independent.
        confidence: Coverage.
        num_resamples: Bootstrap resamples.
        seed: The same values and seed give the same interval.

    Returns:
        Mean and interval; NaN for no values, the value itself three times for one.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    means = np.array([data[generator.integers(data.size, size=data.size)].mean() for _ in range(num_resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(data.mean()), float(low), float(high))
