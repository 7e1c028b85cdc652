from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from winnowrl.agents.evaluation import bootstrap_interval, pass_at_k, score_interval


def test_pass_at_k_equals_the_share_of_subsets_with_a_correct_sample() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(samples, k))
                expected = sum(any(subset) for subset in subsets) / len(subsets)
                assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_exact_for_large_counts() -> None:
    # 1 - C(9990, 100) / C(10000, 100)
    expected = 1 - math.comb(9990, 100) / math.comb(10000, 100)
    assert pass_at_k(10000, 10, 100) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        pass_at_k(n, c, k)


def test_the_bootstrap_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        interval = bootstrap_interval(generator.random(60) < 0.3, num_resamples=400, seed=trial)
        covered += interval.low <= 0.3 <= interval.high
    assert 0.90 <= covered / 200 <= 0.99


@pytest.mark.parametrize(("num_tasks", "share"), [(5, 0.8), (10, 0.9), (20, 0.95), (30, 0.5)])
def test_intervals_of_right_and_wrong_cover_the_mean_with_few_tasks(num_tasks: int, share: float) -> None:
    # Exactly: the chance of each count of right answers, summed where the interval holds the share.
    covered = sum(
        math.comb(num_tasks, right) * share**right * (1 - share) ** (num_tasks - right)
        for right in range(num_tasks + 1)
        if (interval := score_interval([1.0] * right + [0.0] * (num_tasks - right))).low <= share <= interval.high
    )
    assert covered >= 0.91


def test_equal_scores_still_leave_something_open() -> None:
    # Wilson for 5 of 5: 5 / (5 + 1.96^2) = 0.5655.
    certain = score_interval([1.0] * 5)
    assert (certain.mean, certain.low, certain.high) == pytest.approx((1.0, 0.5655, 1.0), abs=1e-4)
    halves = score_interval([0.5] * 5)
    assert halves.low < 0.2 < 0.8 < halves.high
    assert score_interval([0.2, 0.9, 0.4]) == bootstrap_interval([0.2, 0.9, 0.4])
    assert math.isnan(score_interval([]).mean)


def test_degenerate_samples_have_degenerate_intervals() -> None:
    assert math.isnan(bootstrap_interval([]).mean)
    one = bootstrap_interval([0.5])
    assert (one.mean, one.low, one.high) == (0.5, 0.5, 0.5)
