"""Dynamic sampling: whether a step needs fresh tasks, and how many, until it has enough informative groups.

Pure decisions; the loop draws and collects. Source: DAPO (Yu et al. 2025), with a bound on the attempts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# An estimate from few groups may be 0; the next refill then asks for at most this many times what is missing.
LARGEST_OVERDRAW = 4.0


@dataclass(frozen=True, slots=True)
class Refill:
    """``num_tasks`` more tasks to draw (0 = none) and the ``reason``: enough, refill, attempts or tasks used up."""

    num_tasks: int
    reason: str

    @property
    def is_needed(self) -> bool:
        return self.num_tasks > 0


def is_informative(rewards: Sequence[float], tolerance: float = 1e-6) -> bool:
    """Two rewards or more, spread over more than ``tolerance``."""
    return len(rewards) >= 2 and max(rewards) - min(rewards) > tolerance


def needs_refill(
    num_informative: int,
    num_wanted: int,
    num_drawn: int,
    attempt: int,
    *,
    max_attempts: int = 3,
    max_tasks_factor: float = 3.0,
) -> Refill:
    """What to draw next.

    Asks for what is missing over the share of informative groups seen so far, so that one more round is usually enough.

    Args:
        num_informative: Informative groups of this step so far. num_wanted: Groups an update should have.
        num_drawn: Tasks drawn for this step so far.
        attempt: Refills made so far.
        max_tasks_factor: Bound on the tasks of a step, as a multiple of ``num_wanted``.
    """
    missing = num_wanted - num_informative
    if missing <= 0:
        return Refill(0, "enough")
    if attempt >= max_attempts:
        return Refill(0, "attempts used up")
    allowed = math.floor(max_tasks_factor * num_wanted) - num_drawn
    if allowed <= 0:
        return Refill(0, "tasks used up")
    share = max(num_informative / num_drawn if num_drawn else 1.0, 1.0 / LARGEST_OVERDRAW)
    return Refill(min(math.ceil(missing / share), allowed), "refill")


def groups_to_train(informative_ids: Sequence[int], num_wanted: int, fallback: str) -> list[int]:
    """Groups of the update: the first ``num_wanted`` informative ones; with fewer, what ``fallback`` says.

    Args:
        informative_ids: In the order in which their tasks were drawn, so that a refill favours no quick episode.
        fallback: ``train`` on those there are, or ``skip`` the update.

    Raises:
        ValueError: unknown fallback.
    """
    if fallback not in ("train", "skip"):
        raise ValueError(f"dynamic_sampling.fallback is {fallback!r}; allowed: train, skip")
    if len(informative_ids) < num_wanted and fallback == "skip":
        return []
    return list(informative_ids[:num_wanted])
