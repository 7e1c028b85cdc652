"""Policy losses as pure functions over flat tokens, and the one entry the learner calls: ``policy_objective``."""

from winnowrl.training.losses.metrics import combine_metrics, finish_metrics
from winnowrl.training.losses.objective import ObjectiveTerms, padded_objective, policy_objective
from winnowrl.training.losses.spec import ObjectiveSpec, build_objective
from winnowrl.training.losses.surrogates import Surrogate, cispo_surrogate, clipped_surrogate, importance_log_ratio

__all__ = [
    "ObjectiveSpec",
    "ObjectiveTerms",
    "Surrogate",
    "build_objective",
    "cispo_surrogate",
    "clipped_surrogate",
    "combine_metrics",
    "finish_metrics",
    "importance_log_ratio",
    "padded_objective",
    "policy_objective",
]
