"""What the learner trains on: token sequences with their advantages, and what an update reports of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class TrainingSequence:
    """One sequence of T tokens to train on.

    Attributes:
        token_ids: [T]. completion_mask: [T], True = sampled by the policy and in the loss.
        sampler_logprobs: [T], engine's log p at the sampling temperature, 0.0 off the mask.
        advantage: Scalar for every token of the sequence.
        group_id: Members of one group share a prompt and are packed together.
        rollout_id: Unique; the key under which statistics come back and a buffer stores it.
        old_logprobs: [T] log p the ratio starts from. None = this update's own policy before the first optimizer step
            (ratio 1 in the first epoch); replayed rollouts carry those of their birth.
        advantage_scale: Multiplies the sequence's loss (weighting per rollout, task or token); 1.0 leaves it.
        is_truncated: The reply was cut by a budget (for the overlong filter).
        birth_step: Step that generated it.
        fork_of: Id of the rollout it is a part of; the sequences of one share its weight. None = a rollout of its own.
    """

    token_ids: Sequence[int]
    completion_mask: Sequence[bool]
    sampler_logprobs: Sequence[float]
    advantage: float
    group_id: int
    rollout_id: int
    old_logprobs: Sequence[float] | None = None
    advantage_scale: float = 1.0
    is_truncated: bool = False
    birth_step: int = 0
    fork_of: int | None = None

    @property
    def rollout_key(self) -> tuple[str, int]:
        """Equal for the sequences of one rollout, and for no others."""
        return ("sequence", self.rollout_id) if self.fork_of is None else ("rollout", self.fork_of)

    @property
    def num_completion_tokens(self) -> int:
        return sum(self.completion_mask)


class NonFiniteUpdateError(RuntimeError):
    """A loss or gradient is NaN or infinite: the run stops, and what was saved before stays as it is."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the {what} of this update is not a finite number, and the weights would not be either; the last checkpoint is "
            "whole: lower learner.learning_rate, set learner.grad_clip, or look for extreme rewards, then resume"
        )


@dataclass(slots=True)
class SequenceStats:
    """What the update's own forward pass saw of one sequence.

    Attributes:
        logprobs: [T] learner's log p before the step, 0.0 off the mask. entropy: token mean, full vocabulary, nats.
        clip_fraction: Share of its tokens whose surrogate was clipped.
    """

    logprobs: Sequence[float]
    entropy: float
    clip_fraction: float


@dataclass(slots=True)
class UpdateResult:
    """Statistics by ``rollout_id``, and metrics by name."""

    sequences: dict[int, SequenceStats] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def plain_fields(row: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, values as they are; what a checkpoint stores of a sequence."""
    return {each.name: getattr(row, each.name) for each in fields(row)}


class Learner(Protocol):
    """Owns the trainable weights and their optimizer."""

    def update(self, batch: Sequence[TrainingSequence]) -> UpdateResult:
        """One training step on ``batch`` (one or more optimizer steps); the result does not depend on its splitting."""
        ...

    def score(self, sequences: Sequence[TrainingSequence]) -> dict[int, SequenceStats]:
        """Forward only: the statistics of each sequence under the present weights."""
        ...

    def named_weights(self) -> Sequence[tuple[str, Tensor]]:
        """Weights for the engine, under Hugging Face names, LoRA merged."""
        ...
