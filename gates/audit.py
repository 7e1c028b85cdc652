"""Measures a gate during the run: a random share of the groups it stops runs on to the end all the same.

A positive is a group the gate would stop. It is true (tp) when the rewards turn out equal, so that nothing was lost,
and false (fp) when they differ.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from winnowrl.gates.intervals import has_variance, squared_advantages, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class AuditSampler:
    """Says which stopped groups are audited, from (seed, step, task) alone: no order of completion can change it.

    Attributes:
        fraction: share of stopped groups that run on, 0 to 1.
        seed: the run's seed.
    """

    fraction: float
    seed: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction <= 1.0:
            raise ValueError(f"fraction is {self.fraction}; allowed: 0 to 1")

    def should_audit(self, step: int, task_id: str) -> bool:
        """Whether the group of this task runs on although the gate stops it."""
        digest = hashlib.blake2b(f"audit:{self.seed}:{step}:{task_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2.0**64 < self.fraction


@dataclass(slots=True)
class AuditCounts:
    """Sums over groups. Tokens are sampled tokens.

    ``kept_*``: groups the gate let run. ``stopped_*``: groups it stopped for good. ``tp``, ``fp``: audited groups;
    ``unjudged``: audited ones left with fewer than two valid rewards. ``tokens_after_*``: what audited groups sampled
    after the gate's turn.
    """

    kept_groups: int = 0
    kept_equal: int = 0
    kept_l2_squared: float = 0.0
    kept_tokens: int = 0
    stopped_groups: int = 0
    stopped_tokens: int = 0
    tp: int = 0
    fp: int = 0
    unjudged: int = 0
    audited_l2_squared: float = 0.0
    audited_tokens: int = 0
    tokens_after_tp: int = 0
    tokens_after_fp: int = 0

    @property
    def judged(self) -> int:
        """Audited groups whose end could be judged."""
        return self.tp + self.fp


# Audited groups, and wrong stops among them, before the estimate of what is lost is worth a warning.
LOSS_AUDITS, LOSS_FALSE_STOPS = 10, 2


class AuditLedger:
    """Collects how gated groups ended and estimates what the gate saves and costs.

    What stopped groups would have sampled and taught is read off the audited ones: with S groups stopped for good and A
    audited and judged, each audited group stands for S / A stopped ones.

    Attributes:
        precision_floor: :meth:`warning` speaks up when even the upper end of the 95 % interval of the precision over
            the latest ``window`` audits lies below it. The lower end is no use as an alarm: with few audits it is low
            for every gate.
        window: audited groups the warning looks back on, since a gate's precision drifts with the policy.
    """

    def __init__(self, *, precision_floor: float = 0.8, window: int = 200) -> None:
        if not 0.0 <= precision_floor <= 1.0:
            raise ValueError(f"precision_floor is {precision_floor}; allowed: 0 to 1")
        if window < 1:
            raise ValueError(f"window is {window}; allowed: 1 or more audited groups")
        self.precision_floor = precision_floor
        self.counts = AuditCounts()
        self.by_type: dict[str, list[int]] = {}
        self._recent: deque[bool] = deque(maxlen=window)

    def record_kept(self, rewards: Sequence[float], num_tokens: int) -> None:
        """A group the gate let run: its valid rewards and all its sampled tokens."""
        self.counts.kept_groups += 1
        self.counts.kept_equal += len(rewards) >= 2 and not has_variance(rewards)
        self.counts.kept_l2_squared += squared_advantages(rewards)
        self.counts.kept_tokens += num_tokens

    def record_stopped(self, num_tokens: int) -> None:
        """A group stopped for good, with the tokens it had sampled."""
        self.counts.stopped_groups += 1
        self.counts.stopped_tokens += num_tokens

    def record_audited(
        self, rewards: Sequence[float], *, tokens_before: int, tokens_after: int, task_type: str = ""
    ) -> None:
        """A group the gate would have stopped that ran on.

        Args:
            rewards: valid rewards at its end; fewer than two leave the stop unjudged.
            tokens_before, tokens_after: tokens its members sampled up to the gate's decision and after it.
            task_type: for the breakdown.
        """
        counts = self.counts
        counts.audited_tokens += tokens_before + tokens_after
        if len(rewards) < 2:
            counts.unjudged += 1
            return
        is_true = not has_variance(rewards)
        self._recent.append(is_true)
        self.by_type.setdefault(task_type, [0, 0])[0 if is_true else 1] += 1
        counts.audited_l2_squared += squared_advantages(rewards)
        if is_true:
            counts.tp += 1
            counts.tokens_after_tp += tokens_after
        else:
            counts.fp += 1
            counts.tokens_after_fp += tokens_after

    @property
    def precision_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the gate's precision over all audits."""
        return wilson_interval(self.counts.tp, self.counts.judged)

    @property
    def tokens_saved(self) -> tuple[float, float]:
        """Estimated tokens that stopped groups did not sample: all, and without those of false cuts. NaN unaudited."""
        weight = self._groups_per_audit
        after_tp, after_fp = self.counts.tokens_after_tp, self.counts.tokens_after_fp
        return weight * (after_tp + after_fp), weight * after_tp

    @property
    def advantage_kept(self) -> float:
        """Share of the advantages' L2 norm that the gate alone, without audits, would have left to train on.

        sqrt(K / (K + F)), K = squared advantages of groups let run, F = estimated ones of groups the gate stops.
        1 where nothing could be lost, NaN where groups were stopped and none audited.
        """
        counts = self.counts
        lost = counts.audited_l2_squared
        if counts.stopped_groups:
            lost += self._groups_per_audit * counts.audited_l2_squared
        total = counts.kept_l2_squared + lost
        return 1.0 if total == 0.0 else math.sqrt(counts.kept_l2_squared / total)

    @property
    def recall(self) -> float:
        """Estimated share of all groups of equal rewards that the gate stops. NaN where unknown."""
        counts = self.counts
        positives = counts.tp + (self._groups_per_audit * counts.tp if counts.stopped_groups else 0.0)
        total = positives + counts.kept_equal
        return positives / total if total else math.nan

    def warning(self) -> str | None:
        """A sentence when the audits rule out that the gate reaches its precision floor, or when it stops more than half
        of what would have taught (which precision does not show where most groups have equal rewards); else None."""
        hits, judged = sum(self._recent), len(self._recent)
        low, high = wilson_interval(hits, judged)
        if high >= self.precision_floor:
            return self._loss_warning()
        return (
            f"gate precision is {hits / judged:.2f} over the last {judged} audited groups (95% interval {low:.2f} to "
            f"{high:.2f}), below gate.precision_floor {self.precision_floor:g}: groups that would have taught are "
            "being stopped. Refit with `winnowrl gate fit`, lower gate.threshold, or set gate.type to none"
        )

    def _loss_warning(self) -> str | None:
        counts, kept = self.counts, self.advantage_kept
        if counts.judged < LOSS_AUDITS or counts.fp < LOSS_FALSE_STOPS or not kept**2 < 0.5:
            return None
        return (
            f"the gate leaves {kept:.2f} of the advantages' L2 norm (estimated from {counts.judged} audited groups, "
            f"{counts.fp} of them wrong stops): more than half of what would have taught is being stopped. Refit with "
            "`winnowrl gate fit`, lower gate.threshold, or set gate.type to none"
        )

    def metrics(self) -> dict[str, float]:
        """All figures that the audits so far tell; estimates that need an audit are left out until there is one."""
        counts = self.counts
        low, high = self.precision_interval
        saved, saved_safe = self.tokens_saved
        figures = {f"gate/{name}": float(value) for name, value in asdict(counts).items()}
        figures |= {
            "gate/precision": counts.tp / counts.judged if counts.judged else math.nan,
            "gate/precision_low": low,
            "gate/precision_high": high,
            "gate/recall": self.recall,
            "gate/tokens_saved": saved,
            "gate/tokens_saved_safe": saved_safe,
            "gate/advantage_kept": self.advantage_kept,
        }
        for task_type, (tp, fp) in sorted(self.by_type.items()):
            if task_type:
                figures[f"gate/precision/{task_type}"] = tp / (tp + fp)
        return {name: value for name, value in figures.items() if not math.isnan(value)}

    def state_dict(self) -> dict[str, Any]:
        """Plain values only."""
        by_type = {task_type: list(pair) for task_type, pair in self.by_type.items()}
        return {"counts": asdict(self.counts), "by_type": by_type, "recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; a shorter window keeps its latest audits."""
        self.counts = AuditCounts(**state["counts"])
        self.by_type = {task_type: list(pair) for task_type, pair in state["by_type"].items()}
        self._recent = deque(state["recent"], maxlen=self._recent.maxlen)

    @property
    def _groups_per_audit(self) -> float:
        """S / A; 0 where nothing was stopped, NaN where groups were stopped and none judged."""
        if self.counts.stopped_groups == 0:
            return 0.0
        return self.counts.stopped_groups / self.counts.judged if self.counts.judged else math.nan
