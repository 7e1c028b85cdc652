"""KL estimators: values, gradients, extremes."""

import math

import pytest
import torch

from winnowrl.training.kl import KL_TYPES, kl_penalty

POLICY, REFERENCE = torch.tensor([-1.2], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", -0.2), ("k2", 0.02), ("k3", 0.0214027582), ("k1+", -0.2), ("k3+", 0.0214027582)],
)
def test_worked_values(estimator, expected):
    # d = -.2: k2 = .04 / 2; k3 = exp(.2) - .2 - 1
    assert kl_penalty(POLICY, REFERENCE, estimator=estimator).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", 1.0), ("k2", -0.2), ("k3", 1 - math.exp(0.2)), ("k1+", -0.2), ("k3+", -0.2)]
)
def test_gradients(estimator, expected):
    policy = POLICY.clone().requires_grad_()
    kl_penalty(policy, REFERENCE, estimator=estimator).sum().backward()
    assert policy.grad.item() == pytest.approx(expected, rel=1e-5)


def test_k3_is_never_negative_and_precise_near_zero():
    difference = torch.linspace(-3, 3, 601)
    assert (kl_penalty(difference, torch.zeros(601), estimator="k3") >= 0).all()
    # k3 is about d^2 / 2; exp(-d) - 1 + d in float32 would lose every digit of it.
    small = kl_penalty(torch.tensor([1e-3]), torch.tensor([0.0]), estimator="k3").item()
    assert small == pytest.approx(math.expm1(-1e-3) + 1e-3, rel=0.1)


@pytest.mark.parametrize("estimator", KL_TYPES)
def test_extremes_stay_finite(estimator):
    policy = torch.tensor([-1e4, 0.0, -1e4], requires_grad=True)
    value = kl_penalty(policy, torch.tensor([0.0, -1e4, -1e4]), estimator=estimator)
    value.sum().backward()
    assert value.isfinite().all()
    assert policy.grad.isfinite().all()


def test_unknown_estimator_is_named():
    with pytest.raises(ValueError, match="kl_type is 'k4'"):
        kl_penalty(POLICY, REFERENCE, estimator="k4")
