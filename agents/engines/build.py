"""From the engine and sampling sections to objects."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.base import Engine, Sampling

if TYPE_CHECKING:
    from winnowrl.agents.conversation import ConversationFactory
    from winnowrl.configs.sections.engine import EngineConfig, SamplingConfig


def build_engine(
    config: EngineConfig, model_path: str | Path, conversations: ConversationFactory, *, for_training: bool = True
) -> Engine:
    """Load the engine ``config.type`` names.

    Args:
        config: The engine section.
        model_path: Hugging Face folder or name.
        conversations: Whose context length and end tokens the engine serves.
        for_training: Refuse an engine that gives no token ids.

    Raises:
        ValueError: the engine cannot train, or the model is missing or too short for the context.
        ImportError: a package is missing; the message names the extra to install.
    """
    if for_training and config.type == "openai":
        from winnowrl.agents.engines.openai import EVALUATION_ONLY

        raise ValueError(EVALUATION_ONLY)
    kind = resolve_engine_type(config.type)
    if kind in ("vllm", "transformers"):
        require_context_fits(model_path, conversations.budgets.context)
    return ENGINES[kind](config, model_path, conversations)


def resolve_engine_type(kind: str) -> str:
    """What ``auto`` means here: vllm where it is installed, else transformers."""
    if kind != "auto":
        return kind
    return "vllm" if importlib.util.find_spec("vllm") is not None else "transformers"


def require_context_fits(model_path: str | Path, context_tokens: int) -> None:
    """Raise ``ValueError`` unless the model exists and was made for sequences of ``context_tokens``."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(model_path)).get_text_config()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"no model at {str(model_path)!r}: {reason}; give a Hugging Face folder or a hub name"
        ) from error
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and context_tokens > longest:
        raise ValueError(
            f"conversation.context_tokens is {context_tokens}; this model was made for at most {longest} tokens: lower it"
        )
    short = short_context_tokens(config)
    if short is not None and context_tokens > short:
        raise ValueError(
            f"conversation.context_tokens is {context_tokens}; beyond {short} tokens this model turns all its positions "
            "by other factors (rope type longrope), chosen by the longest sequence of a batch, so a token's log-prob would "
            f"depend on its company: lower it to {short}"
        )


def short_context_tokens(config: Any) -> int | None:
    """Longest sequence that a text model with two sets of rotary factors reads by the first; None without such sets."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        if rope.get("rope_type") == "longrope":
            own = getattr(config, "original_max_position_embeddings", None)
            limit = rope.get("original_max_position_embeddings") or own or config.max_position_embeddings
            return int(limit)
    return None


def base_sampling(config: SamplingConfig, conversations: ConversationFactory) -> Sampling:
    """The sampling of every reply before its budgets: all end tokens stop it."""
    return Sampling(
        max_tokens=conversations.budgets.turn,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        stop=tuple(config.stop),
        stop_token_ids=conversations.end_token_ids,
    )


def _vllm(config: EngineConfig, model_path: str | Path, conversations: ConversationFactory) -> Engine:
    from winnowrl.agents.engines.vllm import VllmEngine

    return VllmEngine(
        model_path,
        max_context_tokens=conversations.budgets.context,
        timeout_s=config.timeout_s,
        dtype=config.dtype,
        max_concurrent_requests=config.max_concurrent_requests,
        kv_cache_gib=config.kv_cache_gib,
        block_tokens=config.block_tokens,
        gpu_memory_fraction=config.gpu_memory_fraction,
        is_prefix_cached=config.is_prefix_cached,
        is_eager=config.is_eager,
    )


def _transformers(config: EngineConfig, model_path: str | Path, conversations: ConversationFactory) -> Engine:
    from winnowrl.agents.engines.transformers import TransformersEngine

    return TransformersEngine(
        model_path,
        max_context_tokens=conversations.budgets.context,
        timeout_s=config.timeout_s,
        dtype=config.dtype,
        max_concurrent_requests=config.max_concurrent_requests,
        is_deterministic=config.is_deterministic,
    )


def _scripted(config: EngineConfig, model_path: str | Path, conversations: ConversationFactory) -> Engine:
    from winnowrl.agents.engines.scripted import ScriptedEngine

    module, _, function = config.script.partition(":")
    try:
        script = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"engine.script is {config.script!r}, which cannot be imported: {error}") from error
    ends = conversations.end_token_ids
    return ScriptedEngine(
        script,
        conversations.template.codec,
        end_token_id=ends[-1] if ends else None,
        latency_s=config.latency_s,
    )


def _openai(config: EngineConfig, model_path: str | Path, conversations: ConversationFactory) -> Engine:
    from winnowrl.agents.engines.openai import OpenAIEngine

    ends = conversations.end_token_ids
    return OpenAIEngine(
        config.base_url,
        conversations.template.codec,
        model=config.model,
        api_key_env=config.api_key_env,
        end_token_id=ends[-1] if ends else None,
        max_concurrent_requests=config.max_concurrent_requests,
        timeout_s=config.timeout_s,
    )


Builder = Callable[["EngineConfig", "str | Path", "ConversationFactory"], Engine]
ENGINES: dict[str, Builder] = {
    "vllm": _vllm,
    "transformers": _transformers,
    "scripted": _scripted,
    "openai": _openai,
}
