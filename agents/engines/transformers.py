"""The embedded fallback: batched sampling with a key-value cache on a Hugging Face model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.decoding import DecodingBatch, Row, prefill
from winnowrl.agents.engines.hardware import choose_dtype
from winnowrl.agents.engines.stepped import Reply, Request, SteppedEngine, require_servable
from winnowrl.agents.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


class TransformersEngine(SteppedEngine):
    """Continuous batching on a Hugging Face model; keyword arguments as in :class:`TransformersStepper`."""

    def __init__(self, model_path: str | Path, *, timeout_s: float = 600.0, **options: Any) -> None:
        super().__init__(lambda: TransformersStepper(model_path, **options), timeout_s=timeout_s)


class TransformersStepper:
    """Live requests share one padded cache; a step writes one token of each.

    Args:
        model_path: Hugging Face folder or name.
        max_context_tokens: Longest sequence.
        dtype: auto, float32, bfloat16 or float16.
        max_concurrent_requests: Rows of the batch; more requests wait.
        is_deterministic: Serve one request at a time, in batches of one row. A reply is then a function of its prompt,
            its seed and the weights, to the last bit (on one machine with one number of threads). Otherwise rounding
            in float32 may differ in the last digits with the company a request has in its batch, and very rarely a
            sampled token with it.
    """

    name = "the transformers engine"

    def __init__(
        self,
        model_path: str | Path,
        *,
        max_context_tokens: int,
        dtype: str = "auto",
        max_concurrent_requests: int = 256,
        is_deterministic: bool = False,
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        require_keys_and_values(model_path)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.random.fork_rng():
            model = AutoModelForCausalLM.from_pretrained(str(model_path), dtype=getattr(torch, choose_dtype(dtype)))
        self._model = model.to(self._device).eval()
        self._vocabulary_size: int = model.get_input_embeddings().weight.shape[0]
        self._tokenizer = AutoTokenizer.from_pretrained(str(model_path))
        self._max_context_tokens = max_context_tokens
        self._max_rows = 1 if is_deterministic else max_concurrent_requests
        self._waiting: list[Request] = []
        self._batch: DecodingBatch | None = None

    @property
    def is_idle(self) -> bool:
        return self._batch is None and not self._waiting

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def admit(self, request: Request) -> None:
        require_servable(self.name, request.prompt_ids, request.sampling, self._max_context_tokens)
        # In a batch such an id would take every other request with it.
        if not (min(request.prompt_ids) >= 0 and max(request.prompt_ids) < self._vocabulary_size):
            raise EngineFailure(
                f"{self.name} refused a prompt with the ids {min(request.prompt_ids)} to {max(request.prompt_ids)}; "
                f"allowed: 0 to {self._vocabulary_size - 1}, the rows of the model's embedding"
            )
        self._waiting.append(request)

    def cancel(self, request_ids: Sequence[int]) -> None:
        gone = set(request_ids)
        self._waiting = [request for request in self._waiting if request.request_id not in gone]
        if self._batch is not None:
            self._keep([row for row in self._batch.rows if row.request_id not in gone])

    def step(self) -> list[Reply]:
        import torch

        with torch.inference_mode():
            if self._batch is not None:
                self._batch.advance(self._model)
            self._fill()
        rows = self._batch.rows if self._batch is not None else []
        self._keep([row for row in rows if row.finish_reason is None])
        return [
            Reply(row.request_id, row.token_ids, row.logprobs, row.finish_reason)
            for row in rows
            if row.finish_reason is not None
        ]

    def _fill(self) -> None:
        """Prefill what waits, as far as there is room; each gets its first token."""
        room = self._max_rows - (len(self._batch.rows) if self._batch is not None else 0)
        newcomers, self._waiting = self._waiting[:room], self._waiting[room:]
        if newcomers:
            rows = [Row(request, self._tokenizer, self._max_context_tokens) for request in newcomers]
            batch = prefill(self._model, rows, self._device)
            self._batch = batch if self._batch is None else self._batch.joined(batch)

    def _keep(self, rows: list[Row]) -> None:
        if self._batch is not None and len(rows) < len(self._batch.rows):
            self._batch = self._batch.only(rows) if rows else None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        import torch

        own = self._model.state_dict()
        loaded: set[str] = set()
        with torch.no_grad():
            for name, tensor in weights:
                if name not in own:
                    raise EngineFailure(f"{self.name} has no weight named {name}")
                own[name].copy_(tensor)
                loaded.add(own[name].data_ptr())
        # Tied weights share memory, so one name covers both.
        if missing := [name for name, tensor in own.items() if tensor.data_ptr() not in loaded]:
            raise EngineFailure(f"{self.name} was sent no weight for {missing[0]} and {len(missing) - 1} others")

    def score(self, token_ids: list[int]) -> list[float]:
        import torch

        ids = torch.tensor([token_ids], device=self._device)
        with torch.inference_mode():
            logprobs = self._model(ids).logits[0, :-1].float().log_softmax(-1)
            picked: list[float] = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return picked

    def close(self) -> None:
        self._batch, self._waiting = None, []
        self._model = None


def require_keys_and_values(model_path: str | Path) -> None:
    """Raise ``ValueError`` where a layer keeps another state than keys and values (Mamba, short convolutions).

    Rows join and leave the padded cache between any two tokens; a running state knows of no padding.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(str(model_path))
    mapping: Any = AutoModelForCausalLM._model_mapping
    is_stateful = type(config) in mapping and getattr(mapping[type(config)], "_is_stateful", False)
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENTION_LAYERS
    if is_stateful or others:
        raise ValueError(
            f"engine.type is 'transformers', which serves layers with keys and values alone; {config.model_type} has "
            f"others ({', '.join(sorted(others)) or 'a running state'}): set engine.type=vllm"
        )
