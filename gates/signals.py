"""What else could tell early that a group's rewards will be equal, and how well each sign does.

G members, K the turn, N groups. Signals read each member's first K actions without padding.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from winnowrl.gates.distance import group_distance, termination_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    Prefixes = Sequence[Sequence[str]]


def unique_action_ratio(prefixes: Prefixes, turn: int) -> float:
    """Different K-th actions per member; members that ended before K share one."""
    return len(set(_actions_at(prefixes, turn))) / len(prefixes)


def unique_prefix_ratio(prefixes: Prefixes, turn: int) -> float:
    """Different prefixes per member."""
    return len({tuple(actions[:turn]) for actions in prefixes}) / len(prefixes)


def action_bigram_jaccard_mean(prefixes: Prefixes, turn: int) -> float:
    """Mean over pairs of 1 - |A ∩ B| / |A ∪ B| of their sets of consecutive action pairs; two empty sets are at 0."""
    bigrams = [set(pairwise(actions[:turn])) for actions in prefixes]
    distances = [1.0 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in combinations(bigrams, 2)]
    return sum(distances) / len(distances)


def action_entropy(prefixes: Prefixes, turn: int) -> float:
    """Entropy of the K-th action over members in bits, divided by log2(G)."""
    shares = [count / len(prefixes) for count in Counter(_actions_at(prefixes, turn)).values()]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(prefixes)) + 0.0


SIGNALS: dict[str, Callable[[Prefixes, int], float]] = {
    "prefix_edit_distance_mean": group_distance,
    "termination_fraction": termination_fraction,
    "unique_action_ratio": unique_action_ratio,
    "unique_prefix_ratio": unique_prefix_ratio,
    "action_bigram_jaccard_mean": action_bigram_jaccard_mean,
    "action_entropy": action_entropy,
}


def average_ranks(values: FloatArray) -> FloatArray:
    """Ranks from 1; equal values share the mean of their places."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: FloatArray = ((2 * last - counts + 1) / 2.0)[place.reshape(-1)]
    return ranks


def spearman(left: FloatArray, right: FloatArray) -> tuple[float, float]:
    """Rank correlation of two [N] arrays, and its two-sided p-value by Student's t with N - 2 degrees of freedom.

    NaN for both where an array is constant or N < 3.
    """
    if len(left) < 3 or np.ptp(left) == 0.0 or np.ptp(right) == 0.0:
        return math.nan, math.nan
    rho = float(np.corrcoef(average_ranks(left), average_ranks(right))[0, 1])
    rho = max(-1.0, min(1.0, rho))
    return rho, _p_value(rho, len(left) - 2)


def auroc(scores: FloatArray, is_positive: npt.NDArray[np.bool_]) -> float:
    """Chance that a positive scores above a negative, ties counting half; NaN where one kind is missing."""
    num_positive = int(is_positive.sum())
    num_negative = len(scores) - num_positive
    if num_positive == 0 or num_negative == 0:
        return math.nan
    rank_sum = float(average_ranks(scores)[is_positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2.0) / (num_positive * num_negative)


def _actions_at(prefixes: Prefixes, turn: int) -> list[str | None]:
    return [actions[turn - 1] if len(actions) >= turn else None for actions in prefixes]


@lru_cache(maxsize=1)
def _legendre() -> tuple[FloatArray, FloatArray]:
    return np.polynomial.legendre.leggauss(100)


def _p_value(rho: float, freedom: int) -> float:
    """P(|T| > t) for t = rho sqrt(f / (1 - rho^2)), f degrees of freedom.

    With t = sqrt(f) tan(a), that is sin(a) = |rho|, the tail is an integral of cos^(f-1) from a to pi/2. It is taken by
    Gauss-Legendre over the part that is not negligible.
    """
    start = math.asin(abs(rho))
    end = min(math.pi / 2, start + 14.0 / math.sqrt(freedom))
    nodes, weights = _legendre()
    angles = start + (nodes + 1.0) * (end - start) / 2.0
    integral = float(weights @ np.cos(angles) ** (freedom - 1)) * (end - start) / 2.0
    log_scale = math.lgamma((freedom + 1) / 2.0) - math.lgamma(freedom / 2.0) - math.log(math.pi) / 2.0
    return min(1.0, 2.0 * math.exp(log_scale) * integral)
