"""Steps below what bfloat16 resolves reach the weights a model computes with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from winnowrl.configs.sections.learner import LoraConfig
from winnowrl.training.learner.lora import ADAPTER, lora_layers
from winnowrl.training.learner.masters import dithered, dithered_bfloat16

sys.path.insert(0, str(Path(__file__).parent))
from learner_cases import make_batch, tiny_model
from test_learner import learner_for


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("is_fast", [False, True])
def test_every_master_rounds_to_its_weight_and_lies_anywhere_around_it(is_fast: bool) -> None:
    weight = torch.linspace(1.0, 1.9, 60_000).to(torch.bfloat16).float() * torch.tensor([0.25, -4.0]).repeat(30_000)
    if is_fast:
        moved = dithered_bfloat16(weight.to(torch.bfloat16), generator())
    else:
        moved = dithered(weight, torch.bfloat16, generator())
    assert torch.equal(moved.to(torch.bfloat16).float(), weight)
    # Between 1 and 2 bfloat16 counts in steps of 2^-7.
    place = (moved - weight) / (torch.exp2(weight.abs().log2().floor()) * 2.0**-7)
    assert -0.5 <= place.min() < -0.49
    assert 0.49 < place.max() <= 0.5
    assert abs(float(place.mean())) < 0.01
    assert float(place.var()) == pytest.approx(1 / 12, rel=0.03)


def test_zeros_powers_of_two_and_what_is_no_bfloat16_number() -> None:
    weight = torch.tensor([0.0, 1.0, -0.5, 1e-30, 0.1]).repeat(1000)
    moved = dithered(weight, torch.bfloat16, generator()).view(1000, 5)
    assert not moved[:, 0].any()
    # 0.1 lies between two bfloat16 numbers: as a master it is fine where it is, like 1e-30.
    assert torch.equal(moved[:, 3:], weight.view(1000, 5)[:, 3:])
    for column, value in ((1, 1.0), (2, -0.5)):
        assert (moved[:, column].to(torch.bfloat16) == value).all()
        assert len(moved[:, column].unique()) > 500


def test_fast_dither_keeps_zeros_and_every_exponent() -> None:
    smallest, largest = 2.0**-133, torch.finfo(torch.bfloat16).max
    weight = torch.tensor([[0.0, -0.0, smallest, -smallest, 1.0, largest, -largest]] * 101).to(torch.bfloat16)
    moved = dithered_bfloat16(weight, generator())
    assert torch.equal(moved.to(torch.bfloat16).view(torch.int16), weight.view(torch.int16))
    assert not moved[:, :2].any()
    assert torch.isfinite(moved).all()


def arriving(*, is_dithered: bool, zero_stage: int = 0) -> float:
    """Share of one small step that the weights of a bfloat16 model make, along the step of its float32 twin."""
    steps = []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model().to(torch.bfloat16).to(dtype)
        fields = {"dither_masters": is_dithered, "zero_stage": zero_stage} if dtype == torch.bfloat16 else {}
        before = {name: tensor.detach().clone().float() for name, tensor in model.named_parameters()}
        learner = learner_for(model, learning_rate=1e-4, adam_eps=1e-12, grad_clip=0.0, **fields)
        start = {name: tensor.clone().float() for name, tensor in learner.named_weights()}
        assert all(torch.equal(start[name], before[name]) for name in before)
        learner.update(make_batch())
        steps.append(torch.cat([(w.float() - start[name]).flatten() for name, w in learner.named_weights()]))
        learner.close()
    wanted, made = steps
    return float(wanted @ made / (wanted @ wanted))


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_step_too_small_for_bfloat16_arrives_on_average(zero_stage: int) -> None:
    assert 0.75 < arriving(is_dithered=True, zero_stage=zero_stage) < 1.25


def test_without_dither_it_does_not() -> None:
    assert arriving(is_dithered=False) < 0.5


def adapted_learner():
    """A bfloat16 model with adapters on every linear layer, whose steps are far below what its weights resolve."""
    model = tiny_model(hidden_size=128, intermediate_size=256, initializer_range=0.05).to(torch.bfloat16)
    return learner_for(model, learning_rate=1e-5, lora=LoraConfig(rank=8), num_updates=20)


def test_what_young_adapters_learned_reaches_the_engine_and_the_export(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    learner = adapted_learner()
    base = {name: tensor.clone() for name, tensor in base_weights(learner).items()}
    assert all(torch.equal(tensor, base[name]) for name, tensor in learner.named_weights())  # nothing learned yet
    for _ in range(3):
        learner.update(make_batch())
        weights = dict(learner.named_weights())
        names = [f"{name}.weight" for name, _ in lora_layers(learner.model)]
        deltas = [layer.get_delta_weight(ADAPTER).detach().float() for _, layer in lora_layers(learner.model)]
        wanted = torch.cat([delta.flatten() for delta in deltas])
        made = torch.cat([(weights[name].float() - base[name].float()).flatten() for name in names])
        # Plain rounding lets 4 % of the first step through.
        assert float(wanted @ made / (wanted @ wanted)) == pytest.approx(1.0, abs=0.15)
    learner.export(tmp_path / "export")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    again = dict(learner.named_weights())
    for name, tensor in weights.items():
        assert torch.equal(again[name], tensor)
        assert torch.equal(exported[name], tensor)
    learner.save(tmp_path / "saved")
    learner.close()
    resumed = adapted_learner()
    resumed.load(tmp_path / "saved")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in resumed.named_weights())
    resumed.close()


def base_weights(learner) -> dict[str, torch.Tensor]:
    """The base weights of a learner with adapters, under their plain names."""
    return {
        name.replace(".base_layer", ""): parameter.detach()
        for name, parameter in learner.model.named_parameters()
        if ".lora_" not in name
    }
