"""Attention over a prefix tree: every packed token sees its ancestors and itself.

Three ways compute the same: ``blocks`` runs torch's fused CPU attention over runs of queries and only the keys they see,
``flex`` compiles the mask into FlexAttention (CUDA), ``dense`` hands the whole mask to torch's own attention (anywhere).

Legend: P packed tokens, H query heads, K key/value heads, D head size, L keys of one block, n queries of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnowrl.training.packing import IntArray
from winnowrl.training.precision import wide

ATTENTION_NAME = "winnowrl_tree"
IMPLEMENTATIONS = ("blocks", "flex", "dense")

# Longest run of queries in one block, and what starting one more block is worth in query-key pairs (measured on CPU).
MAX_BLOCK = 192
BLOCK_OVERHEAD = 6000
BIAS_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Queries ``start..end`` and the packed ranges of the keys any of them sees, in order, the queries' own range last.

    ``hidden`` [n, L] bool is True where a query does not see a key.
    """

    start: int
    end: int
    key_ranges: tuple[tuple[int, int], ...]
    hidden: Tensor


@dataclass(slots=True)
class TreeLayout:
    """Who sees whom in one pack; made once, used by every layer.

    Attributes:
        positions: [P]. subtree_end: [P]. k is seen by q where ``k <= q < subtree_end[k]``.
    """

    positions: Tensor
    subtree_end: Tensor
    implementation: str
    blocks: tuple[Block, ...] = ()
    masks: dict[Any, Any] = field(default_factory=dict)
    bias_bytes: int = 0

    def dense_mask(self, window: int | None = None) -> Tensor:
        """[P, P] bool, True = seen; with ``window`` only the nearest so many ancestors."""
        if window not in self.masks:
            index = torch.arange(len(self.positions), device=self.positions.device)
            mask = (index[None, :] <= index[:, None]) & (index[:, None] < self.subtree_end[None, :])
            if window is not None:
                mask &= self.positions[:, None] - self.positions[None, :] < window
            self.masks[window] = mask
        mask_of_window: Tensor = self.masks[window]
        return mask_of_window

    def block_bias(self, block: Block, repeats: int, dtype: torch.dtype) -> Tensor:
        """What is added to the block's logits, [1, 1, repeats n, L]: 0 where a query sees a key, -inf elsewhere.

        Every layer asks for the same; up to ``BIAS_CACHE_BYTES`` of them are kept.
        """
        key = ("block", block.start, repeats, dtype)
        if key not in self.masks:
            shape = (repeats, *block.hidden.shape)
            bias = torch.zeros(shape, dtype=dtype).masked_fill_(block.hidden, float("-inf")).flatten(0, 1)[None, None]
            if self.bias_bytes + bias.nbytes > BIAS_CACHE_BYTES:
                return bias
            self.bias_bytes += bias.nbytes
            self.masks[key] = bias
        found: Tensor = self.masks[key]
        return found

    def reaches(self, window: int | None) -> bool:
        """Whether some token has an ancestor outside the window."""
        return window is not None and int(self.positions.max()) >= window


def tree_layout(positions: Tensor, subtree_end: Tensor, *, implementation: str | None = None) -> TreeLayout:
    """Prepare attention for a pack; ``implementation`` None chooses by device."""
    chosen = implementation or ("flex" if positions.device.type == "cuda" else "blocks")
    if chosen not in IMPLEMENTATIONS:
        raise ValueError(f"attention implementation is {chosen!r}; allowed: {', '.join(IMPLEMENTATIONS)}")
    layout = TreeLayout(positions, subtree_end, chosen)
    if chosen == "blocks":
        layout.blocks = plan_blocks(positions.cpu().numpy(), subtree_end.cpu().numpy())
    return layout


def plan_blocks(positions: IntArray, subtree_end: IntArray) -> tuple[Block, ...]:
    """Cut the packed order into blocks at least cost.

    For any run of queries s..e the keys seen are the ancestors of s (there are ``positions[s]``) and the run itself, so
    every cut is exact and only the cost depends on it: n (positions[s] + n) pairs and a constant per block.
    """
    cuts = _cut_points(positions, subtree_end)
    best = [0.0] + [float("inf")] * (len(cuts) - 1)
    came_from = [0] * len(cuts)
    for j in range(1, len(cuts)):
        for i in range(j - 1, -1, -1):
            length = cuts[j] - cuts[i]
            if length > MAX_BLOCK and i < j - 1:
                break
            cost = best[i] + BLOCK_OVERHEAD + length * (int(positions[cuts[i]]) + length)
            if cost < best[j]:
                best[j], came_from[j] = cost, i
    spans = []
    j = len(cuts) - 1
    while j > 0:
        spans.append((cuts[came_from[j]], cuts[j]))
        j = came_from[j]
    return tuple(_block(start, end, subtree_end) for start, end in reversed(spans))


def _cut_points(positions: IntArray, subtree_end: IntArray) -> list[int]:
    """Where a branch begins or forks, and inside chains longer than a block; with both ends."""
    size = len(positions)
    forks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(subtree_end) != 0)) + 1
    cuts = [0]
    for fork in [*forks.tolist(), size]:
        span = fork - cuts[-1]
        pieces = max(1, -(-span // (MAX_BLOCK // 2)))
        cuts += [cuts[-1] + span * (piece + 1) // pieces for piece in range(pieces)] if span else []
    return cuts


def _block(start: int, end: int, subtree_end: IntArray) -> Block:
    ancestors = np.flatnonzero(subtree_end[:start] > start)
    breaks = np.flatnonzero(np.diff(ancestors) != 1) + 1
    runs = [run for run in np.split(ancestors, breaks) if run.size]
    keys = np.concatenate([ancestors, np.arange(start, end)])
    queries = np.arange(start, end)[:, None]
    seen = (keys[None, :] <= queries) & (queries < subtree_end[keys][None, :])
    ranges = [(int(run[0]), int(run[-1]) + 1) for run in runs]
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
    return Block(start, end, tuple(ranges), torch.from_numpy(~seen))


# torch's fused CPU attention, which hands out the log-sums its backward pass starts from.
_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _BlockAttention(torch.autograd.Function):
    """Softmax attention block by block; the query heads that share a key head are rows of one problem."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: TreeLayout, scale: float) -> Tensor:
        """``query`` [H, P, D], ``key`` and ``value`` [K, P, D]; returns [P, H, D]."""
        heads, size, width = query.shape
        out = query.new_empty(size, heads, width)
        logsums = []
        for block in tree.blocks:
            rows = _rows(query, block, key.shape[0])
            bias = tree.block_bias(block, heads // key.shape[0], wide(query.dtype))
            result, logsum = _FUSED(
                rows, _take(key, block)[None], _take(value, block)[None], 0.0, False, attn_mask=bias, scale=scale
            )
            out[block.start : block.end] = result[0].reshape(heads, -1, width).transpose(0, 1)
            logsums.append(logsum)
        ctx.save_for_backward(query, key, value, out, *logsums)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved_query, saved_key, saved_value, saved_out, *logsums = ctx.saved_tensors
        # In half precision the fused backward is slower than in float32, and rounds more.
        dtype = wide(saved_query.dtype)
        query, key, value = saved_query.to(dtype), saved_key.to(dtype), saved_value.to(dtype)
        out, grad_out = saved_out.to(dtype).transpose(0, 1), grads[0].to(dtype).transpose(0, 1)
        groups = key.shape[0]
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for block, logsum in zip(ctx.tree.blocks, logsums, strict=True):
            bias = ctx.tree.block_bias(block, query.shape[0] // groups, dtype)
            rows, keys, values = _rows(query, block, groups), _take(key, block)[None], _take(value, block)[None]
            parts = _FUSED_BACKWARD(
                _rows(grad_out, block, groups), rows, keys, values, _rows(out, block, groups), logsum, 0.0, False,
                attn_mask=bias, scale=ctx.scale,
            )  # fmt: skip
            own = grad_query[:, block.start : block.end]
            own.copy_(parts[0][0].reshape(own.shape))
            _give(grad_key, parts[1][0], block)
            _give(grad_value, parts[2][0], block)
        half = saved_query.dtype
        return grad_query.to(half), grad_key.to(half), grad_value.to(half), None, None


def _rows(tensor: Tensor, block: Block, groups: int) -> Tensor:
    """The block's rows of [H, P, D], by key head: [1, K, (H/K) n, D]."""
    return tensor[:, block.start : block.end].reshape(1, groups, -1, tensor.shape[-1])


def _take(tensor: Tensor, block: Block) -> Tensor:
    """The block's keys (or values): [K, L, D]."""
    if len(block.key_ranges) == 1:
        start, end = block.key_ranges[0]
        return tensor[:, start:end]
    return torch.cat([tensor[:, start:end] for start, end in block.key_ranges], dim=1)


def _give(total: Tensor, part: Tensor, block: Block) -> None:
    """Add the gradient ``part`` [K, L, D] back to where the block's keys came from."""
    offset = 0
    for start, end in block.key_ranges:
        total[:, start:end] += part[:, offset : offset + end - start]
        offset += end - start


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: TreeLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention interface of transformers over ``tree``: ``query`` [1, H, P, D] to [1, P, H, D].

    Raises:
        ValueError: the model wants an attention feature that is not implemented here.
    """
    unsupported = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    if unsupported:
        raise ValueError(
            f"{type(module).__name__} needs attention with {unsupported[0]!r}, which the learner does not implement; "
            "train a model without it"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if tree.reaches(sliding_window) else None
    if tree.implementation == "blocks" and window is None:
        out = _BlockAttention.apply(query[0], key[0], value[0], tree, scale)  # type: ignore[no-untyped-call]
        return out[None], None
    if tree.implementation == "flex":
        return _flex_attention(query, key, value, tree, scale, window).transpose(1, 2).contiguous(), None
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=tree.dense_mask(window)[None, None], scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, tree: TreeLayout, scale: float, window: int | None
) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    if ("flex", window) not in tree.masks:
        size = query.shape[2]
        mask = create_block_mask(_mask_mod(tree, window), None, None, size, size, device=str(query.device))
        tree.masks["flex", window] = mask
    out: Tensor = _compiled_flex(query.device.type)(
        query, key, value, block_mask=tree.masks["flex", window], scale=scale, enable_gqa=True
    )
    return out


def _mask_mod(tree: TreeLayout, window: int | None) -> Callable[..., Tensor]:
    ends, positions = tree.subtree_end, tree.positions

    def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = (k <= q) & (q < ends[k])
        return allowed if window is None else allowed & (positions[q] - positions[k] < window)

    return seen


@lru_cache
def _compiled_flex(device_type: str) -> Callable[..., Any]:
    """FlexAttention only skips blocks when compiled; on CPU, where compiling needs a C++ compiler, it runs as it is."""
    from torch.nn.attention.flex_attention import flex_attention

    attend: Any = flex_attention
    return torch.compile(attend, dynamic=True) if device_type == "cuda" else attend  # type: ignore[no-any-return]


def register_tree_attention() -> str:
    """Make the implementation known to transformers; returns the name for ``config._attn_implementation``."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, tree_attention)
    return ATTENTION_NAME
