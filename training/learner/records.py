"""What an update remembers of each sequence, and the accounts it keeps of its work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnowrl.training.batch import SequenceStats, TrainingSequence
from winnowrl.training.learner.flops import ModelShape
from winnowrl.training.packing import Pack, trained_positions

FloatArray = NDArray[np.float32]


@dataclass(slots=True)
class SequenceRecord:
    """Trained tokens only, n of them: log-probs [n] and mean entropy of the first pass, clip fraction of the last."""

    logprobs: FloatArray
    entropy: float
    clip_fraction: float = 0.0

    def stats(self, sequence: TrainingSequence) -> SequenceStats:
        """As reported: log-probs spread over all T tokens."""
        logprobs = np.zeros(len(sequence.token_ids), dtype=np.float32)
        logprobs[trained_positions(sequence)] = self.logprobs
        return SequenceStats(logprobs.tolist(), self.entropy, self.clip_fraction)


def record_pack(pack: Pack, logprobs: Tensor, entropies: Tensor) -> dict[int, SequenceRecord]:
    """One record a member; ``logprobs`` [N] and ``entropies`` [R] are those of the pack's forward pass."""
    flat = logprobs.detach().float().cpu().numpy()
    entropy = entropies.detach().float().cpu().numpy()[pack.rows.cpu().numpy()]
    return {
        index: SequenceRecord(flat[span].copy(), float(entropy[span].mean()) if span.stop > span.start else 0.0)
        for index, span in zip(pack.members, member_spans(pack), strict=True)
    }


def note_clipping(records: dict[int, SequenceRecord], pack: Pack, is_clipped: Tensor) -> None:
    """Write the share of clipped tokens into the records of the pack's members."""
    flat = is_clipped.float().cpu().numpy()
    for index, span in zip(pack.members, member_spans(pack), strict=True):
        if span.stop > span.start:
            records[index].clip_fraction = float(flat[span].mean())


def member_spans(pack: Pack) -> list[slice]:
    """Where each member's tokens lie in the flat order."""
    counts = torch.bincount(pack.sequence_ids.cpu(), minlength=len(pack.members)).tolist()
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


def joined(values: Sequence[FloatArray]) -> Tensor:
    """[N] float32 from one array a member, in the order of a pack."""
    return torch.from_numpy(np.concatenate(values) if values else np.zeros(0, dtype=np.float32))


@dataclass(slots=True)
class Accounts:
    """Tokens, FLOPs and seconds of one update, of this rank."""

    shape: ModelShape
    is_cuda: bool = False
    tokens: int = 0
    unshared_tokens: int = 0
    padded_tokens: int = 0
    trained_tokens: int = 0
    packs: int = 0
    flops: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, pack: Pack, *, has_backward: bool) -> None:
        """Count one pass over ``pack``."""
        work = {"tokens": pack.num_tokens, "head_rows": len(pack.head_positions), "pairs": pack.num_attention_pairs}
        self.flops += self.shape.update(**work) if has_backward else self.shape.forward(**work)
        if has_backward:
            self.tokens += pack.num_tokens
            self.unshared_tokens += pack.num_unshared_tokens
            self.padded_tokens += pack.longest * len(pack.members)
            self.trained_tokens += len(pack.targets)
            self.packs += 1

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to ``name``."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def sums(self) -> dict[str, float]:
        """Metrics that add up over ranks."""
        return {
            "learner/tokens_distinct": float(self.tokens),
            "learner/tokens_unshared": float(self.unshared_tokens),
            "learner/tokens_padded": float(self.padded_tokens),
            "learner/tokens_trained": float(self.trained_tokens),
            "learner/microbatches": float(self.packs),
            "learner/flops": self.flops,
        }

    def times(self) -> dict[str, float]:
        """Seconds by phase, of this rank."""
        return {f"time/learner_{name}_s": seconds for name, seconds in self.seconds.items()}

    def _now(self) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
