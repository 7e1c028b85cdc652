"""The asynchronous face of an engine that advances step by step in one thread of its own.

Requests that arrive, and cancellations, wait for the end of the running step; every live request is in every step, so
the engine's batch stays as full as the callers keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from winnowrl.agents.engines.base import Completion, FinishReason, Sampling
from winnowrl.agents.errors import DeadlineExceeded, EngineFailure, RolloutError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
# Turns of the event loop without a new request after which a step begins: those about to ask still join it, in the same
# number in every run. What shares a step decides the last digits, and in half precision more than the last.
SETTLE_TURNS = 4
# Longest the engine's thread goes on stepping without reporting, seconds. It reports at once when there is news.
REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to write. ``prompt_ids`` is the stepper's own copy."""

    request_id: int
    prompt_ids: list[int]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What a stepper hands back of a finished request."""

    request_id: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    num_cached_tokens: int = 0


def require_servable(name: str, prompt_ids: Sequence[int], sampling: Sampling, max_context_tokens: int) -> None:
    """Raise :class:`EngineFailure` unless the prompt leaves room for a token in the context, and one is asked for."""
    if not 0 < len(prompt_ids) < max_context_tokens:
        raise EngineFailure(
            f"{name} refused a prompt of {len(prompt_ids)} tokens; allowed: 1 to {max_context_tokens - 1}"
        )
    if sampling.max_tokens < 1:
        raise EngineFailure(f"{name} refused a reply of {sampling.max_tokens} tokens; allowed: at least 1")


class Stepper(Protocol):
    """A synchronous engine. Every method runs in one and the same thread."""

    name: str

    @property
    def is_idle(self) -> bool:
        """No request is live."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests taken in that no step has begun yet. They begin in the order in which they were taken in."""
        ...

    def admit(self, request: Request) -> None:
        """Take a request in. Raises :class:`EngineFailure` when this one cannot be served."""
        ...

    def cancel(self, request_ids: Sequence[int]) -> None:
        """Forget these requests; ids already finished or never admitted are ignored."""
        ...

    def step(self) -> list[Reply]:
        """Advance every live request, by a token if there is room, and return those that finished."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None: ...

    def score(self, token_ids: list[int]) -> list[float]: ...

    def close(self) -> None: ...


class SteppedEngine:
    """An :class:`~winnowrl.agents.engines.base.Engine` over a :class:`Stepper`.

    Args:
        build: Makes the stepper; called in the engine's thread.
        timeout_s: Longest wait for one step, weight load or score. Waiting for a place in the batch does not count: a
            queue may be long, a step may not.
        load_timeout_s: Longest wait for ``build``.
    """

    def __init__(
        self, build: Callable[[], Stepper], *, timeout_s: float = 600.0, load_timeout_s: float = 1800.0
    ) -> None:
        self.policy_version = 0
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="winnowrl-engine")
        try:
            self._stepper = self._thread.submit(build).result(timeout=load_timeout_s)
        except BaseException:
            self._thread.shutdown(wait=False, cancel_futures=True)
            raise
        self._ids = itertools.count()
        self._futures: dict[int, asyncio.Future[Reply]] = {}
        self._on_admitted: dict[int, Callable[[], None]] = {}
        # Taken in, not yet begun, in the order of their admission; the engine's thread alone reads and writes it.
        self._queued: list[int] = []
        self._arrivals: list[Request] = []
        self._cancelled: list[int] = []
        self._pump: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._is_closed = False

    @property
    def num_in_flight(self) -> int:
        """Requests not answered yet."""
        return len(self._futures)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        on_admitted: Callable[[], None] | None = None,
    ) -> Completion:
        self._require_open()
        loop = asyncio.get_running_loop()
        request = Request(next(self._ids), list(prompt_ids), sampling, seed)
        future: asyncio.Future[Reply] = loop.create_future()
        self._futures[request.request_id] = future
        if on_admitted is not None:
            self._on_admitted[request.request_id] = on_admitted
        self._arrivals.append(request)
        self._start_pump(loop)
        try:
            reply = await future
        finally:
            self._on_admitted.pop(request.request_id, None)
            if self._futures.pop(request.request_id, None) is not None:
                self._cancelled.append(request.request_id)
        # One sum finds any: adding to inf or to not-a-number never leads back.
        if not math.isfinite(sum(reply.logprobs)):
            raise EngineFailure(
                f"{self._stepper.name} gave a log-probability that is not finite in a reply of policy version "
                f"{self.policy_version}: its weights or its arithmetic have left the range of their dtype"
            )
        return Completion(
            reply.token_ids, reply.logprobs, reply.finish_reason, self.policy_version, reply.num_cached_tokens
        )

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        await self._become_idle("load weights")
        try:
            await self._in_thread("load weights", lambda: self._stepper.load_weights(weights))
        except BaseException as error:
            # Given up (too slow, cancelled), it goes on in the thread: what the engine holds is of no known version.
            self._broken = (
                f"the load of version {version} did not succeed ({type(error).__name__}: {error}); its weights may be of "
                f"that version, of version {self.policy_version}, or of both"
            )
            self._fail_all(EngineFailure(f"{self._stepper.name} stopped working: {self._broken}"))
            raise
        self.policy_version = version

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        if len(token_ids) < 2:
            return []
        await self._become_idle("score")
        return await self._in_thread("score", lambda: self._stepper.score(list(token_ids)))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._fail_all(EngineFailure(f"{self._stepper.name} was closed"))
        if self._pump is not None and not self._pump.done() and self._pump.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._pump], timeout=self._timeout_s)
        try:
            await self._in_thread("close", self._stepper.close)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _require_open(self) -> None:
        if self._is_closed:
            raise EngineFailure(f"{self._stepper.name} is closed")
        if self._broken is not None:
            raise EngineFailure(f"{self._stepper.name} stopped working: {self._broken}")

    async def _become_idle(self, what: str) -> None:
        self._require_open()
        if self._futures:
            raise ValueError(
                f"cannot {what} while {self.num_in_flight} requests are in flight; await or cancel them first"
            )
        # A cancelled request may still be inside the engine: let the pump drop it before anything else runs.
        if self._cancelled:
            self._start_pump(asyncio.get_running_loop())
        if self._pump is not None and self._pump.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._pump], timeout=self._timeout_s)

    async def _in_thread(self, what: str, call: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except TimeoutError:
            message = f"{self._stepper.name} did not {what} within {self._timeout_s:g} s"
            raise DeadlineExceeded(message) from None

    def _start_pump(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._pump is None or self._pump.done() or self._pump.get_loop() is not loop:
            self._pump = loop.create_task(self._run(loop), name="winnowrl-engine-pump")

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Step while anything is live. Ends when idle; the next request starts it again."""
        try:
            is_news = True
            while self._futures or self._cancelled:
                await (self._settle() if is_news else asyncio.sleep(0))
                arrivals, self._arrivals = self._arrivals, []
                cancelled, self._cancelled = self._cancelled, []
                async with asyncio.timeout(self._timeout_s):
                    replies = await loop.run_in_executor(self._thread, self._advance, loop, arrivals, cancelled)
                for request_id, reply in replies:
                    self._resolve(request_id, reply)
                is_news = bool(replies)
        except TimeoutError:
            self._broken = f"a step took longer than {self._timeout_s:g} s with {self.num_in_flight} requests in flight"
            self._fail_all(DeadlineExceeded(f"{self._stepper.name} is stuck: {self._broken}"))
        except Exception as error:  # noqa: BLE001 - whatever stops the engine becomes the failure of all its requests
            self._broken = f"{type(error).__name__}: {error}"
            self._fail_all(EngineFailure(f"{self._stepper.name} stopped working: {self._broken}"))

    async def _settle(self) -> None:
        quiet = 0
        while quiet < SETTLE_TURNS:
            seen = len(self._arrivals)
            await asyncio.sleep(0)
            quiet = 0 if len(self._arrivals) > seen else quiet + 1

    def _advance(
        self, loop: asyncio.AbstractEventLoop, arrivals: list[Request], cancelled: list[int]
    ) -> list[tuple[int, Reply | RolloutError]]:
        """In the engine's thread: admit, cancel, then step until there is something to report or to take in."""
        results: list[tuple[int, Reply | RolloutError]] = []
        gone = set(cancelled)
        for request in arrivals:
            if request.request_id in gone:
                continue
            try:
                self._stepper.admit(request)
                self._queued.append(request.request_id)
            except EngineFailure as failure:
                results.append((request.request_id, failure))
            except Exception as error:  # noqa: BLE001 - a request the engine does not take fails alone
                refusal = EngineFailure(f"{self._stepper.name} refused a request: {error}")
                results.append((request.request_id, refusal))
        if gone:
            self._stepper.cancel(cancelled)
            self._queued = [request_id for request_id in self._queued if request_id not in gone]
        report_at = time.monotonic() + min(REPORT_S, self._timeout_s / 2)
        # The lists are filled by the event loop's thread; each hop between the threads costs a wake-up.
        while not (results or self._stepper.is_idle):
            results += [(reply.request_id, reply) for reply in self._stepper.step()]
            self._announce_begun(loop)
            if self._arrivals or self._cancelled or time.monotonic() > report_at:
                break
        return results

    def _announce_begun(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the engine's thread, behind a step: those that no longer wait have begun."""
        num_begun = len(self._queued) - self._stepper.num_waiting if self._queued else 0
        if num_begun > 0:
            begun, self._queued = self._queued[:num_begun], self._queued[num_begun:]
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(self._tell_admitted, begun)

    def _tell_admitted(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            if (on_admitted := self._on_admitted.pop(request_id, None)) is not None:
                on_admitted()

    def _resolve(self, request_id: int, reply: Reply | RolloutError) -> None:
        future = self._futures.get(request_id)
        if future is None or future.done():
            return
        # Answered: the waiter must not count as cancelled, and a weight load may follow before it wakes.
        del self._futures[request_id]
        if isinstance(reply, RolloutError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def _fail_all(self, failure: RolloutError) -> None:
        for request_id in list(self._futures):
            # One exception object each: every waiter adds its own traceback.
            self._resolve(request_id, type(failure)(str(failure)))
            self._cancelled.append(request_id)
        self._arrivals.clear()
