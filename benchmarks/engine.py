"""The asynchronous engine against vLLM's own ``LLM.generate`` on the same requests, alternated in one process.

    python benchmarks/engine.py [MODEL] [--requests 64] [--tokens 32] [--rounds 5]

Both sides use one and the same loaded engine, so weights, cache and threads are equal. Prints tokens a second of each
and their ratio, load time, first-reply time, weight-swap time and peak memory, and writes
``benchmarks/results/engine.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from winnowrl.agents.engines.base import Sampling
from winnowrl.agents.engines.vllm import VllmEngine, sampling_params
from winnowrl.training.model_loading import resolve_model_path

EXAMPLES = [(3, 4), (1, 7), (9, 9), (5, 2), (6, 8), (2, 2), (8, 1), (4, 9), (7, 7), (3, 6)]
QUESTIONS = [(1, 2), (3, 5), (7, 8), (9, 4), (5, 5), (6, 1), (2, 8), (4, 4)]
RESULTS = Path(__file__).parent / "results"


def make_prompts(tokenizer: Any, count: int) -> list[list[int]]:
    """Groups of eight that share a prompt of ten worked sums."""
    shots = "\n".join(f"{a}+{b}={a + b}" for a, b in EXAMPLES)
    texts = [f"{shots}\n{a}+{b}=" for a, b in QUESTIONS]
    return [tokenizer.encode(texts[number // 8 % len(texts)]) for number in range(count)]


def through_engine(engine: VllmEngine, runner: asyncio.Runner, prompts: list[list[int]], sampling: Sampling) -> float:
    """Tokens a second with every request awaited by a task of its own."""

    async def together() -> int:
        replies = await asyncio.gather(*[engine.generate(ids, sampling, seed) for seed, ids in enumerate(prompts)])
        return sum(len(reply.token_ids) for reply in replies)

    begin = time.perf_counter()
    return runner.run(together()) / (time.perf_counter() - begin)


def through_vllm(llm: Any, prompts: list[list[int]], sampling: Sampling) -> float:
    """Tokens a second of ``LLM.generate`` over the whole list, called in the engine's thread like ours."""
    parameters = [sampling_params(sampling, seed) for seed in range(len(prompts))]
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    begin = time.perf_counter()
    outputs = llm.generate(inputs, parameters, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - begin)


def as_llm(engine: VllmEngine) -> Any:
    """vLLM's offline interface over our loaded engine."""
    import vllm

    llm = object.__new__(vllm.LLM)
    inner = engine._stepper._engine  # type: ignore[attr-defined]
    llm.__dict__.update(
        llm_engine=inner,
        renderer=inner.renderer,
        input_processor=inner.input_processor,
        model_config=inner.model_config,
        engine_class=type(inner),
        request_counter=vllm.utils.counter.Counter(),
        default_sampling_params=None,
    )
    return llm


def swap_seconds(engine: VllmEngine, runner: asyncio.Runner, model_path: str) -> float:
    from safetensors.torch import load_file

    weights = {}
    for file in sorted(Path(model_path).glob("*.safetensors")):
        weights |= load_file(file)
    seconds = []
    for version in range(1, 6):
        begin = time.perf_counter()
        runner.run(engine.load_weights(weights.items(), version))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure(model_path: str, num_requests: int, num_tokens: int, rounds: int) -> dict[str, Any]:
    from transformers import AutoTokenizer

    begin = time.perf_counter()
    engine = VllmEngine(model_path, max_context_tokens=512, max_concurrent_requests=max(64, num_requests))
    load_s = time.perf_counter() - begin
    prompts = make_prompts(AutoTokenizer.from_pretrained(model_path), num_requests)
    sampling = Sampling(num_tokens)
    with asyncio.Runner() as runner:
        begin = time.perf_counter()
        runner.run(engine.generate(prompts[0], Sampling(1), 0))
        first_reply_s = time.perf_counter() - begin
        llm = as_llm(engine)
        ours, raw = [], []
        for number in range(rounds + 1):
            pair = [
                lambda: ours.append(through_engine(engine, runner, prompts, sampling)),
                lambda: raw.append(engine._thread.submit(through_vllm, llm, prompts, sampling).result()),
            ]
            for side in pair if number % 2 else pair[::-1]:
                side()
                engine._thread.submit(engine._stepper._engine.reset_prefix_cache).result()  # type: ignore[attr-defined]
            print(f"round {number}: ours {ours[-1]:.1f}, vllm {raw[-1]:.1f} tokens/s", flush=True)
        # The first round warms both up.
        ours, raw = ours[1:], raw[1:]
        swap_s = swap_seconds(engine, runner, model_path)
        runner.run(engine.close())
    return {
        "requests": num_requests,
        "tokens_each": num_tokens,
        "ours_tokens_per_s": statistics.median(ours),
        "vllm_tokens_per_s": statistics.median(raw),
        "ratio": statistics.median(a / b for a, b in zip(ours, raw, strict=True)),
        "load_s": load_s,
        "first_reply_s": first_reply_s,
        "swap_s": swap_s,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        "load_average": os.getloadavg()[0],
        "rounds": {"ours": ours, "vllm": raw},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="Hugging Face folder, or a name that ships")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    result = measure(resolve_model_path(arguments.model), arguments.requests, arguments.tokens, arguments.rounds)
    for name, value in result.items():
        if not isinstance(value, dict):
            print(f"{name:20} {value:.3g}" if isinstance(value, float) else f"{name:20} {value}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engine.json").write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
