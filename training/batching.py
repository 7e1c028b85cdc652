"""From groups of rollouts to the sequences the learner trains on: shaped rewards, advantages, filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from winnowrl.agents.conversation import MAX_SEQUENCES
from winnowrl.agents.rollout import Group, Rollout
from winnowrl.configs.sections.objective import ObjectiveConfig
from winnowrl.training.advantages import group_advantages
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.shaping import soft_overlong_penalty


def sequence_id(rollout_id: int, place: int) -> int:
    """Unique id of the sequence numbered ``place`` of a rollout that forked: its rollout's id and its place in one number.

    A conversation ends before it exceeds ``MAX_SEQUENCES``. The ids of a run's rollouts stay below 2**51, so that
    these fit 64 bits.
    """
    assert 0 <= place < MAX_SEQUENCES, f"sequence {place} of a rollout; a conversation has at most {MAX_SEQUENCES}"
    return rollout_id * MAX_SEQUENCES + place


def rollout_of(sequence: int) -> int:
    """The rollout that a sequence id belongs to."""
    return sequence // MAX_SEQUENCES


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Sequences with their advantages, and what was left out on the way.

    Attributes:
        sequences: Sequences of informative groups, and of the others where ``regularize_zero_advantage`` has KL or
            entropy act on them.
        informative_ids: Groups whose shaped rewards differ.
        advantages: By rollout id, of every valid rollout of a group that was not gated.
        zero_variance_ids: Rollouts of groups whose rewards are all equal, or with a single valid member.
        overlong_ids: Rollouts that the overlong filter took out of the loss.
    """

    sequences: list[TrainingSequence]
    informative_ids: frozenset[int]
    advantages: dict[int, float]
    zero_variance_ids: frozenset[int]
    overlong_ids: frozenset[int]


def make_batch(
    groups: Sequence[Group],
    config: ObjectiveConfig,
    *,
    step: int,
    max_tokens: int | None = None,
) -> GroupBatch:
    """Advantages of the valid rollouts of ``groups`` and the sequences to train on.

    Args:
        groups: Gated groups are passed over; failed and undecided rollouts are in no baseline. Rollouts whose allocation
            round is kept out of the baseline (``is_in_baseline``) are not trained on either.
        config: Objective.
        step: Birth step of the sequences.
        max_tokens: Most completion tokens of a rollout, for the soft overlong penalty.
    """
    members = [(group, rollout) for group in groups if not group.was_gated for rollout in group.valid_rollouts]
    if not members:
        return GroupBatch([], frozenset(), {}, frozenset(), frozenset())
    rewards = [_shaped_reward(rollout, config, max_tokens) for _, rollout in members]
    advantages = _advantages(members, rewards, config)
    informative = _informative_groups(members, rewards, config.reward_tolerance)
    is_regularized = config.regularize_zero_advantage and (config.kl_coef > 0.0 or config.entropy_coef != 0.0)
    sequences: list[TrainingSequence] = []
    overlong: set[int] = set()
    for (group, rollout), advantage in zip(members, advantages, strict=True):
        if not rollout.is_in_baseline or not (is_regularized or group.group_id in informative):
            continue
        if config.overlong_filter and rollout.has_cut_reply:
            overlong.add(rollout.rollout_id)
            continue
        sequences += _sequences(group, rollout, advantage, step)
    return GroupBatch(
        sequences,
        frozenset(informative),
        {rollout.rollout_id: a for (_, rollout), a in zip(members, advantages, strict=True)},
        frozenset(rollout.rollout_id for group, rollout in members if group.group_id not in informative),
        frozenset(overlong),
    )


def _shaped_reward(rollout: Rollout, config: ObjectiveConfig, max_tokens: int | None) -> float:
    if config.overlong_penalty == 0.0 or max_tokens is None:
        return rollout.reward
    penalty = soft_overlong_penalty(rollout.num_completion_tokens, max_tokens, config.overlong_cache_of(max_tokens))
    return rollout.reward + config.overlong_penalty * penalty


def _advantages(
    members: Sequence[tuple[Group, Rollout]], rewards: Sequence[float], config: ObjectiveConfig
) -> list[float]:
    chosen = config.resolved()
    result: list[float] = group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor([group.group_id for group, _ in members]),
        scale=str(chosen["advantage_scale"]),
        std=config.advantage_std,
        eps=config.advantage_eps,
        baseline=str(chosen["baseline"]),
        tolerance=config.reward_tolerance,
        baseline_mask=torch.tensor([rollout.is_in_baseline for _, rollout in members]),
    ).tolist()
    return result


def _informative_groups(
    members: Sequence[tuple[Group, Rollout]], rewards: Sequence[float], tolerance: float
) -> set[int]:
    """Groups whose shaped rewards differ among the rollouts in their baseline."""
    spans: dict[int, tuple[float, float]] = {}
    for (group, rollout), reward in zip(members, rewards, strict=True):
        if not rollout.is_in_baseline:
            continue
        low, high = spans.get(group.group_id, (reward, reward))
        spans[group.group_id] = (min(low, reward), max(high, reward))
    return {group_id for group_id, (low, high) in spans.items() if high - low > tolerance}


def _sequences(group: Group, rollout: Rollout, advantage: float, step: int) -> list[TrainingSequence]:
    result = []
    for place, sequence in enumerate(rollout.sequences):
        mask = rollout.loss_mask(place)
        if any(mask):
            result.append(
                TrainingSequence(
                    token_ids=sequence.token_ids,
                    completion_mask=mask,
                    sampler_logprobs=sequence.sampler_logprobs,
                    advantage=advantage,
                    group_id=group.group_id,
                    rollout_id=sequence_id(rollout.rollout_id, place),
                    is_truncated=rollout.has_cut_reply,
                    birth_step=step,
                    fork_of=rollout.rollout_id,
                )
            )
    return result
