"""``winnowrl train --dry-run``: the resolved configuration and what it comes to, without loading a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.configs.load import config_to_yaml
from winnowrl.training.console import RunConsole

if TYPE_CHECKING:
    from winnowrl.configs.schema import RunConfig
    from winnowrl.training.components import Foundations

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB = 2**30
# Measured as the rest of short runs: interpreter and libraries, vLLM's own buffers, blocks the allocator keeps.
BASE_BYTES = int(2.4 * GIB)


def print_dry_run(config: RunConfig, name: str, console: RunConsole | None = None) -> None:
    """Check everything that can be checked and print the configuration with its derived numbers."""
    from winnowrl.training.components import lay_training_foundations

    console = console or RunConsole()
    foundations = lay_training_foundations(config)
    console.say(f"# {name}: the resolved configuration")
    console.say(config_to_yaml(config))
    rows = [[label, value] for label, value in derived_numbers(config, foundations).items()]
    console.table("What it comes to", ["", ""], rows)


def derived_numbers(config: RunConfig, foundations: Foundations) -> dict[str, str]:
    """Counts and sizes that follow from the configuration, with their units."""
    collector, learner = config.collector, config.learner
    rollouts = collector.tasks_per_step * collector.rollouts_per_task
    train, heldout = foundations.tasks.train, foundations.tasks.heldout
    most_tokens = rollouts * config.conversation.rollout_tokens
    optimizer_steps = learner.num_iterations * learner.num_minibatches
    drawn = collector.tasks_per_step * config.run.num_steps
    numbers = {
        "train tasks": f"{len(train):,}",
        "held-out tasks evaluated": f"{min(len(heldout), config.evaluation.num_tasks):,} of {len(heldout):,}",
        "tasks a step": f"{collector.tasks_per_step:,}",
        "rollouts a task": f"{collector.rollouts_per_task:,}" + _spread(config),
        "rollouts a step": f"{rollouts:,}" + _respent(config),
        "rollouts in the run": f"{rollouts * config.run.num_steps:,}",
        "most tokens generated a step": f"{most_tokens:,}",
        "most tokens generated in the run": f"{most_tokens * config.run.num_steps:,}",
        "optimizer steps a step": f"{optimizer_steps:,}",
        "optimizer steps in the run": f"{optimizer_steps * config.run.num_steps:,}",
        "passes over the train tasks": f"{drawn / len(train):.2f}",
    }
    return numbers | _memory(config, foundations.model_path)


def _spread(config: RunConfig) -> str:
    return "" if config.allocator.type == "uniform" else f" on average ({config.allocator.type})"


def _respent(config: RunConfig) -> str:
    return ", at most twice that with gate.respend" if config.gate.type != "none" and config.gate.respend else ""


def _memory(config: RunConfig, model_path: str) -> dict[str, str]:
    """An estimate: weights, gradients and optimizer state, engine weights and cache, activations of one micro-batch."""
    from winnowrl.agents.engines.hardware import choose_dtype

    shape = model_shape(model_path)
    learner_bytes = BYTES[choose_dtype(config.model.dtype)]
    parameters = shape["parameters"]
    # In half precision: masters, and sums of gradients, in float32.
    masters = 8 if learner_bytes < 4 else 0
    trained = parameters if not config.learner.lora.rank else parameters // 50
    weights = parameters * learner_bytes + trained * (learner_bytes + masters + 8)
    engine = parameters * BYTES[choose_dtype(config.engine.dtype)] + _cache_bytes(config, model_path)
    per_token = shape["layers"] * (18 * shape["hidden"] + 4 * shape["intermediate"]) * learner_bytes
    if config.learner.gradient_checkpointing:
        per_token //= max(1, shape["layers"] // 2)
    activations = _packed_tokens(config) * per_token
    activations += 3 * config.learner.head_chunk_rows * shape["vocabulary"] * 4
    total = BASE_BYTES + weights + engine + activations
    return {
        "model parameters": f"{parameters / 1e6:,.0f} million",
        "memory: learner weights and optimizer": f"{weights / GIB:.2f} GiB",
        "memory: engine weights and cache": f"{engine / GIB:.2f} GiB",
        "memory: activations of a micro-batch, about": f"{activations / GIB:.2f} GiB",
        "memory in all, about": f"{total / GIB:.1f} GiB",
    }


def _packed_tokens(config: RunConfig) -> int:
    """Most tokens computed together: several groups up to a target, or one long group up to the maximum."""
    from winnowrl.agents.engines.hardware import choose_dtype

    learner, conversation = config.learner, config.conversation
    prompt = max(0, conversation.context_tokens - conversation.rollout_tokens)
    group = prompt + config.collector.rollouts_per_task * conversation.rollout_tokens
    target = learner.packed_tokens(choose_dtype(config.model.dtype))
    return min(learner.max_tokens_per_microbatch, max(target, group))


def _cache_bytes(config: RunConfig, model_path: str) -> int:
    from winnowrl.agents.engines.hardware import choose_dtype

    engine = config.engine
    if engine.type != "vllm":
        return 0
    if engine.kv_cache_gib:
        return int(engine.kv_cache_gib * GIB)
    from winnowrl.agents.engines.vllm_setup import cpu_cache_bytes

    dtype = choose_dtype(engine.dtype)
    return cpu_cache_bytes(model_path, dtype, config.conversation.context_tokens, engine.max_concurrent_requests)


def model_shape(model_path: str) -> dict[str, int]:
    """Sizes read from the model's config.json; parameters counted for a decoder with a gated feed-forward layer."""
    config: dict[str, Any] = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    intermediate, vocabulary = config.get("intermediate_size", 4 * hidden), config["vocab_size"]
    heads = config.get("num_attention_heads", 1)
    head = config.get("head_dim") or hidden // heads
    key_value = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * heads * head + 2 * hidden * key_value * head
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return {
        "hidden": hidden,
        "layers": layers,
        "intermediate": intermediate,
        "vocabulary": vocabulary,
        "parameters": embeddings + layers * (attention + 3 * hidden * intermediate + 2 * hidden) + hidden,
    }
