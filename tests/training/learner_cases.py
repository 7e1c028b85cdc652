"""Tiny models, batches and a plain padded computation that the learner is held against."""

from __future__ import annotations

import random
from typing import Any

import torch

from winnowrl.training.batch import TrainingSequence
from winnowrl.training.losses import ObjectiveSpec, padded_objective


def tiny_model(seed: int = 0, **fields: Any) -> Any:
    """A random float32 Llama: 2 layers, 4 heads sharing 2 key heads, tied embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**(shape | fields))).float()


def make_batch(seed: int = 1, *, groups: int = 3, members: int = 4) -> list[TrainingSequence]:
    """Groups with a shared prompt, replies of few distinct tokens (so that they share more), and gaps in the masks."""
    rng = random.Random(seed)
    batch: list[TrainingSequence] = []
    for group in range(groups):
        prompt = [1, 2, *(rng.randrange(50) for _ in range(rng.randint(1, 12)))]
        for _ in range(members):
            reply = [rng.randrange(3) for _ in range(rng.randint(1, 8))]
            mask = [False] * len(prompt) + [rng.random() < 0.8 for _ in reply]
            mask[-1] = True
            batch.append(
                TrainingSequence(
                    prompt + reply,
                    mask,
                    [-3.0 * rng.random() if is_trained else 0.0 for is_trained in mask],
                    rng.gauss(0, 1),
                    group,
                    1000 + len(batch),
                    advantage_scale=rng.choice([1.0, 0.5]),
                )
            )
    return batch


def padded(batch: list[TrainingSequence], values: list[Any], fill: Any = 0) -> torch.Tensor:
    width = max(len(sequence.token_ids) for sequence in batch)
    return torch.tensor([[*row, *([fill] * (width - len(row)))] for row in values])


def plain_forward(model: Any, batch: list[TrainingSequence], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [B, T-1] by transformers' own forward on padded rows."""
    ids = padded(batch, [sequence.token_ids for sequence in batch])
    logps = (model(input_ids=ids).logits[:, :-1] / temperature).log_softmax(-1)
    return logps.gather(-1, ids[:, 1:, None])[..., 0], -(logps.exp() * logps).sum(-1)


def plain_loss(
    model: Any,
    batch: list[TrainingSequence],
    spec: ObjectiveSpec,
    temperature: float = 1.0,
    ref: torch.Tensor | None = None,
) -> torch.Tensor:
    """The loss of the whole batch at once, on padded rows."""
    logprobs, entropies = plain_forward(model, batch, temperature)
    mask = padded(batch, [sequence.completion_mask for sequence in batch], False)[:, 1:]
    return padded_objective(
        logprobs,
        None,
        padded(batch, [sequence.sampler_logprobs for sequence in batch], 0.0)[:, 1:],
        torch.tensor([sequence.advantage for sequence in batch]),
        mask,
        spec,
        entropy=entropies,
        ref_logprobs=ref,
        scale=torch.tensor([sequence.advantage_scale for sequence in batch]),
    ).loss
