"""Worker processes for environments that compute, block or crash: each hosts many instances, a hung one is replaced."""

from __future__ import annotations

import asyncio
import importlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import gymnasium

from winnowrl.agents.errors import EnvironmentFailure, RolloutError
from winnowrl.agents.worker_link import EnvWorker

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

MAX_FAILED_STARTS = 3


class ProcessLease:
    """One episode's hold on an environment instance in a worker."""

    is_inline = False

    def __init__(self, pool: WorkerPool, worker: EnvWorker, slot: int, key: object) -> None:
        self._pool, self.worker, self._slot, self.key = pool, worker, slot, key
        self.on_lost: Callable[[RolloutError], None] | None = None

    async def reset(self, seed: int, task: Any) -> Any:
        return await self.worker.request("reset", self._slot, seed, task, deadline_s=self._pool.deadline_s)

    async def step(self, action: str) -> Any:
        return await self.worker.request("step", self._slot, action, deadline_s=self._pool.deadline_s)

    def release(self, *, is_sound: bool) -> None:
        """Give the instance back; one that failed, or whose last request was abandoned, is dropped."""
        worker = self.worker
        if self not in worker.leases:
            return
        worker.leases.discard(self)
        self._pool.forget(self)
        if worker.loss is None:
            if not is_sound:
                worker.request("drop", self._slot, deadline_s=self._pool.deadline_s)
            worker.free_slots.append(self._slot)


@dataclass(slots=True)
class WorkerPool:
    """Up to ``num_workers`` processes, started when they are needed; a lost one is replaced by the next that is needed.

    Attributes:
        env_id: Gymnasium id.
        kwargs: Arguments of the environment, ``max_episode_steps`` included.
        num_workers: Most processes (1 or more).
        deadline_s: Seconds one ``reset`` or ``step`` may take before its worker is killed.
        shares_by_group: Members of one group go to one worker, where an environment may share what they compute.
    """

    env_id: str
    kwargs: Mapping[str, Any]
    num_workers: int
    deadline_s: float
    shares_by_group: bool = False
    _workers: list[EnvWorker] = field(default_factory=list)
    _reapers: set[asyncio.Task[None]] = field(default_factory=set)
    _homes: dict[object, tuple[EnvWorker, int]] = field(default_factory=dict)
    _failed_starts: int = 0
    _start_error: RolloutError | None = None
    _is_closed: bool = False

    async def acquire(self, key: object) -> ProcessLease:
        """A lease for an episode of the group ``key``. Raises EnvironmentFailure when no worker can be started."""
        assert not self._is_closed, "the worker pool is closed"
        if self._failed_starts >= MAX_FAILED_STARTS:
            assert self._start_error is not None
            raise EnvironmentFailure(f"no environment worker could be started: {self._start_error}")
        worker = self._choose(key)
        if worker.free_slots:
            slot = worker.free_slots.pop()
        else:
            slot = worker.num_slots
            worker.num_slots += 1
        lease = ProcessLease(self, worker, slot, key)
        worker.leases.add(lease)
        try:
            await asyncio.shield(worker.ready)
        except RolloutError as error:
            raise EnvironmentFailure(f"an environment worker did not start: {error}") from error
        except BaseException:
            lease.release(is_sound=True)
            raise
        return lease

    def _choose(self, key: object) -> EnvWorker:
        if self.shares_by_group:
            home, count = self._homes.get(key, (None, 0))
            if home is None or home.loss is not None:
                home, count = self._least_loaded(), 0
            self._homes[key] = (home, count + 1)
            return home
        return self._least_loaded()

    def _least_loaded(self) -> EnvWorker:
        idlest = min(self._workers, key=lambda worker: len(worker.leases), default=None)
        if idlest is None or (idlest.leases and len(self._workers) < self.num_workers):
            idlest = EnvWorker(self._setup(), self._on_lost)
            self._workers.append(idlest)
        return idlest

    def _setup(self) -> dict[str, Any]:
        spec = find_spec(self.env_id)
        try:
            pickled = pickle.dumps(spec)
            pickle.dumps(dict(self.kwargs))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EnvironmentFailure(
                f"{self.env_id} cannot be sent to a worker process ({error}); register it under an entry point string "
                "'module:Class' with plain arguments, or set its execution to 'inline' or 'thread'"
            ) from None
        return {"spec": pickled, "kwargs": dict(self.kwargs)}

    def _on_lost(self, worker: EnvWorker, error: RolloutError) -> None:
        self._workers.remove(worker)
        reaper = asyncio.get_running_loop().create_task(worker.close())
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        if worker.ready.exception() is not None:
            self._failed_starts += 1
            self._start_error = cast("RolloutError", worker.ready.exception())
        for lease in list(worker.leases):
            if lease.on_lost is not None:
                lease.on_lost(error)

    def forget(self, lease: ProcessLease) -> None:
        """Called by a lease that ends: the last one of a group frees its home."""
        home, count = self._homes.get(lease.key, (None, 0))
        if home is not lease.worker:
            return
        if count > 1:
            self._homes[lease.key] = (lease.worker, count - 1)
        else:
            del self._homes[lease.key]

    async def close(self) -> None:
        """End all workers; calling it twice is fine."""
        self._is_closed = True
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.close() for worker in workers), *self._reapers)


def find_spec(env_id: str) -> EnvSpec:
    """The registered spec; ``module:Namespace/Name-v0`` imports the module first, as ``gymnasium.make`` does."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)
