"""The verifier's worker processes, shared by all threads of this process."""

from __future__ import annotations

from winnowrl.envs.isolation.pool import DEFAULT_MEMORY_LIMIT_MB, WorkerPool
from winnowrl.envs.isolation.shared import SharedPool

SERVICE = "winnowrl.envs.math.worker"

_shared = SharedPool(SERVICE)


def get_pool() -> WorkerPool:
    """The pool of this process, made on first use: a worker for each core, two at least and eight at most."""
    return _shared.get()


def configure_pool(num_workers: int, memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB) -> None:
    """Have ``num_workers`` workers whose jobs may take ``memory_limit_mb`` MiB each on top of a fresh worker."""
    _shared.configure(num_workers, memory_limit_mb)


def close_pool() -> None:
    """End the workers of this process; the next verdict that needs algebra starts new ones."""
    _shared.close()
