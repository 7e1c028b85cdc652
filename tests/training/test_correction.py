"""Weights for the mismatch between engine and learner."""

import pytest
import torch

from winnowrl.training.correction import correction_weights, on_policy_mask

DIFFERENCES = torch.tensor([0.1, -0.2, 0.9])
SAMPLER = torch.tensor([-1.0, -2.0, -3.0])
IDS = torch.zeros(3, dtype=torch.long)


def weights(kind, differences=DIFFERENCES, ids=IDS, num_sequences=1, **caps):
    sampler = torch.full_like(differences, -1.0)
    return correction_weights(sampler + differences, sampler, ids, num_sequences, kind=kind, **caps).tolist()


@pytest.mark.parametrize(
    ("kind", "caps", "expected"),
    [
        ("none", {}, [1.0, 1.0, 1.0]),
        ("token_tis", {"cap_high": 3.0}, [1.1051709181, 0.8187307531, 2.4596031112]),
        ("token_tis", {"cap_high": 2.0}, [1.1051709181, 0.8187307531, 2.0]),
        ("token_tis", {"cap_low": 0.9, "cap_high": 2.0}, [1.1051709181, 0.9, 2.0]),
        ("token_mis", {"cap_high": 2.0}, [1.1051709181, 0.8187307531, 0.0]),
        ("token_mis", {"cap_low": 0.9, "cap_high": 2.0}, [1.1051709181, 0.0, 0.0]),
        ("sequence_tis", {"cap_high": 2.0}, [2.0] * 3),
        ("sequence_mis", {"cap_high": 3.0}, [2.2255409285] * 3),
        ("sequence_mis", {"cap_high": 2.0}, [0.0] * 3),
    ],
)
def test_worked_values(kind, caps, expected):
    # exp(.1), exp(-.2), exp(.9); their product exp(.8) = 2.2255409285
    assert weights(kind, **caps) == pytest.approx(expected, rel=1e-6)


def test_the_sequence_weight_is_the_product_of_the_token_ratios_not_their_mean():
    differences, ids = torch.full((200,), 0.01), torch.zeros(200, dtype=torch.long)
    # exp(200 * .01) = e^2; the geometric mean would be 1.01.
    assert weights("sequence_tis", differences, ids, cap_high=100.0)[0] == pytest.approx(7.389056, rel=1e-4)


def test_sequences_do_not_mix():
    ids = torch.tensor([0, 1, 0])
    found = weights("sequence_tis", ids=ids, num_sequences=2, cap_high=10.0)
    assert found == pytest.approx([2.7182818, 0.8187308, 2.7182818], rel=1e-6)  # exp(.1 + .9), exp(-.2)


def test_no_gradient_flows_and_extremes_stay_finite():
    old = torch.tensor([0.0, -1e4], requires_grad=True)
    found = correction_weights(old, torch.tensor([-1e4, 0.0]), torch.tensor([0, 1]), 2, kind="token_tis", cap_high=1e30)
    assert not found.requires_grad
    assert found.isfinite().all()


def test_unknown_kind_is_named():
    with pytest.raises(ValueError, match="correction is 'tis'"):
        weights("tis")


def test_off_policy_mask_drops_only_far_sequences_with_a_negative_advantage():
    sampler = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0])
    policy = torch.tensor([-2.0, -2.0, -2.0, -1.1, -0.5])
    ids = torch.tensor([0, 0, 1, 2, 3])
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0])
    # mean(sampler - policy): 1, 1, .1, -.5 against the threshold .5
    assert on_policy_mask(policy, sampler, advantages, ids, threshold=0.5).tolist() == [False, True, True, True]
