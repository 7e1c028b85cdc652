from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnowrl.training.batch import TrainingSequence
from winnowrl.training.packing import build_pack, flat_values, plan_packs


def sequence(prompt: list[int], completion: list[int], *, group_id: int = 0, **fields: object) -> TrainingSequence:
    ids = prompt + completion
    mask = [False] * len(prompt) + [True] * len(completion)
    return TrainingSequence(ids, mask, [float(-i) for i in range(len(ids))], 1.0, group_id, 0, **fields)  # type: ignore[arg-type]


def context_of(pack, row: int) -> list[int]:
    """The tokens that head row ``row`` sees, in the order of their positions."""
    at = int(pack.head_positions[row])
    seen = [k for k in range(at + 1) if k <= at < int(pack.subtree_end[k])]
    assert [int(pack.positions[k]) for k in seen] == list(range(len(seen)))
    return [int(pack.token_ids[k]) for k in seen]


def assert_each_token_sees_its_own_prefix(sequences: list[TrainingSequence], pack) -> None:
    token = 0
    for slot, index in enumerate(pack.members):
        ids, mask = list(sequences[index].token_ids), sequences[index].completion_mask
        for t in (t for t, is_trained in enumerate(mask) if is_trained):
            assert int(pack.targets[token]) == ids[t]
            assert int(pack.sequence_ids[token]) == slot
            assert context_of(pack, int(pack.rows[token])) == ids[:t]
            token += 1
    assert token == len(pack.targets)


def test_shared_prompt_is_laid_out_once_and_last_tokens_not_at_all() -> None:
    # Trie of [7 8 | 1 2 3] and [7 8 | 1 4 5]: 7 8 1 then 2 and 4. The last tokens predict nothing.
    sequences = [sequence([7, 8], [1, 2, 3]), sequence([7, 8], [1, 4, 5])]
    pack = build_pack(sequences, [0, 1])
    assert pack.token_ids.tolist() == [7, 8, 1, 2, 4]
    assert pack.positions.tolist() == [0, 1, 2, 3, 3]
    assert pack.subtree_end.tolist() == [5, 5, 5, 4, 5]
    # Parents: of 1 the 8 (both), of 2 and 4 the 1 (both), of 3 the 2, of 5 the 4: four distinct rows.
    assert pack.head_positions.tolist() == [1, 2, 3, 4]
    assert pack.rows.tolist() == [0, 1, 2, 0, 1, 3]
    assert pack.num_unshared_tokens == 8
    # 1 + 2 + 3 + 4 + 4 keys seen
    assert pack.num_attention_pairs == 14


def test_without_sharing_every_sequence_is_a_chain_of_its_own() -> None:
    sequences = [sequence([7, 8], [1, 2, 3]), sequence([7, 8], [1, 4, 5])]
    pack = build_pack(sequences, [0, 1], share=False)
    assert pack.token_ids.tolist() == [7, 8, 1, 2, 7, 8, 1, 4]
    assert pack.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert pack.subtree_end.tolist() == [4, 4, 4, 4, 8, 8, 8, 8]
    assert_each_token_sees_its_own_prefix(sequences, pack)


def test_equal_sequences_share_everything_but_their_tokens_count_twice() -> None:
    sequences = [sequence([5], [6, 7]), sequence([5], [6, 7])]
    pack = build_pack(sequences, [0, 1])
    assert pack.token_ids.tolist() == [5, 6]
    assert pack.targets.tolist() == [6, 7, 6, 7]
    assert pack.sequence_ids.tolist() == [0, 0, 1, 1]


def test_a_sequence_that_is_a_prefix_of_another_adds_nothing() -> None:
    sequences = [sequence([5], [6, 7, 8]), sequence([5], [6])]
    pack = build_pack(sequences, [0, 1])
    assert pack.token_ids.tolist() == [5, 6, 7]
    assert_each_token_sees_its_own_prefix(sequences, pack)


def test_masks_may_differ_on_a_shared_prefix() -> None:
    first = TrainingSequence([1, 2, 3, 4], [False, True, False, True], [0.0] * 4, 1.0, 0, 0)
    second = TrainingSequence([1, 2, 3, 5], [False, False, True, True], [0.0] * 4, 1.0, 0, 1)
    pack = build_pack([first, second], [0, 1])
    assert pack.token_ids.tolist() == [1, 2, 3]
    assert_each_token_sees_its_own_prefix([first, second], pack)


def test_groups_with_one_few_shot_prefix_share_it() -> None:
    few_shot = list(range(10, 30))
    sequences = [sequence([*few_shot, g], [g + 1, 2], group_id=g) for g in range(4)]
    assert build_pack(sequences, range(4)).num_tokens == 20 + 4 * 2


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_random_trees_give_every_token_its_own_prefix(seed: int) -> None:
    rng = random.Random(seed)
    sequences = []
    for group in range(rng.randint(1, 3)):
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 4))]
        for _ in range(rng.randint(1, 4)):
            sequences.append(sequence(prompt, [rng.randrange(2) for _ in range(rng.randint(1, 6))], group_id=group))
    for share in (True, False):
        assert_each_token_sees_its_own_prefix(sequences, build_pack(sequences, range(len(sequences)), share=share))
    distinct = {tuple(s.token_ids[:n]) for s in sequences for n in range(1, len(s.token_ids))}
    assert build_pack(sequences, range(len(sequences))).num_tokens == len(distinct)


@given(st.integers(0, 10_000), st.integers(4, 40), st.booleans(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_plans_cover_every_sequence_once_within_the_budget(seed: int, budget: int, share: bool, ranks: int) -> None:
    rng = random.Random(seed)
    sequences = [
        sequence([g % 3, g], [rng.randrange(3) for _ in range(rng.randint(1, 9))], group_id=g)
        for g in range(5)
        for _ in range(rng.randint(1, 5))
    ]
    packs = plan_packs(sequences, range(len(sequences)), max_tokens=budget, share=share, num_ranks=ranks)
    assert sorted(index for pack in packs for index in pack) == list(range(len(sequences)))
    for pack in packs:
        assert len(pack) == 1 or build_pack(sequences, pack, share=share).num_tokens <= budget


def test_a_group_stays_together_where_it_fits() -> None:
    sequences = [sequence([g, 9, 9], [1, 2, g], group_id=g) for g in (3, 1, 3, 1, 3, 1)]
    packs = plan_packs(sequences, range(6), max_tokens=9)
    assert packs == [[1, 3, 5], [0, 2, 4]]


def test_groups_are_joined_up_to_the_target_but_split_only_above_the_most() -> None:
    # Three groups of 1 + 2 x 2 = 5 packed tokens.
    sequences = [sequence([g], [i, 1, 2], group_id=g) for g in range(3) for i in (3, 4)]
    assert plan_packs(sequences, range(6), target_tokens=4, max_tokens=8) == [[0, 1], [2, 3], [4, 5]]
    assert plan_packs(sequences, range(6), target_tokens=10, max_tokens=10) == [[0, 1, 2, 3], [4, 5]]
    assert plan_packs(sequences, range(6), target_tokens=10, max_tokens=4) == [[i] for i in range(6)]


def test_a_sequence_longer_than_the_budget_goes_alone() -> None:
    sequences = [sequence([1], [2] * 20), sequence([1], [3])]
    assert sorted(plan_packs(sequences, [0, 1], max_tokens=5)) == [[0], [1]]


def test_two_ranks_both_get_work_from_one_pack() -> None:
    sequences = [sequence([g], [1, 2, 3], group_id=g) for g in range(4)]
    assert len(plan_packs(sequences, range(4), max_tokens=1000, num_ranks=2)) == 2


def test_flat_values_follow_the_order_of_the_pack() -> None:
    sequences = [sequence([7, 8], [1, 2]), sequence([7], [1, 4, 5])]
    flat = flat_values(sequences, [1, 0], [s.sampler_logprobs for s in (sequences[1], sequences[0])])
    # sampler_logprobs of token t is -t: tokens 1, 2, 3 of the second and 2, 3 of the first
    assert flat.tolist() == [-1.0, -2.0, -3.0, -2.0, -3.0]
    assert flat.dtype == torch.float32


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (TrainingSequence([1, 2], [True, True], [0.0, 0.0], 1.0, 0, 4), "first token is trained"),
        (TrainingSequence([1, 2], [False], [0.0, 0.0], 1.0, 0, 4), "completion_mask has 1 entries for 2 tokens"),
        (TrainingSequence([1, 2], [False, True], [0.0], 1.0, 0, 4), "sampler_logprobs has 1 entries for 2 tokens"),
    ],
)
def test_malformed_sequences_are_named(bad: TrainingSequence, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_pack([bad], [0])


def test_sorting_is_by_token_id_not_by_byte() -> None:
    # 256 = 0x0100 must come after 255 = 0xff, or the longest shared prefix would not be with the neighbour.
    sequences = [sequence([a, 1], [b, 2]) for a in (255, 256, 65536) for b in (255, 256)]
    pack = build_pack(sequences, range(6))
    assert pack.num_tokens == 3 * (2 + 2)
    assert np.all(np.diff(pack.positions.numpy()) <= 1)
