"""The loop of a run: evaluate, step by step train, save, evaluate again, and say what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.recording import write_rollouts
from winnowrl.training.checkpoint import Checkpoint, CheckpointStore
from winnowrl.training.components import reply_sampling
from winnowrl.training.diagnostics import Diagnostics
from winnowrl.training.evaluate import EvaluationReport, evaluate_policy
from winnowrl.training.interrupts import StopRequest, graceful_interrupts, interruptible
from winnowrl.training.run_end import RunEnd
from winnowrl.training.step import StepOutcome, TrainingStep
from winnowrl.training.sync_check import check_sync
from winnowrl.training.trackers import Tracker, build_trackers

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig
    from winnowrl.training.components import Components
    from winnowrl.training.console import RunConsole
    from winnowrl.training.run_folder import RunFolder

logger = logging.getLogger(__name__)

SCORE = "eval/mean"


class TrainingLoop:
    """Runs a configuration to its end, or to the step after which somebody asked it to stop.

    Args:
        config: Configuration of the run.
        folder: Where everything is written.
        parts: Live parts; the loop closes them.
        runner: Owns the event loop that engine and collector live in.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, parts: Components, console: RunConsole, runner: asyncio.Runner
    ) -> None:
        self._config, self._folder, self._parts, self._console, self._runner = config, folder, parts, console, runner
        self._run_async = interruptible(runner)
        self._step = TrainingStep(config, parts, console, self._run_async)
        self._diagnostics = Diagnostics(config.diagnostics)
        checkpoint = config.checkpoint
        self._store = CheckpointStore(
            folder.checkpoints,
            keep_last=checkpoint.keep_last,
            best_metric=checkpoint.best_metric,
            best_mode=checkpoint.best_mode,
        )
        self._done = 0
        self._train_s = 0.0
        self._saved_at = -1
        self._is_scored = False
        self._step_metrics: dict[str, float] = {}
        self._reports: dict[str, EvaluationReport] = {}
        self._trackers: list[Tracker] = []

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint: every stateful part, and the engine with the learner's weights."""
        state, parts = checkpoint.state(), self._parts
        parts.learner.load(checkpoint.path / "learner")
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        self._done, self._train_s = state["step"], state["train_s"]
        self._saved_at, self._is_scored = self._done, SCORE in checkpoint.metrics
        self._step.sync(state["policy_version"])

    def run(self) -> dict[str, Any]:
        """Train until ``run.num_steps`` and return what ``summary.json`` holds."""
        config = self._config
        self._trackers = build_trackers(
            config.run.trackers, self._folder.path, {"run": self._folder.name}, first_step=self._done + 1
        )
        with graceful_interrupts(self._announce_stop) as request:
            if config.evaluation.before and self._done == 0:
                self._evaluate("before", step=0)
            # The evaluation of the last saved step may have been cut short.
            self._evaluate_if_due(request)
            self._train(request)
            self._save_unless_saved()
        is_finished = self._done >= config.run.num_steps and ("after" in self._reports or not config.evaluation.after)
        if "before" not in self._reports and (earlier := EvaluationReport.read(self._folder.evaluations / "before")):
            self._reports = {"before": earlier, **self._reports}
        end = RunEnd(
            folder=self._folder,
            parts=self._parts,
            steps=self._done,
            train_s=self._train_s,
            reports=self._reports,
            is_finished=is_finished,
            confidence=config.evaluation.confidence,
        )
        summary = end.summary()
        self._folder.write_json("summary.json", summary)
        end.show(self._console)
        return summary

    def close(self) -> None:
        """Release engine, environments and learner."""
        for tracker in self._trackers:
            tracker.close()
        closings: list[Callable[[], object]] = [
            lambda: self._runner.run(self._parts.collector.close()),
            # Before the engine: vLLM takes the process group with it, which DeepSpeed's own end still asks for.
            self._parts.learner.close,
            lambda: self._runner.run(self._parts.engine.close()),
        ]
        for close in closings:
            try:
                close()
            except Exception as error:
                # Said with its traceback, not raised: the others must close too, and what ended the run must be what is seen.
                logger.warning("a part of the run did not close cleanly: %s", error, exc_info=True)

    def _train(self, request: StopRequest) -> None:
        config = self._config
        while self._done < config.run.num_steps and not request.is_set:
            step = self._done + 1
            began = time.perf_counter()
            outcome = self._step.run(step)
            outcome.metrics |= check_sync(config, self._parts, outcome, self._runner.run, step)
            self._train_s += time.perf_counter() - began
            self._record(step, outcome)
            self._done, self._is_scored, self._step_metrics = step, False, outcome.metrics
            if self._is_save_due():
                self._save()
            self._evaluate_if_due(request)

    def _due_evaluation(self) -> str | None:
        """Label of the evaluation that follows the present step; None where none does."""
        settings, step = self._config.evaluation, self._done
        if settings.after and step >= self._config.run.num_steps:
            return "after"
        is_due = settings.every_steps > 0 and step > 0 and step % settings.every_steps == 0
        return f"step_{step:06d}" if is_due else None

    def _is_save_due(self) -> bool:
        """At the last step, as often as asked, and where a held-out score, which comes after it, may turn out the best."""
        settings, step = self._config.checkpoint, self._done
        if step >= self._config.run.num_steps or (settings.every_steps > 0 and step % settings.every_steps == 0):
            return True
        return (settings.best_metric or "").startswith("eval/") and self._due_evaluation() is not None

    def _evaluate_if_due(self, request: StopRequest) -> None:
        label = self._due_evaluation()
        # The last one is read again where it is finished: the summary speaks of it.
        is_wanted = label == "after" or not self._is_scored
        if label is not None and is_wanted and not request.is_set:
            self._evaluate(label, step=self._done)

    def _record(self, step: int, outcome: StepOutcome) -> None:
        if self._config.run.save_rollouts:
            write_rollouts(self._folder.rollouts, step, outcome.collected.groups)
        row = {"step": step, "policy_version": self._parts.engine.policy_version, **outcome.metrics}
        self._folder.append_metrics(row)
        for tracker in self._trackers:
            tracker.log(outcome.metrics, step)
        self._console.step_line(step, self._config.run.num_steps, outcome.metrics)
        if not outcome.was_updated:
            self._console.warn(f"step {step}: no rollout to train on (no informative group); the update is skipped")
        audit = self._parts.audit
        for text in self._diagnostics.check(step, outcome.metrics, audit.warning() if audit is not None else None):
            self._console.warn(f"step {step}: {text}")

    def _evaluate(self, label: str, step: int) -> None:
        parts, settings = self._parts, self._config.evaluation
        heldout = parts.tasks.heldout
        tasks = heldout[: settings.num_tasks]
        with self._console.phase("evaluate", len(tasks) * settings.samples_per_task) as phase:
            report = evaluate_policy(
                parts.collector,
                tasks,
                settings,
                policy={"step": step, "version": parts.engine.policy_version},
                sampling=reply_sampling(
                    self._config, parts.conversations, temperature=settings.temperature, top_p=settings.top_p
                ),
                folder=self._folder.evaluations / label,
                run_async=self._run_async,
                on_episode_over=phase.advance,
                reuse_finished=True,
            )
        metrics = {SCORE: report.mean.mean, **report.pass_at_k_metrics()}
        for tracker in self._trackers:
            tracker.log(metrics, step)
        first = f" (the first {len(tasks):,} of {len(heldout):,})" if len(tasks) < len(heldout) else ""
        self._console.say(f"held-out ({label}): {report.mean} over {report.num_tasks} tasks{first}")
        self._reports[label] = report
        self._is_scored, self._step_metrics = True, self._step_metrics | metrics
        if self._saved_at == step:
            self._try_to_write(lambda: self._store.add_metrics(step, metrics))

    def _stateful(self) -> dict[str, Any]:
        parts = self._parts
        found: dict[str, Any] = {
            "cursor": parts.cursor,
            "allocator": parts.allocator,
            "selector": parts.selector,
            "ledger": parts.ledger,
            "diagnostics": self._diagnostics,
        }
        return found | ({"audit": parts.audit} if parts.audit is not None else {})

    def _save_unless_saved(self) -> None:
        if self._saved_at != self._done and self._done > 0:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint; a full disk costs this checkpoint, not the run or the earlier ones."""
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._stateful().items()}
        state |= {
            "step": self._done,
            "train_s": self._train_s,
            "policy_version": self._parts.engine.policy_version,
        }
        self._say_if_not_scored()
        with self._console.phase("save"):
            if self._try_to_write(
                lambda: self._store.save(self._done, state, self._parts.learner.save, self._step_metrics)
            ):
                self._saved_at = self._done

    def _say_if_not_scored(self) -> None:
        """A metric of the step, unlike a held-out one, is known when the step is saved, or never."""
        name = self._config.checkpoint.best_metric
        if name is not None and not name.startswith("eval/") and name not in self._step_metrics:
            self._console.warn(
                f"checkpoint.best_metric is {name!r}, which step {self._done} did not log; its checkpoint is not among those "
                "that the best is chosen from"
            )

    def _try_to_write(self, write: Callable[[], object]) -> bool:
        """Whether ``write`` could be done; a full disk is said, and the earlier checkpoints stand."""
        try:
            write()
        except (OSError, RuntimeError) as error:
            # torch reports a full disk as a RuntimeError of its file writer.
            kept = self._store.latest()
            self._console.warn(
                f"the checkpoint of step {self._done} could not be written ({error}); "
                + (f"that of step {kept.step} stands" if kept else "there is no earlier one")
            )
            return False
        return True

    def _announce_stop(self) -> None:
        self._console.say("stopping after this step and saving (press Ctrl-C again to stop at once)")


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run folder."""
    return CheckpointStore(folder / "checkpoints").latest()
