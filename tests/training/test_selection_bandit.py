"""Features and the two bandits; values from the method's description."""

import numpy as np
import pytest
import torch

from winnowrl.training.batch import SequenceStats, TrainingSequence, UpdateResult
from winnowrl.training.candidates import Candidate, RoundStats
from winnowrl.training.losses import clipped_surrogate
from winnowrl.training.selection import BanditOptions, CbsSelector, CbsStarSelector
from winnowrl.training.selection.features import HistoryScaler, l2_normalize, rollout_features


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


# --- the bandits -------------------------------------------------------------------------------------------------


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


def learning(selector):
    """What the selector's network is taught from now on, as (features, targets)."""
    fits = []
    selector._scheduler.fit = lambda features, targets, steps: fits.append((features, targets)) or 0.0
    return fits


RAW = {"ema_mode": "none", "entropy_weight": 0.5, "entropy_floor": 0.3} | QUIET


@pytest.mark.parametrize("kind", [CbsStarSelector, CbsSelector])
@pytest.mark.parametrize("entropy_source", ["sampler", "learner"])
def test_a_step_without_rollouts_teaches_nothing_and_the_choice_goes_on_waiting(kind, entropy_source, tmp_path):
    selector = kind(BanditOptions(max_tokens=8, entropy_source=entropy_source, **RAW))
    fits = learning(selector)
    chosen = selector.select([candidate(0, advantage=1.5), candidate(1, advantage=-0.5)], 0, RoundStats(0.40, 0.35))
    selector.observe(update_result(chosen), 0)
    before = selector._normalizer.state_dict()
    assert selector.select([], 1, None) == []  # all failed, or were gated: no update either
    assert fits == []
    assert selector._normalizer.state_dict() == before
    assert "selector/gain" not in selector.metrics()
    torch.save(selector.state_dict(), tmp_path / "state.pt")
    selector.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    # The policy is still the one that the choice of step 0 led to: .46 - .40 - .5 (.41 - .35).
    selector.select([candidate(2, birth_step=2), candidate(3, birth_step=2)], 2, RoundStats(0.46, 0.41))
    assert len(fits) == 1
    assert selector.metrics()["selector/reward"] == pytest.approx(0.03)


@pytest.mark.parametrize("bad", [RoundStats(float("nan"), 0.4), RoundStats(0.4, float("nan"))])
def test_a_reward_that_is_no_number_teaches_nothing(bad):
    selector = CbsStarSelector(BanditOptions(max_tokens=8, **RAW))
    fits = learning(selector)
    for step, stats in enumerate([RoundStats(0.4, 0.4), bad, RoundStats(0.5, 0.4), RoundStats(0.7, 0.4)]):
        chosen = selector.select([candidate(2 * step + i, birth_step=step) for i in range(2)], step, stats)
        selector.observe(update_result(chosen), step)
    # Only the choice of step 2 has a number before and after it: .7 - .5.
    assert len(fits) == 1
    assert selector.metrics()["selector/gain"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (2, 2, 0.06 - 0.5 * (0.9 - 0.5)),  # the learner saw both rounds whole: its own entropies, .5 and .9
        (2, 4, 0.06 - 0.5 * (0.41 - 0.35)),  # of the second only part: the sampler's of both
        (4, 2, 0.06 - 0.5 * (0.41 - 0.35)),
        (4, 4, 0.06 - 0.5 * (0.41 - 0.35)),
    ],
)
def test_the_learners_entropy_counts_only_where_it_saw_whole_rounds(first, second, expected):
    selector = CbsStarSelector(BanditOptions(max_tokens=8, entropy_source="learner", **RAW))
    chosen = selector.select([candidate(0, entropy=0.4), candidate(1, entropy=0.6)], 0, RoundStats(0.40, 0.35, first))
    selector.observe(update_result(chosen), 0)
    selector.select([candidate(2, entropy=0.8), candidate(3, entropy=1.0)], 1, RoundStats(0.46, 0.41, second))
    assert selector.metrics()["selector/reward"] == pytest.approx(expected)


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
