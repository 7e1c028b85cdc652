"""Worked values of the gate and VIGOR papers that the trainer's advantages and loss weights must give."""

import math

import pytest

torch = pytest.importorskip("torch")

from winnowrl.gates.intervals import squared_advantages  # noqa: E402
from winnowrl.training.advantages import group_advantages  # noqa: E402
from winnowrl.training.aggregation import aggregate_padded  # noqa: E402


def advantages(*groups, eps=0.0):
    ids = [number for number, rewards in enumerate(groups) for _ in rewards]
    flat = torch.tensor([reward for rewards in groups for reward in rewards], dtype=torch.float64)
    return group_advantages(flat, torch.tensor(ids), eps=eps).double()


def test_one_failure_among_eight():
    # mean .875, population std .33072.
    found = advantages([1, 1, 1, 1, 0, 1, 1, 1])
    assert found.tolist() == pytest.approx([0.3779644616] * 4 + [-2.6457513111] + [0.3779644616] * 3, abs=1e-6)


def test_a_group_weighs_its_size_whatever_its_rewards():
    for rewards in ([1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], [0.1, 0.7, 0.3], [1.0] * 5):
        assert float((advantages(rewards) ** 2).sum()) == pytest.approx(squared_advantages(rewards), abs=1e-5)


def test_the_sum_of_absolute_advantages():
    # p G members are at (1 - p) / s and (1 - p) G at p / s with s = sqrt(p (1 - p)), so the sum is 2 G s. For G = 8 and
    # p = 1/4 that is 6.9282 on both reward scales; it equals G times the rewards' std with +1 and -1 alone.
    signed, binary = [1, 1] + [-1] * 6, [1, 1] + [0] * 6
    expected = 2 * 8 * math.sqrt(0.25 * 0.75)
    assert expected == pytest.approx(6.9282032303)
    assert float(advantages(signed).abs().sum()) == pytest.approx(expected, abs=1e-5)
    assert float(advantages(binary).abs().sum()) == pytest.approx(expected, abs=1e-5)


def test_groups_of_unequal_size_are_scaled_on_their_own():
    found = advantages([1, 0], [1, 1, 0, 0, 0, 0], eps=1e-6).tolist()
    assert found[:2] == pytest.approx([0.9999980000, -0.9999980000], abs=1e-6)
    assert found[2:] == pytest.approx([1.4142105624] * 2 + [-0.7071052812] * 4, abs=1e-6)


def test_a_loss_item_is_a_token_mean_over_all_items():
    # A = 2, token log-probabilities -1 and -3, four items: -(2 * -2) / 4 = 1.
    losses = torch.tensor([[2.0, 6.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    total = aggregate_padded(losses, torch.ones(4, 2, dtype=torch.bool), mode="seq-mean-token-mean")
    assert float(total) == pytest.approx(1.0)
