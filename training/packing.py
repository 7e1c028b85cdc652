"""Prefix-tree packing: the sequences of a micro-batch laid out so that every distinct token prefix is computed once.

The sequences form a trie. Its nodes, in depth-first order, are one packed row of P tokens: a node's position id is its
depth, it attends to its ancestors and itself, and the next-token distribution of a trained token is read at its parent.
In this order the descendants of a node are the packed tokens that follow it up to ``subtree_end``, so "k is an ancestor
of q, or q itself" is ``k <= q < subtree_end[k]``. Without sharing every sequence is a chain of its own, by the same code.

What follows the last trained token's parent is never computed, since nothing reads it.

Legend: P packed tokens, S sequences, N trained tokens (flat, by sequence, then time), R head rows (distinct parents).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnowrl.training.batch import TrainingSequence

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pack:
    """One micro-batch.

    Attributes:
        members: [S] indices into the batch, in the order of ``sequence_ids``.
        token_ids: [P] long. positions: [P] long, depth in the trie. subtree_end: [P] long.
        head_positions: [R] packed positions whose next-token distribution is needed.
        rows: [N] the row of ``head_positions`` that predicts each trained token. targets: [N] the trained tokens.
        sequence_ids: [N] in 0..S-1.
        num_unshared_tokens: What the pack would hold without sharing.
        longest: Tokens of its longest sequence.
    """

    members: tuple[int, ...]
    token_ids: Tensor
    positions: Tensor
    subtree_end: Tensor
    head_positions: Tensor
    rows: Tensor
    targets: Tensor
    sequence_ids: Tensor
    num_unshared_tokens: int
    longest: int

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_attention_pairs(self) -> int:
        """Query-key pairs under the mask: each token sees its depth + 1 tokens."""
        return int(self.positions.sum()) + self.num_tokens


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence cut after the parent of its last trained token; ``key`` sorts as the token ids do."""

    index: int
    group_id: int
    tokens: IntArray
    key: bytes


def trained_positions(sequence: TrainingSequence) -> IntArray:
    """Indices of the tokens in the loss.

    Raises:
        ValueError: lengths differ, or the first token is trained (nothing predicts it).
    """
    length = len(sequence.token_ids)
    for name in ("completion_mask", "sampler_logprobs"):
        if len(getattr(sequence, name)) != length:
            raise ValueError(
                f"rollout {sequence.rollout_id}: {name} has {len(getattr(sequence, name))} entries for {length} tokens; "
                "give one for each token"
            )
    trained = np.flatnonzero(np.asarray(sequence.completion_mask, dtype=bool))
    if trained.size and trained[0] == 0:
        raise ValueError(f"rollout {sequence.rollout_id}: its first token is trained, but nothing predicts it")
    return trained.astype(np.int64)


def common_prefix(first: IntArray, second: IntArray) -> int:
    """Number of leading tokens both share."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if different.size else length


def build_pack(sequences: Sequence[TrainingSequence], members: Sequence[int], *, share: bool = True) -> Pack:
    """Lay out ``members`` (indices into ``sequences``) as one pack."""
    rows = _rows(sequences, members)
    paths: dict[int, IntArray] = {}
    tokens: list[IntArray] = []
    positions: list[IntArray] = []
    subtree_end = np.zeros(sum(len(row.tokens) for row in rows), dtype=np.int64)
    size = 0
    previous = path = np.zeros(0, dtype=np.int64)
    # In sorted order the longest prefix a sequence shares with any earlier one is the one it shares with the last.
    for row in sorted(rows, key=lambda row: row.key) if share else rows:
        shared = common_prefix(previous, row.tokens) if share else 0
        subtree_end[path[shared:]] = size
        new = len(row.tokens) - shared
        path = np.concatenate([path[:shared], np.arange(size, size + new)])
        tokens.append(row.tokens[shared:])
        positions.append(np.arange(shared, shared + new))
        paths[row.index] = path
        previous, size = row.tokens, size + new
    subtree_end[path] = size
    head_positions, head_rows, targets, sequence_ids = _targets(sequences, members, paths)
    return Pack(
        members=tuple(members),
        token_ids=_tensor(tokens),
        positions=_tensor(positions),
        subtree_end=torch.from_numpy(subtree_end[:size].copy()),
        head_positions=torch.from_numpy(head_positions),
        rows=torch.from_numpy(head_rows),
        targets=targets,
        sequence_ids=sequence_ids,
        num_unshared_tokens=sum(len(row.tokens) for row in rows),
        longest=max((len(row.tokens) for row in rows), default=0),
    )


def plan_packs(
    sequences: Sequence[TrainingSequence],
    members: Sequence[int],
    *,
    max_tokens: int,
    target_tokens: int | None = None,
    share: bool = True,
    num_ranks: int = 1,
) -> list[list[int]]:
    """Split ``members`` into packs of at most ``max_tokens`` packed tokens.

    Groups, those that share a prefix next to each other, are joined up to ``target_tokens`` (None = ``max_tokens``). A
    group is split only above ``max_tokens``, since both parts then compute what they share; a sequence never: a longer
    one is a pack of its own. For several ranks the budgets shrink so that each gets work.
    """
    by_group: dict[int, list[_Row]] = {}
    for row in _rows(sequences, members):
        by_group.setdefault(row.group_id, []).append(row)
    groups = sorted((sorted(rows, key=lambda row: row.key) for rows in by_group.values()), key=lambda rows: rows[0].key)
    if num_ranks > 1:
        total = _num_distinct([row for rows in groups for row in rows], share)
        max_tokens = min(max_tokens, -(-total // num_ranks))
    target_tokens = min(target_tokens or max_tokens, max_tokens)
    packs: list[list[_Row]] = [[]]
    for rows in groups:
        if _num_distinct(packs[-1] + rows, share) <= target_tokens:
            packs[-1] += rows
        elif _num_distinct(rows, share) <= max_tokens:
            packs.append(list(rows))
        else:
            packs += _split_group(rows, max_tokens, share)
    return [sorted(row.index for row in pack) for pack in packs if pack]


def flat_values(
    sequences: Sequence[TrainingSequence], members: Sequence[int], values: Sequence[Sequence[float]]
) -> Tensor:
    """Per-token ``values`` ([T] for each member) at the trained tokens, in the order of a pack: [N] float32."""
    chosen = [
        np.asarray(row, dtype=np.float32)[trained_positions(sequences[index])]
        for index, row in zip(members, values, strict=True)
    ]
    return torch.from_numpy(np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.float32))


def _rows(sequences: Sequence[TrainingSequence], members: Sequence[int]) -> list[_Row]:
    rows = []
    for index in members:
        trained = trained_positions(sequences[index])
        needed = int(trained[-1]) if trained.size else 0
        tokens = np.asarray(sequences[index].token_ids[:needed], dtype=np.int64)
        # Big-endian bytes compare as the (non-negative) ids do.
        rows.append(_Row(index, sequences[index].group_id, tokens, tokens.astype(">u4").tobytes()))
    return rows


def _num_distinct(rows: Sequence[_Row], share: bool) -> int:
    if not share:
        return sum(len(row.tokens) for row in rows)
    ordered = sorted(rows, key=lambda row: row.key)
    shared = sum(common_prefix(a.tokens, b.tokens) for a, b in pairwise(ordered))
    return sum(len(row.tokens) for row in ordered) - shared


def _split_group(rows: Sequence[_Row], max_tokens: int, share: bool) -> list[list[_Row]]:
    """Cut a sorted group that does not fit; neighbours share most, so runs of neighbours stay together."""
    packs: list[list[_Row]] = []
    size = 0
    for row in rows:
        new = len(row.tokens) - (common_prefix(packs[-1][-1].tokens, row.tokens) if share and packs else 0)
        if packs and size + new <= max_tokens:
            packs[-1].append(row)
            size += new
        else:
            packs.append([row])
            size = len(row.tokens)
    return packs


def _targets(
    sequences: Sequence[TrainingSequence], members: Sequence[int], paths: dict[int, IntArray]
) -> tuple[IntArray, IntArray, Tensor, Tensor]:
    """Head positions [R], and for each trained token its head row, id and sequence, each [N]."""
    parents, targets, owners = [], [], []
    for slot, index in enumerate(members):
        trained = trained_positions(sequences[index])
        parents.append(paths[index][trained - 1])
        targets.append(np.asarray(sequences[index].token_ids, dtype=np.int64)[trained])
        owners.append(np.full(trained.size, slot, dtype=np.int64))
    head_positions, rows = np.unique(_joined(parents), return_inverse=True)
    return head_positions, rows.astype(np.int64), _tensor(targets), _tensor(owners)


def _joined(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays).astype(np.int64) if arrays else np.zeros(0, dtype=np.int64)


def _tensor(arrays: Sequence[IntArray]) -> Tensor:
    return torch.from_numpy(_joined(arrays))
