"""Policy losses: worked values, each loss and gradient against float64 loops, and the faults seen elsewhere."""

import math
from dataclasses import replace

import pytest
import torch

from winnowrl.training.aggregation import BatchTotals, sequence_scales
from winnowrl.training.losses import (
    ObjectiveSpec,
    cispo_surrogate,
    clipped_surrogate,
    combine_metrics,
    finish_metrics,
    padded_objective,
    policy_objective,
)

# Two sequences: 2 tokens with A = 1, 4 tokens with A = -.5.
RATIOS = torch.tensor([1.1, 1.4, 0.7, 0.9, 1.3, 1.0], dtype=torch.float64)
IDS = torch.tensor([0, 0, 1, 1, 1, 1])
ADVANTAGES = torch.tensor([1.0, -0.5])
TOTALS = BatchTotals(6, 2)

GRPO = ObjectiveSpec()
SPECS = {
    "grpo": GRPO,
    "dapo": ObjectiveSpec(loss_type="dapo", aggregation="token-mean", clip_high=0.28),
    "dr_grpo": ObjectiveSpec(loss_type="dr_grpo", aggregation="seq-mean-token-sum-norm", max_tokens=8),
    "token_sum": ObjectiveSpec(aggregation="seq-mean-token-sum"),
    "gspo": ObjectiveSpec(loss_type="gspo", importance_level="sequence", clip_low=3e-4, clip_high=4e-4),
    "cispo": ObjectiveSpec(loss_type="cispo", aggregation="token-mean", clip_low=1.0, clip_high=4.0),
    "cispo_both_sides": ObjectiveSpec(loss_type="cispo", aggregation="token-mean", clip_high=0.28),
    "rloo": ObjectiveSpec(loss_type="rloo", importance_level="sequence_product"),
    "dual_clip": replace(GRPO, ratio_bound=1.25, clip_high=0.1),
    "regularized": replace(GRPO, kl_coef=0.1, entropy_coef=0.01),
    "kl_weighted": replace(GRPO, kl_coef=0.1, kl_ratio_weighted=True, kl_type="k3"),
    "kl_k2": replace(GRPO, kl_coef=0.1, kl_type="k2", regularize_zero_advantage=True),
    "token_tis": replace(GRPO, correction="token_tis", correction_cap_high=1.1, aggregation="token-mean"),
    "token_mis": replace(GRPO, correction="token_mis", correction_cap_low=0.9, correction_cap_high=1.1),
    "sequence_tis": replace(GRPO, correction="sequence_tis", correction_cap_high=1.2),
    "sequence_mis": replace(GRPO, correction="sequence_mis", correction_cap_low=0.8, correction_cap_high=1.2),
    "off_policy": replace(GRPO, off_policy_threshold=0.05),
}


def value(spec, ratios=RATIOS, ids=IDS, advantages=ADVANTAGES, totals=TOTALS, policy=None):
    policy = torch.zeros_like(ratios) if policy is None else policy
    old = policy - ratios.log()
    return policy_objective(policy, old, None, advantages, ids, spec, totals=totals).loss.item()


@pytest.mark.parametrize(
    ("clip_high", "aggregation", "expected"),
    [
        (0.2, "seq-mean-token-mean", -0.325),
        (0.2, "token-mean", -0.05),
        (0.2, "seq-mean-token-sum-norm", -0.01875),
        (0.2, "seq-mean-token-sum", -0.15),
        (0.28, "seq-mean-token-mean", -0.345),
        (0.28, "token-mean", -0.0633333333),
        (0.28, "seq-mean-token-sum-norm", -0.02375),
        (0.28, "seq-mean-token-sum", -0.19),
    ],
)
def test_clipped_loss_under_each_aggregation(clip_high, aggregation, expected):
    # token losses -1.1 -1.2 (or -1.28) | .4 .45 .65 .5, of which .4 is the clipped .8 * .5
    spec = ObjectiveSpec(clip_high=clip_high, aggregation=aggregation, max_tokens=8)
    assert value(spec) == pytest.approx(expected, abs=1e-6)


def test_gspo_uses_the_geometric_mean_ratio_once_a_sequence():
    # s1 = sqrt(1.1 * 1.4) = 1.2410, clipped to 1.0004 at A = 1; s2 = .95131, clipped to .9997 at A = -.5
    assert value(SPECS["gspo"]) == pytest.approx((-1.0004 + 0.49985) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ["grpo", "gspo", "rloo", "cispo"])
def test_the_kl_of_a_step_is_per_token_whatever_ratio_the_loss_takes(name):
    # k3 = r - 1 - log r: .0046898 .0635278 .0566749 .0053605 .0376357 0, mean .0279815
    expected = sum(r - 1.0 - math.log(r) for r in RATIOS.tolist()) / 6
    assert expected == pytest.approx(0.0279815, abs=1e-6)
    policy = torch.zeros_like(RATIOS)
    metrics = policy_objective(policy, -RATIOS.log(), None, ADVANTAGES, IDS, SPECS[name], totals=TOTALS).metrics
    assert metrics["kl/step"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "expected"), [("cispo", 0.0791666667), ("cispo_both_sides", 0.0586666667)])
def test_cispo_weighs_log_probs(name, expected):
    policy = torch.tensor([-0.5, -1.0, -0.2, -2.0, -0.7, -0.1], dtype=torch.float64)
    assert value(SPECS[name], policy=policy) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("advantage", "ratio", "bound", "expected"),
    [
        (-1.0, 9.0, None, 9.0),
        (-1.0, 9.0, 4.0, 4.0),
        (-1.0, 9.0, 3.0, 3.0),
        (1.0, 1.5, 10.0, -1.28),
        (1.0, 0.5, 10.0, -0.5),
        (-1.0, 0.5, 10.0, 0.8),
        (-1.0, 1.5, 10.0, 1.5),
        (-1.0, 12.0, 10.0, 10.0),
        (0.0, 3.0, 10.0, 0.0),
    ],
)
def test_bound_on_large_ratios_at_negative_advantages(advantage, ratio, bound, expected):
    found = clipped_surrogate(
        torch.tensor([ratio]), torch.tensor([advantage]), clip_low=0.2, clip_high=0.28, ratio_bound=bound
    )
    assert found.losses.item() == pytest.approx(expected)
    assert found.bounded.item() == (bound is not None and ratio > bound and advantage < 0)


def test_clip_flags_need_the_side_that_decides():
    ratio = torch.tensor([0.7, 1.0, 1.25, 1.35])
    for advantage, low, high in ((1.0, [], [3]), (-1.0, [0], []), (0.0, [], [])):
        found = clipped_surrogate(ratio, torch.full((4,), advantage), clip_low=0.2, clip_high=0.28)
        assert found.clipped_low.nonzero().flatten().tolist() == low
        assert found.clipped_high.nonzero().flatten().tolist() == high


def test_cispo_keeps_a_gradient_on_every_token():
    policy = torch.zeros(3, requires_grad=True)
    ratio = torch.tensor([0.1, 1.0, 50.0])
    cispo_surrogate(ratio, policy, torch.ones(3), clip_low=1.0, clip_high=4.0).losses.sum().backward()
    assert policy.grad.tolist() == pytest.approx([-0.1, -1.0, -5.0])


# --- against loops -----------------------------------------------------------------------------------------------


def random_batch(seed, dtype=torch.float64, rows=6, width=9):
    """Padded tensors with NaN under the padding, some empty rows, some zero advantages."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    lengths[0], lengths[1] = width, 0
    mask = torch.arange(width) < lengths[:, None]
    mask &= torch.rand(rows, width, generator=generator) > 0.2
    policy = -normal(rows, width).abs()
    tensors = {
        "policy": policy,
        "old": policy + 0.3 * normal(rows, width),
        "sampler": policy + 0.3 * normal(rows, width),
        "ref": policy + 0.5 * normal(rows, width),
        "entropy": normal(rows, width).abs(),
    }
    tensors = {name: tensor.masked_fill(~mask, math.nan).to(dtype) for name, tensor in tensors.items()}
    advantages = normal(rows)
    advantages[2] = 0.0
    return tensors, mask, advantages


def loop_loss(tensors, mask, advantages, spec):
    """The objective one token at a time in Python floats that remember their gradient."""
    policy = {(i, t): tensors["policy"][i, t].double().detach().requires_grad_() for i, t in mask.nonzero().tolist()}
    rows = sorted({i for i, _ in policy})
    total = torch.zeros((), dtype=torch.float64)
    for i in rows:
        tokens = [t for row, t in policy if row == i]
        total = total + loop_sequence(i, tokens, policy, tensors, advantages[i].item(), spec, len(rows), len(policy))
    gradients = torch.autograd.grad(total, list(policy.values()), allow_unused=True)
    return total.item(), {key: 0.0 if g is None else g.item() for key, g in zip(policy, gradients, strict=True)}


def loop_sequence(i, tokens, policy, tensors, advantage, spec, num_rows, num_tokens):
    def given(name, t):
        return tensors[name][i, t].double().item()

    logs = [policy[i, t] - given("old", t) for t in tokens]
    if spec.importance_level == "sequence":
        logs = [sum(logs) / len(logs)] * len(logs)
    if spec.importance_level == "sequence_product":
        logs = [sum(logs)] * len(logs)
    drop = False
    if spec.off_policy_threshold is not None:
        gap = sum(given("sampler", t) - policy[i, t].item() for t in tokens) / len(tokens)
        drop = advantage < 0 and gap > spec.off_policy_threshold
    sequence_log_weight = sum(given("old", t) - given("sampler", t) for t in tokens)
    result = torch.zeros((), dtype=torch.float64)
    for log, t in zip(logs, tokens, strict=True):
        ratio = log.exp()
        clipped = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
        if spec.loss_type == "cispo":
            loss = -clipped.item() * advantage * policy[i, t]
        elif advantage < 0:
            loss = torch.maximum(-ratio * advantage, -clipped * advantage)
            if spec.ratio_bound is not None and loss.item() > -spec.ratio_bound * advantage:
                loss = torch.tensor(-spec.ratio_bound * advantage, dtype=torch.float64)
        else:
            loss = torch.maximum(-ratio * advantage, -clipped * advantage)
        log_weight = sequence_log_weight if "sequence" in spec.correction else given("old", t) - given("sampler", t)
        loss = loss * loop_weight(math.exp(log_weight), spec) * (0.0 if drop else 1.0)
        if advantage != 0 or spec.regularize_zero_advantage:
            d = policy[i, t] - given("ref", t)
            kl = d**2 / 2 if spec.kl_type == "k2" else torch.exp(-d) + d - 1
            loss = loss + spec.kl_coef * kl * (ratio if spec.kl_ratio_weighted else 1.0)
            loss = loss - spec.entropy_coef * given("entropy", t)
        divisor = {
            "seq-mean-token-mean": num_rows * len(tokens),
            "token-mean": num_tokens,
            "seq-mean-token-sum": num_rows,
            "seq-mean-token-sum-norm": num_rows * (spec.max_tokens or 1),
        }[spec.aggregation]
        result = result + loss / divisor
    return result


def loop_weight(weight, spec):
    low, high = spec.correction_cap_low, spec.correction_cap_high
    if spec.correction == "none":
        return 1.0
    if spec.correction.endswith("tis"):
        return min(max(weight, low), high)
    return weight if low <= weight <= high else 0.0


def compute(tensors, mask, advantages, spec):
    policy = tensors["policy"].clone().requires_grad_()
    terms = padded_objective(
        policy,
        tensors["old"],
        tensors["sampler"],
        advantages,
        mask,
        spec,
        ref_logprobs=tensors["ref"],
        entropy=tensors["entropy"],
    )
    terms.loss.backward()
    return terms, policy.grad


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SPECS)
def test_value_and_gradient_equal_a_float64_loop(name, seed):
    tensors, mask, advantages = random_batch(seed)
    expected, gradients = loop_loss(tensors, mask, advantages, SPECS[name])
    terms, gradient = compute(tensors, mask, advantages, SPECS[name])
    assert terms.loss.item() == pytest.approx(expected, rel=2e-5, abs=2e-6)
    for (i, t), g in gradients.items():
        assert gradient[i, t].item() == pytest.approx(g, rel=2e-4, abs=2e-6)
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("name", SPECS)
def test_bfloat16_inputs_are_computed_in_float32(name):
    tensors, mask, advantages = random_batch(11, dtype=torch.bfloat16)
    expected, _ = loop_loss(tensors, mask, advantages, SPECS[name])
    terms, gradient = compute(tensors, mask, advantages, SPECS[name])
    assert terms.loss.dtype == torch.float32
    assert terms.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", SPECS)
def test_micro_batches_add_up_to_the_full_batch(name):
    tensors, mask, advantages = random_batch(5, rows=8)
    whole, gradient = compute(tensors, mask, advantages, SPECS[name])
    totals = BatchTotals.of(mask.sum(-1).tolist())
    for split in ([8], [4, 4], [1] * 8, [1, 5, 2]):
        policy = tensors["policy"].clone().requires_grad_()
        parts = []
        for rows in torch.arange(8).split(split):
            inner = mask[rows]
            flat = {name: tensor[rows][inner] for name, tensor in tensors.items()}
            parts.append(
                policy_objective(
                    policy[rows][inner],
                    flat["old"],
                    flat["sampler"],
                    advantages[rows],
                    inner.nonzero()[:, 0],
                    SPECS[name],
                    totals=totals,
                    ref_logprobs=flat["ref"],
                    entropy=flat["entropy"],
                )
            )
        loss = sum(part.loss for part in parts)
        loss.backward()
        assert loss.item() == pytest.approx(whole.loss.item(), rel=1e-5, abs=1e-6)
        torch.testing.assert_close(policy.grad, gradient, rtol=1e-5, atol=1e-7)
        joined = finish_metrics(combine_metrics(part.metrics for part in parts))
        assert joined == pytest.approx(finish_metrics(whole.metrics), rel=1e-4, abs=1e-6)


# --- faults seen elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_zero_advantages_give_an_exactly_zero_gradient(name):
    tensors, mask, advantages = random_batch(3)
    spec = replace(SPECS[name], regularize_zero_advantage=False)
    _, gradient = compute(tensors, mask, torch.zeros_like(advantages), spec)
    assert (gradient == 0).all()


def test_regularizing_zero_advantages_is_a_choice():
    tensors, mask, advantages = random_batch(3)
    spec = ObjectiveSpec(kl_coef=0.1, regularize_zero_advantage=True)
    _, gradient = compute(tensors, mask, torch.zeros_like(advantages), spec)
    assert (gradient[mask] != 0).any()


@pytest.mark.parametrize("name", SPECS)
def test_nothing_in_the_loss_gives_zero_with_a_gradient(name):
    tensors, mask, advantages = random_batch(3)
    terms, gradient = compute(tensors, torch.zeros_like(mask), advantages, SPECS[name])
    assert terms.loss.item() == 0.0
    assert (gradient == 0).all()


@pytest.mark.parametrize("name", SPECS)
def test_infinite_ratios_stay_finite(name):
    policy = torch.tensor([0.0, -1e4, -1e4, 0.0], requires_grad=True)
    other = torch.tensor([-1e4, 0.0, 0.0, -1e4])
    terms = policy_objective(
        policy,
        other,
        other,
        torch.tensor([1.0, -1.0]),
        torch.tensor([0, 0, 1, 1]),
        SPECS[name],
        totals=BatchTotals(4, 2),
        ref_logprobs=other,
        entropy=torch.zeros(4),
    )
    terms.loss.backward()
    assert terms.loss.isfinite()
    assert policy.grad.isfinite().all()


def test_token_mean_follows_its_tokens():
    # Replay joins fresh data: 2 tokens A=1 r=1.1, 3 tokens A=-1 r=.9, 1 token A=1.5 r=1.4 clipped at 1.28
    spec = ObjectiveSpec(aggregation="token-mean", clip_high=0.28, ratio_bound=10.0)
    ratios = torch.tensor([1.1, 1.1, 0.9, 0.9, 0.9, 1.4], dtype=torch.float64)
    ids, advantages = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([1.0, -1.0, 1.5])
    assert value(spec, ratios, ids, advantages, BatchTotals(6, 3)) == pytest.approx(-0.2366666667, abs=1e-6)
    mean = replace(spec, aggregation="seq-mean-token-mean")
    assert value(mean, ratios, ids, advantages, BatchTotals(6, 3)) == pytest.approx(-2.12 / 3, abs=1e-6)


def test_scales_enter_the_loss():
    scale = torch.tensor(sequence_scales([0, 1], [2, 4], weighting="rollout", aggregation="token-mean"))
    spec = ObjectiveSpec(aggregation="token-mean")
    policy = torch.zeros(6, dtype=torch.float64)
    found = policy_objective(policy, -RATIOS.log(), None, ADVANTAGES, IDS, spec, totals=TOTALS, scale=scale).loss
    assert found.item() == pytest.approx(value(GRPO), abs=1e-6)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (ObjectiveSpec(kl_coef=0.1), "ref_logprobs"),
        (ObjectiveSpec(entropy_coef=0.1), "entropy"),
        (ObjectiveSpec(correction="token_tis"), "sampler_logprobs"),
        (ObjectiveSpec(off_policy_threshold=0.1), "sampler_logprobs"),
        (ObjectiveSpec(aggregation="mean"), "aggregation"),
        (ObjectiveSpec(importance_level="turn"), "importance_level"),
        (ObjectiveSpec(aggregation="seq-mean-token-sum-norm"), "max_tokens"),
    ],
)
def test_what_is_missing_is_named(spec, named):
    with pytest.raises(ValueError, match=named):
        value(spec)
