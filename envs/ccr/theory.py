"""The closed forms of concurrent training: how likely a group teaches, what conciseness earns, how noisy reward is.

For planning a run (how many problems N fit a window, how many candidates S a group needs) and for its tests.
Source: CCR, arXiv 2604.02322.
"""

from __future__ import annotations

from collections.abc import Sequence

# N problems in a prompt, S candidates in a group, B tokens in the window


def informative_probability(count_pmf: Sequence[float], num_candidates: int) -> float:
    """P(not all S candidates have the same number of right answers) = 1 - sum_c p_c^S.

    Args:
        count_pmf: [N + 1] probability of 0..N right answers; sums to 1.
        num_candidates: S.

    Raises:
        ValueError: probabilities that are negative or do not sum to 1.

    Source: eq. 8.
    """
    if min(count_pmf) < 0 or abs(sum(count_pmf) - 1) > 1e-9:
        raise ValueError(f"count_pmf is {list(count_pmf)}; allowed: probabilities that sum to 1")
    return 1.0 - sum(p**num_candidates for p in count_pmf)


def num_completed(lengths: Sequence[int], budget: int) -> int:
    """N_eff: how many problems, solved in order, end within the budget (exactly at it counts).

    Args:
        lengths: [N] tokens spent on each problem, its answer included.
        budget: B.
    """
    spent = 0
    for count, length in enumerate(lengths):
        spent += length
        if spent > budget:
            return count
    return len(lengths)


def conciseness_gain(success: Sequence[float], completed_verbose: int, completed_concise: int) -> float:
    """E[r(concise)] - E[r(verbose)] = (1/N) * the success probabilities of the problems only the concise one reaches.

    Args:
        success: [N] probability that each problem is right when it is reached.
        completed_verbose, completed_concise: N_eff of the two candidates.

    Source: eq. 10.
    """
    return sum(success[completed_verbose:completed_concise]) / len(success)


def reasoning_gain(
    gain: float,
    displaced: Sequence[float],
    num_problems: int,
    *,
    length_penalty: float = 0.0,
    extra_tokens: int = 0,
) -> float:
    """What more reasoning on one problem earns: (gain - sum of displaced) / N - length_penalty * extra_tokens.

    Args:
        gain: Rise of that problem's success probability.
        displaced: Success probabilities of the problems that no longer fit.
        num_problems: N.
        length_penalty: Explicit penalty a token, for comparison; the method has none.

    Source: eq. 11.
    """
    return (gain - sum(displaced)) / num_problems - length_penalty * extra_tokens


def reward_noise(success: Sequence[float], num_candidates: int | None = None) -> float:
    """Variance of the accuracy reward around its mean: (1/N^2) sum theta (1 - theta), at most 1 / (4N).

    Args:
        success: [N] success probability of each problem (independent given the candidate).
        num_candidates: S, to include the baseline's centring factor (1 - 1/S); None leaves it out.
    """
    variance = sum(theta * (1 - theta) for theta in success) / len(success) ** 2
    return variance if num_candidates is None else variance * (1 - 1 / num_candidates)


def update_variance(
    num_problems: int, correlation: float, *, sigma: float = 1.0, accuracy_weight: float = 1.0
) -> float:
    """Variance of the update along one direction: w^2 sigma^2 (rho + (1 - rho) / N); the floor w^2 sigma^2 rho stays."""
    return accuracy_weight**2 * sigma**2 * (correlation + (1 - correlation) / num_problems)
