"""What enters a loss and its metrics: masks, denominators, missing inputs; each a fault seen elsewhere."""

import math
from dataclasses import replace

import pytest
import torch

from winnowrl.training.aggregation import BatchTotals
from winnowrl.training.losses import ObjectiveSpec, finish_metrics, padded_objective, policy_objective

# Two sequences: 2 tokens with A = 1, 4 tokens with A = -.5.
RATIOS = torch.tensor([1.1, 1.4, 0.7, 0.9, 1.3, 1.0], dtype=torch.float64)
IDS = torch.tensor([0, 0, 1, 1, 1, 1])
ADVANTAGES = torch.tensor([1.0, -0.5])
TOTALS = BatchTotals(6, 2)

GRPO = ObjectiveSpec()
DAPO = ObjectiveSpec(loss_type="dapo", aggregation="token-mean", clip_high=0.28)


def test_nan_at_a_masked_position_does_not_leak():
    policy = torch.zeros(1, 2, requires_grad=True)
    old = torch.tensor([[0.0, math.nan]])
    loss = padded_objective(policy, old, old, torch.tensor([1.0]), torch.tensor([[True, False]]), GRPO).loss
    loss.backward()
    assert loss.item() == -1.0
    assert policy.grad.tolist() == [[-1.0, 0.0]]


def test_a_sequence_ratio_weighs_sequences_alike_whatever_their_length():
    policy = torch.zeros(10, requires_grad=True)
    ids = torch.tensor([0] * 2 + [1] * 8)
    spec = ObjectiveSpec(loss_type="gspo", importance_level="sequence")
    policy_objective(policy, None, None, torch.ones(2), ids, spec, totals=BatchTotals(10, 2)).loss.backward()
    assert policy.grad[ids == 0].sum().item() == pytest.approx(policy.grad[ids == 1].sum().item())


def test_observation_tokens_are_in_no_denominator():
    # 10 sampled tokens among 90 of the environment: each sampled token weighs 1/10.
    mask = torch.zeros(1, 100, dtype=torch.bool)
    mask[0, 45:55] = True
    policy = torch.zeros(1, 100, requires_grad=True)
    padded_objective(policy, None, None, torch.ones(1), mask, DAPO).loss.backward()
    assert policy.grad[mask].tolist() == pytest.approx([-0.1] * 10)


def test_a_filtered_sequence_is_in_no_denominator():
    # One of two 10-token rows is cut by the overlong filter: the other's tokens weigh 1/10, not 1/20.
    for spec in (DAPO, GRPO):
        mask = torch.tensor([[True] * 10, [False] * 10])
        policy = torch.zeros(2, 10, requires_grad=True)
        padded_objective(policy, None, None, torch.ones(2), mask, spec).loss.backward()
        assert policy.grad[0].tolist() == pytest.approx([-0.1] * 10)


def test_no_old_logprobs_means_a_ratio_of_exactly_one():
    terms = policy_objective(torch.full((6,), -0.3), None, None, ADVANTAGES, IDS, GRPO, totals=TOTALS)
    metrics = finish_metrics(terms.metrics)
    assert terms.loss.item() == pytest.approx((-1.0 + 0.5) / 2)
    assert metrics["ratio/mean"] == pytest.approx(1.0)
    assert metrics["max/ratio"] == 1.0
    assert metrics["ess"] == pytest.approx(1.0)
    assert not terms.is_clipped.any()


def test_metrics_state_what_was_clipped_and_how_far_engine_and_learner_are():
    policy = torch.zeros(6, dtype=torch.float64)
    old, sampler = policy - RATIOS.log(), policy - RATIOS.log() - 0.1
    spec = replace(GRPO, correction="token_tis")
    terms = policy_objective(policy, old, sampler, ADVANTAGES, IDS, spec, totals=TOTALS)
    metrics = finish_metrics(terms.metrics)
    # 1.4 is clipped at A > 0 and .7 at A < 0, of six tokens; 1.3 at A < 0 is not.
    assert terms.is_clipped.tolist() == [False, True, True, False, False, False]
    assert metrics["clip/high"] == pytest.approx(1 / 6)
    assert metrics["clip/low"] == pytest.approx(1 / 6)
    assert metrics["mismatch/mean_abs"] == pytest.approx(0.1, rel=1e-5)
    assert metrics["max/mismatch"] == pytest.approx(0.1, rel=1e-5)
    assert metrics["mismatch/kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-3)
    assert metrics["correction/mean"] == pytest.approx(math.exp(0.1), rel=1e-5)
    assert metrics["max/ratio"] == pytest.approx(1.4)
    ratios = RATIOS.numpy()
    assert metrics["ess"] == pytest.approx(ratios.mean() ** 2 / (ratios**2).mean(), rel=1e-5)


def test_differing_shapes_are_refused():
    with pytest.raises(ValueError, match="old_logprobs"):
        policy_objective(torch.zeros(6), torch.zeros(5), None, ADVANTAGES, IDS, GRPO, totals=TOTALS)
