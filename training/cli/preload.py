"""Start the process with OpenMP's runtime and tcmalloc preloaded, where they are installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

HEAVY_COMMANDS = ("train", "resume", "eval", "doctor")
MARK = "WINNOWRL_PRELOADED"
TCMALLOC_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib64/libtcmalloc_minimal.so.4",
)


def preload_allocators(arguments: Sequence[str]) -> None:
    """Replace this process by itself with ``LD_PRELOAD`` set, once, for commands that run a model.

    ``WINNOWRL_PRELOADED=1`` set from outside turns it off.
    """
    if os.name != "posix" or sys.platform != "linux" or MARK in os.environ:
        return
    if len(arguments) < 2 or arguments[1] not in HEAVY_COMMANDS or "--help" in arguments or "--dry-run" in arguments:
        return
    libraries = found_libraries()
    if not libraries:
        return
    already = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = ":".join([*libraries, *filter(None, [already])])
    os.environ[MARK] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "winnowrl.training.cli", *arguments[1:]])


def found_libraries() -> list[str]:
    """Paths of the libraries that are installed here."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    found = [openmp] if openmp.exists() else []
    found += [path for path in map(Path, TCMALLOC_PLACES) if path.exists()][:1]
    return [str(path) for path in found]
