"""TRL's update on given rollouts, for benchmarks/learner.py; runs in TRL's own environment.

Reads a file of rollouts, makes a real ``GRPOTrainer``, and does one optimizer step for every line on standard input:
its ``_compute_loss`` on micro-batches of rows, backward, clip, its own optimizer.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def build(model_path: str, rows: int, steps: int, learning_rate: float) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir="/tmp/winnowrl_trl_peer",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=steps,
        num_generations=rows,
        learning_rate=learning_rate,
        loss_type="grpo",
        beta=0.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 64}),
        processing_class=AutoTokenizer.from_pretrained(model_path),
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = steps
    trainer.model.train()
    return trainer


def update(trainer: Any, data: dict[str, Any], rows: int, *, is_mixed: bool) -> float:
    """One optimizer step; returns the gradient norm. ``is_mixed``: under autocast, as ``GRPOConfig(bf16=True)`` runs it."""
    import torch

    for start in range(0, len(data["advantages"]), rows):
        part = {name: torch.tensor(values[start : start + rows]) for name, values in data.items()}
        part["num_items_in_batch"] = torch.tensor(1)
        # As its training loop does: the loss is divided by the number of micro-batches inside.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
            loss = trainer._compute_loss(trainer.model, part)
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return float(norm)


def main() -> None:
    data_path, model_path, rows, dtype = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    data = json.loads(data_path.read_text(encoding="utf-8"))
    trainer = build(model_path, rows, len(data["advantages"]) // rows, 1e-6)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        norm = update(trainer, data, rows, is_mixed=dtype == "bfloat16")
        report = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "grad_norm": norm}
        report["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
