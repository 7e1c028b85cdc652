"""A byte-level tokenizer and a two-layer random Llama, built locally in milliseconds, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Enough English, digits and layout for merges, so that one text has several tokenisations (what the tests need).
CORPUS = [
    "You are in the middle of a room. Looking quickly around you, you see a cabinet, a drawer and a shelf.",
    "Question: what is 12 + 34? Answer: 46\n7+8=15\n9-3=6\nThe answer is \\boxed{42}.",
    "go to drawer 1\nopen drawer 1\ntake apple 2 from countertop 1\nput apple 2 in fridge 1\nNothing happens.",
    "Too low. Too high. Correct! Guess a number between 1 and 100.\n<guess>50</guess>",
    "def add(a, b):\n    return a + b\n\nassert add(1, 2) == 3\n",
    "user assistant system tool think <think> </think> Let me think step by step.",
]


def build_tiny_tokenizer(
    folder: str | Path,
    *,
    vocab_size: int = 384,
    chat_template: str | None = CHATML,
    eos_token: str = "<|im_end|>",
    extra_special_tokens: tuple[str, ...] = (),
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on a few sentences, save it to ``folder`` and return it.

    Every string round-trips (all 256 bytes are in the vocabulary). Ids 0, 1, 2 are ``<|endoftext|>`` (pad),
    ``<|im_start|>`` and ``<|im_end|>``; ``extra_special_tokens`` follow.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special_tokens = [*SPECIAL_TOKENS, *extra_special_tokens]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos_token,
        pad_token="<|endoftext|>",
        extra_special_tokens=special_tokens[1:],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def build_tiny_model(
    folder: str | Path, *, seed: int = 0, hidden_size: int = 64, num_layers: int = 2, **config: Any
) -> Path:
    """Save a random float32 Llama and its tokenizer (built there unless it already is) to ``folder``; returns it.

    The weights depend on ``seed`` alone. Head size is 32, the smallest vLLM's CPU attention takes. ``config`` overrides
    any ``LlamaConfig`` field.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    path = Path(folder)
    has_tokenizer = (path / "tokenizer.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(str(path)) if has_tokenizer else build_tiny_tokenizer(path)
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // 32,
        "num_key_value_heads": hidden_size // 32,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        # Wide enough that the random distribution is far from uniform and greedy choices have a margin.
        "initializer_range": 0.2,
        "dtype": "float32",
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**{**fields, **config}))
    model.to(torch.float32).save_pretrained(str(path))
    return path
