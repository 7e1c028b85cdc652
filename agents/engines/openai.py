"""Any OpenAI-compatible server, for evaluation: text in, text out, so its tokens are only an approximation."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.base import Completion, FinishReason, Sampling
from winnowrl.agents.errors import DeadlineExceeded, EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

    from winnowrl.agents.text_codec import TextCodec

ATTEMPTS = 3
EVALUATION_ONLY = (
    "the openai engine is for evaluation only: a server returns text, not the tokens it sampled, and its weights cannot "
    "be updated; use engine.type=vllm or transformers to train"
)


class OpenAIEngine:
    """Sends prompts to ``/completions`` and encodes the text that comes back; log-probabilities are NaN.

    Prompts go out as text: every server takes it, and ids would be nonsense to one whose vocabulary differs. What a
    tokenizer puts before any text (a begin token) is left out, because the server's tokenizer puts it there itself; so
    a prompt that begins without it (a chat template that writes none) gets it there all the same.

    Args:
        base_url: Address ending in the version, e.g. ``http://127.0.0.1:8000/v1``.
        codec: Of a tokenizer like the server's; it decodes the prompt and counts the reply.
        model: Name on the server; empty takes the first it lists.
        api_key_env: Environment variable that holds the key; unset sends none.
        end_token_id: Closes a reply that the server ended.
        max_concurrent_requests: Requests in flight; more wait.
        timeout_s: Longest wait for one reply.
    """

    def __init__(
        self,
        base_url: str,
        codec: TextCodec,
        *,
        model: str = "",
        api_key_env: str = "OPENAI_API_KEY",
        end_token_id: int | None = None,
        max_concurrent_requests: int = 32,
        timeout_s: float = 600.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"engine.base_url is {base_url!r}; allowed: an address starting with http:// or https://")
        self.policy_version = 0
        self._base_url = base_url.rstrip("/")
        self._codec = codec
        self._model = model
        self._key = os.environ.get(api_key_env, "")
        self._end_token_id = end_token_id
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(max_concurrent_requests, thread_name_prefix="winnowrl-openai")
        self._is_closed = False

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        on_admitted: Callable[[], None] | None = None,
    ) -> Completion:
        body = {
            "prompt": self._prompt_text(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % (1 << 31),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
        }
        answer = await self._in_thread(lambda: self._complete(body), on_admitted)
        try:
            choice = answer["choices"][0]
            # A reply without a token may come as null.
            text, reason = str(choice["text"] or ""), choice.get("finish_reason")
        except (KeyError, IndexError, TypeError) as error:
            raise EngineFailure(f"{self._base_url} answered without a completion: {str(answer)[:200]}") from error
        text += _left_out(text, choice, sampling.stop)
        return self._to_completion(text, reason, sampling)

    def _prompt_text(self, prompt_ids: Sequence[int]) -> str:
        """Text that a tokenizer which puts ``leading_ids`` before it turns into these ids."""
        leading = self._codec.leading_ids
        begins = list(prompt_ids[: len(leading)]) == leading
        return self._codec.decode(prompt_ids[len(leading) :] if begins else prompt_ids)

    def _to_completion(self, text: str, reason: str | None, sampling: Sampling) -> Completion:
        ids = self._codec.encode_text(text)
        is_ended = reason == "stop" and not (sampling.stop and text.endswith(sampling.stop))
        if is_ended and self._end_token_id is not None:
            ids = [*ids, self._end_token_id]
        finish: FinishReason = "stop" if reason == "stop" else "length"
        return Completion(ids, [math.nan] * len(ids), finish, self.policy_version)

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        raise ValueError(EVALUATION_ONLY)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise ValueError(EVALUATION_ONLY)

    async def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[[], Any], on_admitted: Callable[[], None] | None) -> Any:
        if self._is_closed:
            raise EngineFailure(f"the engine at {self._base_url} is closed")
        loop = asyncio.get_running_loop()
        # The socket has the same limit; this one covers the repeats as well, and runs from when a thread is free.
        limit_s = ATTEMPTS * self._timeout_s

        def begin() -> None:
            if not answer.done():
                patience.reschedule(loop.time() + limit_s)
                if on_admitted is not None:
                    on_admitted()

        def work() -> Any:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(begin)
            return call()

        try:
            async with asyncio.timeout(None) as patience:
                answer = loop.run_in_executor(self._threads, work)
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{self._base_url} gave no reply within {limit_s:g} s") from None

    def _complete(self, body: dict[str, Any]) -> Any:
        if not self._model:
            listed = self._request("/models", None)
            try:
                self._model = str(listed["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise EngineFailure(f"{self._base_url} lists no model; name one with engine.model") from error
        return self._request("/completions", {"model": self._model, **body})

    def _request(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(1, ATTEMPTS + 1):
            request = urllib.request.Request(f"{self._base_url}{path}", data=data, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                detail = _detail(error)
                if error.code not in (429, 500, 502, 503, 504) or attempt == ATTEMPTS:
                    raise EngineFailure(f"{self._base_url}{path} answered {error.code}: {detail}") from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                if attempt == ATTEMPTS:
                    reason = f"{type(error).__name__}: {error}"
                    raise EngineFailure(f"{self._base_url}{path} cannot be reached: {reason}") from error
            pause(attempt)
        raise AssertionError("the last attempt returns or raises")


def _detail(error: urllib.error.HTTPError) -> str:
    """The beginning of what a server said with a refusal; empty where the connection broke off."""
    try:
        return error.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def _left_out(text: str, choice: dict[str, Any], stop: Sequence[str]) -> str:
    """The stop string that ended the reply, which servers leave out of the text; empty where none did.

    A server that names what ended a reply sends null for an end token. One that names nothing is believed to have met
    the only stop string there is.
    """
    if "stop_reason" in choice:
        met = choice["stop_reason"]
    else:
        met = stop[0] if choice.get("finish_reason") == "stop" and len(stop) == 1 else None
    return met if isinstance(met, str) and met in stop and not text.endswith(met) else ""


def pause(attempt: int) -> None:
    """Wait before the next attempt: 0.5 s, then 1 s. Runs in a worker thread."""
    import time

    time.sleep(0.5 * attempt)
