"""Features, reward, network and the two bandits; values from the method's description."""

import math

import numpy as np
import pytest
import torch

from winnowrl.training.batch import SequenceStats, TrainingSequence, UpdateResult
from winnowrl.training.candidates import Candidate, RoundStats
from winnowrl.training.losses import clipped_surrogate
from winnowrl.training.selection import BanditOptions, CbsSelector, CbsStarSelector
from winnowrl.training.selection.features import HistoryScaler, l2_normalize, rollout_features
from winnowrl.training.selection.reward import (
    EMA_MODES,
    RewardNormalizer,
    scaled_credit,
    selection_reward,
    shared_credit,
    unit_reward,
)
from winnowrl.training.selection.scheduler import Scheduler, choose, explore_probability, keep_count, top_scored


def candidate(rollout_id, *, group_id=0, advantage=1.0, birth_step=0, reward=1.0, entropy=0.6, **kwargs):
    sequence = TrainingSequence(
        token_ids=[7, 8, 9],
        completion_mask=[False, True, True],
        sampler_logprobs=[0.0, -0.5, -0.25],
        advantage=advantage,
        group_id=group_id,
        rollout_id=rollout_id * 64,
        birth_step=birth_step,
    )
    known = {"group_mean": 0.5, "group_std": 0.5, "num_tokens": 2, "is_truncated": False}
    return Candidate(
        rollout_id=rollout_id,
        group_id=group_id,
        sequences=[sequence],
        reward=reward,
        advantage=advantage,
        birth_step=birth_step,
        entropy=entropy,
        **(known | kwargs),
    )


def update_result(sequences, entropy=0.4, clip_fraction=0.25):
    return UpdateResult({s.rollout_id: SequenceStats([0.0, -0.75, -0.5], entropy, clip_fraction) for s in sequences})


# --- reward ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entropy", "next_entropy", "expected"),
    [(0.35, 0.41, 0.03), (0.25, 0.31, 0.06), (0.30, 0.36, 0.06), (0.35, 0.30, 0.085)],
)
def test_reward_is_the_gain_less_the_entropy_rise_above_the_floor(entropy, next_entropy, expected):
    # gain .06; .5 * (.41 - .35) = .03; at or below the floor of .30 nothing; a fall of .05 is a bonus of .025
    found = selection_reward(0.40, 0.46, entropy, next_entropy, weight=0.5, floor=0.30)
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
    assert shared_credit(advantages, 0.06) == pytest.approx([0.03, 0.01, 0.0, 0.02])
    assert scaled_credit(advantages, 0.8) == pytest.approx([1.2, 0.4, 0.0, 0.8])
    assert shared_credit([0.0, 0.0], 0.06) == [0.0, 0.0]


def test_unit_reward():
    assert unit_reward(0.3, 1.0) == pytest.approx(0.65)


# --- features ----------------------------------------------------------------------------------------------------


def test_the_ten_features_in_their_order():
    rollout = candidate(
        0,
        advantage=1.2076124,
        group_mean=0.375,
        group_std=0.5175492,
        num_tokens=1024,
        entropy=0.62,
        clip_fraction=0.015625,
        num_uses=1,
        birth_step=4,
    )
    features = rollout_features([rollout], 7, 4096)
    raw = [1.0, 1.2076124, 0.375, 0.5175492, 0.25, 0.0, 0.62, 0.015625, 3.0, 1.0]
    assert features[0].tolist() == pytest.approx(raw)
    unit = l2_normalize(features)[0]
    assert unit[[0, 1, 8]].tolist() == pytest.approx([0.2740605180, 0.3309588787, 0.8221815540], rel=1e-6)
    assert unit.norm().item() == pytest.approx(1.0)


def test_zero_features_stay_zero():
    assert torch.equal(l2_normalize(torch.zeros(2, 10)), torch.zeros(2, 10))


def test_no_candidates_give_no_rows():
    assert rollout_features([], 0, 8).shape == (0, 10)


def test_history_is_standardised_over_everything_seen():
    scaler, parts = HistoryScaler(), torch.rand(5, 7, 10) * 4
    for part in parts:
        scaler.update(part)
    everything = parts.reshape(-1, 10)
    scaled = scaler(everything)
    assert torch.equal(scaled[:, :8], everything[:, :8])
    assert scaled[:, 8:].mean(0).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert scaled[:, 8:].std(0, correction=0).tolist() == pytest.approx([1.0, 1.0], rel=1e-5)
    constant = HistoryScaler()
    constant.update(torch.ones(3, 10))
    assert torch.equal(constant(torch.ones(3, 10))[:, 8:], torch.zeros(3, 2))


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 0.25), (-1.0, 0.25), (0.0, 0.0)])
def test_clip_fraction_of_a_rollout(advantage, expected):
    # ratios .7 1 1.25 1.35 under .2/.28: A > 0 clips 1.35 alone, A < 0 clips .7 alone
    found = clipped_surrogate(
        torch.tensor([0.7, 1.0, 1.25, 1.35]), torch.full((4,), advantage), clip_low=0.2, clip_high=0.28
    )
    assert (found.clipped_low | found.clipped_high).float().mean().item() == expected


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


def test_nothing_touches_the_global_generators():
    torch.manual_seed(5)
    before = torch.random.get_rng_state().clone()
    numpy_before = np.random.get_state()[1].copy()
    selector = CbsStarSelector(BanditOptions(max_tokens=8, explore_start=1.0, explore_end=1.0))
    for step in range(3):
        chosen = selector.select([candidate(10 * step + i, birth_step=step) for i in range(4)], step)
        selector.observe(update_result(chosen), step)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()


# --- the bandits -------------------------------------------------------------------------------------------------

QUIET = {"explore_start": 0.0, "explore_end": 0.0}


def prefer(selector, feature):
    """Make the scheduler score a rollout by one raw feature."""
    selector._scheduler.score = lambda features: features[:, feature].tolist()


def test_cbs_star_keeps_the_best_part_of_every_group():
    selector = CbsStarSelector(BanditOptions(max_tokens=8, l2_normalize=False, **QUIET), keep_fraction=0.5)
    prefer(selector, 1)
    advantages = {0: [0.1, 0.9, 0.5, -0.3], 1: [2.0, 1.0, 3.0]}
    fresh = [
        candidate(10 * group + i, group_id=group, advantage=a)
        for group, values in advantages.items()
        for i, a in enumerate(values)
    ]
    interleaved = [fresh[i] for i in (0, 4, 1, 5, 2, 6, 3)]
    chosen = selector.select(interleaved, 0)
    assert sorted(s.rollout_id // 64 for s in chosen) == [1, 2, 12]
    assert [s.advantage for s in chosen] == [0.9, 0.5, 3.0]  # those of the full group, unchanged
    assert selector.metrics()["selector/selected"] == 3.0


def test_a_small_group_keeps_one():
    selector = CbsStarSelector(BanditOptions(max_tokens=8, **QUIET), keep_fraction=0.3)
    assert len(selector.select([candidate(i) for i in range(3)], 0)) == 1


def test_cbs_chooses_as_many_as_are_fresh_from_the_last_rounds():
    selector = CbsSelector(BanditOptions(max_tokens=8, **QUIET), buffer_rounds=3)
    prefer(selector, 8)  # the oldest first
    for step in range(1, 6):
        chosen = selector.select([candidate(10 * step + i, birth_step=step) for i in range(4)], step)
        assert len(chosen) == 4
        assert {s.birth_step for s in chosen} == {max(1, step - 2)}
        selector.observe(update_result(chosen), step)
    assert {each.birth_step for each in selector.buffer} == {3, 4, 5}
    assert len(selector.buffer) == 12


def test_history_changes_only_for_what_was_used():
    selector = CbsSelector(BanditOptions(max_tokens=8, l2_normalize=False, **QUIET), buffer_rounds=3)
    prefer(selector, 1)
    chosen = selector.select([candidate(0, advantage=2.0), candidate(1, advantage=-1.0)], 0)
    selector.observe(update_result([chosen[0]]), 0)
    used, unused = selector.buffer
    assert (used.entropy, used.clip_fraction, used.num_uses) == (0.4, 0.25, 1)
    assert (unused.entropy, unused.clip_fraction, unused.num_uses) == (0.6, 0.0, 0)


def test_a_rollout_chosen_late_starts_from_the_log_probs_of_its_birth():
    selector = CbsSelector(BanditOptions(max_tokens=8, **QUIET), buffer_rounds=4)
    prefer(selector, 8)
    first = selector.select([candidate(0), candidate(1)], 0)
    assert [s.old_logprobs for s in first] == [None, None]
    selector.observe(update_result([first[0]]), 0)  # the other was not trained on: it starts from the sampler
    again = selector.select([candidate(2, birth_step=1), candidate(3, birth_step=1)], 1)
    assert [list(s.old_logprobs) for s in again] == [[0.0, -0.75, -0.5], [0.0, -0.5, -0.25]]
    selector.observe(update_result(again), 1)
    assert [list(each.sequences[0].old_logprobs) for each in selector.buffer][:2] == [
        [0.0, -0.75, -0.5],
        [0.0, -0.5, -0.25],
    ]


def test_the_reward_of_a_choice_comes_with_the_next_rollouts():
    options = BanditOptions(max_tokens=8, entropy_weight=0.5, entropy_floor=0.3, ema_mode="none", **QUIET)
    selector = CbsStarSelector(options, keep_fraction=1.0)
    fits = []
    selector._scheduler.fit = lambda features, targets, steps: fits.append((features, targets)) or 0.0
    fresh = [candidate(0, advantage=1.5), candidate(1, advantage=-0.5)]
    chosen = selector.select(fresh, 0, RoundStats(0.40, 0.35))
    assert fits == []  # the first round has no reward yet
    selector.observe(update_result(chosen), 0)
    selector.select([candidate(2, birth_step=1), candidate(3, birth_step=1)], 1, RoundStats(0.46, 0.41))
    ((features, targets),) = fits
    assert features.shape == (2, 10)
    assert targets == pytest.approx([1.5 * 0.03, 0.5 * 0.03])  # |A| (.06 - .5 * .06)
    assert selector.metrics()["selector/reward"] == pytest.approx(0.03)


def test_a_skipped_update_earns_no_reward():
    selector = CbsStarSelector(BanditOptions(max_tokens=8, **QUIET))
    selector.select([candidate(0), candidate(1)], 0)
    selector.select([candidate(2), candidate(3)], 1)
    assert "selector/reward" not in selector.metrics()


def test_round_statistics_default_to_the_fresh_rollouts():
    fresh = [
        candidate(0, group_id=0, reward=1.0, entropy=0.2),
        candidate(1, group_id=0, reward=0.0, entropy=0.4),
        candidate(2, group_id=1, reward=1.0, entropy=0.9),
    ]
    # mean over groups: (.5 + 1) / 2 and (.3 + .9) / 2
    found = RoundStats.of_candidates(fresh)
    assert (found.mean_reward, found.mean_entropy) == pytest.approx((0.75, 0.6))


def test_no_fresh_rollouts_choose_nothing():
    for selector in (CbsStarSelector(BanditOptions(max_tokens=8)), CbsSelector(BanditOptions(max_tokens=8))):
        assert selector.select([], 0) == []
        selector.observe(UpdateResult(), 0)
        assert selector.select([], 1) == []


@pytest.mark.parametrize("kind", ["cbs", "cbs_star"])
@pytest.mark.parametrize("unit", ["round", "slot"])
def test_a_resumed_bandit_goes_on_exactly(kind, unit, tmp_path):
    options = BanditOptions(max_tokens=8, explore_unit=unit, explore_start=0.5, explore_end=0.5, seed=7)

    def build():
        return CbsSelector(options, buffer_rounds=3) if kind == "cbs" else CbsStarSelector(options)

    def steps(selector, numbers):
        found = []
        for step in numbers:
            generator = np.random.default_rng(step)
            fresh = [
                candidate(
                    10 * step + i,
                    group_id=2 * step + i % 2,
                    birth_step=step,
                    advantage=float(generator.normal()),
                    reward=float(generator.random()),
                )
                for i in range(8)
            ]
            chosen = selector.select(fresh, step)
            selector.observe(update_result(chosen, entropy=float(generator.random())), step)
            found.append(([s.rollout_id for s in chosen], selector.metrics()))
        return found

    expected = steps(build(), range(8))
    first = build()
    steps(first, range(4))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    steps(first, range(4, 6))  # goes on after the save; the file must not notice
    resumed = build()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert steps(resumed, range(4, 8)) == expected[4:]


def test_a_bandit_learns_to_choose_what_pays():
    # Rewards of the next round rise with the share of long rollouts trained on: after some rounds they are chosen.
    options = BanditOptions(
        max_tokens=8, explore_start=1.0, explore_end=0.0, explore_rounds=60, ema_mode="center_only", ema_rate=0.05
    )
    selector = CbsStarSelector(options, keep_fraction=0.5)
    generator, value, shares = np.random.default_rng(0), 0.0, []
    for step in range(160):
        fresh = [
            candidate(100 * step + i, group_id=step, birth_step=step, num_tokens=int(generator.integers(1, 9)))
            for i in range(8)
        ]
        chosen = selector.pick(fresh, step, RoundStats(value, 0.0))
        selector.observe(update_result([s for c in chosen for s in c.sequences]), step)
        share = sum(c.num_tokens for c in chosen) / sum(c.num_tokens for c in fresh)
        shares.append(share)
        value += share - 0.5
    assert np.mean(shares[-40:]) > 0.6
