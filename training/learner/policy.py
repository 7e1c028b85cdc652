"""The model as the learner runs it: a pack in, log-probabilities of its trained tokens and entropies out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from winnowrl.training.attention import TreeLayout, register_tree_attention
from winnowrl.training.logprobs import token_logprobs

# Layers that carry a state along the row instead of attending: a tree cannot be laid out as one row for them.
_RECURRENT_LAYERS = ("linear_attention", "mamba", "recurrent", "conv")


class Head(nn.Module):
    """The output embedding, applied in chunks. Holds the model's own parameter, so ZeRO-3 gathers it here too."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, logit_scale: float) -> None:
        super().__init__()
        self.weight, self.bias, self.logit_scale = weight, bias, logit_scale

    def forward(
        self, hidden: Tensor, rows: Tensor, targets: Tensor, temperature: float, chunk_rows: int
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(
            hidden,
            self.weight,
            rows,
            targets,
            temperature=temperature,
            bias=self.bias,
            logit_scale=self.logit_scale,
            chunk_rows=chunk_rows,
        )


class Policy(nn.Module):
    """A causal language model over prefix trees.

    Args:
        model: From ``AutoModelForCausalLM``; its attention is replaced by that of the tree.
        temperature: Sampling temperature; divides the logits.

    Raises:
        ValueError: the architecture cannot be run over a tree.
    """

    def __init__(self, model: Any, *, temperature: float, chunk_rows: int) -> None:
        super().__init__()
        refuse_unsupported(model)
        model.config._attn_implementation = register_tree_attention()
        self.model = model
        self.temperature, self.chunk_rows = temperature, chunk_rows
        head = model.get_output_embeddings()
        self.head = Head(head.weight, getattr(head, "bias", None), _logit_scale(model.config))

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        head_positions: Tensor,
        rows: Tensor,
        targets: Tensor,
        tree: TreeLayout,
    ) -> tuple[Tensor, Tensor]:
        """Log p of each trained token [N] and entropy of each head row [R]; the arguments are those of a ``Pack``."""
        out = self.model.get_decoder()(
            input_ids=token_ids[None], position_ids=positions[None], attention_mask=None, use_cache=False, tree=tree
        )
        hidden = out.last_hidden_state[0].index_select(0, head_positions)
        logprobs, entropies = self.head(hidden, rows, targets, self.temperature, self.chunk_rows)
        return logprobs, entropies


def refuse_unsupported(model: Any) -> None:
    """Raise ``ValueError`` for a model whose tokens see more of a row than their own ancestors."""
    config, name = model.config, type(model).__name__
    layer_types = getattr(config, "layer_types", None) or []
    if any(kind in str(layer) for layer in layer_types for kind in _RECURRENT_LAYERS) or "mamba" in name.lower():
        raise ValueError(f"model is a {name}, which has recurrent layers; the learner trains attention-only models")
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"model is a {name}, whose attention cannot be replaced; use one that transformers runs through its attention "
            "interface (Llama, Qwen, Mistral, Gemma, ...)"
        )
    if getattr(config, "final_logit_softcapping", None):
        raise ValueError(f"model is a {name}, which soft-caps its logits; the learner does not implement that")


def _logit_scale(config: Any) -> float:
    """A constant some models multiply (Cohere) or divide (Granite) their logits by."""
    if getattr(config, "logit_scale", None):
        return float(config.logit_scale)
    return 1.0 / float(getattr(config, "logits_scaling", None) or 1.0)
