"""The bandit's reward, choice and network; values from the method's description."""

import math

import numpy as np
import pytest
import torch

from winnowrl.training.selection.reward import (
    EMA_MODES,
    RewardNormalizer,
    credit,
    entropy_term,
)
from winnowrl.training.selection.scheduler import Scheduler, choose, explore_probability, keep_count, top_scored

# --- reward ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entropy", "next_entropy", "expected"),
    [(0.35, 0.41, 0.03), (0.25, 0.31, 0.06), (0.30, 0.36, 0.06), (0.35, 0.30, 0.085)],
)
def test_reward_is_the_gain_less_the_entropy_rise_above_the_floor(entropy, next_entropy, expected):
    # gain .06; .5 * (.41 - .35) = .03; at or below the floor of .30 nothing; a fall of .05 is a bonus of .025
    cost = entropy_term(entropy, next_entropy, weight=0.5, floor=0.30)
    found = RewardNormalizer(mode="none")(0.46 - 0.40, cost)
    assert found == pytest.approx(expected)


def test_running_statistics_of_the_gain():
    normalizer = RewardNormalizer(rate=0.1)
    rows = [
        (0.05, 0.005, 0.9002025, 0.0474288295),
        (-0.02, 0.0025, 0.810232875, -0.0249964070),
        (0.04, 0.00625, 0.72932349375, 0.0395197033),
    ]
    for gain, mean, variance, expected in rows:
        normalizer.update(gain)
        assert normalizer.mean == pytest.approx(mean)
        assert normalizer.variance == pytest.approx(variance)
        assert normalizer(gain, 0.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("center_scale_gain", (0.05 - 0.005) / 0.9002025**0.5 - 0.03),
        ("scale_all", (0.05 - 0.005 - 0.03) / 0.9002025**0.5),
        ("center_only", 0.05 - 0.005 - 0.03),
        ("none", 0.05 - 0.03),
    ],
)
def test_what_the_text_leaves_open_is_a_switch(mode, expected):
    normalizer = RewardNormalizer(mode=mode, rate=0.1)
    normalizer.update(0.05)
    assert normalizer(0.05, 0.03) == pytest.approx(expected)


@pytest.mark.parametrize("mode", EMA_MODES)
def test_a_gain_that_never_varies_stays_finite(mode):
    normalizer = RewardNormalizer(mode=mode, rate=1.0)
    for _ in range(3):
        normalizer.update(0.0)
    assert math.isfinite(normalizer(0.0, 0.0))


def test_unknown_mode_is_named():
    with pytest.raises(ValueError, match="ema_mode is 'zscore'"):
        RewardNormalizer(mode="zscore")


def test_credit():
    advantages = [1.5, -0.5, 0.0, 1.0]
    assert credit(advantages, 0.06, mode="shared") == pytest.approx([0.03, 0.01, 0.0, 0.02])
    assert credit(advantages, 0.8, mode="scaled") == pytest.approx([1.2, 0.4, 0.0, 0.8])
    assert credit([0.0, 0.0], 0.06, mode="shared") == [0.0, 0.0]
    with pytest.raises(ValueError, match="credit is 'equal'"):
        credit(advantages, 0.06, mode="equal")


# --- choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [(8, 0.5, 4), (5, 0.5, 2), (7, 0.3, 2), (16, 0.25, 4), (3, 0.3, 1), (100, 0.29, 29), (1, 0.5, 1), (0, 0.5, 0)],
)
def test_keep_count_rounds_down_but_keeps_one(size, fraction, expected):
    assert keep_count(size, fraction) == expected


def test_equal_scores_are_chosen_in_their_order():
    assert top_scored([0.2, 0.9, 0.9, -0.1, 0.4, 0.9, 0, 0.1], 4) == [1, 2, 5, 4]


@pytest.mark.parametrize("unit", ["round", "slot"])
def test_exploration_takes_as_many_and_none_twice(unit):
    scores = [float(i) for i in range(10)]
    generator = np.random.default_rng(0)
    assert choose(scores, 3, 0.0, unit, generator) == [9, 8, 7]
    seen = set()
    for _ in range(200):
        chosen = choose(scores, 3, 1.0, unit, generator)
        assert len(set(chosen)) == 3
        seen |= set(chosen)
    assert seen == set(range(10))


def test_exploration_fades_linearly():
    chances = [explore_probability(t, start=0.2, end=0.02, num_rounds=100) for t in (0, 50, 100, 1000)]
    assert chances == pytest.approx([0.2, 0.11, 0.02, 0.02])


# --- network -----------------------------------------------------------------------------------------------------


def test_the_network_is_trained_on_squared_error():
    scheduler = Scheduler(num_features=10, seed=3)
    features = torch.rand(3, 10)
    predictions, targets = scheduler.score(features), [0.3, 0.1, 0.0]
    expected = sum((p - t) ** 2 for p, t in zip(predictions, targets, strict=True)) / 3
    assert scheduler.fit(features, targets) == pytest.approx(expected, rel=1e-5)


def test_mean_squared_error_value():
    # (.1^2 + .4^2 + .1^2) / 3 = .06, through a network whose last layer gives these very predictions
    scheduler = Scheduler(num_features=3, hidden_layers=1, hidden_size=3, seed=0)
    inner, outer = scheduler._network[0], scheduler._network[2]
    with torch.no_grad():
        inner.weight.copy_(torch.eye(3))
        inner.bias.zero_()
        outer.weight.copy_(torch.tensor([[0.2, 0.5, -0.1]]))
        outer.bias.zero_()
    assert scheduler.fit(torch.eye(3), [0.3, 0.1, 0.0]) == pytest.approx(0.06)


def test_the_network_learns_which_rollouts_pay():
    scheduler = Scheduler(num_features=10, learning_rate=1e-2, seed=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        features = torch.rand(32, 10, generator=generator)
        scheduler.fit(features, (features[:, 1] - features[:, 8]).tolist())
    features = torch.rand(200, 10, generator=generator)
    wanted = (features[:, 1] - features[:, 8]).numpy()
    assert np.corrcoef(scheduler.score(features), wanted)[0, 1] > 0.95
