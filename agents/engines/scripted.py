"""An engine without a model: replies come from a function. For tests, benchmarks and trying an environment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from winnowrl.agents.engines.base import Completion, FinishReason, Sampling
from winnowrl.agents.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

    from winnowrl.agents.text_codec import TextCodec

Script = Callable[[Sequence[int], int], "str | Sequence[int]"]
KNOWN_REPLIES = 4096


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of calls that go wrong, decided by the call's seed.

    Attributes:
        raises: The engine raises :class:`EngineFailure`.
        is_empty: It returns no token.
        hangs: It never answers.
    """

    raises: float = 0.0
    is_empty: float = 0.0
    hangs: float = 0.0

    def draw(self, seed: int) -> str | None:
        number = random.Random(seed ^ 0x5EED).random()
        for name in ("raises", "is_empty", "hangs"):
            number -= getattr(self, name)
            if number < 0:
                return name
        return None


class ScriptedEngine:
    """Answers with ``script(prompt_ids, seed)``, a text or ids.

    A text is encoded and closed with an end token; ids are taken as they are. Both are cut at ``max_tokens``, and text
    at the first stop string. Log-probabilities are made up, the same for the same reply.

    Args:
        script: Called once a request, in the event loop.
        codec: Encodes the script's texts; not needed when it returns ids.
        end_token_id: Closes a text reply; None leaves it open.
        latency_s: Seconds each reply takes.
        faults: What goes wrong, how often.
    """

    name = "the scripted engine"

    def __init__(
        self,
        script: Script,
        codec: TextCodec | None = None,
        *,
        end_token_id: int | None = None,
        latency_s: float = 0.0,
        faults: Faults | None = None,
    ) -> None:
        self.policy_version = 0
        self._script = script
        self._codec = codec
        self._end_token_id = end_token_id
        self._latency_s = latency_s
        self._faults = faults
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        on_admitted: Callable[[], None] | None = None,
    ) -> Completion:
        if on_admitted is not None:
            on_admitted()
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        fault = self._faults.draw(seed) if self._faults is not None else None
        if fault == "raises":
            raise EngineFailure(f"{self.name} was told to fail")
        if fault == "hangs":
            await asyncio.get_running_loop().create_future()
        reply = self._script(prompt_ids, seed) if fault is None else ()
        ids = self._encode(reply, sampling.stop) if isinstance(reply, str) else tuple(reply)
        reason: FinishReason = "stop"
        if len(ids) > sampling.max_tokens:
            ids, reason = ids[: sampling.max_tokens], "length"
        return Completion(ids, [made_up_logprob(token_id) for token_id in ids], reason, self.policy_version)

    def _encode(self, text: str, stop: tuple[str, ...]) -> tuple[int, ...]:
        ids = self._known.get((text, stop))
        if ids is None:
            if self._codec is None:
                raise EngineFailure(f"the script returned the text {text[:40]!r}; without a codec it must return ids")
            end = min((text.find(word) + len(word) for word in stop if word in text), default=None)
            is_open = end is not None or self._end_token_id is None
            ids = tuple(self._codec.encode_text(text[:end])) + (() if is_open else (self._end_token_id or 0,))
            if len(self._known) >= KNOWN_REPLIES:
                self._known.clear()
            self._known[text, stop] = ids
        return ids

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        for _ in weights:
            pass
        self.policy_version = version

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return [made_up_logprob(token_id) for token_id in token_ids[1:]]

    async def close(self) -> None:
        """Nothing to release."""


def made_up_logprob(token_id: int) -> float:
    """Between -2 and 0, the same for the same id."""
    return -((token_id * 2654435761 & 0xFFFF) + 1) / 0x8000
