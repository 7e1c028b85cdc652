"""The learner: trainable weights, their optimizer, and everything that must survive a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from winnowrl.training.batch import SequenceStats, TrainingSequence, UpdateResult
from winnowrl.training.learner.engine import TrainingEngine
from winnowrl.training.learner.lora import lora_layers, merged_weights
from winnowrl.training.learner.policy import Policy
from winnowrl.training.learner.state import export_model, read_state, write_state
from winnowrl.training.learner.update import Updater


class DeepSpeedLearner:
    """Implements the ``Learner`` contract on a DeepSpeed engine; one object per rank.

    Every method must be called by all ranks, with the same arguments; each returns the same on all of them.

    Args:
        model_folder: Where the tokenizer that ``export`` copies lies; None exports none.
    """

    def __init__(
        self, policy: Policy, engine: TrainingEngine, updater: Updater, *, model_folder: Path | None = None
    ) -> None:
        self.policy, self.engine, self.updater, self.model_folder = policy, engine, updater, model_folder
        self._is_closed = False

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.policy.model

    def update(self, batch: Sequence[TrainingSequence]) -> UpdateResult:
        """One training step on ``batch``; the result does not depend on how it is split."""
        return self.updater.update(batch)

    def score(self, sequences: Sequence[TrainingSequence]) -> dict[int, SequenceStats]:
        """Forward only: the statistics of each sequence under the present weights."""
        return self.updater.score(sequences)

    def named_weights(self) -> Sequence[tuple[str, Tensor]]:
        """Weights under their Hugging Face names, adapters merged.

        They are views of the trained weights where those are whole and plain; a later update changes them. A head tied to
        the embedding is not repeated.
        """
        parameters = list(self.model.parameters())
        with self.engine.gathered(parameters):
            weights = merged_weights(self.model)
            # What ZeRO-3 gathers is gone again outside.
            return [(name, tensor.clone()) for name, tensor in weights] if self.engine.zero_stage == 3 else weights

    def save(self, folder: str | Path) -> None:
        """Weights, optimizer, schedule and counters; loading them continues bit for bit in float32 on CPU."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.engine.save(str(path))
        if self.engine.rank == 0:
            counters = {
                "num_updates": self.updater.num_updates,
                "num_optimizer_steps": self.updater.num_optimizer_steps,
            }
            write_state(
                path, counters, self.model, world_size=self.engine.world_size, zero_stage=self.engine.zero_stage
            )
        torch.distributed.barrier()

    def load(self, folder: str | Path) -> None:
        """Continue from what ``save`` wrote.

        Raises:
            ValueError: it does not fit this model or this number of ranks.
        """
        path = Path(folder)
        counters = read_state(path, self.model, world_size=self.engine.world_size, zero_stage=self.engine.zero_stage)
        self.engine.load(str(path))
        self.updater.num_updates = counters["num_updates"]
        self.updater.num_optimizer_steps = counters["num_optimizer_steps"]

    def export(self, folder: str | Path) -> None:
        """Write a plain Hugging Face folder, adapters merged, that transformers and vLLM load."""
        weights = self.named_weights()
        if self.engine.rank == 0:
            export_model(self.model, weights, Path(folder), source=self.model_folder)
        torch.distributed.barrier()

    @property
    def has_adapters(self) -> bool:
        return bool(lora_layers(self.model))

    def close(self) -> None:
        """Let go of the engine; calling it twice is fine. The process group stays: others may use it."""
        if not self._is_closed:
            self._is_closed = True
            self.engine.close()
