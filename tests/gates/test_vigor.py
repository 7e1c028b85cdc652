import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnowrl.gates import UniformAllocator, VigorAllocator
from winnowrl.gates.allocation.vigor import reward_variance, top_tasks, variance_gain


def run_step(allocator, num_tasks, reward_of, is_stopped=lambda task, round_number: False):
    """Play all rounds. Returns the rollouts of each task and the counts of each round."""
    counts = allocator.first_round(num_tasks)
    rounds, rewards = [], [[] for _ in range(num_tasks)]
    while counts is not None:
        rounds.append(counts)
        for task, count in enumerate(counts):
            rewards[task] += [reward_of(task, len(rewards[task]) + i) for i in range(count)]
        counts = allocator.next_round(rewards, [is_stopped(task, len(rounds)) for task in range(num_tasks)])
    assert [len(values) for values in rewards] == [sum(column) for column in zip(*rounds, strict=True)]
    return [len(values) for values in rewards], rounds


def alternating(task, index):
    return float(index % 2)


def sizes(counts):
    return sorted((size, number) for size, number in Counter(counts).items())


def test_default_schedule_on_eight_tasks():
    # 4 tasks of 2, 2 of 2 + 4, 1 of 2 + 4 + 8, 1 of 2 + 4 + 8 + 16: 64 rollouts.
    counts, rounds = run_step(VigorAllocator(8), 8, alternating)
    assert sizes(counts) == [(2, 4), (6, 2), (14, 1), (30, 1)]
    assert [sum(each) for each in rounds] == [16, 16, 16, 16]


def test_default_schedule_on_sixty_four_tasks():
    counts, _ = run_step(VigorAllocator(8), 64, alternating)
    assert sizes(counts) == [(2, 32), (6, 16), (14, 8), (30, 8)]
    assert sum(counts) == 512


def test_two_round_schedule():
    allocator = VigorAllocator(8, rounds=2, first_round_rollouts=4, fraction=0.25, growth=4)
    counts, _ = run_step(allocator, 64, alternating)
    assert sizes(counts) == [(4, 48), (20, 16)]


@pytest.mark.parametrize(
    ("rewards", "variance"),
    [([1, 0], 0.25), ([1, 1], 0.0), ([1, 0, 0, 0, 1, 0], 2 / 9), ([1, -1], 1.0), ([1, 0] * 4, 0.25), ([1], 0.0)],
)
def test_population_variance(rewards, variance):
    assert reward_variance(rewards) == pytest.approx(variance, abs=1e-15)


def test_equal_rewards_have_exactly_no_variance():
    assert reward_variance([0.1] * 8) == 0.0


@pytest.mark.parametrize(
    ("tail", "rounds", "fraction", "growth", "eta", "speed_up"),
    [
        (2, 4, 0.5, 2, 1.8106601718, 1.2188370562),
        (1.5, 4, 0.5, 2, 2.2768107879, 1.3155549110),
        (1.0001, 4, 0.5, 2, 3.7494109378, 1.5535348997),
        (2, 1, 0.5, 2, 1.0, 1.0),
        (2, 8, 0.5, 2, 4.5266504294, 1.6542163886),
        (2, 3, 0.5, 4, 1.6897753035, 1.1910856330),
    ],
)
def test_expected_gain_under_a_pareto_tail(tail, rounds, fraction, growth, eta, speed_up):
    gain = variance_gain(tail, rounds=rounds, fraction=fraction, growth=growth)
    assert gain == pytest.approx((eta, speed_up), abs=1e-9)


def test_ties_go_to_the_earlier_task():
    assert top_tasks([0.25, 0, 0.25, 0, 0, 0.25, 0, 0], range(8), 4) == [0, 2, 5, 1]


def test_rounding_breaks_no_tie():
    # 1 of 3 and 2 of 3 successes have one variance, computed along two ways.
    variances = [reward_variance([1.1, 0.1, 0.1]), reward_variance([1.1, 1.1, 0.1])]
    assert top_tasks(variances, [0, 1], 1) == [0]
    assert top_tasks(variances[::-1], [0, 1], 1) == [0]


def test_the_tasks_of_highest_variance_go_on():
    # Round 1: tasks 2, 3, 6, 7 vary; round 2: 7 (1 of 6) varies less than 2, 3 and 6 (3 of 6); then 2 is the first.
    def reward(task, index):
        if task == 7:
            return float(index == 0)
        return float(index % 2) if task in (2, 3, 6) else 1.0

    counts, rounds = run_step(VigorAllocator(8), 8, reward)
    assert [task for task, count in enumerate(rounds[1]) if count] == [2, 3, 6, 7]
    assert [task for task, count in enumerate(rounds[2]) if count] == [2, 3]
    assert counts == [2, 2, 30, 14, 2, 2, 6, 6]


def test_variance_is_over_all_rewards_so_far():
    # In its second round task 1 did not vary, but over all six rewards its variance is 50 / 6, that of task 0 is .25.
    rewards = [[0, 1, 0, 1, 0, 1], [0, 10, 5, 5, 5, 5], [1, 1], [1, 1]]
    allocator = VigorAllocator(6, rounds=3, first_round_rollouts=2, fraction=0.5, growth=2)
    assert allocator.first_round(4) == [2, 2, 2, 2]
    assert allocator.next_round([values[:2] for values in rewards], [False] * 4) == [4, 4, 0, 0]
    assert allocator.next_round(rewards, [False] * 4) == [0, 8, 0, 0]


def test_the_active_set_is_nested():
    # Task 0 looks best after round 2, but left the active set in round 1.
    allocator = VigorAllocator(8)
    allocator.first_round(8)
    rewards = [[1, 1]] + [[0, 1]] * 4 + [[1, 1]] * 3
    assert [task for task, count in enumerate(allocator.next_round(rewards, [False] * 8)) if count] == [1, 2, 3, 4]
    rewards = [[1, 0, 1, 0]] + [[0, 1, 1, 1, 1, 1]] * 4 + [[1, 1]] * 3
    assert [task for task, count in enumerate(allocator.next_round(rewards, [False] * 8)) if count] == [1, 2]


def test_without_variance_anywhere_the_quota_is_filled_in_order():
    counts, _ = run_step(VigorAllocator(8), 8, lambda task, index: 1.0)
    assert counts == [30, 14, 6, 6, 2, 2, 2, 2]
    same, _ = run_step(VigorAllocator(8, skip_zero_variance=True), 8, lambda task, index: 1.0)
    assert same == counts


def test_skipping_gives_the_rollouts_to_tasks_with_variance():
    # Only task 5 varies: it gets the 16 of each later round.
    counts, _ = run_step(VigorAllocator(8, skip_zero_variance=True), 8, lambda task, i: float(task == 5 and i % 2))
    assert counts == [2, 2, 2, 2, 2, 50, 2, 2]


def test_a_stopped_group_counts_as_no_variance_and_gets_no_more():
    # Tasks 0 to 4 vary; 0 and 1 are stopped in round 1, so 5 fills the fourth place.
    counts, rounds = run_step(
        VigorAllocator(8),
        8,
        lambda task, index: float(index % 2) if task < 5 else 1.0,
        lambda task, round_number: task in (0, 1),
    )
    assert [task for task, count in enumerate(rounds[1]) if count] == [2, 3, 4, 5]
    assert counts[0] == counts[1] == 2
    assert sum(counts) == 64


def test_when_all_active_groups_are_stopped_open_ones_take_over():
    counts, rounds = run_step(
        VigorAllocator(8), 8, alternating, lambda task, round_number: round_number > 1 and task < 4
    )
    assert [task for task, count in enumerate(rounds[1]) if count] == [0, 1, 2, 3]
    assert [task for task, count in enumerate(rounds[2]) if count] == [4, 5]
    assert sum(counts) == 64


def test_budget_stays_unspent_only_when_every_group_is_stopped():
    allocator = VigorAllocator(8)
    counts, _ = run_step(allocator, 8, alternating, lambda task, round_number: True)
    assert counts == [2] * 8
    assert allocator.metrics()["allocator/unspent_rollouts"] == 48.0


@given(
    num_tasks=st.integers(1, 40),
    rollouts_per_task=st.integers(2, 17),
    rounds=st.integers(1, 5),
    first=st.integers(2, 5),
    fraction=st.floats(0.05, 1.0),
    growth=st.floats(0.3, 4.0),
    skip=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_the_total_is_exact_for_every_shape(num_tasks, rollouts_per_task, rounds, first, fraction, growth, skip, data):
    first = min(first, rollouts_per_task)
    allocator = VigorAllocator(
        rollouts_per_task,
        rounds=rounds,
        first_round_rollouts=first,
        fraction=fraction,
        growth=growth,
        skip_zero_variance=skip,
    )
    stopped = data.draw(st.sets(st.integers(0, num_tasks - 1), max_size=num_tasks - 1))
    chance = random.Random(data.draw(st.integers(0, 1000)))
    counts, played = run_step(
        allocator, num_tasks, lambda task, index: float(chance.random() < 0.5), lambda task, number: task in stopped
    )
    assert sum(counts) == num_tasks * rollouts_per_task == allocator.total_budget == allocator.spent
    assert len(played) <= rounds
    assert played[0] == [played[0][0]] * num_tasks or rounds == 1
    assert all(counts[task] == played[0][task] for task in stopped)
    assert [sum(each) for each in played] == [count for _, count in allocator.plan(num_tasks)]


@pytest.mark.parametrize(
    ("num_tasks", "plan"),
    [
        # Half of 5 is 2, half of 2 is 1, and 1 stays: 10 + 8 + 8 leave 14 of 40 where the schedule has 16.
        (5, [(5, 10), (2, 8), (1, 8), (1, 14)]),
        # 7 tasks: 14 + 12 + 8 leave 22 of 56.
        (7, [(7, 14), (3, 12), (1, 8), (1, 22)]),
        # A single task: 2 + 4 leave 2 of 8, and there is no fourth round.
        (1, [(1, 2), (1, 4), (1, 2)]),
    ],
)
def test_a_schedule_that_does_not_divide_is_settled_in_the_last_round(num_tasks, plan):
    assert VigorAllocator(8).plan(num_tasks) == plan


def test_one_round_gives_everything_at_once():
    assert VigorAllocator(8, rounds=1).first_round(3) == [8, 8, 8]


def test_rounds_and_baseline_of_each_rollout():
    allocator = VigorAllocator(8, exclude_selection_rounds=True)
    run_step(allocator, 8, alternating)
    rounds = allocator.rollout_rounds()
    assert rounds[0] == [0] * 2 + [1] * 4 + [2] * 8 + [3] * 16
    assert rounds[2] == [0] * 2 + [1] * 4
    assert rounds[7] == [0, 0]
    masks = allocator.baseline_masks()
    # The rewards of rounds 0 to 2 brought task 0 into round 3.
    assert masks[0] == [False] * 14 + [True] * 16
    assert masks[2] == [False] * 2 + [True] * 4
    assert masks[7] == [True, True]


def test_all_rounds_are_in_the_baseline_by_default():
    allocator = VigorAllocator(8)
    run_step(allocator, 8, alternating)
    assert all(all(mask) for mask in allocator.baseline_masks())


def test_a_last_round_of_one_rollout_makes_no_baseline():
    allocator = VigorAllocator(3, rounds=2, first_round_rollouts=2, fraction=1.0, exclude_selection_rounds=True)
    run_step(allocator, 2, alternating)
    assert allocator.baseline_masks() == [[True] * 3] * 2


def test_a_new_step_forgets_the_last_one():
    allocator = VigorAllocator(8)
    first, _ = run_step(allocator, 8, alternating)
    second, _ = run_step(allocator, 8, alternating)
    assert first == second
    assert allocator.next_round([[]] * 8, [False] * 8) is None


def test_uniform_is_one_even_round():
    counts, rounds = run_step(UniformAllocator(5), 3, alternating)
    assert counts == [5, 5, 5]
    assert len(rounds) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"first_round_rollouts": 1}, "first_round_rollouts is 1; allowed: 2 or more"),
        ({"first_round_rollouts": 9}, "the first round alone would pass the budget"),
        ({"rounds": 0}, "rounds is 0"),
        ({"fraction": 0.0}, "fraction is 0"),
        ({"fraction": 1.5}, r"fraction is 1\.5"),
        ({"growth": 0.0}, "growth is 0"),
    ],
)
def test_schedules_that_cannot_run_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        VigorAllocator(8, **options)


def test_reward_lists_must_match_the_step():
    allocator = VigorAllocator(8)
    with pytest.raises(ValueError, match="began a step of 0"):
        allocator.next_round([[1.0]], [False])
    allocator.first_round(4)
    with pytest.raises(ValueError, match="rewards_so_far has 3 tasks and stopped 4"):
        allocator.next_round([[1.0]] * 3, [False] * 4)


def test_state_of_another_allocator_is_refused():
    VigorAllocator(8).load_state_dict({})
    with pytest.raises(ValueError, match="keeps no state"):
        VigorAllocator(8).load_state_dict({"model": {}})
