"""The tri-state result of a verifier: what could not be decided is never trained on as right or wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

VerdictStatus = Literal["correct", "wrong", "undecided"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found.

    Attributes:
        status: ``undecided`` when the verifier timed out or could not read the gold answer.
        reason: One short clause for a person reading the rollout.
        seconds: Wall-clock time spent deciding; two verdicts that differ only in it are equal.
    """

    status: VerdictStatus
    reason: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def is_correct(self) -> bool:
        return self.status == "correct"

    @property
    def is_decided(self) -> bool:
        return self.status != "undecided"
