"""Group advantages against the worked values of the methods and the faults users met elsewhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnowrl.training.advantages import group_advantages, informative_groups

ONE_OF_FOUR = torch.tensor([1.0, 0.0, 0.0, 0.0])
ONE_GROUP = torch.zeros(4, dtype=torch.long)


def test_population_std_gives_the_worked_values():
    # mean 1/4, population std sqrt(3)/4: (3/4) / (sqrt(3)/4) = sqrt(3)
    found = group_advantages(ONE_OF_FOUR, ONE_GROUP, eps=1e-8)
    assert found.tolist() == pytest.approx([1.7320507676] + [-0.5773502559] * 3, rel=1e-7)


@pytest.mark.parametrize(
    ("eps", "high", "low"), [(1e-4, 1.4997000600, -0.4999000200), (1e-6, 1.4999970000, -0.4999990000)]
)
def test_sample_std_gives_the_values_of_the_peers(eps, high, low):
    # sample std of [1,0,0,0] is 1/2: .75 / (.5 + eps)
    found = group_advantages(ONE_OF_FOUR, ONE_GROUP, std="sample", eps=eps)
    assert found.tolist() == pytest.approx([high, low, low, low], rel=1e-6)


def test_no_scale_only_centers():
    assert group_advantages(ONE_OF_FOUR, ONE_GROUP, scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_subtracts_the_mean_of_the_others():
    # 1 - 0 = 1; 0 - (1 + 0 + 0) / 3 = -1/3
    found = group_advantages(ONE_OF_FOUR, ONE_GROUP, scale="none", baseline="leave_one_out")
    assert found.tolist() == pytest.approx([1.0] + [-1 / 3] * 3)


def test_two_members_show_the_difference_between_the_stds():
    rewards, groups = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.long)
    assert group_advantages(rewards, groups, eps=0.0).tolist() == pytest.approx([1.0, -1.0])
    assert group_advantages(rewards, groups, eps=0.0, std="sample").tolist() == pytest.approx([0.70710678, -0.70710678])


def test_batch_scale_divides_by_the_std_of_all_rewards():
    rewards = torch.tensor([1.0, 0.0, 3.0, 1.0])
    groups = torch.tensor([0, 0, 1, 1])
    # centered .5 -.5 1 -1; rewards have mean 1.25 and squared distances .0625 + 1.5625 + 3.0625 + .0625 = 4.75
    expected = np.array([0.5, -0.5, 1.0, -1.0]) / np.sqrt(4.75 / 4)
    assert group_advantages(rewards, groups, scale="batch", eps=0.0).tolist() == pytest.approx(expected.tolist())
    expected = np.array([0.5, -0.5, 1.0, -1.0]) / np.sqrt(4.75 / 3)
    found = group_advantages(rewards, groups, scale="batch", std="sample", eps=0.0)
    assert found.tolist() == pytest.approx(expected.tolist())


def test_three_of_eight():
    # mean .375; population std sqrt(.375 * .625), sample std sqrt(8/7) times that; A = .625 / std
    rewards, groups = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0]), torch.zeros(8, dtype=torch.long)
    assert group_advantages(rewards, groups, eps=0.0)[0].item() == pytest.approx(1.2909944487)
    assert group_advantages(rewards, groups)[0].item() == pytest.approx(1.2909917821)
    assert group_advantages(rewards, groups, std="sample")[0].item() == pytest.approx(1.2076123955)


@pytest.mark.parametrize("rewards", [[0.7] * 7, [0.1] * 8, [1 / 3] * 5, [1e6 + 0.1] * 6, [0.0] * 4, [-2.5] * 3])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_equal_rewards_give_exact_zeros(rewards, scale, baseline):
    found = group_advantages(
        torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.long), scale=scale, baseline=baseline
    )
    assert torch.equal(found, torch.zeros(len(rewards)))


def test_rewards_equal_within_the_tolerance_give_exact_zeros():
    rewards, groups = torch.tensor([0.5, 0.5 + 5e-7, 0.5]), torch.zeros(3, dtype=torch.long)
    assert torch.equal(group_advantages(rewards, groups), torch.zeros(3))
    assert group_advantages(rewards.double(), groups, tolerance=1e-8).abs().max() > 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("std", ["population", "sample"])
def test_a_group_of_one_gets_zero_not_its_raw_reward(scale, baseline, std):
    found = group_advantages(
        torch.tensor([0.7, 1.0, 0.0]), torch.tensor([5, 9, 9]), scale=scale, baseline=baseline, std=std
    )
    assert found[0] == 0.0
    assert found[1] > 0 > found[2]


def test_statistics_are_keyed_by_group_not_by_place():
    # Interleaved constant groups: batch statistics would give +-1.
    found = group_advantages(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([3, 8, 3, 8]))
    assert torch.equal(found, torch.zeros(4))


def test_excluded_rollouts_are_in_no_statistic_and_get_zero():
    rewards = torch.tensor([1.0, 0.0, float("nan"), 0.0, 0.0])
    mask = torch.tensor([True, True, False, True, True])
    groups = torch.zeros(5, dtype=torch.long)
    found = group_advantages(rewards, groups, baseline_mask=mask)
    assert torch.equal(found[mask], group_advantages(rewards[mask], groups[mask]))
    assert found[2] == 0.0


def test_a_group_with_one_counted_member_gets_zero():
    found = group_advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), baseline_mask=torch.tensor([True, False]))
    assert torch.equal(found, torch.zeros(2))


def test_result_is_float32_without_gradient():
    rewards = torch.tensor([1.0, 0.0], dtype=torch.bfloat16, requires_grad=True)
    found = group_advantages(rewards, torch.tensor([0, 0]))
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_empty_batch():
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=24),
    st.sampled_from(["population", "sample"]),
    st.sampled_from(["mean", "leave_one_out"]),
    st.sampled_from(["group", "none"]),
)
def test_agrees_with_a_loop_over_groups(rows, std, baseline, scale):
    groups = [row[0] for row in rows]
    rewards = [row[1] for row in rows]
    expected = [0.0] * len(rows)
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        values = np.array([rewards[i] for i in members])
        if len(values) < 2 or values.max() == values.min():
            continue
        for i in members:
            others = [rewards[j] for j in members if j != i]
            center = values.mean() if baseline == "mean" else np.mean(others)
            divisor = values.std(ddof=1 if std == "sample" else 0) + 1e-6 if scale == "group" else 1.0
            expected[i] = (rewards[i] - center) / divisor
    found = group_advantages(torch.tensor(rewards), torch.tensor(groups), std=std, baseline=baseline, scale=scale)
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_informative_groups_marks_every_member():
    rewards = torch.tensor([1.0, 0.5, 1.0, 0.5, 0.7])
    assert informative_groups(rewards, torch.tensor([0, 1, 0, 2, 2])).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"scale": "std"}, "scale"),
        ({"std": "biased"}, "std"),
        ({"baseline": "median"}, "baseline"),
        ({"baseline_mask": torch.ones(3, dtype=torch.bool)}, "baseline_mask"),
    ],
)
def test_wrong_arguments_are_named(kwargs, named):
    with pytest.raises(ValueError, match=named):
        group_advantages(ONE_OF_FOUR, ONE_GROUP, **kwargs)


def test_differing_shapes_are_refused():
    with pytest.raises(ValueError, match="group_ids"):
        group_advantages(torch.zeros(3), torch.zeros(2, dtype=torch.long))
