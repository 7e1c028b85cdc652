"""Starts vLLM inside this process and keeps its side effects on the process small."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winnowrl.agents.engines.hardware import choose_dtype, total_memory_bytes

GIB = 1 << 30
CPU_BLOCK_TOKENS = 32
# Most tokens computed in one engine step on a CPU; more where a whole prompt beside all running requests needs it.
STEP_TOKENS = 2048
# Read by vLLM when it is imported or while it runs. One process, no thread pinning: the learner needs the same cores.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    # Heard only when torch is not imported yet.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def import_vllm() -> Any:
    """Import vLLM with the process settings it needs.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    # When the engine stops it prints every request it held, tens of thousands of characters; our error names the cause.
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import vllm
    except ImportError as error:
        raise ImportError(
            f"the vllm engine needs vLLM ({error}); run `make setup`, or pip install 'winnowrl[gpu]' on a GPU machine, "
            "or set engine.type=transformers"
        ) from error
    return vllm


def start_vllm(
    model_path: str | Path,
    *,
    max_context_tokens: int,
    dtype: str = "auto",
    max_concurrent_requests: int = 256,
    kv_cache_gib: float = 0.0,
    block_tokens: int = 0,
    gpu_memory_fraction: float = 0.45,
    is_prefix_cached: bool = True,
    is_eager: bool = True,
) -> Any:
    """Load the model and return vLLM's synchronous engine. Arguments as in :class:`EngineConfig`."""
    import_vllm()
    with contained_side_effects(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        dtype = choose_dtype(dtype)
        model_tokens = max_context_tokens + has_room_for_a_score(model_path, max_context_tokens, dtype)
        options: dict[str, Any] = {}
        if current_platform.is_cpu():
            if block_tokens % CPU_BLOCK_TOKENS:
                raise ValueError(
                    f"engine.block_tokens is {block_tokens}; allowed on a CPU: 0 (takes {CPU_BLOCK_TOKENS}) and multiples of "
                    f"{CPU_BLOCK_TOKENS}"
                )
            size = int(kv_cache_gib * GIB) or cpu_cache_bytes(model_path, dtype, model_tokens, max_concurrent_requests)
            options = {"kv_cache_memory_bytes": size, "block_size": block_tokens or CPU_BLOCK_TOKENS}
            # A prompt cut in chunks is sampled after each of them and the generator set back, which a CPU's cannot be.
            options["enable_chunked_prefill"] = False
            options["max_num_batched_tokens"] = max(STEP_TOKENS, model_tokens + max_concurrent_requests)
        else:
            options = {"gpu_memory_utilization": gpu_memory_fraction}
            if block_tokens:
                options["block_size"] = block_tokens
        arguments = EngineArgs(
            model=str(model_path),
            dtype=dtype,
            max_model_len=model_tokens,
            max_num_seqs=max_concurrent_requests,
            enable_prefix_caching=is_prefix_cached,
            enforce_eager=is_eager,
            # Log-probabilities after temperature, i.e. of the distribution the token was drawn from.
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            seed=0,
            **options,
        )
        skip_ranks()
        return LLMEngine.from_engine_args(arguments)


def has_room_for_a_score(model_path: str | Path, context_tokens: int, dtype: str) -> bool:
    """The model takes one token beyond the context: vLLM writes one behind a sequence whose log-probs it is asked for."""
    from transformers import AutoConfig
    from vllm.engine.arg_utils import EngineArgs

    from winnowrl.agents.engines.build import short_context_tokens

    # One position too many and vLLM would turn all of them by other factors.
    if short_context_tokens(AutoConfig.from_pretrained(str(model_path)).get_text_config()) == context_tokens:
        return False
    try:
        EngineArgs(model=str(model_path), dtype=dtype, max_model_len=context_tokens + 1).create_model_config()
    except ValueError:
        # The model's own limit, or a fault of which the engine's start will speak.
        return False
    return True


def skip_ranks() -> None:
    """Spare vLLM the pass over the vocabulary that ranks each sampled token; nothing here reads a rank."""
    from vllm.v1.sample import sampler

    if hasattr(sampler, "batched_count_greater_than"):
        sampler.batched_count_greater_than = lambda logprobs, values: values.new_zeros(len(values), dtype=int)


def cpu_cache_bytes(model_path: str | Path, dtype: str, context_tokens: int, concurrent: int) -> int:
    """Key-value cache for the concurrent requests at full context, at most 1/24 of the memory, at least four contexts."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(model_path)).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * head_size * DTYPE_BYTES[dtype]
    context_bytes = token_bytes * (context_tokens + CPU_BLOCK_TOKENS)
    wanted = context_bytes * concurrent
    return int(max(4 * context_bytes, min(wanted, total_memory_bytes() // 24)))


@contextmanager
def contained_side_effects() -> Iterator[None]:
    """Undo what loading vLLM does to the process: variables that children would inherit, generators, thread control.

    It sets ``LD_PRELOAD`` and ``LOCAL_WORLD_SIZE`` for workers we do not have, reseeds the global generators, and
    replaces ``torch.set_num_threads`` by a warning.
    """
    import torch

    variables, set_num_threads, threads = dict(os.environ), torch.set_num_threads, torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        for name in set(os.environ) - set(variables):
            if not name.startswith("VLLM_"):
                del os.environ[name]
        for name, value in variables.items():
            os.environ[name] = value


def stop_vllm(engine: Any) -> None:
    """Free the engine's memory. torch's process group stays: the learner may be using it."""
    import gc

    engine.engine_core.shutdown()
    parallel = sys.modules.get("vllm.distributed.parallel_state")
    if parallel is not None:
        parallel.destroy_model_parallel()
    gc.collect()
