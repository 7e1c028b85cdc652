from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from winnowrl.training.lean_layers import gated_silu, rms_norm, use_lean_layers

sys.path.insert(0, str(Path(__file__).parent))
from learner_cases import tiny_model


def test_rms_norm_by_hand() -> None:
    # x = [3, 4]: mean square 12.5, root 3.5355339; times weight [1, 2].
    found = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(found, torch.tensor([[0.8485281, 2.2627417]]))


def test_gradients_equal_finite_differences_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-3), (leaf(2, 3, 5), leaf(5)))
    assert torch.autograd.gradcheck(gated_silu, (leaf(2, 3, 5), leaf(2, 3, 5)))


def test_a_frozen_weight_gets_no_gradient() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    rms_norm(x, torch.ones(4), 1e-6).sum().backward()
    assert x.grad is not None


def test_a_model_computes_the_same_with_every_layer_replaced() -> None:
    plain, lean = tiny_model(), tiny_model()
    # 2 layers with 2 norms and a feed-forward each, and the last norm
    assert use_lean_layers(lean) == 7
    ids = torch.arange(20)[None]
    for model in (plain, lean):
        model(ids).logits.log_softmax(-1)[..., 3].sum().backward()
    for (name, a), b in zip(plain.named_parameters(), lean.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_in_bfloat16_replaced_layers_stray_no_further_from_float32_than_the_plain_ones() -> None:
    ids = torch.arange(20)[None]
    gradients = []
    for dtype, is_lean in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        model = tiny_model().to(dtype)
        assert not is_lean or use_lean_layers(model) == 7
        model(ids).logits.float().log_softmax(-1)[..., 3].sum().backward()
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    exact, plain, lean = gradients
    assert 0 < (lean - exact).norm() < 1.1 * (plain - exact).norm()


def test_layers_that_only_look_alike_are_left_alone() -> None:
    class ShiftedRMSNorm(nn.Module):
        """Scales by 1 + weight."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)

    assert use_lean_layers(nn.Sequential(ShiftedRMSNorm())) == 0
    assert use_lean_layers(nn.Sequential(ShiftedRMSNorm()).to(torch.bfloat16)) == 0
    assert use_lean_layers(tiny_model().to(torch.float16)) == 0
    assert use_lean_layers(tiny_model(hidden_act="gelu")) == 5
    assert use_lean_layers(tiny_model(hidden_act="gelu").to(torch.bfloat16)) == 5


@pytest.mark.parametrize("attribute", ["gate_proj", "down_proj"])
def test_an_adapted_feed_forward_keeps_its_adapter(attribute: str) -> None:
    from winnowrl.training.learner.lora import add_lora

    model = tiny_model()
    add_lora(model, rank=2, alpha=4.0, target_modules=[attribute])
    layer = getattr(model.model.layers[0].mlp, attribute)
    with torch.no_grad():
        layer.lora_B["default"].weight.fill_(0.3)
    plain = copy.deepcopy(model)
    use_lean_layers(model)
    ids = torch.arange(9)[None]
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-4)
