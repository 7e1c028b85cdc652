"""Learning rate as a function of the optimizer step."""

from __future__ import annotations

import math


def learning_rate_factor(
    step: int, *, schedule: str, warmup_steps: int, total_steps: int, minimum: float = 0.0
) -> float:
    """What the peak learning rate is multiplied by at optimizer step ``step`` (from 0).

    Warm-up rises linearly, (step + 1) / warmup_steps; then constant 1, or linear or cosine from 1 towards ``minimum``, which
    steps from ``total_steps`` on have: the last step still moves the policy.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    span = max(total_steps - warmup_steps, 1)
    progress = min((step - warmup_steps) / span, 1.0)
    falling = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return minimum + (1.0 - minimum) * falling
