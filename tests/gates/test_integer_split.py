from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnowrl.gates.allocation.integer import gradient_variance, split_budget

FOUR = [0.5, 0.1, 0.9, 0.02]
EIGHT = [0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99]


def cost(success, counts, objective):
    return sum(gradient_variance(p, n, objective) for p, n in zip(success, counts, strict=True))


def cheapest(success, total, least, most, objective):
    """Least cost over every split there is."""
    splits = product(range(least, most + 1), repeat=len(success))
    return min(cost(success, split, objective) for split in splits if sum(split) == total)


def test_costs_by_hand():
    # p = .5: 4 p (1 - p) = 1. Dr.GRPO 3/16 at 4, RLOO 1/3.
    assert gradient_variance(0.5, 4, "dr_grpo") == pytest.approx(3 / 16)
    assert gradient_variance(0.5, 4, "rloo") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("success", "total", "bounds", "objective", "counts", "expected"),
    [
        (FOUR, 32, (3, 20), "dr_grpo", [13, 8, 8, 3], 0.1671781394),
        (FOUR, 32, (3, 20), "rloo", [12, 8, 8, 4], 0.2198995671),
        (EIGHT, 64, (4, 12), "dr_grpo", [4, 7, 10, 12, 12, 10, 5, 4], 0.3542538549),
        (EIGHT, 64, (4, 12), "rloo", [4, 7, 10, 11, 12, 10, 6, 4], 0.4535313131),
    ],
)
def test_published_cases(success, total, bounds, objective, counts, expected):
    found = split_budget(success, total, least=bounds[0], most=bounds[1], objective=objective)
    assert found == counts
    assert cost(success, found, objective) == pytest.approx(expected, abs=1e-9)


def test_even_split_of_the_published_cases_costs_more():
    assert cost(FOUR, [8] * 4, "dr_grpo") == pytest.approx(0.1967)
    assert cost(FOUR, [8] * 4, "rloo") == pytest.approx(0.2569142857)
    assert cost(EIGHT, [8] * 8, "dr_grpo") == pytest.approx(0.42319375)


def test_the_real_valued_optimum_bounds_the_integer_one():
    # RLOO without bounds: n_q - 1 in proportion to the standard deviation.
    spreads = [(4 * p * (1 - p)) ** 0.5 for p in FOUR]
    relaxed = [1 + (32 - 4) * spread / sum(spreads) for spread in spreads]
    assert relaxed == pytest.approx([12.290322580645162, 7.774193548387099, 7.774193548387097, 4.161290322580644])
    whole = split_budget(FOUR, 32, least=2, most=32, objective="rloo")
    assert cost(FOUR, relaxed, "rloo") <= cost(FOUR, whole, "rloo") <= cost(FOUR, [8] * 4, "rloo")
    assert all(abs(n - r) < 1 for n, r in zip(whole, relaxed, strict=True))


@given(data=st.data(), objective=st.sampled_from(["dr_grpo", "rloo"]))
@settings(max_examples=80, deadline=None)
def test_no_other_split_is_cheaper(data, objective):
    success = data.draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4))
    least = data.draw(st.integers(3 if objective == "dr_grpo" else 2, 4))
    most = data.draw(st.integers(least, least + 6))
    total = data.draw(st.integers(least * len(success), most * len(success)))
    counts = split_budget(success, total, least=least, most=most, objective=objective)
    assert sum(counts) == total
    assert all(least <= count <= most for count in counts)
    assert cost(success, counts, objective) <= cheapest(success, total, least, most, objective) + 1e-12


def test_below_three_rollouts_a_greedy_split_would_miss_the_optimum():
    # Dr.GRPO at p = .5 costs 0, 1/4, 2/9, 3/16, ...: adding the second rollout raises it, so the cost is not convex.
    # Six rollouts for three such tasks: one at a time ends at (2, 2, 2) = .75, while (1, 1, 4) costs .1875.
    costs = [gradient_variance(0.5, n, "dr_grpo") for n in (1, 2, 3, 4, 5)]
    assert costs[1] - costs[2] < costs[2] - costs[3]
    assert cheapest([0.5] * 3, 6, 1, 4, "dr_grpo") == pytest.approx(0.1875)
    with pytest.raises(ValueError, match="least is 2; allowed with dr_grpo: 3 or more"):
        split_budget([0.5] * 3, 6, least=2, most=4, objective="dr_grpo")


def test_from_three_rollouts_on_the_gains_fall():
    for objective, start in (("dr_grpo", 3), ("rloo", 2)):
        costs = [gradient_variance(0.3, n, objective) for n in range(start, 200)]
        gains = [a - b for a, b in pairwise(costs)]
        assert all(a > b > 0 for a, b in pairwise(gains))


def test_tasks_without_variance_share_what_nobody_needs():
    # The solvable one fills up to its bound; the rest goes round the hopeless ones.
    assert split_budget([0.0, 0.5, 1.0], 16, least=3, most=6, objective="dr_grpo") == [5, 6, 5]


def test_the_same_input_splits_alike():
    success = [0.3] * 7
    assert split_budget(success, 38, least=3, most=9, objective="dr_grpo") == [6, 6, 6, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("total", "least", "most", "objective", "text"),
    [
        (5, 3, 9, "dr_grpo", "5 rollouts cannot be split over 2 tasks with 3 to 9 each .allowed: 6 to 18"),
        (19, 3, 9, "dr_grpo", "19 rollouts cannot be split"),
        (8, 1, 9, "rloo", "least is 1; allowed with rloo: 2 or more"),
        (8, 4, 3, "rloo", "least is 4 and most 3"),
        (8, 3, 9, "grpo", "objective is 'grpo'; allowed: dr_grpo, rloo"),
    ],
)
def test_impossible_splits_are_named(total, least, most, objective, text):
    with pytest.raises(ValueError, match=text):
        split_budget([0.5, 0.5], total, least=least, most=most, objective=objective)
