"""Log-probabilities and entropies from hidden states, never holding float32 logits of more than one chunk of rows.

The backward pass computes each chunk's logits again: two more products than holding them would take, against a factor
of V / d in memory. A row that predicts several tokens (sequences that part there) is computed once.

Legend: R head rows, N tokens, V vocabulary, d hidden size, z logits, p = softmax(z / temperature), H entropy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 128


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[Tensor, Tensor]:
    """Log p of each target under the row that predicts it, and the entropy of each row over the whole vocabulary.

    Args:
        hidden: [R, d] final hidden states. weight: [V, d] output embedding. bias: [V] or None.
        rows: [N] long in 0..R-1. targets: [N] long in 0..V-1.
        temperature: Logits are divided by it, as they are where the tokens are sampled.
        logit_scale: A model's own constant factor on its logits.
        chunk_rows: Rows of logits held at a time.

    Returns:
        Log-probabilities [N] and entropies [R] in nats, float32, both differentiable.

    Raises:
        ValueError: the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; the learner needs the one sampled with, above 0")
    out = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, rows, targets, logit_scale / temperature, chunk_rows
    )
    logprobs, entropies = out
    return logprobs, entropies


class _ChunkedHead(torch.autograd.Function):
    """log p = z_target - logsumexp(z), H = logsumexp(z) - sum(p z); dz = g_p (onehot - p) - g_H p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        targets: Tensor,
        scale: float,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        chunks = _Chunks(hidden, weight, bias, rows, scale, chunk_rows)
        logprobs = hidden.new_empty(rows.shape[0], dtype=torch.float32)
        logsums, entropies = (hidden.new_empty(hidden.shape[0], dtype=torch.float32) for _ in range(2))
        for span, tokens in chunks:
            logits = chunks.logits(span)
            peak, peak_index = logits.max(-1)
            probs = torch.softmax(logits, -1)
            # The probability of the likeliest token is 1 / sum(exp(z - max)): no second pass over the row.
            logsum = peak - probs.gather(-1, peak_index[:, None]).squeeze(-1).log()
            logsums[span], entropies[span] = logsum, logsum - torch.linalg.vecdot(probs, logits)
            at = rows[tokens] - span.start
            logprobs[tokens] = logits[at, targets[tokens]] - logsum[at]
        ctx.save_for_backward(hidden, weight, bias, rows, targets, logsums, entropies)
        ctx.scale, ctx.chunk_rows = scale, chunk_rows
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, rows, targets, logsums, entropies = ctx.saved_tensors
        chunks = _Chunks(hidden, weight, bias, rows, ctx.scale, ctx.chunk_rows)
        grad_logprobs, grad_entropies = grads
        if grad_logprobs is None:
            grad_logprobs = logsums.new_zeros(rows.shape[0])
        row_grads = logsums.new_zeros(hidden.shape[0]).index_add_(0, rows, grad_logprobs)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        for span, tokens in chunks:
            logits = chunks.logits(span)
            factor = -ctx.scale * row_grads[span, None]
            if grad_entropies is not None:
                # log p + H, row by row
                log_probs = logits - logsums[span, None]
                factor = factor - ctx.scale * grad_entropies[span, None] * (log_probs + entropies[span, None])
            delta = logits.sub_(logsums[span, None]).exp_().mul_(factor)
            at = (rows[tokens] - span.start, targets[tokens])
            delta.index_put_(at, grad_logprobs[tokens] * ctx.scale, accumulate=True)
            delta = chunks.narrowed(delta)
            if grad_hidden is not None:
                torch.mm(delta, weight, out=grad_hidden[span])
            if needs_weight:
                grad_weight = _plus_product(grad_weight, delta.t(), hidden[span], is_only=len(chunks.spans) == 1)
            if grad_bias is not None:
                grad_bias += delta.sum(0)
        if needs_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _plus_product(total: Tensor | None, left: Tensor, right: Tensor, *, is_only: bool) -> Tensor:
    """``total`` + ``left`` @ ``right``; a sum over several chunks is kept in float32, whatever the format of the parts."""
    product = left @ right if total is None or left.dtype != total.dtype else None
    if total is None:
        assert product is not None
        return product if is_only else product.float()
    return total.addmm_(left, right) if product is None else total.add_(product)


class _Chunks:
    """Iterates over runs of rows, with the tokens each run predicts, and computes their logits in one buffer."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, scale: float, chunk_rows: int
    ) -> None:
        self.hidden, self.weight, self.bias, self.scale = hidden, weight, bias, scale
        self.spans = [
            slice(start, min(start + chunk_rows, hidden.shape[0])) for start in range(0, hidden.shape[0], chunk_rows)
        ]
        self.order = torch.argsort(rows, stable=True)
        starts = torch.tensor([span.start for span in self.spans] + [hidden.shape[0]], device=rows.device)
        self.bounds = torch.searchsorted(rows[self.order], starts).tolist()
        # Buffers for all chunks: fresh pages for every chunk would cost as much as the arithmetic on them.
        self.buffer = hidden.new_empty(min(chunk_rows, hidden.shape[0]), weight.shape[0])
        is_wide = self.buffer.dtype == torch.float32
        self.wide = self.buffer if is_wide else torch.empty_like(self.buffer, dtype=torch.float32)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        for number, span in enumerate(self.spans):
            yield span, self.order[self.bounds[number] : self.bounds[number + 1]]

    def logits(self, span: slice) -> Tensor:
        """Scaled float32 logits of the rows; valid until the next call."""
        size = span.stop - span.start
        out = torch.mm(self.hidden[span], self.weight.t(), out=self.buffer[:size])
        if self.bias is not None:
            out += self.bias
        if self.wide is not self.buffer:
            out = self.wide[:size].copy_(out)
        return out if self.scale == 1.0 else out.mul_(self.scale)

    def narrowed(self, values: Tensor) -> Tensor:
        """``values`` [n, V], float32, in the format of the hidden states; valid until the next ``logits``."""
        return values if self.wide is self.buffer else self.buffer[: values.shape[0]].copy_(values)
