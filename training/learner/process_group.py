"""The process group DeepSpeed works in: joined if there is one, else made; without MPI, launcher or compiler."""

from __future__ import annotations

import io
import logging
import os
import warnings
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator


def ensure_process_group(*, timeout_s: float) -> None:
    """Make sure torch.distributed runs: the group another part of the process made, that of the launcher, or one of one.

    The launcher's environment is ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``; without it the group has
    this process alone and lives in memory, so two runs on one machine cannot meet on a port.
    """
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group(backend, timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)


def import_deepspeed() -> Any:
    """DeepSpeed, quiet, and set up so that it never compiles an extension.

    Raises:
        ImportError: it is not installed; one sentence says how to mend it.
    """
    # Read when DeepSpeed is imported. Without it, it looks for accelerators and warns that there are none.
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # DeepSpeed reads the launcher's variables even where the group exists already.
    os.environ.setdefault("LOCAL_RANK", os.environ.get("RANK", "0"))
    try:
        import deepspeed
    except ImportError as error:
        raise ImportError(f"the learner needs DeepSpeed ({error}); run `pip install 'winnowrl[learner]'`") from None
    # DeepSpeed calls collectives by names that newer torch renames; the user can do nothing about it.
    warnings.filterwarnings("ignore", message=".*torch.distributed.*is deprecated", category=FutureWarning)
    # Its shared-memory collectives would be built with a C++ compiler at start; gloo serves as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextmanager
def quiet_deepspeed() -> Iterator[None]:
    """Drop what DeepSpeed tells while it starts, below errors; its bfloat16 optimizer prints."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(max(level, logging.WARNING))
