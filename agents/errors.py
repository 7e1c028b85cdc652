"""What can happen to an episode. A failed rollout is recorded and left out of its group; it is not a crash, nor a zero."""

from __future__ import annotations

from dataclasses import dataclass


class RolloutError(Exception):
    """Something ended one episode; the run goes on. ``kind`` names the family in records and counts."""

    kind = "rollout"


class EnvironmentFailure(RolloutError):
    """The environment raised or its worker died."""

    kind = "environment"


class EngineFailure(RolloutError):
    """The engine raised, or returned nothing usable."""

    kind = "engine"


class VerifierFailure(RolloutError):
    """The verifier could not decide (its verdict is ``undecided``)."""

    kind = "verifier"


class DeadlineExceeded(RolloutError):
    """A turn, an episode or a step ran past its deadline."""

    kind = "timeout"


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What is kept of a :class:`RolloutError` on its rollout."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: RolloutError) -> ErrorRecord:
        return cls(error.kind, str(error)[:2000])
