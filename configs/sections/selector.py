"""The ``selector`` section: which rollouts an update trains on. Method and sources: docs/objectives.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from winnowrl.configs.sections.objective import ObjectiveConfig

_BANDIT = (
    "entropy_source",
    "entropy_weight",
    "entropy_floor",
    "ema_mode",
    "ema_rate",
    "credit",
    "explore_unit",
    "explore_start",
    "explore_end",
    "explore_rounds",
    "hidden_size",
    "hidden_layers",
    "scheduler_learning_rate",
    "scheduler_updates",
    "standardize_history",
    "l2_normalize",
)


@dataclass(frozen=True)
class ReplayConfig:
    """Advantage-prioritised replay: past rollouts join the fresh ones, which are never displaced."""

    type: str = "none"
    """none | advantage_prioritized"""
    ratio: float = 0.5
    """Replayed rollouts per fresh one trained on."""
    priority_exponent: float = 0.5
    """alpha in P(i) ~ (|A_i| + eps)^alpha; 0 draws uniformly."""
    priority_eps: float = 1e-6
    """eps of the priority (advantage units)."""
    max_age: int = 10
    """A rollout older than this is dropped (steps since its birth)."""
    warmup_steps: int = 20
    """No replay before this step."""
    capacity: int = 30_000
    """Most rollouts kept, oldest dropped first."""
    multiple_of: int = 1
    """Rollouts of a step are brought to a multiple of this through the number replayed (rollouts)."""

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "none": (),
        "advantage_prioritized": (
            "ratio",
            "priority_exponent",
            "priority_eps",
            "max_age",
            "warmup_steps",
            "capacity",
            "multiple_of",
        ),
    }

    def __post_init__(self) -> None:
        _one_of("replay.type", self.type, tuple(self.TYPES))
        for name, minimum in (("max_age", 1), ("warmup_steps", 0), ("capacity", 1), ("multiple_of", 1)):
            _at_least(f"replay.{name}", getattr(self, name), minimum)
        for name in ("ratio", "priority_exponent"):
            _at_least(f"replay.{name}", getattr(self, name), 0.0)
        if not self.priority_eps > 0.0:
            raise ValueError(f"selector.replay.priority_eps is {self.priority_eps}; allowed: above 0")


@dataclass(frozen=True)
class DynamicSamplingConfig:
    """Refills a step with fresh tasks until it has enough informative groups (DAPO)."""

    type: str = "none"
    """none | refill"""
    max_attempts: int = 3
    """Most refills of one step."""
    max_tasks_factor: float = 3.0
    """Most tasks of one step, refills included, as a multiple of tasks_per_step."""
    fallback: str = "train"
    """When the attempts are used up: train (on the informative groups there are) | skip (the update of this step)."""

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "none": (),
        "refill": ("max_attempts", "max_tasks_factor", "fallback"),
    }

    def __post_init__(self) -> None:
        _one_of("dynamic_sampling.type", self.type, tuple(self.TYPES))
        _one_of("dynamic_sampling.fallback", self.fallback, ("train", "skip"))
        _at_least("dynamic_sampling.max_attempts", self.max_attempts, 1)
        _at_least("dynamic_sampling.max_tasks_factor", self.max_tasks_factor, 1.0)


@dataclass(frozen=True)
class SelectorConfig:
    """Chooses rollouts before the backward pass; what is left out costs no update time."""

    type: str = "all"
    """all | random | cbs_star (bandit within each group) | cbs (bandit over a buffer of rounds)"""
    keep_fraction: float = 0.5
    """Share of each group that is trained on, rounded down, at least one (0-1)."""
    buffer_rounds: int = 4
    """L: rounds whose rollouts can be chosen again."""
    entropy_source: str = "sampler"
    """Entropy of a fresh rollout: sampler (minus its mean log p, free) | learner (exact, one forward pass more)"""
    entropy_weight: float = 1.0
    """w_e: how much a rise of entropy lowers the bandit's reward (1 / nats)."""
    entropy_floor: float = 0.3
    """e_min: entropy enters the reward only above this (nats per token)."""
    ema_mode: str = "center_scale_gain"
    """center_scale_gain | scale_all | center_only | none: how running statistics normalise the gain in reward"""
    ema_rate: float = 0.1
    """alpha of those running statistics (0-1)."""
    credit: str = "scaled"
    """scaled (a rollout's target is |A| times the reward) | shared (divided by the sum of |A|)"""
    explore_unit: str = "round"
    """round (a whole selection is random) | slot (each choice is)"""
    explore_start: float = 0.2
    """Exploration probability of the first round (0-1)."""
    explore_end: float = 0.02
    """Exploration probability from explore_rounds on (0-1)."""
    explore_rounds: int = 100
    """Rounds of the linear decay between the two."""
    hidden_size: int = 64
    """Width of the scheduler network."""
    hidden_layers: int = 2
    """Depth of the scheduler network."""
    scheduler_learning_rate: float = 1e-3
    """Adam's rate for the scheduler network."""
    scheduler_updates: int = 1
    """Gradient steps of the scheduler network a round."""
    standardize_history: bool = True
    """Bring age and usage count to running mean 0 and std 1."""
    l2_normalize: bool = True
    """Bring each feature vector to length 1, as the theory assumes."""
    birth_logprobs: str = "learner"
    """Where the ratio of a rollout trained on again starts: learner (its own log p at birth) | sampler (the engine's)"""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "all": (),
        "random": ("keep_fraction",),
        "cbs_star": ("keep_fraction", *_BANDIT),
        "cbs": ("buffer_rounds", *_BANDIT),
    }

    def __post_init__(self) -> None:
        _one_of("type", self.type, tuple(self.TYPES))
        _one_of("entropy_source", self.entropy_source, ("sampler", "learner"))
        _one_of("birth_logprobs", self.birth_logprobs, ("learner", "sampler"))
        _one_of("ema_mode", self.ema_mode, ("center_scale_gain", "scale_all", "center_only", "none"))
        _one_of("credit", self.credit, ("scaled", "shared"))
        _one_of("explore_unit", self.explore_unit, ("round", "slot"))
        if not 0.0 < self.keep_fraction <= 1.0:
            raise ValueError(f"selector.keep_fraction is {self.keep_fraction}; allowed: above 0, at most 1")
        for name in ("explore_start", "explore_end", "ema_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"selector.{name} is {getattr(self, name)}; allowed: 0 to 1")
        for name in ("buffer_rounds", "explore_rounds", "hidden_size", "hidden_layers", "scheduler_updates"):
            _at_least(name, getattr(self, name), 1)
        for name in ("entropy_weight", "entropy_floor"):
            _at_least(name, getattr(self, name), 0.0)
        if not self.scheduler_learning_rate > 0.0:
            raise ValueError(f"selector.scheduler_learning_rate is {self.scheduler_learning_rate}; allowed: above 0")

    @property
    def reuses_rollouts(self) -> bool:
        """Whether an update may hold rollouts of earlier steps."""
        return self.type == "cbs" or self.replay.type != "none"


def check_reuse(objective: ObjectiveConfig, selector: SelectorConfig) -> None:
    """Raise ``ValueError`` where old rollouts are trained on and nothing bounds their ratio at a negative advantage."""
    if selector.reuses_rollouts and not objective.bounds_large_ratios:
        reason = "selector.type is cbs" if selector.type == "cbs" else f"selector.replay.type is {selector.replay.type}"
        raise ValueError(
            f"{reason}, so rollouts of earlier steps are trained on, but objective.dual_clip is not set: a token the "
            "policy has since made likelier would then weigh without bound at a negative advantage; set "
            "objective.dual_clip to 10 (or 3), or objective.loss_type to cispo"
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"selector.{name} is {value!r}; allowed: {', '.join(allowed)}")


def _at_least(name: str, value: float, minimum: float) -> None:
    if not value >= minimum:
        raise ValueError(f"selector.{name} is {value}; allowed: {minimum} or more")
