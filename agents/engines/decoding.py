"""A batch of sequences under generation: padded cache, sampling, and what ends each of them."""

# B rows, L cached positions, V vocabulary

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.base import FinishReason, Sampling
from winnowrl.agents.engines.stepped import Request

if TYPE_CHECKING:
    from torch import Tensor


class Row:
    """One request: its own stream of random numbers, what it has written, and why it ended (None: it has not)."""

    __slots__ = (
        "_decode",
        "finish_reason",
        "logprobs",
        "prompt_ids",
        "random",
        "request_id",
        "room",
        "sampling",
        "token_ids",
    )

    def __init__(self, request: Request, tokenizer: Any, max_context_tokens: int) -> None:
        self.request_id = request.request_id
        self.prompt_ids = request.prompt_ids
        self.sampling: Sampling = request.sampling
        self.random = random.Random(request.seed)
        self.room = min(request.sampling.max_tokens, max_context_tokens - len(request.prompt_ids))
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: FinishReason | None = None
        self._decode = tokenizer.decode

    def write(self, token_id: int, logprob: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if math.isnan(logprob):
            # The logits were not numbers, and so the token means nothing.
            self.finish_reason = "abort"
        elif token_id in self.sampling.stop_token_ids or self._ends_with_stop():
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.room:
            self.finish_reason = "length"

    def _ends_with_stop(self) -> bool:
        """A stop string stands in the text of the last tokens; each token holds at least one of its bytes."""
        if not self.sampling.stop:
            return False
        window = max(len(stop.encode()) for stop in self.sampling.stop) + 1
        tail = self.token_ids[-window:]
        # Some decoders drop the blank a text begins with: the token before the window stands first, and is cut off.
        before = self.token_ids[-window - 1] if len(self.token_ids) > window else self.prompt_ids[-1]
        # What it lacks of a character, the window may bring.
        start = len(self._text([before]).rstrip("\ufffd"))
        text = self._text([before, *tail])[start:]
        return any(stop in text for stop in self.sampling.stop)

    def _text(self, ids: list[int]) -> str:
        return str(self._decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@dataclass(slots=True)
class DecodingBatch:
    """Rows with one cache, padded on the left. Each row's last id has not been through the model yet.

    Attributes:
        cache: Per layer, keys and values [B, heads, L, head size].
        is_real: [B, L] True where the cache holds a token of the row.
    """

    rows: list[Row]
    cache: list[tuple[Tensor, Tensor]]
    is_real: Tensor

    def advance(self, model: Any) -> None:
        """Run each row's last token through the model and draw the next."""
        import torch

        device = self.is_real.device
        ids = torch.tensor([[row.token_ids[-1]] for row in self.rows], device=device)
        self.is_real = torch.cat([self.is_real, self.is_real.new_ones(len(self.rows), 1)], 1)
        positions = self.is_real.sum(1, keepdim=True) - 1
        logits, self.cache = _forward(model, ids, self.is_real, positions, self.cache)
        draw(self.rows, logits[:, -1])

    def joined(self, other: DecodingBatch) -> DecodingBatch:
        """Both batches in one, the shorter cache padded on the left."""
        import torch

        length = max(self.is_real.shape[1], other.is_real.shape[1])
        ours, theirs = self._padded(length), other._padded(length)
        cache = [
            (torch.cat([keys, more_keys]), torch.cat([values, more_values]))
            for (keys, values), (more_keys, more_values) in zip(ours.cache, theirs.cache, strict=True)
        ]
        return DecodingBatch(self.rows + other.rows, cache, torch.cat([ours.is_real, theirs.is_real]))

    def only(self, rows: list[Row]) -> DecodingBatch:
        """These of its rows, without the padding none of them needs."""
        import torch

        kept = {id(row) for row in rows}
        index = torch.tensor([i for i, row in enumerate(self.rows) if id(row) in kept], device=self.is_real.device)
        is_real = self.is_real[index]
        start = int(is_real.long().argmax(1).min())
        cache = [(keys[index, :, start:], values[index, :, start:]) for keys, values in self.cache]
        return DecodingBatch(rows, cache, is_real[:, start:])

    def _padded(self, length: int) -> DecodingBatch:
        import torch

        short = length - self.is_real.shape[1]
        if short == 0:
            return self
        pad = torch.nn.functional.pad
        cache = [(pad(keys, (0, 0, short, 0)), pad(values, (0, 0, short, 0))) for keys, values in self.cache]
        return DecodingBatch(self.rows, cache, pad(self.is_real, (short, 0)))


def prefill(model: Any, rows: list[Row], device: str) -> DecodingBatch:
    """Run the prompts through the model, equal ones once, and draw each row's first token."""
    import torch

    distinct = {tuple(row.prompt_ids): number for number, row in reversed(list(enumerate(rows)))}
    numbers = {prompt: number for number, prompt in enumerate(distinct)}
    length = max(map(len, distinct))
    ids = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in distinct], device=device)
    lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
    is_real = torch.arange(length, device=device)[None] >= length - lengths[:, None]
    positions = (is_real.long().cumsum(1) - 1).clamp(min=0)
    logits, cache = _forward(model, ids, is_real, positions, None)
    index = torch.tensor([numbers[tuple(row.prompt_ids)] for row in rows], device=device)
    draw(rows, logits[index, -1])
    return DecodingBatch(rows, [(keys[index], values[index]) for keys, values in cache], is_real[index])


def _forward(
    model: Any, ids: Tensor, is_real: Tensor, positions: Tensor, cache: list[tuple[Tensor, Tensor]] | None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Last-position logits [B, 1, V] and the cache grown by ``ids`` [B, T]."""
    from transformers import DynamicCache

    past = DynamicCache(cache) if cache is not None else DynamicCache()
    output = model(
        ids,
        attention_mask=is_real.long(),
        position_ids=positions,
        past_key_values=past,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits, [(layer.keys, layer.values) for layer in output.past_key_values.layers]


def draw(rows: list[Row], logits: Tensor) -> None:
    """Give each row a token from its own random stream, with its log-probability under the distribution drawn from.

    Inverse transform with one uniform number a token: which token a number picks depends on the row's distribution
    alone. Greedy rows report log-probabilities at temperature 1.

    Args:
        rows: B rows.
        logits: [B, V].
    """
    import torch

    temperatures = [row.sampling.temperature for row in rows]
    divisor = logits.new_tensor([temperature or 1.0 for temperature in temperatures], dtype=torch.float32)
    logprobs = (logits.float() / divisor[:, None]).log_softmax(-1)
    for number, row in enumerate(rows):
        if row.sampling.top_k or row.sampling.top_p < 1:
            logprobs[number] = truncated(logprobs[number], row.sampling.top_k, row.sampling.top_p)
    cumulative = logprobs.double().exp().cumsum(-1)
    numbers = torch.tensor([[row.random.random()] for row in rows], dtype=torch.float64, device=logits.device)
    # Strictly above the number, so that a token of probability 0 is never picked.
    sampled = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
    is_greedy = torch.tensor([[temperature == 0] for temperature in temperatures], device=logits.device)
    picked = torch.where(is_greedy, logprobs.argmax(-1, keepdim=True), sampled.clamp(max=logits.shape[-1] - 1))
    chosen = logprobs.gather(-1, picked)[:, 0].tolist()
    for row, token_id, logprob in zip(rows, picked[:, 0].tolist(), chosen, strict=True):
        row.write(token_id, logprob)


def truncated(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """[V] log-probabilities of the ``top_k`` likeliest within the nucleus ``top_p``, renormalised; the rest -inf.

    ``top_k`` 0 keeps all. The token that crosses ``top_p`` is kept.
    """
    import torch

    values, order = logprobs.sort(descending=True)
    keep = torch.ones_like(values, dtype=torch.bool)
    if top_k:
        keep[top_k:] = False
    probabilities = torch.where(keep, values.exp(), 0.0)
    probabilities = probabilities / probabilities.sum()
    keep &= probabilities.cumsum(0) - probabilities < top_p
    kept = torch.full_like(logprobs, float("-inf"))
    kept[order[keep]] = values[keep]
    return kept.log_softmax(-1)
