"""The engine contract: prompt ids in, completion ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one reply is sampled.

    Attributes:
        max_tokens: Most tokens of this reply.
        temperature: 0 is greedy. Log-probabilities are those of the distribution sampled from, i.e. at this temperature.
        top_p: Nucleus; below 1 only for evaluation (the learner cannot reproduce it).
        top_k: 0 keeps all tokens; above 0 only for evaluation.
        stop: Strings that end the reply; the tokens up to and including the one that completes the string are kept.
        stop_token_ids: Ids that end the reply (every end token of the model); the id is kept.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled reply.

    Attributes:
        token_ids: Sampled ids, the end token or stop string's tokens included.
        logprobs: log p of each sampled id at the sampling temperature; same length as ``token_ids``. All finite; NaN
            throughout from an engine that knows none, which is for evaluation only.
        finish_reason: ``stop`` (end token or stop string), ``length`` (budget), ``abort`` (cancelled by us).
        policy_version: Version of the weights that wrote it.
        num_cached_tokens: Prompt tokens the engine did not compute again.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    policy_version: int
    num_cached_tokens: int = 0


@runtime_checkable
class Engine(Protocol):
    """Writes tokens. All methods are called from one event loop; any number of ``generate`` calls may be in flight.

    Cancelling the task that awaits ``generate`` aborts the request in the engine at once.
    """

    policy_version: int

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        on_admitted: Callable[[], None] | None = None,
    ) -> Completion:
        """Sample one reply.

        Args:
            prompt_ids: What it continues.
            sampling: How it is drawn.
            seed: Of its random numbers.
            on_admitted: Called once, in the event loop, when the request has left the engine's queue, at the latest
                with its first token: the deadline of a turn runs from there. An engine may do without this parameter;
                its requests count as admitted when they are made.

        Raises:
            EngineFailure: the engine cannot.
        """
        ...

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Swap the weights from memory, forget every cached prefix, and carry ``version`` from now on.

        Names are those of the Hugging Face state dict; every weight of the model comes once, tied ones under either name.
        Nothing may be in flight.

        Raises:
            EngineFailure: a weight is missing, or the load failed. The engine serves nothing from then on: what it holds
                belongs to no version.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> Sequence[float]:
        """log p of ``token_ids[1:]`` at temperature 1, each given what stands before it; length ``len(token_ids)-1``.

        The self-test after a weight load compares it with the learner.
        """
        ...

    async def close(self) -> None:
        """Release everything; calling it twice is fine."""
        ...
