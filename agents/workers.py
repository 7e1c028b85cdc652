"""Worker processes for environments that compute, block or crash: each hosts many instances, a hung one is replaced."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from winnowrl.agents.errors import EnvironmentFailure, RolloutError
from winnowrl.agents.worker_link import EnvWorker, WorkerLost
from winnowrl.envs.registry import find_spec

MAX_FAILED_STARTS = 3
# Times an episode may lose its worker to others before it is given up.
MAX_LOSSES = 32


class ProcessLease:
    """One episode's hold on an environment instance in a worker.

    When the worker is lost through no fault of this instance (another's step hung or crashed it), the instance is built
    again in another worker: reset with the same task and seed, then its actions once more. What it answers is compared
    with what it had answered; an environment that answers differently cannot be restored, and the episode has failed.
    """

    is_inline = False

    def __init__(self, pool: WorkerPool, key: object) -> None:
        self._pool, self.key = pool, key
        self.worker: EnvWorker
        self.slot = -1
        self._start: tuple[int, Any] | None = None
        self._past: list[tuple[str, tuple[Any, ...]]] = []
        self._first: str | None = None
        self._num_losses = 0

    async def reset(self, seed: int, task: Any) -> Any:
        self._start, self._past = (seed, task), []
        while True:
            try:
                result = await self._request("reset", seed, task)
                break
            except WorkerLost as loss:
                await self._place_anew(loss)
        self._first = result[0]
        return result

    async def step(self, action: str) -> Any:
        while True:
            try:
                result = await self._request("step", action)
                break
            except WorkerLost as loss:
                await self._restore(loss)
        self._past.append((action, result[:4]))
        return result

    def _request(self, operation: str, *arguments: Any) -> asyncio.Future[Any]:
        return self.worker.request(operation, self.slot, *arguments, deadline_s=self._pool.deadline_s)

    async def _place_anew(self, loss: WorkerLost) -> None:
        self._num_losses += 1
        if self._num_losses > MAX_LOSSES:
            raise EnvironmentFailure(f"its worker was lost {self._num_losses} times: {loss}") from loss
        await self._pool.place(self)

    async def _restore(self, loss: WorkerLost) -> None:
        assert self._start is not None, "step() before reset()"
        while True:
            await self._place_anew(loss)
            try:
                first, _ = await self._request("reset", *self._start)
                is_same = first == self._first
                for action, answer in self._past:
                    result = await self._request("step", action)
                    is_same = is_same and tuple(result[:4]) == tuple(answer)
                break
            except WorkerLost as again:
                loss = again
        if not is_same:
            raise EnvironmentFailure(
                f"{loss}; restored by resetting and repeating its {len(self._past)} actions, the environment answered "
                "otherwise than before"
            )

    def release(self, *, is_sound: bool) -> None:
        """Give the instance back; one that failed, or whose last request was abandoned, is dropped."""
        worker = self.worker
        if self not in worker.leases:
            return
        self._pool.forget(self)
        if worker.loss is None:
            if not is_sound:
                worker.request("drop", self.slot, deadline_s=self._pool.deadline_s)
            worker.free_slots.append(self.slot)


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
        lease = ProcessLease(self, key)
        await self.place(lease)
        return lease

    async def place(self, lease: ProcessLease) -> None:
        """Give a lease a place in a worker that runs."""
        assert not self._is_closed, "the worker pool is closed"
        if self._failed_starts >= MAX_FAILED_STARTS:
            assert self._start_error is not None
            raise EnvironmentFailure(f"no environment worker could be started: {self._start_error}")
        worker = self._choose(lease.key)
        if worker.free_slots:
            slot = worker.free_slots.pop()
        else:
            slot = worker.num_slots
            worker.num_slots += 1
        lease.worker, lease.slot = worker, slot
        worker.leases.add(lease)
        try:
            await asyncio.shield(worker.ready)
        except RolloutError as error:
            raise EnvironmentFailure(f"an environment worker did not start: {error}") from error
        except BaseException:
            lease.release(is_sound=True)
            raise
        self._failed_starts = 0

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

    def _on_lost(self, worker: EnvWorker) -> None:
        self._workers.remove(worker)
        reaper = asyncio.get_running_loop().create_task(worker.close())
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        if worker.ready.exception() is not None:
            self._failed_starts += 1
            self._start_error = cast("RolloutError", worker.ready.exception())
        for lease in list(worker.leases):
            self.forget(lease)

    def forget(self, lease: ProcessLease) -> None:
        """A lease leaves its worker: the last one of a group frees the group's home."""
        lease.worker.leases.discard(lease)
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
