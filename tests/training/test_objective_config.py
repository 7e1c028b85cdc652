"""The objective section: defaults of each loss type, and pairs that are refused with their reason."""

import pytest

from winnowrl.configs.sections.objective import CHOICES, LOSS_TYPES, ObjectiveConfig
from winnowrl.training.advantages import ADVANTAGE_SCALES, BASELINES, STD_KINDS
from winnowrl.training.aggregation import AGGREGATIONS, WEIGHTINGS
from winnowrl.training.correction import CORRECTIONS
from winnowrl.training.kl import KL_TYPES
from winnowrl.training.losses import build_objective
from winnowrl.training.losses.surrogates import IMPORTANCE_LEVELS


def test_config_and_mathematics_know_the_same_names():
    assert CHOICES["aggregation"] == AGGREGATIONS
    assert CHOICES["weighting"] == WEIGHTINGS
    assert CHOICES["advantage_scale"] == ADVANTAGE_SCALES
    assert CHOICES["advantage_std"] == STD_KINDS
    assert CHOICES["baseline"] == BASELINES
    assert CHOICES["kl_type"] == KL_TYPES
    assert CHOICES["correction"] == CORRECTIONS
    assert CHOICES["importance_level"] == IMPORTANCE_LEVELS


@pytest.mark.parametrize(
    ("loss_type", "aggregation", "level", "clip_low", "clip_high", "scale", "baseline"),
    [
        ("grpo", "seq-mean-token-mean", "token", 0.2, 0.2, "group", "mean"),
        ("dapo", "token-mean", "token", 0.2, 0.28, "group", "mean"),
        ("dr_grpo", "seq-mean-token-sum-norm", "token", 0.2, 0.2, "none", "mean"),
        ("gspo", "seq-mean-token-mean", "sequence", 3e-4, 4e-4, "group", "mean"),
        ("cispo", "token-mean", "token", 1.0, 4.0, "group", "mean"),
        ("rloo", "seq-mean-token-mean", "sequence_product", 0.2, 0.2, "none", "leave_one_out"),
    ],
)
def test_each_loss_type_brings_its_defaults(loss_type, aggregation, level, clip_low, clip_high, scale, baseline):
    config = ObjectiveConfig(loss_type=loss_type)
    spec = build_objective(config, max_completion_tokens=64)
    assert (spec.aggregation, spec.importance_level) == (aggregation, level)
    assert (spec.clip_low, spec.clip_high) == (clip_low, clip_high)
    assert spec.max_tokens == (64 if loss_type == "dr_grpo" else None)
    assert (config.resolved()["advantage_scale"], config.resolved()["baseline"]) == (scale, baseline)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_is_given_wins_over_the_loss_type(loss_type):
    config = ObjectiveConfig(loss_type=loss_type, clip_low=0.1, clip_high=0.3, advantage_scale="batch")
    spec = build_objective(config, max_completion_tokens=64)
    assert (spec.clip_low, spec.clip_high) == (0.1, 0.3)
    assert config.resolved()["advantage_scale"] == "batch"


@pytest.mark.parametrize(
    ("correction", "low", "high"),
    [
        ("token_tis", 0.0, 2.0),
        ("token_mis", 0.5, 2.0),
        ("sequence_tis", 0.0, 2.0),
        ("sequence_mis", 0.0, 3.0),
    ],
)
def test_each_correction_brings_its_bounds(correction, low, high):
    spec = build_objective(ObjectiveConfig(correction=correction))
    assert (spec.correction, spec.correction_cap_low, spec.correction_cap_high) == (correction, low, high)


@pytest.mark.parametrize("name", ["dual_clip", "delta"])
def test_both_names_of_the_bound_reach_the_loss(name):
    assert build_objective(ObjectiveConfig(**{name: 3.0})).ratio_bound == 3.0


def test_a_zero_clip_is_not_taken_for_one_left_open():
    assert build_objective(ObjectiveConfig(clip_low=0.0)).clip_low == 0.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss_type": "ppo"}, "objective.loss_type is 'ppo'; allowed: grpo"),
        ({"aggregation": "mean"}, "objective.aggregation is 'mean'"),
        ({"kl_type": "k4"}, "objective.kl_type is 'k4'"),
        ({"clip_low": 1.5}, "objective.clip_low is 1.5"),
        ({"clip_high": -0.1}, "objective.clip_high is -0.1"),
        ({"kl_coef": -1.0}, "objective.kl_coef"),
        ({"advantage_eps": float("nan")}, "objective.advantage_eps"),
        ({"loss_type": "gspo", "aggregation": "token-mean"}, "multiply by its length"),
        ({"loss_type": "dapo", "importance_level": "sequence"}, "multiply by its length"),
        ({"loss_type": "rloo", "aggregation": "seq-mean-token-sum"}, "multiply by its length"),
        (
            {"loss_type": "cispo", "importance_level": "sequence", "aggregation": "seq-mean-token-mean"},
            "weighs each token by itself",
        ),
        ({"max_tokens": 64}, "has no constant length"),
        ({"loss_type": "dr_grpo", "weighting": "token"}, "already weighs all tokens alike"),
        ({"dual_clip": 3.0, "delta": 4.0}, "keep one"),
        ({"dual_clip": 1.1}, "must exceed 1 \\+ clip_high"),
        ({"loss_type": "cispo", "dual_clip": 10.0}, "whose weight clip_high bounds"),
        ({"correction_cap_low": 3.0}, "allowed: low <= high"),
        ({"overlong_cache": 0}, "objective.overlong_cache is 0"),
    ],
)
def test_impossible_pairs_are_refused_with_the_reason(fields, reason):
    with pytest.raises(ValueError, match=reason):
        ObjectiveConfig(**fields)


def test_a_constant_length_must_come_from_somewhere():
    with pytest.raises(ValueError, match=r"objective\.max_tokens"):
        build_objective(ObjectiveConfig(loss_type="dr_grpo"))
    assert build_objective(ObjectiveConfig(loss_type="dr_grpo", max_tokens=32)).max_tokens == 32
