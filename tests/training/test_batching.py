from __future__ import annotations

import pytest

from winnowrl.agents.conversation import MAX_SEQUENCES
from winnowrl.agents.errors import ErrorRecord
from winnowrl.agents.rollout import Group, Rollout, TokenSequence, Turn
from winnowrl.configs.sections.objective import ObjectiveConfig
from winnowrl.envs.tasks import Task
from winnowrl.training.batching import make_batch, rollout_of, sequence_id


def _group(group_id: int, rewards: list[float], **fields: object) -> Group:
    group = Group(group_id, Task(f"t{group_id}", "p"), policy_version=0, **fields)  # type: ignore[arg-type]
    for index, reward in enumerate(rewards):
        rollout = Rollout(f"t{group_id}", group_id, index, seed=0, policy_version=0, rollout_id=group_id * 100 + index)
        rollout.sequences = [TokenSequence([1, 2, 3 + index], [False, True, True], [0.0, -1.0, -2.0])]
        rollout.turns = [Turn(1, 3, "ab", "ab")]
        rollout.reward, rollout.stop_reason, rollout.terminated = reward, "env_done", True
        group.rollouts.append(rollout)
    return group


def test_advantages_are_those_of_each_group_and_equal_rewards_teach_nothing() -> None:
    batch = make_batch([_group(1, [1, 0, 0, 0]), _group(2, [1, 1])], ObjectiveConfig(), step=3)
    # (1 - .25) / .4330127 = 1.7320508 less the eps; the others a third of it with the other sign.
    assert [round(s.advantage, 4) for s in batch.sequences] == [1.7320, -0.5773, -0.5773, -0.5773]
    assert batch.zero_variance_ids == {200, 201}
    assert {s.birth_step for s in batch.sequences} == {3}
    assert [rollout_of(s.rollout_id) for s in batch.sequences] == [100, 101, 102, 103]


def test_gated_failed_and_undecided_rollouts_are_in_no_baseline_and_not_trained_on() -> None:
    stopped = _group(1, [1, 0], was_gated=True)
    group = _group(2, [1, 0, 1, 0])
    group.rollouts[2].error = ErrorRecord("engine", "x")
    group.rollouts[3].verdict = "undecided"
    batch = make_batch([stopped, group], ObjectiveConfig(), step=1)
    assert [rollout_of(s.rollout_id) for s in batch.sequences] == [200, 201]
    assert [s.advantage for s in batch.sequences] == pytest.approx([1.0, -1.0], abs=1e-5)


def test_a_group_left_with_one_member_teaches_nothing() -> None:
    group = _group(1, [1, 0])
    group.rollouts[1].error = ErrorRecord("timeout", "x")
    batch = make_batch([group], ObjectiveConfig(), step=1)
    assert batch.sequences == []
    assert batch.zero_variance_ids == {100}


def test_rollouts_outside_the_baseline_neither_shift_it_nor_train() -> None:
    group = _group(1, [1, 1, 1, 0])
    group.rollouts[0].is_in_baseline = group.rollouts[1].is_in_baseline = False
    batch = make_batch([group], ObjectiveConfig(advantage_scale="none"), step=1)
    assert {rollout_of(s.rollout_id): s.advantage for s in batch.sequences} == {102: 0.5, 103: -0.5}


def test_a_cut_reply_counts_in_the_baseline_but_the_filter_keeps_it_out_of_the_loss() -> None:
    group = _group(1, [1, 0, 0, 0])
    group.rollouts[3].truncated = True
    kept = make_batch([group], ObjectiveConfig(), step=1)
    assert [s.is_truncated for s in kept.sequences] == [False, False, False, True]
    filtered = make_batch([group], ObjectiveConfig(overlong_filter=True), step=1)
    assert filtered.overlong_ids == {103}
    assert [s.advantage for s in filtered.sequences] == [s.advantage for s in kept.sequences[:3]]


def test_the_length_penalty_makes_equal_rewards_informative() -> None:
    group = _group(1, [1, 1])
    group.rollouts[1].sequences[0] = TokenSequence([1] * 9, [False] + [True] * 8, [0.0] * 9)
    config = ObjectiveConfig(overlong_penalty=1.0, overlong_cache=4, advantage_scale="none")
    batch = make_batch([group], config, step=1, max_tokens=8)
    # Lengths 2 and 8 under a limit of 8 with a cache of 4: penalties 0 and -1.
    assert [s.advantage for s in batch.sequences] == [0.5, -0.5]


def test_equal_rewards_train_only_where_kl_or_entropy_acts_on_them() -> None:
    groups = [_group(1, [1, 0]), _group(2, [1, 1])]
    plain = make_batch(groups, ObjectiveConfig(kl_coef=0.1), step=1)
    assert [rollout_of(s.rollout_id) for s in plain.sequences] == [100, 101]
    assert plain.informative_ids == {1}
    regularized = make_batch(groups, ObjectiveConfig(kl_coef=0.1, regularize_zero_advantage=True), step=1)
    assert [rollout_of(s.rollout_id) for s in regularized.sequences] == [100, 101, 200, 201]
    assert [s.advantage for s in regularized.sequences[2:]] == [0.0, 0.0]
    assert regularized.zero_variance_ids == {200, 201}


@pytest.mark.parametrize(
    ("max_tokens", "cache", "penalties"),
    [
        (8, 8, [-0.25, -1.0]),  # from the first token on: -2/8 and -8/8
        (8, None, [0.0, -1.0]),  # a fifth of 8 is 1: from the seventh token on
        (10, None, [0.0, -0.0]),  # a fifth of 10 is 2: it begins at 8
        (9, 2, [0.0, -0.5]),  # it begins at 7
    ],
)
def test_the_length_penalty_is_the_documented_one(max_tokens: int, cache: int | None, penalties: list[float]) -> None:
    group = _group(1, [1, 1])
    group.rollouts[1].sequences[0] = TokenSequence([1] * 9, [False] + [True] * 8, [0.0] * 9)
    config = ObjectiveConfig(overlong_penalty=1.0, overlong_cache=cache, advantage_scale="none")
    advantages = make_batch([group], config, step=1, max_tokens=max_tokens).advantages
    # Lengths 2 and 8.
    mean = sum(penalties) / 2
    assert list(advantages.values()) == [penalty - mean for penalty in penalties]


def test_a_length_interval_beyond_the_limit_is_not_cut_to_it() -> None:
    config = ObjectiveConfig(overlong_penalty=1.0, overlong_cache=9)
    with pytest.raises(ValueError, match="overlong_cache is 9; allowed: 1 to the limit of 8"):
        make_batch([_group(1, [1, 0])], config, step=1, max_tokens=8)


def test_every_sequence_of_a_forked_rollout_trains_with_its_advantage() -> None:
    group = _group(1, [1, 0])
    group.rollouts[0].sequences.append(TokenSequence([9, 9], [False, True], [0.0, -1.0]))
    group.rollouts[0].turns[0].sequence = 0
    batch = make_batch([group], ObjectiveConfig(), step=1)
    assert len(batch.sequences) == 3
    assert batch.sequences[0].advantage == batch.sequences[1].advantage
    assert batch.sequences[1].rollout_id == sequence_id(100, 1) != batch.sequences[0].rollout_id


def test_no_groups_give_an_empty_batch() -> None:
    assert make_batch([], ObjectiveConfig(), step=1).sequences == []


def test_a_rollout_trains_on_as_many_sequences_as_a_conversation_may_have() -> None:
    group = _group(1, [1, 0])
    group.rollouts[0].sequences = [TokenSequence([9, 9], [False, True], [0.0, -1.0])] * MAX_SEQUENCES
    group.rollouts[0].turns = []
    batch = make_batch([group], ObjectiveConfig(), step=1)
    assert [rollout_of(s.rollout_id) for s in batch.sequences] == [100] * MAX_SEQUENCES + [101]
    assert len({s.rollout_id for s in batch.sequences}) == MAX_SEQUENCES + 1
    # 200 million groups of 10 000 rollouts.
    assert sequence_id(200_000_000 * 10_000, MAX_SEQUENCES - 1) < 2**63
