"""Engine, sampling and conversation sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

ENGINE_TYPES = ("auto", "vllm", "transformers", "scripted", "openai")
DTYPES = ("auto", "float32", "bfloat16", "float16")
_VLLM = ("kv_cache_gib", "block_tokens", "gpu_memory_fraction", "is_prefix_cached", "is_eager")
TEMPLATES = ("plain", "chatml", "tokenizer")


def _require(ok: bool, name: str, value: object, allowed: str, mend: str = "") -> None:
    if not ok:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}" + (f"; {mend}" if mend else ""))


@dataclass(frozen=True)
class EngineConfig:
    """Writes the tokens of every reply."""

    type: str = "auto"
    """auto (vllm where it is installed, else transformers) | vllm | transformers (exact) | scripted | openai (evaluation)"""
    dtype: str = "auto"
    """auto | float32 | bfloat16 | float16. auto: bfloat16 where the hardware multiplies it natively, else float32."""
    max_concurrent_requests: int = 256
    """Requests decoded together; more wait in the engine's queue."""
    kv_cache_gib: float = 0.0
    """Memory for the key-value cache on CPU, GiB. 0: what the concurrent requests need, at most 1/24 of the memory."""
    block_tokens: int = 0
    """Tokens per cache block; a prompt is shared in whole blocks. 0: 32 on CPU, vLLM's own choice on GPU."""
    gpu_memory_fraction: float = 0.45
    """Share of GPU memory the engine takes; the learner needs the rest."""
    is_prefix_cached: bool = True
    """Compute a shared prompt once."""
    is_eager: bool = True
    """Run without compiling the model (compiling takes minutes and a C++ compiler)."""
    timeout_s: float = 600.0
    """Longest wait for one engine step, weight load or server reply, seconds; waiting in the queue does not count."""
    is_deterministic: bool = False
    """Bit-exact: a request's result depends on nothing but itself, its seed and the weights. One at a time, so slow."""
    script: str = ""
    """``module:function`` called with (prompt_ids, seed), returning text or ids."""
    latency_s: float = 0.0
    """Seconds each scripted reply takes."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address of the OpenAI-compatible server."""
    model: str = ""
    """Model name on that server; empty: the first it lists."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the server's key."""

    TYPES: ClassVar[dict[str, tuple[str, ...]]] = {
        "auto": ("dtype", "max_concurrent_requests", *_VLLM, "timeout_s"),
        "vllm": ("dtype", "max_concurrent_requests", *_VLLM, "timeout_s"),
        "transformers": ("dtype", "max_concurrent_requests", "timeout_s", "is_deterministic"),
        "scripted": ("script", "latency_s"),
        "openai": ("base_url", "model", "api_key_env", "max_concurrent_requests", "timeout_s"),
    }

    def __post_init__(self) -> None:
        _require(self.type in ENGINE_TYPES, "engine.type", self.type, ", ".join(ENGINE_TYPES))
        _require(self.dtype in DTYPES, "engine.dtype", self.dtype, ", ".join(DTYPES))
        _require(
            self.max_concurrent_requests >= 1, "engine.max_concurrent_requests", self.max_concurrent_requests, ">= 1"
        )
        _require(self.kv_cache_gib >= 0, "engine.kv_cache_gib", self.kv_cache_gib, ">= 0", "0 sizes it for you")
        _require(
            self.block_tokens >= 0 and self.block_tokens % 16 == 0,
            "engine.block_tokens",
            self.block_tokens,
            "0 or a multiple of 16",
        )
        _require(0 < self.gpu_memory_fraction <= 1, "engine.gpu_memory_fraction", self.gpu_memory_fraction, "(0, 1]")
        _require(self.timeout_s > 0, "engine.timeout_s", self.timeout_s, "> 0 seconds")
        _require(self.latency_s >= 0, "engine.latency_s", self.latency_s, ">= 0 seconds")
        _require(
            self.type != "scripted" or ":" in self.script,
            "engine.script",
            self.script,
            "module:function",
            "name the function that writes the replies",
        )


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy (evaluation). Log-probabilities are those at this temperature."""
    top_p: float = 1.0
    """Nucleus. Below 1 only in evaluation: the learner cannot reproduce a cut distribution."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all. Above 0 only in evaluation."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a reply, besides those of the environment."""

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "sampling.temperature", self.temperature, ">= 0")
        _require(0 < self.top_p <= 1, "sampling.top_p", self.top_p, "(0, 1]")
        _require(self.top_k >= 0, "sampling.top_k", self.top_k, ">= 0", "0 keeps all tokens")
        _require(all(self.stop), "sampling.stop", list(self.stop), "non-empty strings")

    def require_trainable(self) -> None:
        """Raise ``ValueError`` unless the learner can recompute the distribution these settings sample from."""
        _require(
            self.temperature > 0, "sampling.temperature", self.temperature, "> 0 in training", "greedy never explores"
        )
        _require(
            self.top_p == 1, "sampling.top_p", self.top_p, "1 in training", "the learner sees the whole vocabulary"
        )
        _require(
            self.top_k == 0, "sampling.top_k", self.top_k, "0 in training", "the learner sees the whole vocabulary"
        )


@dataclass(frozen=True)
class ConversationConfig:
    """How text becomes tokens, and how many of them an episode may use."""

    template: str = "tokenizer"
    """plain (text as it is; for base models) | chatml | tokenizer (the chat template the tokenizer carries)"""
    system_prompt: str | None = None
    """System message; null takes the environment's, an empty string sends none."""
    turn_tokens: int = 256
    """Most tokens sampled in one reply."""
    rollout_tokens: int = 4096
    """Most tokens sampled in one episode, over all its replies; observations do not count."""
    context_tokens: int = 4096
    """Most tokens of one sequence, prompt and observations included: what the model sees at once."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Extra variables for the tokenizer's chat template, e.g. ``{enable_thinking: false}``."""

    def __post_init__(self) -> None:
        _require(self.template in TEMPLATES, "conversation.template", self.template, ", ".join(TEMPLATES))
        for name in ("turn_tokens", "rollout_tokens", "context_tokens"):
            _require(getattr(self, name) >= 1, f"conversation.{name}", getattr(self, name), ">= 1 token")
        _require(
            self.turn_tokens < self.context_tokens,
            "conversation.turn_tokens",
            self.turn_tokens,
            f"below conversation.context_tokens ({self.context_tokens})",
            "the prompt needs room too",
        )
        _require(
            not self.template_arguments or self.template == "tokenizer",
            "conversation.template_arguments",
            dict(self.template_arguments),
            "empty unless conversation.template is tokenizer",
        )
