"""What a run came to: the summary that is written, and the tables that close the console's output."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnowrl.agents.ledger_table import ledger_table, type_table

if TYPE_CHECKING:
    from winnowrl.training.components import Components
    from winnowrl.training.console import RunConsole
    from winnowrl.training.evaluate import EvaluationReport
    from winnowrl.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Where a run stands as it ends.

    Attributes:
        steps: Steps made.
        train_s: Seconds they took, over all resumptions.
        reports: Held-out evaluations by label.
        is_finished: Nothing is left to do, the final evaluation included.
        confidence: Of the intervals.
    """

    folder: RunFolder
    parts: Components
    steps: int
    train_s: float
    reports: Mapping[str, EvaluationReport]
    is_finished: bool
    confidence: float

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds."""
        before, after = self.reports.get("before"), self.reports.get("after")
        return {
            "run": self.folder.name,
            "is_finished": self.is_finished,
            "steps": self.steps,
            "heldout_before": before.mean.mean if before else None,
            "heldout_before_interval": [before.mean.low, before.mean.high] if before else None,
            "heldout_after": after.mean.mean if after else None,
            "heldout_after_interval": [after.mean.low, after.mean.high] if after else None,
            "heldout_gain_interval": list(after.gain_interval(before)) if before and after else None,
            "heldout_tasks": (after or before).num_tasks if (after or before) else 0,  # type: ignore[union-attr]
            "train_seconds": self.train_s,
            "peak_rss_bytes": peak_rss_bytes(),
            "policy_version": self.parts.engine.policy_version,
            "gate": self.parts.audit.metrics() if self.parts.audit is not None else None,
            "ledger": self.parts.ledger.summary(),
        }

    def show(self, console: RunConsole) -> None:
        """Print the ledger, held-out accuracy, time and memory, and where everything lies."""
        console.console.print(ledger_table(self.parts.ledger))
        if len(self.parts.ledger.by_type) > 1:
            console.console.print(type_table(self.parts.ledger))
        if rows := self._accuracy_rows():
            console.table(
                "Held-out accuracy", ["", "mean", f"{self.confidence:.0%} interval", "tasks", "tokens/answer"], rows
            )
        console.say(f"{self.steps} steps in {self.train_s:.0f} s; peak memory {peak_rss_bytes() / 2**30:.2f} GiB")
        console.say(
            f"written to {self.folder.path}: metrics.jsonl, rollouts/, checkpoints/, evaluations/, summary.json"
        )
        if not self.is_finished:
            console.say(f"go on with: winnowrl resume {self.folder.path}")

    def _accuracy_rows(self) -> list[list[str]]:
        found = {label: self.reports[label] for label in ("before", "after") if label in self.reports}
        rows = [
            [f"held-out {label}", f"{report.mean.mean:.3f}", f"{report.mean.low:.3f} to {report.mean.high:.3f}",
             str(report.num_tasks), f"{report.tokens_per_answer:.1f}"]
            for label, report in found.items()
        ]  # fmt: skip
        if len(found) == 2:
            low, high = found["after"].gain_interval(found["before"])
            gain = found["after"].mean.mean - found["before"].mean.mean
            rows.append(["gain", f"{gain:+.3f}", f"{low:+.3f} to {high:+.3f}", "", ""])
        return rows


def peak_rss_bytes() -> int:
    """Peak resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
