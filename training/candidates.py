"""What a selector chooses from: a rollout, its sequences, and what is known of it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from winnowrl.training.batch import SequenceStats, TrainingSequence, plain_fields

if TYPE_CHECKING:
    from winnowrl.agents.rollout import Group, Rollout


@dataclass(slots=True)
class Candidate:
    """One rollout that may be trained on.

    Attributes:
        rollout_id: Unique in a run. sequences: One, or more where the rollout forked; chosen together.
        reward, advantage: Its own. group_mean, group_std: Of its group's rewards (sample std).
        num_tokens: Sampled tokens. is_truncated: A budget cut it.
        birth_step: Step that generated it.
        entropy: Nats per token when it was last seen: at generation, later in the update that last used it.
        clip_fraction: Share of its tokens that were clipped in that update. num_uses: Updates that used it.
    """

    rollout_id: int
    group_id: int
    sequences: list[TrainingSequence]
    reward: float
    advantage: float
    group_mean: float
    group_std: float
    num_tokens: int
    is_truncated: bool
    birth_step: int
    entropy: float
    clip_fraction: float = 0.0
    num_uses: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain containers; the sequences must be frozen ones."""
        return plain_fields(self) | {"sequences": [plain_fields(sequence) for sequence in self.sequences]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Candidate:
        return cls(**{**state, "sequences": [TrainingSequence(**sequence) for sequence in state["sequences"]]})


@dataclass(frozen=True, slots=True)
class RoundStats:
    """The policy as of this step, over *all* its rollouts, before any filter.

    Attributes:
        mean_reward: Mean over groups of the mean reward of their valid rollouts: the mean over rollouts where groups are
            of one size, and no artefact of the allocation where they are not. Gated groups are left out.
        mean_entropy: The same of the entropy at generation as the sampler tells it, nats per token.
        num_rollouts: What both are over.
        learner_entropy: The same entropy as the learner tells it; None where it did not see all of these rollouts, for
            the mean over those that survive a filter is of another population.
    """

    mean_reward: float
    mean_entropy: float
    num_rollouts: int = 0
    learner_entropy: float | None = None

    @classmethod
    def of_groups(cls, groups: Sequence[Group]) -> RoundStats | None:
        """None without a valid rollout: nothing is known of the policy then."""
        members = [group.valid_rollouts for group in groups if not group.was_gated]
        members = [rollouts for rollouts in members if rollouts]
        if not members:
            return None
        return cls(
            _mean([_mean([rollout.reward for rollout in rollouts]) for rollouts in members]),
            _mean([_mean([sampler_entropy(rollout) for rollout in rollouts]) for rollouts in members]),
            sum(len(rollouts) for rollouts in members),
        )

    @classmethod
    def of_candidates(cls, candidates: Sequence[Candidate]) -> RoundStats | None:
        """From the candidates alone, for a caller without the groups; None without any."""
        groups: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.group_id, []).append(candidate)
        if not groups:
            return None
        return cls(
            _mean([_mean([c.reward for c in members]) for members in groups.values()]),
            _mean([_mean([c.entropy for c in members]) for members in groups.values()]),
            len(candidates),
        )


def make_candidates(groups: Sequence[Group], sequences: Sequence[TrainingSequence]) -> list[Candidate]:
    """A candidate for each rollout that has sequences to train on, in the order of the sequences.

    Reward statistics are those of the full group, whichever of its rollouts are still there. The entropy at generation
    is the one-sample estimate ``sampler_entropy``; ``set_entropies`` replaces it by the learner's own.
    """
    from winnowrl.training.batching import rollout_of

    owners = {r.rollout_id: (group, r) for group in groups for r in group.rollouts}
    by_rollout: dict[int, list[TrainingSequence]] = {}
    for sequence in sequences:
        by_rollout.setdefault(rollout_of(sequence.rollout_id), []).append(sequence)
    return [_candidate(*owners[rollout_id], members) for rollout_id, members in by_rollout.items()]


def set_entropies(candidates: Sequence[Candidate], scores: Mapping[int, SequenceStats]) -> None:
    """Take the entropy of each candidate from the learner's forward pass (``Learner.score``)."""
    for candidate in candidates:
        candidate.entropy = _token_mean(candidate, scores, "entropy")


def record_use(candidate: Candidate, scores: Mapping[int, SequenceStats]) -> None:
    """Refresh what an update saw of a candidate it used; one whose sequences it did not report stays as it is."""
    if not any(sequence.rollout_id in scores for sequence in candidate.sequences):
        return
    candidate.entropy = _token_mean(candidate, scores, "entropy")
    candidate.clip_fraction = _token_mean(candidate, scores, "clip_fraction")
    candidate.num_uses += 1


def frozen_sequences(
    candidate: Candidate, scores: Mapping[int, SequenceStats], birth_logprobs: str
) -> list[TrainingSequence]:
    """Copies of a rollout's sequences for a later step: compact, their ``old_logprobs`` those of their birth.

    Args:
        scores: What the update at birth reported; a rollout it did not use starts from the sampler's log-probs.
        birth_logprobs: ``learner`` or ``sampler``.
    """
    frozen = []
    for sequence in candidate.sequences:
        if isinstance(sequence.old_logprobs, array):
            frozen.append(sequence)
            continue
        old = sequence.old_logprobs
        if old is None:
            stats = scores.get(sequence.rollout_id) if birth_logprobs == "learner" else None
            old = sequence.sampler_logprobs if stats is None else stats.logprobs
        frozen.append(_compact(replace(sequence, old_logprobs=old)))
    return frozen


def sampler_entropy(rollout: Rollout) -> float:
    """Minus the mean log-prob of the sampled tokens, nats: an estimate of the token-mean entropy from one sample."""
    # Log-probs are 0 off the mask, so the plain sum is that of the sampled tokens.
    total = sum(sum(sequence.sampler_logprobs) for sequence in rollout.sequences)
    count = rollout.num_completion_tokens
    return -total / count if count else 0.0


def _candidate(group: Group, rollout: Rollout, sequences: list[TrainingSequence]) -> Candidate:
    rewards = group.rewards
    mean = _mean(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / max(len(rewards) - 1, 1)
    return Candidate(
        rollout_id=rollout.rollout_id,
        group_id=group.group_id,
        sequences=sequences,
        reward=rollout.reward,
        advantage=sequences[0].advantage,
        group_mean=mean,
        group_std=variance**0.5,
        num_tokens=rollout.num_completion_tokens,
        is_truncated=rollout.has_cut_reply,
        birth_step=sequences[0].birth_step,
        entropy=sampler_entropy(rollout),
    )


def _token_mean(candidate: Candidate, scores: Mapping[int, SequenceStats], name: str) -> float:
    """Mean of a statistic over the candidate's sequences, by tokens."""
    total, count = 0.0, 0
    for sequence in candidate.sequences:
        if (stats := scores.get(sequence.rollout_id)) is not None:
            total += sequence.num_completion_tokens * float(getattr(stats, name))
            count += sequence.num_completion_tokens
    return total / count if count else 0.0


def _compact(sequence: TrainingSequence) -> TrainingSequence:
    """The same sequence in typed arrays: 13 bytes a token where lists of numbers take over 60."""
    return replace(
        sequence,
        token_ids=_array("i", sequence.token_ids),
        completion_mask=_array("b", sequence.completion_mask),
        sampler_logprobs=_array("f", sequence.sampler_logprobs),
        old_logprobs=None if sequence.old_logprobs is None else _array("f", sequence.old_logprobs),
    )


def _array(code: str, values: Sequence[int] | Sequence[float]) -> array[Any]:
    return array(code, values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
