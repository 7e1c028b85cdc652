"""Wilson's interval for a share, and what a group gives to the advantage's squared length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REWARD_TOLERANCE = 1e-6
_Z_95 = 1.959963984540054


def wilson_interval(successes: float, trials: float, *, z: float = _Z_95) -> tuple[float, float]:
    """Confidence interval of a share; (0, 1) without trials.

    ((p + z^2/2n) ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with p = successes / n, n = trials.

    Args:
        successes: at most ``trials``.
        trials: number of observations.
        z: normal quantile; the default gives 95 %.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes} of {trials} trials; allowed: 0 to trials")
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    center = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def has_variance(rewards: Sequence[float]) -> bool:
    """Whether a group teaches: at least two rewards, further apart than 1e-6."""
    return len(rewards) >= 2 and max(rewards) - min(rewards) > REWARD_TOLERANCE


def squared_advantages(rewards: Sequence[float]) -> float:
    """Sum of squared advantages (r - mean) / population std over a group.

    That is the size of the group where rewards differ, however they are spread, and 0 where they do not: each group a
    gate cuts wrongly costs the same, and none of them can be "below average".
    """
    return float(len(rewards)) if has_variance(rewards) else 0.0
