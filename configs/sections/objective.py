"""The objective: what a batch of rollouts is turned into. Formulas and reasons: docs/objectives.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

Value = float | str

LOSS_TYPES: dict[str, dict[str, Value]] = {
    "grpo": {"aggregation": "seq-mean-token-mean"},
    "dapo": {"aggregation": "token-mean", "clip_high": 0.28},
    "dr_grpo": {"aggregation": "seq-mean-token-sum-norm", "advantage_scale": "none"},
    "gspo": {
        "aggregation": "seq-mean-token-mean",
        "importance_level": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
    },
    "cispo": {"aggregation": "token-mean", "clip_low": 1.0, "clip_high": 4.0},
    "rloo": {
        "aggregation": "seq-mean-token-mean",
        "importance_level": "sequence_product",
        "advantage_scale": "none",
        "baseline": "leave_one_out",
    },
}
COMMON: dict[str, Value] = {
    "importance_level": "token",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "advantage_scale": "group",
    "baseline": "mean",
}
CORRECTION_CAPS: dict[str, tuple[float, float]] = {
    "none": (0.0, 2.0),
    "token_tis": (0.0, 2.0),
    "token_mis": (0.5, 2.0),
    "sequence_tis": (0.0, 2.0),
    "sequence_mis": (0.0, 3.0),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_type": tuple(LOSS_TYPES),
    "aggregation": ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    "importance_level": ("token", "sequence", "sequence_product"),
    "weighting": ("auto", "rollout", "task", "token"),
    "advantage_scale": ("group", "batch", "none"),
    "advantage_std": ("population", "sample"),
    "baseline": ("mean", "leave_one_out"),
    "kl_type": ("k1", "k2", "k3", "k1+", "k3+"),
    "correction": tuple(CORRECTION_CAPS),
}


@dataclass(frozen=True)
class ObjectiveConfig:
    """Advantages, loss and its corrections. A field left open (null) takes the value of its loss type."""

    loss_type: str = "grpo"
    """grpo | dapo | dr_grpo | gspo | cispo | rloo"""
    advantage_scale: str | None = None
    """What a centered reward is divided by: group | batch (std) | none. Default none for dr_grpo, rloo; else group."""
    advantage_std: str = "population"
    """population (ddof 0) | sample (ddof 1)"""
    advantage_eps: float = 1e-6
    """Added to the standard deviation (reward units)."""
    baseline: str | None = None
    """What is subtracted from a reward: mean | leave_one_out. Default leave_one_out for rloo; else mean."""
    reward_tolerance: float = 1e-6
    """A group whose rewards span no more than this has zero variance: no advantage (reward units)."""
    importance_level: str | None = None
    """token | sequence (geometric mean, GSPO) | sequence_product (likelihood ratio of the sequence)"""
    aggregation: str | None = None
    """seq-mean-token-mean | token-mean | seq-mean-token-sum | seq-mean-token-sum-norm"""
    max_tokens: int | None = None
    """Constant length of seq-mean-token-sum-norm (tokens); null = the run's longest completion."""
    weighting: str = "auto"
    """What has equal weight when groups differ in size: auto (as the aggregation has it) | rollout | task | token"""
    clip_low: float | None = None
    """Lower clip, distance below 1. Default 3e-4 for gspo, 1.0 (free) for cispo; else 0.2."""
    clip_high: float | None = None
    """Upper clip, distance above 1. Default 0.28 for dapo, 4e-4 for gspo, 4.0 for cispo; else 0.2."""
    dual_clip: float | None = None
    """Largest ratio at a negative advantage (verl 3, replay 10); null = unbounded."""
    delta: float | None = None
    """The same bound under INTELLECT-2's name; must exceed 1 + clip_high."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; 0 needs no reference."""
    kl_type: str = "k3"
    """k1 | k2 | k3 | k1+ | k3+ (the value of k1 or k3 with the gradient of k2)"""
    kl_ratio_weighted: bool = False
    """Multiply the KL by the importance ratio, which makes it unbiased off-policy."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    regularize_zero_advantage: bool = False
    """Whether KL and entropy act on rollouts without an advantage too (else they teach nothing at all)."""
    correction: str = "token_tis"
    """Sampler/learner mismatch: none | token_tis | token_mis | sequence_tis | sequence_mis"""
    correction_cap_low: float | None = None
    """Smallest importance weight. Default 0.5 for token_mis; else 0."""
    correction_cap_high: float | None = None
    """Largest importance weight. Default 3 for sequence_mis; else 2."""
    off_policy_threshold: float | None = None
    """Leave out a rollout with a negative advantage farther than this from its sampler (nats per token); null = off."""
    overlong_filter: bool = False
    """Leave rollouts cut by a budget out of the loss (they still count in their group's baseline)."""
    overlong_penalty: float = 0.0
    """Largest reduction of the reward for length (reward units, DAPO 1.0); 0 = off."""
    overlong_cache: int | None = None
    """Tokens before conversation.rollout_tokens from which the penalty rises linearly; null = a fifth of that limit, as in
    DAPO."""

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = CHOICES

    def resolved(self) -> dict[str, Value]:
        """The fields that depend on the loss type or the correction, with what was left open filled in."""
        defaults = COMMON | LOSS_TYPES[self.loss_type]
        low, high = CORRECTION_CAPS[self.correction]
        defaults |= {"correction_cap_low": low, "correction_cap_high": high}
        return {
            name: default if getattr(self, name) is None else getattr(self, name) for name, default in defaults.items()
        }

    @property
    def bounds_large_ratios(self) -> bool:
        """Whether the loss at a negative advantage stays bounded however far the policy has moved."""
        return self.loss_type == "cispo" or self.dual_clip is not None or self.delta is not None

    def overlong_cache_of(self, max_tokens: int) -> int:
        """``overlong_cache`` in rollouts of at most ``max_tokens``, tokens."""
        return max(1, max_tokens // 5) if self.overlong_cache is None else self.overlong_cache

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ValueError(f"objective.{name} is {value!r}; allowed: {', '.join(allowed)}")
        self._check_ranges()
        self._check_pairs()

    def _check_ranges(self) -> None:
        _at_least("advantage_eps", self.advantage_eps, 0.0)
        _at_least("reward_tolerance", self.reward_tolerance, 0.0)
        _at_least("kl_coef", self.kl_coef, 0.0)
        _at_least("overlong_penalty", self.overlong_penalty, 0.0)
        _at_least("overlong_cache", self.overlong_cache, 1)
        _at_least("max_tokens", self.max_tokens, 1)
        _at_least("clip_low", self.clip_low, 0.0)
        _at_least("clip_high", self.clip_high, 0.0)
        _at_least("correction_cap_low", self.correction_cap_low, 0.0)
        if self.clip_low is not None and self.clip_low > 1.0:
            raise ValueError(f"objective.clip_low is {self.clip_low}; allowed: 0 to 1 (1 leaves the lower side free)")
        chosen = self.resolved()
        low, high = float(chosen["correction_cap_low"]), float(chosen["correction_cap_high"])
        if low > high or high <= 0.0:
            raise ValueError(
                f"objective.correction_cap_low is {low} and correction_cap_high {high}; "
                "allowed: low <= high and high > 0"
            )

    def _check_pairs(self) -> None:
        chosen = self.resolved()
        level, aggregation = chosen["importance_level"], chosen["aggregation"]
        if level != "token" and aggregation != "seq-mean-token-mean":
            raise ValueError(
                f"objective.aggregation is {aggregation} with importance_level {level}: a sequence ratio gives a "
                "sequence one loss, which this would multiply by its length; use seq-mean-token-mean, or "
                "importance_level: token"
            )
        if self.loss_type == "cispo" and level != "token":
            raise ValueError(
                f"objective.importance_level is {level} with loss_type cispo, which weighs each token by itself; "
                "use token"
            )
        if self.max_tokens is not None and aggregation != "seq-mean-token-sum-norm":
            raise ValueError(
                f"objective.max_tokens is {self.max_tokens} but aggregation {aggregation} has no constant length; "
                "remove it, or set aggregation: seq-mean-token-sum-norm"
            )
        if self.weighting == "token" and str(aggregation).startswith("seq-mean-token-sum"):
            raise ValueError(
                f"objective.weighting is token but aggregation {aggregation} already weighs all tokens alike; use auto"
            )
        self._check_bounds(float(chosen["clip_high"]))

    def _check_bounds(self, clip_high: float) -> None:
        if self.dual_clip is not None and self.delta is not None:
            raise ValueError(
                f"objective.dual_clip is {self.dual_clip} and delta {self.delta}: both are the bound on the ratio at a "
                "negative advantage; keep one"
            )
        for name, value in (("dual_clip", self.dual_clip), ("delta", self.delta)):
            if value is None:
                continue
            if self.loss_type == "cispo":
                raise ValueError(
                    f"objective.{name} is {value} with loss_type cispo, whose weight clip_high bounds; remove it"
                )
            if value <= 1.0 + clip_high:
                raise ValueError(f"objective.{name} is {value}; it must exceed 1 + clip_high = {1.0 + clip_high}")


def _at_least(name: str, value: float | None, minimum: float) -> None:
    if value is not None and not value >= minimum:
        raise ValueError(f"objective.{name} is {value}; allowed: {minimum} or more")
