"""How many rollouts a step collects, and how long anything in it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectorConfig:
    """Counts, deadlines and workers of rollout collection."""

    tasks_per_step: int = 8
    """Tasks drawn in each step; each becomes one group."""
    rollouts_per_task: int = 8
    """Rollouts of each task (the mean, where an allocator spreads them unequally)."""
    max_turns: int | None = None
    """Turns after which an episode is cut (truncated); null keeps the environment's registered limit."""
    turn_deadline_s: float = 120.0
    """Seconds one reply, or one answer of the environment, may take; waiting in the engine's queue does not count."""
    episode_deadline_s: float = 900.0
    """Seconds one episode may take; waiting for a gate, a free slot or a place in the engine does not count."""
    step_deadline_s: float = 3600.0
    """Seconds the collection of one step may take; what still runs then has failed."""
    num_env_workers: int = 0
    """Worker processes for environments that ask for one; 0 takes one per CPU core."""
    max_concurrent_episodes: int = 0
    """Episodes in flight together; 0 sets no limit."""
    failure_rate_limit: float = 0.5
    """The run stops when a larger share of a step's rollouts failed (0 to 1)."""
    report_every_s: float = 120.0
    """While a step runs on, its oldest episodes and what they wait for are logged this often (seconds)."""

    def __post_init__(self) -> None:
        for name in ("tasks_per_step", "rollouts_per_task"):
            if getattr(self, name) < 1:
                raise ValueError(f"collector.{name} is {getattr(self, name)}; allowed: 1 or more")
        if self.max_turns is not None and self.max_turns < 1:
            raise ValueError(f"collector.max_turns is {self.max_turns}; allowed: 1 or more, or null")
        for name in ("turn_deadline_s", "episode_deadline_s", "step_deadline_s", "report_every_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"collector.{name} is {getattr(self, name)}; allowed: above 0 (seconds)")
        if not self.turn_deadline_s <= self.episode_deadline_s <= self.step_deadline_s:
            raise ValueError(
                f"collector deadlines are turn {self.turn_deadline_s:g} s, episode {self.episode_deadline_s:g} s, step "
                f"{self.step_deadline_s:g} s; allowed: turn <= episode <= step; raise the longer ones"
            )
        for name in ("num_env_workers", "max_concurrent_episodes"):
            if getattr(self, name) < 0:
                raise ValueError(f"collector.{name} is {getattr(self, name)}; allowed: 0 or more")
        if not 0 <= self.failure_rate_limit <= 1:
            raise ValueError(f"collector.failure_rate_limit is {self.failure_rate_limit}; allowed: 0 to 1")
