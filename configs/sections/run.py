"""What identifies a run, where it writes and how long it goes."""

from __future__ import annotations

from dataclasses import dataclass, field

TRACKERS = ("tensorboard", "trackio", "wandb")


@dataclass(frozen=True)
class RunSection:
    """Name, folder, seed, length."""

    name: str | None = None
    """Name of the run folder; null takes the configuration's name and the next free number."""
    folder: str = "runs"
    """Folder that holds the run folders."""
    seed: int = 0
    """Every random decision of the run is derived from this."""
    num_steps: int = 20
    """Training steps; each draws tasks, collects groups and updates the policy once."""
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Where metrics go besides metrics.jsonl: tensorboard, trackio, wandb."""
    save_rollouts: bool = True
    """Write every rollout (text and tokens, compressed)."""

    def __post_init__(self) -> None:
        if self.name is not None and (not self.name or "/" in self.name or self.name in (".", "..")):
            raise ValueError(f"run.name is {self.name!r}; allowed: a folder name without '/', or null")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"run.seed is {self.seed}; allowed: 0 to 2**63 - 1")
        if self.num_steps < 0:
            raise ValueError(f"run.num_steps is {self.num_steps}; allowed: 0 or more")
        if unknown := set(self.trackers) - set(TRACKERS):
            raise ValueError(f"run.trackers names {sorted(unknown)[0]!r}; allowed: {', '.join(TRACKERS)}")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the run is saved and what is kept."""

    every_steps: int = 10
    """Save after every so many steps; 0 saves only at the end and when interrupted."""
    keep_last: int = 2
    """Checkpoints kept, newest first (1 or more)."""
    best_metric: str | None = None
    """Metric whose best checkpoint is kept as well; null keeps none. Either of a held-out evaluation (eval/mean, eval/pass@k),
    and each evaluated step is saved, or one that a step logs (reward/mean), and the best of the saved steps is meant."""
    best_mode: str = "max"
    """max | min: which end of best_metric is best."""

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"checkpoint.every_steps is {self.every_steps}; allowed: 0 or more")
        if self.keep_last < 1:
            raise ValueError(f"checkpoint.keep_last is {self.keep_last}; allowed: 1 or more")
        if self.best_mode not in ("max", "min"):
            raise ValueError(f"checkpoint.best_mode is {self.best_mode!r}; allowed: max, min")


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out evaluation during a run and by ``winnowrl eval``."""

    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    every_steps: int = 0
    """Evaluate after every so many steps as well; 0 never."""
    num_tasks: int = 300
    """Held-out tasks evaluated (the first of the split; fewer if it is smaller)."""
    samples_per_task: int = 1
    """Samples of each task (k); 1 with temperature 0 is greedy."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus."""
    confidence: float = 0.95
    """Confidence of the bootstrap interval."""
    max_parallel_tasks: int = 256
    """Tasks evaluated together; partial results are written after each such chunk."""

    def __post_init__(self) -> None:
        for name in ("num_tasks", "samples_per_task", "max_parallel_tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"evaluation.{name} is {getattr(self, name)}; allowed: 1 or more")
        if self.temperature < 0:
            raise ValueError(f"evaluation.temperature is {self.temperature}; allowed: 0 or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"evaluation.top_p is {self.top_p}; allowed: above 0, up to 1")
        if not 0 < self.confidence < 1:
            raise ValueError(f"evaluation.confidence is {self.confidence}; allowed: between 0 and 1")
        if self.temperature == 0 and self.samples_per_task > 1:
            raise ValueError(
                f"evaluation.samples_per_task is {self.samples_per_task} at temperature 0: greedy samples are all equal; "
                "set evaluation.temperature above 0, or samples_per_task to 1"
            )


@dataclass(frozen=True)
class DiagnosticsConfig:
    """When the console warns of a known sickness."""

    constant_reward_steps: int = 10
    """Warn when every reward has been the same for so many steps."""
    uninformative_steps: int = 5
    """Warn when no group has been informative for so many steps."""
    min_entropy: float = 0.02
    """Warn when the token entropy (nats) falls below this."""
    max_mismatch: float = 0.1
    """Warn when the mean |log-prob difference| between engine and learner exceeds this (nats per token), or 0.02 and five
    times that of the first step."""
    max_parse_failure_rate: float = 0.5
    """Warn when this share of the replies held no answer that could be read."""
    sync_check_every_steps: int = 10
    """Compare engine and learner log-probs after the weight load of every so many steps, and of the first; 0 never."""
    repeat_after_steps: int = 10
    """A warning is repeated only after so many steps."""
