import pytest

from winnowrl.gates import Gate, PrefixEditDistanceGate, TwoAxisGate

PLAN = list("abcdefghij")
OTHER = list("klmnopqrst")
LIVE = [False] * 8


def test_a_converged_group_is_stopped():
    decision = PrefixEditDistanceGate(turn=10, threshold=0.12).decide([PLAN] * 7 + [["x", *PLAN[1:]]], LIVE)
    assert decision.stop
    assert decision.distance == pytest.approx(0.025)


def test_one_odd_member_keeps_the_group():
    assert not PrefixEditDistanceGate(turn=10, threshold=0.12).decide([PLAN] * 7 + [OTHER], LIVE).stop


def test_the_threshold_itself_runs_on():
    # One different member of eight is at exactly 0.25.
    group = [PLAN] * 7 + [OTHER]
    assert not PrefixEditDistanceGate(turn=10, threshold=0.25).decide(group, LIVE).stop
    assert PrefixEditDistanceGate(turn=10, threshold=0.2501).decide(group, LIVE).stop


def test_the_decision_is_the_same_every_time():
    gate, group = PrefixEditDistanceGate(), [PLAN] * 5 + [OTHER] * 3
    assert gate.decide(group, LIVE) == gate.decide(group, LIVE)


def test_padding_changes_the_decision():
    # Padded 0.3, unpadded 0.5 (see test_distance).
    group, finished = [list("abcdef"), list("abcxyz")], [True, False]
    with pytest.raises(ValueError, match="member 1 is live after 6 actions"):
        PrefixEditDistanceGate(threshold=0.4).decide(group, finished)
    group = [list("abcdef"), list("abcxyz"), PLAN]
    # Padded: (0.3 + 0.4 + 0.7) / 3; unpadded: (0.5 + 0.4 + 0.7) / 3.
    finished = [True, True, False]
    assert PrefixEditDistanceGate(threshold=0.5).decide(group, finished).stop
    assert not PrefixEditDistanceGate(threshold=0.5, padding="none").decide(group, finished).stop


def test_a_group_that_has_ended_is_not_stopped():
    decision = PrefixEditDistanceGate().decide([PLAN] * 8, [True] * 8)
    assert not decision.stop
    assert decision.distance == 0.0
    assert "nothing to stop" in decision.reason


@pytest.mark.parametrize("members", [0, 1])
def test_a_group_without_a_pair_runs_on(members):
    decision = PrefixEditDistanceGate().decide([PLAN] * members, [False] * members)
    assert not decision.stop
    assert decision.distance is None


def test_many_early_ends_stop_a_scattered_group():
    # 7 of 8 ended at turn 1 with different actions, one goes on: t = 0.875.
    group = [[letter] for letter in "abcdefg"] + [OTHER]
    finished = [True] * 7 + [False]
    assert not PrefixEditDistanceGate(threshold=0.01).decide(group, finished).stop
    assert not PrefixEditDistanceGate(threshold=0.01, termination_fraction=0.9).decide(group, finished).stop
    assert PrefixEditDistanceGate(threshold=0.01, termination_fraction=0.875).decide(group, finished).stop


def scattered(num_ended):
    """Eight members with no action in common, of which some ended one action before turn 10."""
    plans = [[f"{member}-{position}" for position in range(10)] for member in range(8)]
    group = [plan[:9] if member < num_ended else plan for member, plan in enumerate(plans)]
    return group, [member < num_ended for member in range(8)]


@pytest.mark.parametrize(("num_ended", "stop"), [(0, True), (1, False), (4, False), (6, True), (7, True)])
def test_two_axes_stop_scattered_groups_at_both_ends(num_ended, stop):
    # t = num_ended / 8; stopped below 0.125 (strictly) and from 0.75.
    gate = TwoAxisGate(10, 0.1, 0.6, 0.125, 0.75)
    assert gate.decide(*scattered(num_ended)).stop is stop


def test_two_axes_leave_the_middle_alone():
    # One odd member: d = 0.25, between the bounds, and nobody ended.
    assert not TwoAxisGate(10, 0.1, 0.6, 0.125, 0.75).decide([PLAN] * 7 + [OTHER], LIVE).stop
    assert TwoAxisGate(10, 0.1, 0.6, 0.125, 0.75).decide([PLAN] * 8, LIVE).stop


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="8 members and finished 7"):
        PrefixEditDistanceGate().decide([PLAN] * 8, [False] * 7)


@pytest.mark.parametrize("gate", [PrefixEditDistanceGate(), TwoAxisGate()])
def test_both_are_gates(gate):
    assert isinstance(gate, Gate)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PrefixEditDistanceGate(threshold=0.0), "threshold is 0"),
        (lambda: PrefixEditDistanceGate(threshold=1.5), "threshold is 1.5"),
        (lambda: PrefixEditDistanceGate(termination_fraction=0.0), "termination_fraction is 0"),
        (lambda: PrefixEditDistanceGate(turn=0), "turn is 0"),
        (lambda: TwoAxisGate(distance_low=0.7, distance_high=0.6), "distance_low is 0.7"),
        (lambda: TwoAxisGate(termination_low=0.9, termination_high=0.9), "termination_low is 0.9"),
    ],
)
def test_settings_out_of_range_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
