from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnowrl.gates import group_distance, termination_fraction

# K = 10 throughout the hand cases. Letters stand for action strings.
PLAN = list("abcdefghij")


def levenshtein(left, right):
    """Unit-cost edit distance by the textbook table."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(diagonal + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def brute_force(prefixes, turn, padding):
    cut = [list(actions[:turn]) for actions in prefixes]
    if padding == "end":
        cut = [actions + [object] * (turn - len(actions)) for actions in cut]
    pairs = [levenshtein(a, b) / max(len(a), len(b), 1) for a, b in combinations(cut, 2)]
    return sum(pairs) / len(pairs)


actions = st.sampled_from(["look", "go to desk 1", "go to desk 2", "", "<END>", "\0", "take pen 1"])
groups = st.lists(st.lists(actions, max_size=9), min_size=2, max_size=7)


@pytest.mark.parametrize("padding", ["end", "none"])
@given(prefixes=groups, turn=st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_distance_equals_a_textbook_table_over_all_pairs(prefixes, turn, padding):
    assert group_distance(prefixes, turn, padding=padding) == pytest.approx(
        brute_force(prefixes, turn, padding), abs=1e-12
    )


@given(prefixes=groups, turn=st.integers(1, 8), data=st.data())
@settings(max_examples=60, deadline=None)
def test_distance_does_not_depend_on_the_order_of_members(prefixes, turn, data):
    shuffled = data.draw(st.permutations(prefixes))
    assert group_distance(shuffled, turn) == pytest.approx(group_distance(prefixes, turn), abs=1e-12)


def test_identical_members_are_at_zero():
    assert group_distance([PLAN] * 8, 10) == 0.0


def test_one_changed_action_in_one_of_eight():
    # 7 of 28 pairs differ, each by 1/10.
    assert group_distance([PLAN] * 7 + [["x", *PLAN[1:]]], 10) == pytest.approx(0.025, abs=1e-15)


def test_one_wholly_different_member_of_eight():
    # 7 of 28 pairs are at 1.
    assert group_distance([PLAN] * 7 + [list("klmnopqrst")], 10) == pytest.approx(0.25, abs=1e-15)


def test_two_disjoint_halves():
    # 16 of 28 pairs are at 1.
    assert group_distance([PLAN] * 4 + [list("klmnopqrst")] * 4, 10) == pytest.approx(16 / 28, abs=1e-15)


def test_a_shift_by_one_costs_two_edits_not_ten():
    assert group_distance([PLAN, list("bcdefghijk")], 10) == pytest.approx(0.2, abs=1e-15)


@pytest.mark.parametrize("padding", ["end", "none"])
def test_an_early_end_on_the_same_path_costs_the_missing_actions(padding):
    # 4 of 10 are missing.
    assert group_distance([PLAN[:6], PLAN], 10, padding=padding) == pytest.approx(0.4, abs=1e-15)


def test_two_early_ends_are_divided_by_the_turn_or_by_their_length():
    pair = [list("abcdef"), list("abcxyz")]
    assert group_distance(pair, 10) == pytest.approx(0.3, abs=1e-15)
    assert group_distance(pair, 10, padding="none") == pytest.approx(0.5, abs=1e-15)


def test_two_equal_early_ends_are_at_zero():
    assert group_distance([PLAN[:6]] * 2, 10) == 0.0


def test_empty_prefixes_without_padding():
    assert group_distance([[], []], 10, padding="none") == 0.0
    assert group_distance([[], ["a"]], 10, padding="none") == 1.0


def test_actions_beyond_the_turn_do_not_count():
    assert group_distance([[*PLAN, "x"], [*PLAN, "y", "z"]], 10) == 0.0


def test_an_action_that_looks_like_the_end_mark_is_an_action():
    # One member did "<END>" (or the internal mark) as an action, the other ended: one edit of two.
    for action in ("<END>", "\0"):
        assert group_distance([["a", action], ["a"]], 2) == pytest.approx(0.5)


def test_more_actions_than_one_byte_of_characters():
    wide = [[f"action {member} {position}" for position in range(40_000)] for member in range(2)]
    assert group_distance(wide, 40_000) == 1.0


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([PLAN], 10), {}, "1 member"),
        (([PLAN, PLAN], 0), {}, "turn is 0"),
        (([PLAN, PLAN], 10), {"padding": "left"}, "padding is 'left'; allowed: end, none"),
    ],
)
def test_mistakes_are_named(arguments, options, text):
    with pytest.raises(ValueError, match=text):
        group_distance(*arguments, **options)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([10, 10, 9, 30], 0.25), ([9] * 7 + [10], 0.875), ([9] * 8, 1.0), ([10] * 8, 0.0)],
)
def test_ending_exactly_at_the_turn_is_not_an_early_end(lengths, expected):
    assert termination_fraction([["a"] * length for length in lengths], 10) == expected
