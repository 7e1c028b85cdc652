"""The DeepSpeed engine around the policy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.batch import NonFiniteUpdateError
from winnowrl.training.learner.masters import dithered
from winnowrl.training.learner.process_group import ensure_process_group, import_deepspeed, quiet_deepspeed

# DeepSpeed reports the gradient norm only where it clips; a bound that is never reached turns clipping off.
_NO_CLIPPING = 1e30


class TrainingEngine:
    """Forward, accumulate, step. Gradients of several backward passes, and of all ranks, add up.

    Args:
        policy: The module; its trainable parameters are those of ``optimizer``.
        zero_stage: 0 to 3. In bfloat16 stage 0 becomes 1, which keeps gradients and masters in float32.
        grad_clip: Largest L2 norm; 0 does not clip.
        timeout_s: Longest wait for another rank.
    """

    def __init__(
        self,
        policy: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        zero_stage: int,
        grad_clip: float,
        timeout_s: float,
    ) -> None:
        dtype = next(policy.parameters()).dtype
        self._grad_clip = grad_clip
        self.zero_stage = max(zero_stage, 1) if dtype == torch.bfloat16 else zero_stage
        deepspeed = import_deepspeed()
        self._deepspeed = deepspeed
        ensure_process_group(timeout_s=timeout_s)
        self.rank = torch.distributed.get_rank()
        self.world_size = torch.distributed.get_world_size()
        with quiet_deepspeed():
            deepspeed.init_distributed(
                dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False, verbose=False
            )
            self._engine, self._optimizer, _, _ = deepspeed.initialize(
                model=policy, optimizer=optimizer, config=self._settings(dtype, grad_clip), dist_init_required=False
            )

    def _settings(self, dtype: torch.dtype, grad_clip: float) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            # Without ZeRO, DeepSpeed clips but does not tell the norm: see step.
            "gradient_clipping": (grad_clip or _NO_CLIPPING) if self.zero_stage else 0.0,
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 1_000_000_000,
            "zero_optimization": {"stage": self.zero_stage, "overlap_comm": False},
        }
        if dtype == torch.bfloat16:
            settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        return settings

    def forward(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The policy on one pack."""
        out: tuple[Tensor, Tensor] = self._engine(**inputs)
        return out

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Accumulate the gradient of this rank's ``loss``; ranks and calls add up. ``is_last`` before each step."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        # DeepSpeed averages over ranks; the loss already has the denominators of the whole batch.
        self._engine.backward(loss * self.world_size, scale_wrt_gas=False)
        if not is_last:
            self._engine.step()

    def step(self, learning_rate: float) -> float:
        """Clip, step, clear the gradient; returns its L2 norm before clipping.

        Raises:
            NonFiniteUpdateError: the norm is not finite. Without ZeRO the weights are untouched then.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self.zero_stage:
            self._engine.step()
            return _finite_norm(float(self._engine.get_global_grad_norm()))
        norm = _finite_norm(self._clip())
        self._engine.step()
        return norm

    def _clip(self) -> float:
        """Clip whole gradients in place; returns their norm before."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        if self._grad_clip and norm > self._grad_clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._grad_clip, norm)
        return float(norm)

    @contextmanager
    def gathered(self, parameters: list[nn.Parameter]) -> Iterator[None]:
        """Whole weights inside (ZeRO-3 holds slices); every rank must enter."""
        if self.zero_stage < 3:
            yield
            return
        with self._deepspeed.zero.GatheredParameters(parameters):
            yield

    def dither_masters(self, policy: nn.Module, seed: int) -> None:
        """Move the masters of half-precision weights off their grid: see :mod:`.masters`. Every rank must call it."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param

        for name, parameter in policy.named_parameters():
            if not parameter.requires_grad:
                continue
            generator = torch.Generator().manual_seed(derive_seed(seed, "dither", name))
            master = safe_get_full_fp32_param(parameter)
            safe_set_full_fp32_param(parameter, dithered(master, parameter.dtype, generator))

    def save(self, folder: str) -> None:
        """Weights, optimizer and masters; every rank writes its part."""
        with quiet_deepspeed():
            self._engine.save_checkpoint(folder, tag="engine", save_latest=False, exclude_frozen_parameters=False)

    def load(self, folder: str) -> None:
        with quiet_deepspeed():
            self._engine.load_checkpoint(folder, tag="engine", load_module_strict=True)

    def close(self) -> None:
        self._engine.destroy()


def _finite_norm(norm: float) -> float:
    if not math.isfinite(norm):
        raise NonFiniteUpdateError("gradient")
    return norm
