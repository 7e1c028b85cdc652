"""One pool of a service for the whole process: started on first use, not shared with a fork, closed at exit."""

from __future__ import annotations

import atexit
import os
import threading

from winnowrl.envs.isolation.pool import DEFAULT_MEMORY_LIMIT_MB, WorkerPool

MAX_DEFAULT_WORKERS = 8


class SharedPool:
    """Holds the pool of ``service`` for this process.

    Args:
        service: A module with ``prepare() -> Service`` (:mod:`winnowrl.envs.isolation.server`).
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def get(self) -> WorkerPool:
        """The pool, made on first use: a worker for each core, two at least and eight at most."""
        with self._lock:
            if self._pool is None:
                self._pool = WorkerPool(self._service, min(MAX_DEFAULT_WORKERS, max(2, os.cpu_count() or 2)))
            return self._pool

    def configure(self, num_workers: int, memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB) -> None:
        """Replace the pool; the workers of the old one end as they become idle."""
        self._replace(WorkerPool(self._service, num_workers, memory_limit_mb))

    def close(self) -> None:
        """End the workers; the next job starts new ones. Calling it twice is fine."""
        self._replace(None)

    def _replace(self, new: WorkerPool | None) -> None:
        with self._lock:
            old, self._pool = self._pool, new
        if old is not None:
            old.close()

    def _forget(self) -> None:
        self._pool, self._lock = None, threading.Lock()
