"""After a weight load: does the engine give the log-probs that the learner gives?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from winnowrl.training.batch import TrainingSequence

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig
    from winnowrl.training.components import Components
    from winnowrl.training.step import StepOutcome

MAX_CHECKED_TOKENS = 512


def check_sync(
    config: RunConfig, parts: Components, outcome: StepOutcome, run_async: Callable[..., object], step: int
) -> dict[str, float]:
    """Mean |log-prob difference| between engine and learner on one rollout of the step, after its weight load.

    Done at the first step and every ``diagnostics.sync_check_every_steps``, where weights were loaded and the sampling
    temperature is 1 (an engine scores at temperature 1). Empty otherwise.
    """
    every = config.diagnostics.sync_check_every_steps
    if not outcome.was_updated or config.sampling.temperature != 1.0 or every == 0:
        return {}
    if step != 1 and step % every != 0:
        return {}
    # An engine writes a token behind what it scores: one that is full at the model's own limit has no place for it.
    sequence = _shortest(outcome, min(MAX_CHECKED_TOKENS, config.conversation.context_tokens - 1))
    if sequence is None:
        return {}
    engine_logprobs = run_async(parts.engine.score(sequence.token_ids))
    assert isinstance(engine_logprobs, list | tuple)
    learner_logprobs = parts.learner.score([sequence])[sequence.rollout_id].logprobs
    places = [place for place, is_sampled in enumerate(sequence.completion_mask) if is_sampled]
    differences = [abs(engine_logprobs[place - 1] - learner_logprobs[place]) for place in places]
    return {"mismatch/after_sync": sum(differences) / len(differences)}


def _shortest(outcome: StepOutcome, max_tokens: int) -> TrainingSequence | None:
    """The shortest rollout with sampled tokens, cut at ``max_tokens``: the check should cost nothing."""
    candidates = [
        sequence
        for rollout in outcome.collected.rollouts
        for sequence in rollout.sequences
        if any(sequence.completion_mask[:max_tokens])
    ]
    if not candidates:
        return None
    chosen = min(candidates, key=len)
    return TrainingSequence(
        token_ids=chosen.token_ids[:max_tokens],
        completion_mask=chosen.completion_mask[:max_tokens],
        sampler_logprobs=chosen.sampler_logprobs[:max_tokens],
        advantage=0.0,
        group_id=0,
        rollout_id=0,
    )
