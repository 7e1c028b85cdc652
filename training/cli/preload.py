"""Start the process with OpenMP's runtime preloaded and an allocator that keeps the blocks it frees."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HEAVY_COMMANDS = ("train", "resume", "eval", "doctor")
MARK = "WINNOWRL_PRELOADED"
TCMALLOC_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
)
# glibc hands every block above 32 MiB back to the kernel and maps it anew, page by page; a chunk of logits is 50 MiB.
GLIBC_KEEPS_BLOCKS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def preload_allocators(arguments: Sequence[str]) -> None:
    """Replace this process by itself with :func:`start_environment`, once, for commands that run a model.

    ``WINNOWRL_PRELOADED=1`` set from outside turns it off.
    """
    if os.name != "posix" or sys.platform != "linux" or MARK in os.environ:
        return
    if len(arguments) < 2 or arguments[1] not in HEAVY_COMMANDS or "--help" in arguments or "--dry-run" in arguments:
        return
    # -P: the present folder must not stand before the installed packages.
    command = [sys.executable, "-P", "-m", "winnowrl.training.cli", *arguments[1:]]
    os.execve(sys.executable, command, start_environment(os.environ))


def start_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` as a process that runs a model starts with; what the user has set stays."""
    preload = [*found_libraries(), *filter(None, [environment.get("LD_PRELOAD", "")])]
    return GLIBC_KEEPS_BLOCKS | dict(environment) | {"LD_PRELOAD": ":".join(preload), MARK: "1"}


def found_libraries() -> list[str]:
    """Paths of the libraries that are installed here."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    found = [openmp] if openmp.exists() else []
    found += [path for path in map(Path, TCMALLOC_PLACES) if path.exists()][:1]
    return [str(path) for path in found]
