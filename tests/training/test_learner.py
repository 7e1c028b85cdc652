"""The learner's update held against transformers' own forward on padded rows, with autograd through full logits."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from winnowrl.configs.sections.learner import LearnerConfig, LoraConfig
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.learner import DeepSpeedLearner, assemble_learner, flops
from winnowrl.training.learner.flops import machine_peak
from winnowrl.training.losses import ObjectiveSpec

sys.path.insert(0, str(Path(__file__).parent))
from learner_cases import make_batch, padded, plain_forward, plain_loss, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are faster on one thread, and on a busy machine many times faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SPECS = {
    "grpo": ObjectiveSpec(correction="token_tis"),
    "dapo": ObjectiveSpec(aggregation="token-mean", clip_high=0.28),
    "dr_grpo": ObjectiveSpec(aggregation="seq-mean-token-sum-norm", max_tokens=8),
    "gspo": ObjectiveSpec(importance_level="sequence", correction="sequence_tis"),
    "cispo": ObjectiveSpec(loss_type="cispo", aggregation="token-mean", clip_low=1.0, clip_high=4.0),
    "entropy": ObjectiveSpec(entropy_coef=0.05, regularize_zero_advantage=True),
}


def learner_for(
    model, spec=SPECS["grpo"], *, temperature: float = 1.0, num_updates: int = 1, **fields
) -> DeepSpeedLearner:
    config = LearnerConfig(**({"learning_rate": 1e-2, "grad_clip": 0.0} | fields))
    return assemble_learner(model, config, spec, temperature=temperature, num_updates=num_updates)


def gradients_of_update(learner: DeepSpeedLearner, batch: list[TrainingSequence]) -> tuple[dict, object]:
    """The gradient at the optimizer step, and the update's result."""
    found: dict[str, torch.Tensor] = {}
    step = learner.engine.step

    def look_then_step(learning_rate: float) -> float:
        found.update({name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None})
        return step(learning_rate)

    learner.engine.step = look_then_step  # type: ignore[method-assign]
    return found, learner.update(batch)


def assert_same(found: dict, model) -> None:
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=2e-4, atol=3e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", SPECS)
def test_loss_and_gradient_equal_the_padded_computation(name: str) -> None:
    batch, spec, reference = make_batch(), SPECS[name], tiny_model()
    loss = plain_loss(reference, batch, spec, temperature=0.7)
    loss.backward()
    learner = learner_for(tiny_model(), spec, temperature=0.7)
    found, result = gradients_of_update(learner, batch)
    assert_same(found, reference)
    assert result.metrics["loss/total"] == pytest.approx(float(loss.detach()), abs=1e-6)
    norm = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm()
    assert result.metrics["learner/grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    learner.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"prefix_sharing": False},
        {"max_tokens_per_microbatch": 15},
        {"max_tokens_per_microbatch": 1},
        {"prefix_sharing": False, "max_tokens_per_microbatch": 30},
        {"attention": "dense"},
        {"gradient_checkpointing": True},
        {"head_chunk_rows": 3},
        {"zero_stage": 1},
        {"zero_stage": 2},
        {"zero_stage": 3},
    ],
    ids=str,
)
def test_no_way_of_splitting_changes_the_weights(fields: dict) -> None:
    batch = make_batch(2)
    results = []
    for chosen in ({}, fields):
        learner = learner_for(tiny_model(), weight_decay=0.1, num_updates=2, grad_clip=0.5, adam_eps=1e-3, **chosen)
        metrics = [learner.update(batch).metrics for _ in range(2)]
        results.append((metrics, {name: tensor.clone() for name, tensor in learner.named_weights()}))
        learner.close()
    (plain_metrics, plain), (metrics, weights) = results
    assert plain.keys() == weights.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    for name in ("loss/total", "learner/grad_norm", "policy/entropy", "mismatch/mean_abs", "ess"):
        assert metrics[1][name] == pytest.approx(plain_metrics[1][name], rel=1e-3, abs=1e-5)


def test_statistics_are_those_of_the_policy_before_the_step() -> None:
    batch, model = make_batch(3), tiny_model()
    logprobs, entropies = plain_forward(model, batch, 1.0)
    learner = learner_for(tiny_model())
    scored = learner.score(batch)
    updated = learner.update(batch).sequences
    for stats in (scored, updated):
        assert list(stats) == [sequence.rollout_id for sequence in batch]
        for row, sequence in enumerate(batch):
            mask = torch.tensor(sequence.completion_mask[1:])
            length = len(mask)
            expected = torch.where(mask, logprobs[row, :length], 0.0)
            found = torch.tensor(stats[sequence.rollout_id].logprobs)
            assert found[0] == 0.0
            torch.testing.assert_close(found[1:], expected.detach(), rtol=1e-4, atol=2e-5)
            entropy = entropies[row, :length][mask].mean()
            assert stats[sequence.rollout_id].entropy == pytest.approx(float(entropy.detach()), rel=1e-4)
            assert stats[sequence.rollout_id].clip_fraction == 0.0
    learner.close()


def test_first_pass_ratio_is_exactly_one() -> None:
    learner = learner_for(tiny_model())
    metrics = learner.update(make_batch()).metrics
    assert metrics["max/ratio"] == 1.0
    assert metrics["kl/step"] == 0.0
    learner.close()


def test_given_old_logprobs_are_where_the_ratio_starts() -> None:
    # old = own - ln 2 at every token: the ratio is 2 everywhere, so positive advantages are clipped at 1.2.
    batch = [dataclasses.replace(sequence, advantage=1.0) for sequence in make_batch()]
    learner = learner_for(tiny_model(), ObjectiveSpec())
    scored = learner.score(batch)
    shifted = [
        dataclasses.replace(s, old_logprobs=[p - 0.6931472 for p in scored[s.rollout_id].logprobs]) for s in batch
    ]
    metrics = learner.update([*shifted[:-1], batch[-1]])
    assert metrics.metrics["max/ratio"] == pytest.approx(2.0, rel=1e-4)
    assert [stats.clip_fraction for stats in metrics.sequences.values()] == [1.0] * (len(batch) - 1) + [0.0]
    learner.close()


@pytest.mark.parametrize("fields", [{"num_iterations": 3}, {"num_minibatches": 3}, {"num_minibatches": 5}], ids=str)
def test_several_steps_all_start_their_ratio_from_the_first_policy(fields: dict) -> None:
    batch = make_batch(4)
    learner = learner_for(tiny_model(), **fields)
    before = learner.score(batch)
    result = learner.update(batch)
    assert result.metrics["learner/optimizer_steps"] == max(fields.values())
    assert result.metrics["max/ratio"] > 1.01
    for rollout_id, stats in result.sequences.items():
        torch.testing.assert_close(
            torch.tensor(stats.logprobs), torch.tensor(before[rollout_id].logprobs), rtol=1e-4, atol=2e-5
        )
    learner.close()


def test_two_iterations_equal_two_updates_with_the_old_logprobs_kept() -> None:
    batch, weights = make_batch(5), []
    learner = learner_for(tiny_model(), num_iterations=2)
    learner.update(batch)
    weights.append(dict(learner.named_weights()))
    learner.close()
    other = learner_for(tiny_model(), num_updates=2)
    birth = other.update(batch).sequences
    other.update([dataclasses.replace(s, old_logprobs=birth[s.rollout_id].logprobs) for s in batch])
    weights.append(dict(other.named_weights()))
    other.close()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_what_the_run_started_from(rank: int) -> None:
    batch = make_batch(6)
    spec = ObjectiveSpec(kl_coef=0.3, regularize_zero_advantage=True)
    learner = learner_for(tiny_model(), spec, num_updates=3, lora=LoraConfig(rank=rank))
    first = learner.update(batch).metrics["kl/reference"]
    second = learner.update(batch).metrics["kl/reference"]
    reference, _ = plain_forward(tiny_model(), batch, 1.0)
    now = learner.score(batch)
    expected = learner.update(batch).metrics["kl/reference"]
    learner.close()
    gap = torch.cat([
        reference[row, : len(s.token_ids) - 1][torch.tensor(s.completion_mask[1:])]
        - torch.tensor(now[s.rollout_id].logprobs[1:])[torch.tensor(s.completion_mask[1:])]
        for row, s in enumerate(batch)
    ])  # fmt: skip
    assert first == pytest.approx(0.0, abs=1e-7)
    assert second > 1e-6
    # k3 = exp(d) - d - 1 with d = log ref - log policy, mean over tokens
    assert expected == pytest.approx(float((gap.exp() - gap - 1).mean().detach()), rel=1e-3)


def test_the_sequences_of_a_rollout_share_its_weight() -> None:
    # Forking adds sequences, not weight: rollouts 0 (three of them) and 1 (one) have half of the loss each.
    forks = [dataclasses.replace(s, fork_of=int(row == 3)) for row, s in enumerate(make_batch(groups=1))]
    counts = [s.num_completion_tokens for s in forks]
    total = sum(counts[:3])
    spread = [4 / 2 * count / total for count in counts[:3]] + [4 / 2]
    apart = [
        dataclasses.replace(s, fork_of=None, advantage_scale=s.advantage_scale * factor)
        for s, factor in zip(forks, spread, strict=True)
    ]
    found = []
    for batch in (forks, apart):
        learner = learner_for(tiny_model(), ObjectiveSpec())
        found.append(learner.update(batch).metrics)
        learner.close()
    for name in ("loss/total", "learner/grad_norm"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)


def test_a_batch_of_zero_advantages_changes_nothing() -> None:
    batch = [dataclasses.replace(sequence, advantage=0.0) for sequence in make_batch()]
    learner = learner_for(tiny_model())
    before = {name: tensor.clone() for name, tensor in learner.named_weights()}
    assert learner.update(batch).metrics["learner/grad_norm"] == 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.named_weights())
    learner.close()


def test_the_overlong_filter_leaves_truncated_replies_out_of_loss_and_denominators() -> None:
    batch = make_batch()
    marked = [dataclasses.replace(s, is_truncated=row % 3 == 0) for row, s in enumerate(batch)]
    kept = [s for s in marked if not s.is_truncated]
    reference = tiny_model()
    plain_loss(reference, kept, SPECS["grpo"]).backward()
    config = LearnerConfig(learning_rate=1e-2, grad_clip=0.0)
    learner = assemble_learner(tiny_model(), config, SPECS["grpo"], overlong_filter=True)
    found, result = gradients_of_update(learner, marked)
    assert_same(found, reference)
    assert result.metrics["learner/overlong_filtered"] == 4
    learner.close()


def test_tokens_and_work_are_counted() -> None:
    # Two replies [3 4], [3 5] to the prompt [1 2]: 1 2 3 are computed, 8 - 2 unshared, 2 rows predict 4 tokens.
    batch = [TrainingSequence([1, 2, 3, 4 + i], [False, False, True, True], [0.0] * 4, 1.0, 0, i) for i in range(2)]
    learner = learner_for(tiny_model())
    metrics = learner.update(batch).metrics
    learner.close()
    assert metrics["learner/tokens_distinct"] == 3
    assert metrics["learner/tokens_unshared"] == 6
    assert metrics["learner/tokens_trained"] == 4
    # Linear weights a layer: q, o 32x32, k, v 16x32, three of 64x32. 2 layers, 2 x 3 FLOPs a weight and token;
    # head 50x32 at 2 rows; attention 3 x 4 x (4 heads x 8) x 2 layers over 1 + 2 + 3 pairs.
    linear = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
    assert metrics["learner/flops"] == 6 * linear * 3 + 6 * 50 * 32 * 2 + 3 * 4 * 32 * 2 * 6
    peak = machine_peak(torch.float32, "cpu")
    assert metrics["learner/mfu"] == metrics["learner/flops"] / (metrics["time/learner_total_s"] * peak)


def test_the_peak_of_a_format_the_machine_emulates_takes_no_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def slow(dtype: torch.dtype, device: str, *, size: int, repeats: int) -> float:
        sizes.append(size)
        return 3e8

    monkeypatch.setattr(flops, "matmul_peak", slow)
    assert machine_peak.__wrapped__(torch.bfloat16, "cpu") == 3e8
    assert sizes == [256]


def test_nothing_to_train_on_is_the_callers_mistake() -> None:
    learner = learner_for(tiny_model())
    with pytest.raises(ValueError, match="no token to train on"):
        learner.update([TrainingSequence([1, 2], [False, False], [0.0, 0.0], 1.0, 0, 0)])
    learner.close()
    learner.close()


def test_flex_attention_is_refused_on_cpu_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="does not train on cpu; allowed here: auto, blocks, dense"):
        learner_for(tiny_model(), attention="flex")


def test_bfloat16_keeps_masters_in_float32() -> None:
    # A step of 1e-5 is far below bfloat16's resolution at 0.3: only float32 masters can add up 10 of them.
    model = tiny_model().to(torch.bfloat16)
    learner = learner_for(model, learning_rate=1e-5, num_updates=10)
    start = {name: tensor.clone().float() for name, tensor in learner.named_weights()}
    batch = make_batch()
    for _ in range(10):
        metrics = learner.update(batch).metrics
    changed = [float((tensor.float() - start[name]).abs().max()) for name, tensor in learner.named_weights()]
    assert next(learner.model.parameters()).dtype == torch.bfloat16
    assert learner.engine.zero_stage == 1
    assert max(changed) > 2e-5
    assert metrics["learner/grad_norm"] > 0
    learner.close()


def test_padded_rows_of_the_cases_have_equal_width() -> None:
    batch = make_batch()
    assert padded(batch, [s.token_ids for s in batch]).shape == (12, max(len(s.token_ids) for s in batch))


FAMILIES = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 4},
    "Gemma": {"head_dim": 8},
    "Granite": {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    "Cohere": {"logit_scale": 0.25},
    "Phi3": {"pad_token_id": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_score_as_their_own_forward_does(family: str) -> None:
    import transformers

    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "max_position_embeddings": 64,
    }
    config = getattr(transformers, f"{family}Config")(**(shape | FAMILIES[family]))
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    batch = make_batch()
    expected, _ = plain_forward(model, batch, 1.0)
    learner = learner_for(model)
    found = learner.score(batch)
    learner.close()
    for row, sequence in enumerate(batch):
        mask = torch.tensor(sequence.completion_mask[1:])
        ours = torch.tensor(found[sequence.rollout_id].logprobs[1:])[mask]
        torch.testing.assert_close(ours, expected[row, : len(mask)][mask].detach(), rtol=1e-3, atol=1e-4)


def test_models_that_are_not_attention_alone_are_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM, MambaConfig, MambaForCausalLM

    mamba = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ValueError, match="recurrent layers; the learner trains attention-only models"):
        learner_for(mamba)
    shape = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    gemma = Gemma2ForCausalLM(Gemma2Config(num_attention_heads=2, num_key_value_heads=1, **shape))
    with pytest.raises(ValueError, match="soft-caps its logits"):
        learner_for(gemma)
