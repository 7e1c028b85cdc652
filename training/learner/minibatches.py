"""How a batch becomes optimizer steps, and how the packs of a step are dealt out to ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from winnowrl.training.batch import TrainingSequence


def split_minibatches(
    batch: Sequence[TrainingSequence], members: Sequence[int], *, num_minibatches: int, rng: random.Random
) -> list[list[int]]:
    """Split ``members`` at random into optimizer steps of about equal numbers of sequences.

    Groups stay whole while there are at least as many as minibatches (they share prefixes); else rollouts are drawn one
    by one, each with all its sequences (they share its weight). Never gives an empty step, so there may be fewer than
    asked for.
    """
    if num_minibatches == 1:
        return [list(members)]
    by_group: dict[int, list[int]] = {}
    by_rollout: dict[tuple[str, int], list[int]] = {}
    for index in members:
        by_group.setdefault(batch[index].group_id, []).append(index)
        by_rollout.setdefault(batch[index].rollout_key, []).append(index)
    units = list((by_group if len(by_group) >= num_minibatches else by_rollout).values())
    rng.shuffle(units)
    steps: list[list[int]] = [[] for _ in range(min(num_minibatches, len(units)))]
    for unit in sorted(units, key=len, reverse=True):
        min(steps, key=len).extend(unit)
    return [sorted(step) for step in steps]


def deal_packs(packs: Sequence[list[int]], sizes: Sequence[int], num_ranks: int) -> list[list[list[int]]]:
    """Packs of each rank, the largest first to the least loaded; empty packs fill up, so that all ranks have as many.

    Ranks must make the same number of passes: with ZeRO-2 and 3 each pass is a collective operation.
    """
    hands: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for number in sorted(range(len(packs)), key=lambda n: (-sizes[n], n)):
        rank = loads.index(min(loads))
        hands[rank].append(packs[number])
        loads[rank] += sizes[number]
    most = max((len(hand) for hand in hands), default=0)
    return [hand + [[]] * (most - len(hand)) for hand in hands]
