"""Which number format this machine multiplies fast."""

from __future__ import annotations


def choose_dtype(dtype: str = "auto") -> str:
    """Resolve ``auto``: bfloat16 where the hardware multiplies it natively, else float32.

    A CPU without AVX-512-BF16 or AMX emulates bfloat16 hundreds of times slower than it computes float32.
    """
    if dtype != "auto":
        return dtype
    import torch

    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if has_fast_cpu_bfloat16() else "float32"


def has_fast_cpu_bfloat16() -> bool:
    """True when the CPU has instructions for bfloat16 dot products."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))


def total_memory_bytes() -> int:
    """Memory of this machine, or of its container where that is less."""
    from pathlib import Path

    import psutil

    total = int(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total
