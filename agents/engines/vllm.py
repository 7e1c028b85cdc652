"""The default engine: vLLM inside this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.base import FinishReason, Sampling
from winnowrl.agents.engines.stepped import Reply, Request, SteppedEngine, require_servable
from winnowrl.agents.engines.vllm_setup import start_vllm, stop_vllm
from winnowrl.agents.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmEngine(SteppedEngine):
    """vLLM with continuous batching and prefix caching; keyword arguments as in :func:`start_vllm`.

    A request's random numbers come from its seed alone. Its logits may still differ in the last digits with the company
    it has in a batch, so two runs agree as far as vLLM's arithmetic does; the transformers engine can be exact.
    """

    def __init__(
        self, model_path: str | Path, *, max_context_tokens: int, timeout_s: float = 600.0, **options: Any
    ) -> None:
        super().__init__(
            lambda: VllmStepper(
                start_vllm(model_path, max_context_tokens=max_context_tokens, **options), max_context_tokens
            ),
            timeout_s=timeout_s,
        )


class VllmStepper:
    """Requests in, finished replies out, over vLLM's synchronous engine.

    Args:
        engine: vLLM's.
        max_context_tokens: Longest sequence; at most that of ``engine``.
    """

    name = "the vLLM engine (in this process)"

    def __init__(self, engine: Any, max_context_tokens: int) -> None:
        self._engine = engine
        self._max_context_tokens = max_context_tokens
        self._weight_names: list[set[str]] = []
        self._is_cpu = engine.vllm_config.device_config.device_type == "cpu"
        # Only a core in this process shows its queue; with another one a request counts as begun when it is handed over.
        self._scheduler = getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)

    @property
    def is_idle(self) -> bool:
        return not self._engine.has_unfinished_requests()

    @property
    def num_waiting(self) -> int:
        # A preempted request counts too; nothing that came later begins before it runs again.
        return 0 if self._scheduler is None else int(self._scheduler.get_request_counts()[1])

    def admit(self, request: Request) -> None:
        require_servable(self.name, request.prompt_ids, request.sampling, self._max_context_tokens)
        params = sampling_params(request.sampling, request.seed)
        params.max_tokens = min(params.max_tokens, self._max_context_tokens - len(request.prompt_ids))
        self._add(str(request.request_id), request.prompt_ids, params)

    def _add(self, request_id: str, prompt_ids: list[int], params: Any) -> None:
        self._engine.add_request(request_id, {"prompt_token_ids": prompt_ids}, params)

    def cancel(self, request_ids: Sequence[int]) -> None:
        self._engine.abort_request([str(request_id) for request_id in request_ids])

    def step(self) -> list[Reply]:
        return [_to_reply(output) for output in self._step() if output.finished]

    def _step(self) -> list[Any]:
        with self._stance():
            outputs: list[Any] = self._engine.step()
        return outputs

    def _stance(self) -> AbstractContextManager[Any]:
        """On CPU vLLM compiles single lines at first use: seconds, and a C++ compiler, for nothing measurable."""
        if not self._is_cpu:
            return nullcontext()
        import torch

        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        # vLLM itself keeps the old value of what it is not sent.
        self._weight_names = self._weight_names or weight_names(self._engine.model_config.model)
        sent: set[str] = set()

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, weight in weights:
                sent.add(name)
                yield name, weight

        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": noted()})
        if missing := [min(names) for names in self._weight_names if not names & sent]:
            raise EngineFailure(f"{self.name} was sent no weight for {missing[0]} and {len(missing) - 1} others")
        if self._is_cpu:
            self._engine.apply_model(repack_heads)
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise EngineFailure(f"{self.name} kept its cached prefixes: a request still holds them")

    def score(self, token_ids: list[int]) -> list[float]:
        from vllm import SamplingParams

        longest = self._engine.model_config.max_model_len - 1
        if len(token_ids) > longest:
            raise EngineFailure(f"{self.name} cannot score {len(token_ids)} tokens; allowed: 2 to {longest}")
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, ignore_eos=True, detokenize=False)
        self._add("score", token_ids, params)
        outputs: list[Any] = []
        while not outputs:
            outputs = [output for output in self._step() if output.finished]
        # Blocks computed alone differ in the last digits from those of a full batch: replies must not depend on a score.
        self._forget_prefixes()
        rows = outputs[0].prompt_logprobs[1:]
        return [row[token].logprob for row, token in zip(rows, token_ids[1:], strict=True)]

    def close(self) -> None:
        if self._engine is not None:
            stop_vllm(self._engine)
            self._engine = self._scheduler = None


def repack_heads(model: Any) -> None:
    """Make the head of a model use the weights just loaded.

    On CPU a head multiplies by a repacked copy of its weight. A head tied to the embedding has no weight of its own in
    what is loaded, so vLLM would keep the copy of the weights it started with.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def weight_names(model_path: str | Path) -> list[set[str]]:
    """Names of each weight of the Hugging Face model, without its values; a tied one has several."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model_path)))
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return list(names.values())


def sampling_params(sampling: Sampling, seed: int) -> Any:
    """vLLM's parameters. Only our stop ids end a reply, so that what ends it is known here and nowhere else."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=seed,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        include_stop_str_in_output=True,
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _to_reply(output: Any) -> Reply:
    completion = output.outputs[0]
    table = completion.logprobs
    # One position may list more than the sampled token; the sampled one comes first.
    logprobs = [table.logprobs[start] for start in table.start_indices]
    token_ids = list(completion.token_ids)
    reason = FINISH_REASONS.get(completion.finish_reason)
    if reason is None:
        raise EngineFailure(f"vLLM ended a request with {completion.finish_reason!r}")
    return Reply(int(output.request_id), token_ids, logprobs[: len(token_ids)], reason, output.num_cached_tokens or 0)
