"""TRL's GRPOTrainer, one training step for every line on standard input; runs in TRL's own environment."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def reward(completions: list[str], **_: Any) -> list[float]:
    """The same reward as the other side: it differs between the members of a group."""
    return [sum(text.encode()) % 7 / 6 for text in completions]


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(settings["threads"])

    class OnDemand(TrainerCallback):  # type: ignore[misc]
        """Waits for a line before each step and reports the step's seconds after it."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not sys.stdin.readline():
                raise SystemExit(0)
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            report = {"seconds": time.perf_counter() - self.start}
            report["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps(report), flush=True)

    rows = settings["tasks"] * settings["group"]
    config = GRPOConfig(
        output_dir=settings["folder"],
        per_device_train_batch_size=settings["group"],
        gradient_accumulation_steps=settings["tasks"],
        num_generations=settings["group"],
        max_completion_length=settings["new_tokens"],
        temperature=1.0,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        max_steps=settings["steps"],
        bf16=settings["dtype"] == "bfloat16",
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=10_000,
    )
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict(
            {"prompt": settings["prompts"] * (1 + rows * settings["steps"] // len(settings["prompts"]))}
        ),
        processing_class=tokenizer,
        callbacks=[OnDemand()],
    ).train()


if __name__ == "__main__":
    main()
