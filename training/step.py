"""One training step: draw tasks, collect groups, compute advantages, select, update, send the weights to the engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from winnowrl.agents.collecting.outcome import StepRollouts
from winnowrl.agents.ledger import record_gate_outcomes
from winnowrl.gates import embed_prompts
from winnowrl.training.batching import GroupBatch, make_batch, rollout_of
from winnowrl.training.candidates import RoundStats, make_candidates, set_entropies
from winnowrl.training.selection.refill import Refill, groups_to_train, needs_refill
from winnowrl.training.step_metrics import collection_metrics, joined_allocation, staleness_metrics

if TYPE_CHECKING:
    from winnowrl.agents.rollout import Group
    from winnowrl.configs.schema import RunConfig
    from winnowrl.envs.tasks import Task
    from winnowrl.training.batch import TrainingSequence, UpdateResult
    from winnowrl.training.components import Components
    from winnowrl.training.console import Phase, RunConsole


@dataclass(slots=True)
class StepOutcome:
    """What a step came to."""

    collected: StepRollouts
    metrics: dict[str, float] = field(default_factory=dict)
    was_updated: bool = False


class TrainingStep:
    """Runs steps on the parts of a run.

    Args:
        run_async: Runs a coroutine on the run's event loop and returns its result.
    """

    def __init__(
        self, config: RunConfig, parts: Components, console: RunConsole, run_async: Callable[..., object]
    ) -> None:
        self._config, self._parts, self._console, self._run_async = config, parts, console, run_async
        self._seconds: dict[str, float] = {}
        self._allocation: dict[str, float] = {}

    def run(self, step: int) -> StepOutcome:
        """Make step number ``step`` (from 1) and leave the engine with the new weights."""
        self._seconds, self._allocation = {}, {}
        began = time.perf_counter()
        collected = self._collect(step)
        self._parts.ledger.record_collection(collected)
        if self._parts.audit is not None:
            record_gate_outcomes(self._parts.audit, collected.groups)
        chosen, batch = self._choose(step, collected)
        outcome = StepOutcome(collected)
        if chosen:
            result = self._update(step, chosen)
            outcome.was_updated = True
            outcome.metrics |= result.metrics | staleness_metrics(chosen, step)
            self.sync(self._parts.engine.policy_version + 1)
        self._record_update(step, chosen, batch)
        outcome.metrics |= self._metrics(collected, batch, chosen, time.perf_counter() - began)
        return outcome

    def sync(self, version: int) -> None:
        """Load the learner's weights into the engine as policy ``version``."""
        with self._timed("sync"), self._console.phase("sync"):
            self._run_async(self._parts.engine.load_weights(self._parts.learner.named_weights(), version))

    def _collect(self, step: int) -> StepRollouts:
        """The step's groups; with dynamic sampling, more tasks until enough of the groups are informative."""
        config, parts = self._config, self._parts
        wanted = config.collector.tasks_per_step
        collected = self._collect_tasks(step, parts.cursor.draw(wanted), None)
        sampling = config.selector.dynamic_sampling
        attempt = 0
        while sampling.type == "refill":
            refill = self._refill(collected, wanted, attempt)
            if not refill.is_needed:
                break
            attempt += 1
            collected = self._collect_tasks(step, parts.cursor.draw(refill.num_tasks), collected)
        return collected

    def _refill(self, collected: StepRollouts, wanted: int, attempt: int) -> Refill:
        sampling, tolerance = self._config.selector.dynamic_sampling, self._config.objective.reward_tolerance
        return needs_refill(
            sum(group.is_informative(tolerance) for group in collected.groups),
            wanted,
            len(collected.groups),
            attempt,
            max_attempts=sampling.max_attempts,
            max_tasks_factor=sampling.max_tasks_factor,
        )

    def _collect_tasks(self, step: int, tasks: Sequence[Task], earlier: StepRollouts | None) -> StepRollouts:
        config, parts = self._config, self._parts
        features = embed_prompts([task.prompt for task in tasks]) if parts.allocator.needs_features else None
        respends = config.gate.type != "none" and config.gate.respend
        total = len(tasks) * config.collector.rollouts_per_task
        with self._timed("generate"), self._console.phase("generate", total) as phase:
            result = self._run_async(
                parts.collector.collect(
                    tasks,
                    step=step,
                    policy_version=parts.engine.policy_version,
                    features=features,
                    next_task=(lambda: self._replacement(phase)) if respends else None,
                    first_group=len(earlier.groups) if earlier is not None else 0,
                    on_episode_over=phase.advance,
                )
            )
        assert isinstance(result, StepRollouts)
        self._allocation = joined_allocation(self._allocation, parts.allocator.metrics())
        return result if earlier is None else _joined(earlier, result)

    def _replacement(self, phase: Phase) -> Task:
        """A fresh task that takes the rollouts of a stopped group's first round."""
        phase.grow(self._config.allocator.first_round_size(self._config.collector.rollouts_per_task))
        return self._parts.cursor.draw(1)[0]

    def _choose(self, step: int, collected: StepRollouts) -> tuple[list[TrainingSequence], GroupBatch]:
        """Advantages of the full groups, then what the selector takes of them."""
        config, parts = self._config, self._parts
        with self._timed("score"), self._console.phase("score"):
            groups = self._groups_to_train(collected.groups)
            batch = make_batch(groups, config.objective, step=step, max_tokens=config.conversation.rollout_tokens)
            candidates = make_candidates(groups, batch.sequences)
            if parts.selector.needs_scores and candidates:
                set_entropies(candidates, parts.learner.score(batch.sequences))
            chosen = parts.selector.select(candidates, step, RoundStats.of_groups(collected.groups))
        return chosen, batch

    def _groups_to_train(self, groups: Sequence[Group]) -> list[Group]:
        sampling, tolerance = self._config.selector.dynamic_sampling, self._config.objective.reward_tolerance
        if sampling.type != "refill":
            return list(groups)
        informative = [group.group_id for group in groups if group.is_informative(tolerance)]
        chosen = set(groups_to_train(informative, self._config.collector.tasks_per_step, sampling.fallback))
        return [group for group in groups if group.group_id in chosen]

    def _update(self, step: int, chosen: Sequence[TrainingSequence]) -> UpdateResult:
        with self._timed("train"), self._console.phase("train"):
            result = self._parts.learner.update(chosen)
        self._parts.selector.observe(result, step)
        return result

    def _record_update(self, step: int, chosen: Sequence[TrainingSequence], batch: GroupBatch) -> None:
        # What the overlong filter took out enters with no token in the loss: it was masked, not left by the selector.
        fresh: Counter[int] = Counter(dict.fromkeys(batch.overlong_ids, 0))
        replayed: Counter[int] = Counter()
        for sequence in chosen:
            counts = fresh if sequence.birth_step == step else replayed
            counts[rollout_of(sequence.rollout_id)] += sequence.num_completion_tokens
        self._parts.ledger.record_update(fresh, replayed)

    def _metrics(
        self, collected: StepRollouts, batch: GroupBatch, chosen: Sequence[TrainingSequence], seconds: float
    ) -> dict[str, float]:
        parts = self._parts
        phases = {f"seconds/{name}": value for name, value in self._seconds.items()}
        found = collection_metrics(collected, self._config.objective.reward_tolerance, batch.informative_ids)
        found |= phases | {"seconds/step": seconds, "batch/sequences": float(len(chosen))}
        found["batch/overlong_filtered"] = float(len(batch.overlong_ids))
        found["memory/rss_bytes"] = float(psutil.Process().memory_info().rss)
        generate_s = self._seconds.get("generate", 0.0)
        found["tokens/generated_per_s"] = collected.num_completion_tokens / generate_s if generate_s else 0.0
        sources: tuple[Mapping[str, float], ...] = (
            parts.cursor.metrics(),
            self._allocation,
            parts.selector.metrics(),
            parts.ledger.metrics(),
            parts.audit.metrics() if parts.audit is not None else {},
        )
        for source in sources:
            found |= source
        return found

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began


def _joined(first: StepRollouts, second: StepRollouts) -> StepRollouts:
    """Two collections of one step as one."""
    return StepRollouts(
        first.step,
        first.policy_version,
        first.groups + second.groups,
        first.rounds + second.rounds,
        first.failures + second.failures,
        first.collect_s + second.collect_s,
        first.generate_s + second.generate_s,
        first.env_s + second.env_s,
    )
