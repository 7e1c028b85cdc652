"""The replay buffer: priorities, age, counts, draws; values from the method's description."""

from itertools import permutations

import numpy as np
import pytest
import torch

from winnowrl.training.batch import SequenceStats, TrainingSequence, UpdateResult
from winnowrl.training.candidates import Candidate
from winnowrl.training.efficiency import accuracy_efficiency_score
from winnowrl.training.replay import ReplayBuffer, is_expired, priorities, replay_count
from winnowrl.training.selection import (
    AllSelector,
    BanditOptions,
    CbsSelector,
    CbsStarSelector,
    RandomSelector,
    ReplaySelector,
)
from winnowrl.training.selection.refill import is_informative


def candidate(rollout_id, *, advantage=1.0, birth_step=0, group_id=0, forks=0, entropy=0.5, reward=1.0):
    """A rollout of two sampled tokens a sequence."""
    sequences = [
        TrainingSequence(
            token_ids=[1, 2, 3 + rollout_id],
            completion_mask=[False, True, True],
            sampler_logprobs=[0.0, -0.5, -0.25],
            advantage=advantage,
            group_id=group_id,
            rollout_id=rollout_id * 64 + place,
            birth_step=birth_step,
        )
        for place in range(1 + forks)
    ]
    return Candidate(
        rollout_id=rollout_id,
        group_id=group_id,
        sequences=sequences,
        reward=reward,
        advantage=advantage,
        group_mean=0.5,
        group_std=0.5,
        num_tokens=2 * (1 + forks),
        is_truncated=False,
        birth_step=birth_step,
        entropy=entropy,
    )


def update_result(sequences, logprob=-0.75, entropy=0.4, clip_fraction=0.25):
    return UpdateResult(
        {s.rollout_id: SequenceStats([0.0, logprob, logprob], entropy, clip_fraction) for s in sequences}
    )


def run(selector, step, fresh):
    chosen = selector.select(fresh, step)
    selector.observe(update_result(chosen), step)
    return chosen


# --- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (0.5, [0.4529366155, 0.2264684776, 0.0003202745, 0.3202746324]),
        (0.0, [0.25] * 4),
        (1.0, [0.5714282041, 0.1428572653, 2.857140e-07, 0.2857142449]),
    ],
)
def test_priorities(exponent, expected):
    # (|A| + 1e-6)^.5 = 1.4142139, .7071075, .001, 1.0000005 over their sum
    assert priorities([2.0, -0.5, 0.0, 1.0], exponent=exponent, eps=1e-6).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("birth", "now", "gone"), [(0, 10, False), (0, 11, True), (5, 15, False), (5, 16, True)])
def test_the_largest_age_is_still_kept(birth, now, gone):
    assert is_expired(birth, now, 10) is gone
    buffer = ReplayBuffer(max_age=10)
    buffer.insert([candidate(1, birth_step=birth)])
    assert buffer.evict(now) == gone
    assert len(buffer) == (not gone)


@pytest.mark.parametrize(
    ("num_fresh", "available", "multiple_of", "expected"),
    [
        (264, 10_000, 1, (132, 0)),
        (5, 100, 1, (2, 0)),  # 2.5 to even
        (7, 100, 1, (4, 0)),  # 3.5 to even
        (40, 12, 1, (12, 0)),
        (11, 100, 3, (7, 0)),  # 5.5 to 6; 17 is no multiple of 3, 18 is
        (11, 0, 3, (0, 2)),  # warm-up: nothing to replay, so two fresh ones go
        (3, 0, 4, (0, 0)),  # fewer than one multiple: nothing goes
        (2, 1, 8, (1, 0)),
        (0, 100, 1, (0, 0)),
    ],
)
def test_replay_count(num_fresh, available, multiple_of, expected):
    assert replay_count(num_fresh, 0.5, available, multiple_of=multiple_of) == expected


@pytest.mark.parametrize("multiple_of", [2, 3, 5, 8])
def test_replay_count_reaches_the_multiple(multiple_of):
    for num_fresh in range(1, 40):
        for available in range(12):
            replayed, left_out = replay_count(num_fresh, 0.5, available, multiple_of=multiple_of)
            assert 0 <= replayed <= available
            assert left_out < multiple_of
            assert left_out < num_fresh
            if num_fresh + replayed >= multiple_of:
                assert (num_fresh - left_out + replayed) % multiple_of == 0
            else:
                assert left_out == 0


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [([1] * 4, False), ([0] * 4, False), ([1, 0, 0, 0], True), ([0.5, 0.5, 0.5, 0.4], True), ([1], False), ([], False)],
)
def test_zero_variance_filter(rewards, kept):
    assert is_informative([float(reward) for reward in rewards]) is kept


@pytest.mark.parametrize(
    ("accuracy", "tokens", "coefficients", "expected"),
    [
        (52, 900, (1, 3, 5), 0.22),
        (48, 900, (1, 3, 5), -0.10),
        (50, 1100, (1, 3, 5), -0.10),
        (52, 900, (1, 5, 10), 0.30),
        (48, 900, (1, 5, 10), -0.30),
    ],
)
def test_accuracy_efficiency_score(accuracy, tokens, coefficients, expected):
    assert accuracy_efficiency_score(50, accuracy, 1000, tokens, coefficients=coefficients) == pytest.approx(expected)


def test_a_score_relative_to_nothing_is_refused():
    with pytest.raises(ValueError, match="base_accuracy is 0"):
        accuracy_efficiency_score(0, 50, 1000, 900)


# --- the buffer --------------------------------------------------------------------------------------------------


def test_the_oldest_go_when_the_capacity_is_reached():
    buffer = ReplayBuffer(capacity=10)
    buffer.insert([candidate(i, birth_step=0) for i in range(6)])
    buffer.insert([candidate(10 + i, birth_step=1) for i in range(6)])
    assert [each.rollout_id for each in buffer.rollouts] == [2, 3, 4, 5, 10, 11, 12, 13, 14, 15]


def inclusion_probabilities(chances, count):
    """By enumeration of all orders of draws without replacement."""
    found = np.zeros(len(chances))
    for order in permutations(range(len(chances)), count):
        probability, left = 1.0, 1.0
        for index in order:
            probability *= chances[index] / left
            left -= chances[index]
        found[list(order)] += probability
    return found


def test_draws_without_replacement_follow_the_priorities():
    advantages = [2.0, -0.5, 1.0]
    chances = priorities(advantages, exponent=0.5, eps=1e-6)
    assert chances.tolist() == pytest.approx([0.4530817261, 0.2265410329, 0.3203772410], rel=1e-6)
    expected = inclusion_probabilities(chances, 2)
    assert expected.tolist() == pytest.approx([0.7993711509, 0.5210061508, 0.6796226983], rel=1e-6)
    buffer = ReplayBuffer()
    buffer.insert([candidate(i, advantage=advantage) for i, advantage in enumerate(advantages)])
    seen = np.zeros(3)
    for step in range(6000):
        seen[[each.rollout_id for each in buffer.draw(2, step)]] += 1
    # Standard error of a share over 6000 draws is below .0065.
    assert (seen / 6000).tolist() == pytest.approx(expected.tolist(), abs=0.025)


def test_a_draw_repeats_no_rollout_and_leaves_the_buffer_as_it_is():
    buffer = ReplayBuffer()
    buffer.insert([candidate(i) for i in range(8)])
    drawn = buffer.draw(20, step=3)
    assert sorted(each.rollout_id for each in drawn) == list(range(8))
    assert len(buffer) == 8
    assert buffer.draw(0, step=3) == []
    assert {each.rollout_id for each in buffer.draw(20, step=3, exclude={1, 2})} == {0, 3, 4, 5, 6, 7}


def test_a_draw_depends_on_seed_and_step_alone():
    def drawn(seed, step):
        buffer = ReplayBuffer(seed=seed)
        buffer.insert([candidate(i) for i in range(30)])
        return [each.rollout_id for each in buffer.draw(10, step)]

    torch.manual_seed(1)
    np.random.seed(1)
    first = drawn(0, 5)
    torch.manual_seed(2)
    np.random.seed(2)
    assert drawn(0, 5) == first
    assert drawn(0, 6) != first
    assert drawn(1, 5) != first


def test_a_zero_advantage_can_still_be_drawn():
    buffer = ReplayBuffer()
    buffer.insert([candidate(0, advantage=0.0)])
    assert len(buffer.draw(1, step=1)) == 1


# --- replay around a selector ------------------------------------------------------------------------------------


def replaying(base=None, **kwargs):
    return ReplaySelector(base or AllSelector(), ReplayBuffer(max_age=3), **{"warmup_steps": 0, **kwargs})


def test_fresh_rollouts_are_all_trained_on_and_replayed_ones_join_them():
    selector = replaying()
    first = run(selector, 0, [candidate(i, birth_step=0) for i in range(4)])
    assert [s.birth_step for s in first] == [0] * 4  # nothing can be replayed in its own step
    second = run(selector, 1, [candidate(10 + i, birth_step=1) for i in range(4)])
    assert [s.birth_step for s in second] == [1] * 4 + [0] * 2
    assert selector.metrics()["replay/replayed"] == 2.0


def test_warm_up_fills_the_buffer_without_replaying():
    selector = replaying(warmup_steps=2)
    for step in range(2):
        assert len(run(selector, step, [candidate(10 * step + i, birth_step=step) for i in range(4)])) == 4
    assert len(selector.buffer) == 8
    assert len(run(selector, 2, [candidate(20 + i, birth_step=2) for i in range(4)])) == 6


@pytest.mark.parametrize(
    ("birth_logprobs", "expected"), [("learner", [0.0, -0.75, -0.75]), ("sampler", [0.0, -0.5, -0.25])]
)
def test_replayed_rollouts_carry_what_they_were_born_with(birth_logprobs, expected):
    selector = replaying(birth_logprobs=birth_logprobs, ratio=1.0)
    fresh = candidate(0, advantage=1.5)
    assert run(selector, 0, [fresh])[0].old_logprobs is None  # its first ratio is 1
    for step in (1, 2, 3):
        chosen = selector.select([candidate(step, birth_step=step)], step)
        replayed = next((s for s in chosen if s.rollout_id == 0), None)
        selector.observe(update_result(chosen, logprob=-9.0), step)
        if replayed is not None:
            assert list(replayed.old_logprobs) == expected
            assert replayed.advantage == 1.5
            assert list(replayed.token_ids) == [1, 2, 3]
            assert [bool(m) for m in replayed.completion_mask] == [False, True, True]
            assert replayed.num_completion_tokens == 2
    assert any(each.rollout_id == 0 for each in selector.buffer.rollouts)


def test_age_ends_a_rollout_before_the_draw():
    selector = replaying(ratio=10.0)
    run(selector, 0, [candidate(0)])
    assert {s.birth_step for s in run(selector, 3, [candidate(1, birth_step=3)])} == {0, 3}
    assert {s.birth_step for s in run(selector, 4, [candidate(2, birth_step=4)])} == {3, 4}


def test_a_fork_is_replayed_whole():
    selector = replaying(ratio=1.0)
    run(selector, 0, [candidate(0, forks=2)])
    chosen = run(selector, 1, [candidate(1, birth_step=1)])
    assert sorted(s.rollout_id for s in chosen) == [0, 1, 2, 64]


def test_a_skipped_update_inserts_nothing():
    selector = replaying()
    selector.select([candidate(0)], 0)
    selector.select([candidate(1, birth_step=1)], 1)
    assert len(selector.buffer) == 0


def test_nothing_fresh_means_no_update():
    selector = replaying()
    run(selector, 0, [candidate(0)])
    assert selector.select([], 1) == []


def test_only_what_a_selector_chose_is_replayed():
    selector = replaying(RandomSelector(keep_fraction=0.5))
    run(selector, 0, [candidate(i) for i in range(8)])
    assert len(selector.buffer) == 4


def test_replay_around_a_bandit_holds_no_rollout_twice():
    selector = replaying(CbsSelector(BanditOptions(max_tokens=8), buffer_rounds=3), ratio=1.0)
    for step in range(6):
        fresh = [
            candidate(10 * step + i, birth_step=step, group_id=step, advantage=i - 1.5, reward=float(i % 2))
            for i in range(4)
        ]
        chosen = run(selector, step, fresh)
        ids = [s.rollout_id for s in chosen]
        assert len(ids) == len(set(ids))
        assert all((s.old_logprobs is None) == (s.birth_step == step) for s in chosen)


BANDIT = BanditOptions(max_tokens=8, explore_start=0.0, explore_end=0.0)


@pytest.mark.parametrize(
    "base",
    [
        AllSelector(),
        RandomSelector(keep_fraction=0.75),
        CbsStarSelector(BANDIT, keep_fraction=0.75),
        CbsSelector(BANDIT),
    ],
    ids=["all", "random", "cbs_star", "cbs"],
)
def test_what_is_left_out_for_a_multiple_counts_as_not_chosen(base):
    # Of 8 fresh ones 8 or 6 are chosen, and without a buffer 5 trained on.
    selector = replaying(base, warmup_steps=100, multiple_of=5)
    for step in range(3):
        fresh = [candidate(10 * step + i, birth_step=step, group_id=step, advantage=i - 3.5) for i in range(8)]
        chosen = run(selector, step, fresh)
        found = selector.metrics()
        assert len(chosen) == found["selector/selected"] == 5
        assert found["selector/selected_tokens"] == sum(s.num_completion_tokens for s in chosen) == 10
        trained = np.mean([abs(s.advantage) for s in chosen])
        assert found["selector/mean_abs_advantage_selected"] == pytest.approx(trained)
        assert len(selector.buffer) == 5 * (step + 1) or isinstance(base, CbsSelector)


@pytest.mark.parametrize("kind", [CbsStarSelector, CbsSelector])
def test_a_bandit_learns_only_from_what_was_trained_on(kind):
    base = kind(BANDIT, keep_fraction=1.0) if kind is CbsStarSelector else kind(BANDIT)
    fits = []
    base._scheduler.fit = lambda features, targets, steps: fits.append((features, targets)) or 0.0
    selector = replaying(base, warmup_steps=100, multiple_of=4)
    chosen = run(selector, 0, [candidate(i, advantage=1.0 + i) for i in range(6)])
    run(selector, 1, [candidate(10 + i, birth_step=1, advantage=1.0, reward=2.0) for i in range(4)])
    ((features, targets),) = fits
    assert features.shape == (4, 10)
    # A target is |A| times the one reward of the round.
    ratios = [target / sequence.advantage for target, sequence in zip(targets, chosen, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 4)


def test_a_warm_up_step_smaller_than_the_multiple_is_trained_on():
    selector = replaying(warmup_steps=100, multiple_of=4)
    for step in range(2):
        assert len(run(selector, step, [candidate(10 * step + i, birth_step=step) for i in range(3)])) == 3
    assert len(selector.buffer) == 6


def test_a_resumed_run_draws_what_the_uninterrupted_one_draws():
    def steps(selector, numbers):
        return [
            [s.rollout_id for s in run(selector, t, [candidate(10 * t + i, birth_step=t) for i in range(5)])]
            for t in numbers
        ]

    whole, first, resumed = replaying(), replaying(), replaying()
    expected = steps(whole, range(8))
    steps(first, range(4))
    resumed.load_state_dict(first.state_dict())
    assert steps(resumed, range(4, 8)) == expected[4:]
    assert resumed.metrics() == whole.metrics()


def test_the_state_passes_through_a_file(tmp_path):
    selector = replaying()
    run(selector, 0, [candidate(i) for i in range(4)])
    torch.save(selector.state_dict(), tmp_path / "state.pt")
    other = replaying()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert other.buffer.rollouts == selector.buffer.rollouts


def test_kept_tokens_are_compact():
    selector = replaying()
    run(selector, 0, [candidate(0)])
    (sequence,) = selector.buffer.rollouts[0].sequences
    sizes = [sequence.token_ids, sequence.completion_mask, sequence.sampler_logprobs, sequence.old_logprobs]
    assert sum(array.itemsize for array in sizes) == 13


def test_no_capacity_is_refused():
    with pytest.raises(ValueError, match="capacity is 0"):
        ReplayBuffer(capacity=0)
