"""What a loss needs to know, as plain numbers and names; made from ``ObjectiveConfig``, where the defaults are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnowrl.configs.sections.objective import ObjectiveConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSpec:
    """One resolved objective.

    Attributes:
        loss_type: grpo | dapo | dr_grpo | gspo | cispo | rloo. Only ``cispo`` has a surrogate of its own; the others
            differ in the fields below.
        importance_level: token | sequence | sequence_product.
        aggregation: See ``winnowrl.training.aggregation``. max_tokens: Its constant length, tokens.
        clip_low, clip_high: Distances from 1.
        ratio_bound: Largest ratio at A < 0 (dual clip's c, or delta); None = unbounded.
        kl_coef: 0 = no reference needed. kl_type: Estimator. kl_ratio_weighted: Multiply it by the importance ratio.
        entropy_coef: Subtracted from the loss times the entropy.
        regularize_zero_advantage: Whether KL and entropy act on sequences whose advantage is exactly 0.
        correction: Sampler/learner weights, with their bounds.
        off_policy_threshold: Nats per token beyond which a sequence with A < 0 is left out; None = off.
    """

    loss_type: str = "grpo"
    importance_level: str = "token"
    aggregation: str = "seq-mean-token-mean"
    max_tokens: int | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_bound: float | None = None
    kl_coef: float = 0.0
    kl_type: str = "k3"
    kl_ratio_weighted: bool = False
    entropy_coef: float = 0.0
    regularize_zero_advantage: bool = False
    correction: str = "none"
    correction_cap_low: float = 0.0
    correction_cap_high: float = 2.0
    off_policy_threshold: float | None = None

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef != 0.0

    @property
    def needs_entropy(self) -> bool:
        """Whether the entropy must carry a gradient; its value is wanted for the metrics in any case."""
        return self.entropy_coef != 0.0


def build_objective(config: ObjectiveConfig, *, max_completion_tokens: int | None = None) -> ObjectiveSpec:
    """Resolve the config: each field left open takes the value of its loss type.

    Args:
        max_completion_tokens: Longest completion of the run, tokens; the constant of ``seq-mean-token-sum-norm`` where
            the config names none.

    Raises:
        ValueError: ``seq-mean-token-sum-norm`` without a length from either side.
    """
    chosen = config.resolved()
    max_tokens = config.max_tokens or max_completion_tokens
    if chosen["aggregation"] != "seq-mean-token-sum-norm":
        max_tokens = None
    elif not max_tokens:
        raise ValueError("objective.max_tokens is not set and the run has no completion limit; set it to a length >= 1")
    return ObjectiveSpec(
        loss_type=config.loss_type,
        importance_level=str(chosen["importance_level"]),
        aggregation=str(chosen["aggregation"]),
        max_tokens=max_tokens,
        clip_low=float(chosen["clip_low"]),
        clip_high=float(chosen["clip_high"]),
        ratio_bound=config.dual_clip if config.dual_clip is not None else config.delta,
        kl_coef=config.kl_coef,
        kl_type=config.kl_type,
        kl_ratio_weighted=config.kl_ratio_weighted,
        entropy_coef=config.entropy_coef,
        regularize_zero_advantage=config.regularize_zero_advantage,
        correction=config.correction,
        correction_cap_low=float(chosen["correction_cap_low"]),
        correction_cap_high=float(chosen["correction_cap_high"]),
        off_policy_threshold=config.off_policy_threshold,
    )
