"""The format in which half-precision values are added up."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """Float32 for the formats below it, else ``dtype`` itself."""
    return torch.float32 if dtype.itemsize < 4 else dtype
