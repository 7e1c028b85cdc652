"""Environment instances: made once, leased to one episode at a time, reused through ``reset``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium

from winnowrl.agents.collecting.threads import Threads
from winnowrl.agents.errors import EnvironmentFailure
from winnowrl.envs.registry import load_plugins, register_all

if TYPE_CHECKING:
    from winnowrl.agents.workers import WorkerPool
    from winnowrl.envs.tasks import TaskSet

EXECUTIONS = ("inline", "thread", "process")


class Lease(Protocol):
    """One episode's hold on an instance. ``reset`` and ``step`` return their result at once when ``is_inline``, else an
    awaitable of it."""

    @property
    def is_inline(self) -> bool: ...
    def reset(self, seed: int, task: Any) -> Any: ...
    def step(self, action: str) -> Any: ...
    def release(self, *, is_sound: bool) -> None: ...


class InlineLease:
    """Steps in the event loop, for environments that answer in microseconds."""

    __slots__ = ("_environment", "_free", "step")

    is_inline = True

    def __init__(self, environment: gymnasium.Env[str, str], free: list[gymnasium.Env[str, str]]) -> None:
        self._environment, self._free = environment, free
        self.step = environment.step

    def reset(self, seed: int, task: Any) -> Any:
        return self._environment.reset(seed=seed, options={"task": task})

    def release(self, *, is_sound: bool) -> None:
        if is_sound:
            self._free.append(self._environment)
        else:
            with contextlib.suppress(Exception):
                self._environment.close()


class ThreadLease:
    """Steps in a daemon thread, for environments that wait on a process or a file."""

    is_inline = False

    def __init__(
        self, environment: gymnasium.Env[str, str], free: list[gymnasium.Env[str, str]], threads: Threads
    ) -> None:
        self._environment, self._free, self._threads = environment, free, threads
        self._last: asyncio.Future[Any] | None = None
        self._is_released = False

    async def reset(self, seed: int, task: Any) -> Any:
        return await self._call(lambda: self._environment.reset(seed=seed, options={"task": task}))

    async def step(self, action: str) -> Any:
        return await self._call(lambda: self._environment.step(action))

    async def _call(self, work: Callable[[], Any]) -> Any:
        self._last = self._threads.submit(work)
        return await self._last

    def release(self, *, is_sound: bool) -> None:
        if self._is_released:
            return
        self._is_released = True
        # An instance whose last call was abandoned may still be stepping in its thread.
        if is_sound and (self._last is None or not self._last.cancelled()):
            self._free.append(self._environment)
        else:
            self._threads.submit_after(self._last, self._environment.close)


class EnvironmentPool:
    """Instances of one environment, wherever its ``execution`` says its steps run.

    Args:
        env_id: Gymnasium id.
        kwargs: Arguments of the environment.
        max_turns: Overrides the registered step limit; None keeps it.
        num_workers: Most worker processes; 0 takes one per CPU core.
        deadline_s: Seconds one call may take in a worker process before the worker is killed.

    Attributes:
        prototype: An instance that no episode uses: task sets, prompts and attributes are read from it.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        max_turns: int | None = None,
        num_workers: int = 0,
        deadline_s: float = 120.0,
    ) -> None:
        register_all()
        load_plugins()
        self.env_id = env_id
        self._kwargs = dict(kwargs or {})
        if max_turns is not None:
            self._kwargs["max_episode_steps"] = max_turns
        self.prototype = self._make()
        plain = self.prototype.unwrapped
        self.execution: str = getattr(plain, "execution", "inline")
        if self.execution not in EXECUTIONS:
            raise ValueError(f"{env_id} has execution {self.execution!r}; allowed: {', '.join(EXECUTIONS)}")
        self.system_prompt: str | None = getattr(plain, "system_prompt", None)
        self.stop: tuple[str, ...] = tuple(getattr(plain, "stop", ()))
        spec = self.prototype.spec
        self.max_turns: int | None = max_turns or (spec.max_episode_steps if spec else None)
        self._num_workers = num_workers or len(os.sched_getaffinity(0))
        self._deadline_s = deadline_s
        self._free: list[gymnasium.Env[str, str]] = []
        self._workers: WorkerPool | None = None
        self._threads: Threads | None = None

    def task_set(self, split: str) -> TaskSet:
        """Tasks of a split of the environment."""
        found: TaskSet = self.prototype.unwrapped.task_set(split)  # type: ignore[attr-defined]
        return found

    async def acquire(self, key: object) -> Lease:
        """An instance for an episode of the group ``key``. Raises EnvironmentFailure when none can be had."""
        if self.execution == "process":
            return await self._worker_pool().acquire(key)
        try:
            environment = self._free.pop() if self._free else self._make()
        except Exception as error:
            raise EnvironmentFailure(f"{self.env_id} could not be made: {type(error).__name__}: {error}") from error
        if self.execution == "inline":
            return InlineLease(environment, self._free)
        if self._threads is None:
            self._threads = Threads(limit=256)
        return ThreadLease(environment, self._free, self._threads)

    def _make(self) -> gymnasium.Env[str, str]:
        return gymnasium.make(self.env_id, disable_env_checker=True, **self._kwargs)

    def _worker_pool(self) -> WorkerPool:
        if self._workers is None:
            from winnowrl.agents.workers import WorkerPool

            shares = bool(getattr(self.prototype.unwrapped, "shares_by_group", False))
            self._workers = WorkerPool(self.env_id, self._kwargs, self._num_workers, self._deadline_s, shares)
        return self._workers

    async def close(self) -> None:
        """Close every instance and worker; calling it twice is fine."""
        free, self._free = [*self._free, self.prototype], []
        for environment in free:
            with contextlib.suppress(Exception):
                environment.close()
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._workers is not None:
            await self._workers.close()
            self._workers = None
