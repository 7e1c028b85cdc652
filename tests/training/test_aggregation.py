"""From token losses to one number, and the weighting of unequal groups."""

import math

import pytest
import torch

from winnowrl.training.aggregation import (
    AGGREGATIONS,
    BatchTotals,
    aggregate_padded,
    segment_mean,
    segment_sum,
    sequence_scales,
    token_weights,
)

LOSSES = torch.tensor([[1.0, 2.0, 9.0, 9.0], [3.0, 4.0, 5.0, 6.0], [9.0, 9.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("seq-mean-token-mean", (1.5 + 4.5) / 2),
        ("token-mean", 21 / 6),
        ("seq-mean-token-sum", (3 + 18) / 2),
        ("seq-mean-token-sum-norm", (3 + 18) / 2 / 8),
    ],
)
def test_each_mode_leaves_out_the_empty_row(mode, expected):
    assert aggregate_padded(LOSSES, MASK, mode=mode, max_tokens=8).item() == pytest.approx(expected)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_padding_is_never_read(mode):
    poisoned = LOSSES.masked_fill(~MASK, math.nan)
    wide = torch.nn.functional.pad(poisoned, (3, 5), value=math.inf)
    wide_mask = torch.nn.functional.pad(MASK, (3, 5))
    expected = aggregate_padded(LOSSES, MASK, mode=mode, max_tokens=8)
    assert torch.equal(aggregate_padded(wide, wide_mask, mode=mode, max_tokens=8), expected)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_an_empty_batch_is_zero(mode):
    assert aggregate_padded(LOSSES, torch.zeros_like(MASK), mode=mode, max_tokens=8).item() == 0.0


def test_totals_count_sequences_that_have_tokens():
    assert BatchTotals.of([2, 0, 4]) == BatchTotals(num_tokens=6, num_sequences=2)


def test_segments_need_no_order():
    values, ids = torch.tensor([1.0, 10.0, 3.0]), torch.tensor([0, 2, 0])
    assert segment_sum(values, ids, 4).tolist() == [4.0, 0.0, 10.0, 0.0]
    assert segment_mean(values, ids, 4).tolist() == [2.0, 0.0, 10.0, 0.0]


def total_weights(group_ids, counts, weighting, aggregation):
    """Sum of the token weights of each sequence."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    scale = torch.tensor(sequence_scales(group_ids, counts, weighting=weighting, aggregation=aggregation))
    weights = token_weights(ids, len(counts), BatchTotals.of(counts), mode=aggregation, max_tokens=8, scale=scale)
    return segment_sum(weights, ids, len(counts)).tolist(), weights


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean"])
def test_each_weighting_gives_its_unit_equal_weight(aggregation):
    groups, counts = [7, 7, 7, 9, 9], [1, 2, 3, 10, 0]
    rollouts, _ = total_weights(groups, counts, "rollout", aggregation)
    assert rollouts == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.0])
    tasks, _ = total_weights(groups, counts, "task", aggregation)
    assert sum(tasks[:3]) == pytest.approx(0.5)
    assert tasks[3] == pytest.approx(0.5)
    _, tokens = total_weights(groups, counts, "token", aggregation)
    assert tokens.tolist() == pytest.approx([1 / 16] * 16)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_auto_leaves_the_aggregation_as_it_is(aggregation):
    assert sequence_scales([0, 0, 1], [3, 0, 5], weighting="auto", aggregation=aggregation) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_weighting_by_task_with_equal_groups_and_lengths_changes_nothing(aggregation):
    scales = sequence_scales([0, 0, 1, 1], [4] * 4, weighting="task", aggregation=aggregation)
    assert scales == pytest.approx([1.0] * 4)


def token_weights_of(groups, counts, weighting, aggregation, rollouts=None):
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    scales = sequence_scales(groups, counts, weighting=weighting, aggregation=aggregation, rollout_ids=rollouts)
    totals = BatchTotals.of(counts)
    return token_weights(ids, len(counts), totals, mode=aggregation, max_tokens=8, scale=torch.tensor(scales))


@pytest.mark.parametrize("weighting", ["auto", "rollout"])
def test_a_rollout_that_forked_weighs_as_much_as_another(weighting):
    # Rollout 5 has sequences of 1, 2 and 3 tokens, rollout 6 one of 4: each has half, spread evenly over its tokens.
    found = token_weights_of([0] * 4, [1, 2, 4, 3], weighting, "seq-mean-token-mean", [5, 5, 6, 5]).tolist()
    assert found == pytest.approx([1 / 12] * 3 + [1 / 8] * 4 + [1 / 12] * 3)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("weighting", ["auto", "rollout", "task", "token"])
def test_forks_change_the_weight_of_no_token(weighting, aggregation):
    # The same 13 tokens: rollouts of 6, 4 and 3, whole or in sequences of which one has no token in the loss.
    whole = token_weights_of([0, 0, 1], [6, 4, 3], weighting, aggregation)
    forked = token_weights_of([0] * 5 + [1, 1], [1, 2, 3, 4, 0, 2, 1], weighting, aggregation, [7, 7, 7, 8, 8, 9, 9])
    assert forked.tolist() == pytest.approx(whole.tolist())
    assert forked.tolist() == pytest.approx(
        token_weights_of([0, 0, 1], [6, 4, 3], weighting, aggregation, ["a", "b", "c"]).tolist()
    )


def test_wrong_names_and_lengths_are_refused():
    with pytest.raises(ValueError, match="weighting is 'group'"):
        sequence_scales([0], [1], weighting="group", aggregation="token-mean")
    with pytest.raises(ValueError, match="aggregation is 'mean'"):
        sequence_scales([0], [1], weighting="task", aggregation="mean")
    with pytest.raises(ValueError, match="2 group ids but 1 token counts"):
        sequence_scales([0, 1], [1], weighting="task", aggregation="token-mean")
    with pytest.raises(ValueError, match="and 1 rollout ids"):
        sequence_scales([0, 1], [1, 1], weighting="task", aggregation="token-mean", rollout_ids=[4])
