"""Saving, loading bit for bit, exporting, adapters, schedule, parameter groups, minibatches."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from winnowrl.configs.sections.learner import LearnerConfig, LoraConfig
from winnowrl.training.learner import assemble_learner
from winnowrl.training.learner.minibatches import deal_packs, split_minibatches
from winnowrl.training.learner.optimizer import parameter_groups
from winnowrl.training.learner.schedule import learning_rate_factor
from winnowrl.training.losses import ObjectiveSpec

sys.path.insert(0, str(Path(__file__).parent))
from learner_cases import make_batch, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are faster on one thread, and on a busy machine many times faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(model_seed: int = 0, **fields):
    settings = {"learning_rate": 1e-2, "schedule": "cosine", "num_minibatches": 2, "weight_decay": 0.01}
    model = tiny_model(model_seed, **fields.pop("model", {}))
    return assemble_learner(model, LearnerConfig(**(settings | fields)), ObjectiveSpec(), num_updates=5)


@pytest.mark.parametrize(
    "fields",
    [{}, {"lora": LoraConfig(rank=4)}, {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}],
    ids=["full", "lora", "zero1", "zero2", "zero3"],
)
def test_a_loaded_learner_continues_bit_for_bit(tmp_path: Path, fields: dict) -> None:
    batch = make_batch()
    first = build(**fields)
    for _ in range(2):
        first.update(batch)
    first.save(tmp_path / "saved")
    losses = [first.update(batch).metrics["loss/total"] for _ in range(2)]
    expected = {name: tensor.clone() for name, tensor in first.named_weights()}
    first.close()
    # The same base under LoRA: the checkpoint holds it too, but the reference is made from it at the start.
    second = build(0 if "lora" in fields else 7, **fields)
    second.load(tmp_path / "saved")
    assert [second.update(batch).metrics["loss/total"] for _ in range(2)] == losses
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.named_weights())
    second.close()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saved = build()
    saved.save(tmp_path)
    saved.close()
    for fields, said in (
        ({"model": {"intermediate_size": 128}}, r"is \[64, 32\] in the checkpoint and \[128, 32\] here"),
        ({"model": {"num_hidden_layers": 3}}, "has no 'model.layers.2"),
        ({"lora": LoraConfig(rank=2)}, "resume with the model and learner.lora"),
        ({"zero_stage": 1}, "saved with zero_stage 0, loaded with 1"),
    ):
        other = build(**fields)
        with pytest.raises(ValueError, match=said):
            other.load(tmp_path)
        other.close()
    other = build()
    with pytest.raises(ValueError, match="holds no learner checkpoint"):
        other.load(tmp_path / "nowhere")
    other.close()


@pytest.mark.parametrize(
    "fields", [{}, {"lora": LoraConfig(rank=4)}, {"model": {"tie_word_embeddings": False}}], ids=str
)
def test_an_export_is_a_plain_model_that_scores_the_same(tmp_path: Path, fields: dict) -> None:
    from transformers import AutoModelForCausalLM

    batch = make_batch()
    learner = build(**fields)
    learner.update(batch)
    learner.export(tmp_path / "hf")
    stats = learner.score(batch)
    weights = dict(learner.named_weights())
    learner.close()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.dtype == torch.float32
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in weights.items())
    ids = torch.tensor([list(batch[0].token_ids)])
    logps = loaded(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor(batch[0].completion_mask[1:])
    torch.testing.assert_close(logps[mask].detach(), torch.tensor(stats[1000].logprobs[1:])[mask], rtol=1e-4, atol=3e-5)
    assert "winnowrl_tree" not in (tmp_path / "hf" / "config.json").read_text()


def test_an_export_carries_the_tokenizer(tmp_path: Path, tiny_model_path: Path) -> None:
    from transformers import AutoTokenizer

    from winnowrl.training.model_loading import load_model

    model = load_model(str(tiny_model_path), dtype="float32")
    learner = assemble_learner(model, LearnerConfig(), ObjectiveSpec(), model_folder=tiny_model_path)
    learner.export(tmp_path)
    learner.close()
    text = "What is 12 + 34?"
    expected = AutoTokenizer.from_pretrained(str(tiny_model_path))
    found = AutoTokenizer.from_pretrained(str(tmp_path))
    assert found(text)["input_ids"] == expected(text)["input_ids"]
    assert found.chat_template == expected.chat_template


def test_adapters_leave_the_base_weights_alone_and_go_out_merged() -> None:
    learner = build(lora=LoraConfig(rank=4, alpha=8.0))
    base = {n: p.detach().clone() for n, p in learner.model.named_parameters() if ".lora_" not in n}
    plain = {name: tensor.clone() for name, tensor in learner.named_weights()}
    assert plain.keys() == {name for name, _ in tiny_model().named_parameters()}
    learner.update(make_batch())
    assert all(torch.equal(dict(learner.model.named_parameters())[n], t) for n, t in base.items())
    merged = dict(learner.named_weights())
    layer = learner.model.model.layers[0].mlp.up_proj
    delta = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * 8.0 / 4
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(merged[name], plain[name] + delta.detach())
    assert float(delta.detach().abs().max()) > 0
    assert torch.equal(merged["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])
    learner.close()


def test_an_adapter_on_an_unknown_layer_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="allowed: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"):
        build(lora=LoraConfig(rank=2, target_modules=["qproj"]))


def test_named_weights_are_views_not_copies() -> None:
    learner = build()
    weights = dict(learner.named_weights())
    parameter = learner.model.model.layers[0].mlp.up_proj.weight
    assert weights["model.layers.0.mlp.up_proj.weight"].data_ptr() == parameter.data_ptr()
    assert "lm_head.weight" not in weights
    learner.close()


def test_the_learning_rate_follows_its_schedule_over_optimizer_steps() -> None:
    learner = build(schedule="linear", warmup_steps=2, num_minibatches=1)
    rates = [learner.update(make_batch()).metrics["learner/learning_rate"] for _ in range(5)]
    # 5 steps, 2 of warm-up (1/2, 1), then a third less at each of steps 2, 3, 4: the last one still moves the policy.
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.02 / 3, 0.01 / 3])
    learner.close()


@pytest.mark.parametrize(
    ("schedule", "minimum", "expected"),
    [
        # 2 steps of warm-up, then 5 steps, at progress 0, 1/5, 2/5, 3/5, 4/5; one more is at the end.
        ("constant", 0.0, [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", 0.2, [0.5, 1, 1, 0.84, 0.68, 0.52, 0.36, 0.2]),
        ("cosine", 0.0, [0.5, 1, 1, 0.9045085, 0.6545085, 0.3454915, 0.0954915, 0]),
    ],
)
def test_schedules(schedule: str, minimum: float, expected: list[float]) -> None:
    found = [
        learning_rate_factor(step, schedule=schedule, warmup_steps=2, total_steps=7, minimum=minimum)
        for step in range(8)
    ]
    assert found == pytest.approx(expected, abs=1e-7)


def test_only_matrices_decay_and_a_tied_head_counts_as_embedding() -> None:
    for tied, decays, kept in ((True, False, 1), (False, False, 1), (True, True, 0)):
        model = tiny_model(tie_word_embeddings=tied)
        decayed, plain = parameter_groups(model, weight_decay=0.1, decays_embeddings=decays)
        assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
        # 7 matrices in each of 2 layers; norms: 2 a layer and the last.
        assert len(plain["params"]) == 5 + kept
        assert len(decayed["params"]) == 14 + (0 if tied else 1) + (1 if decays else 0)
        assert model.model.embed_tokens.weight.shape in [p.shape for p in (decayed if decays else plain)["params"]]


def test_minibatches_cover_the_batch_and_keep_groups_whole() -> None:
    batch = make_batch(groups=5, members=3)
    steps = split_minibatches(batch, range(15), num_minibatches=2, rng=random.Random(0))
    assert sorted(index for step in steps for index in step) == list(range(15))
    assert sorted(len(step) for step in steps) == [6, 9]
    assert all({i // 3 for i in steps[0]}.isdisjoint({i // 3 for i in steps[1]}) for _ in (0,))
    finer = split_minibatches(batch, range(15), num_minibatches=7, rng=random.Random(0))
    assert sorted(len(step) for step in finer) == [2, 2, 2, 2, 2, 2, 3]
    assert len(split_minibatches(batch, [0, 1], num_minibatches=9, rng=random.Random(0))) == 2


def test_minibatches_keep_the_sequences_of_a_rollout_together() -> None:
    batch = [dataclasses.replace(s, fork_of=i // 3) for i, s in enumerate(make_batch(groups=1, members=12))]
    steps = split_minibatches(batch, range(12), num_minibatches=2, rng=random.Random(0))
    assert [len(step) for step in steps] == [6, 6]
    assert {i // 3 for i in steps[0]}.isdisjoint({i // 3 for i in steps[1]})


def test_every_rank_makes_as_many_passes() -> None:
    hands = deal_packs([[0], [1], [2]], [5, 9, 3], 2)
    assert hands == [[[1], []], [[0], [2]]]


def test_configs_name_what_is_allowed() -> None:
    for fields, said in (
        ({"schedule": "step"}, "allowed: constant, linear, cosine"),
        ({"zero_stage": 4}, "allowed: 0, 1, 2, 3"),
        ({"learning_rate": 0.0}, "learner.learning_rate is 0.0; allowed: above 0"),
        ({"min_learning_rate_ratio": 0.1}, "never falls"),
        ({"num_iterations": 0}, "allowed: 1 or more"),
    ):
        with pytest.raises(ValueError, match=said):
            LearnerConfig(**fields)
    with pytest.raises(ValueError, match="allowed: 0 \\(off\\) or more"):
        LoraConfig(rank=-1)


def test_the_checkpoint_says_what_it_was_saved_from(tmp_path: Path) -> None:
    learner = build()
    learner.update(make_batch())
    learner.save(tmp_path)
    state = json.loads((tmp_path / "learner.json").read_text())
    assert state["counters"] == {"num_updates": 1, "num_optimizer_steps": 2}
    assert state["shapes"]["model.embed_tokens.weight"] == [50, 32]
    learner.close()
