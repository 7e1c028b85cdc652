"""Saving a learner, loading it exactly, and exporting a plain Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

STATE_FILE = "learner.json"
FORMAT_VERSION = 1
# Files of a model folder that say how text becomes tokens and how to generate; copied as they are.
_COMPANIONS = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "added_tokens.json",
    "generation_config.json",
)


def parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Whole shape of every parameter (ZeRO-3 keeps it aside)."""
    return {name: list(getattr(p, "ds_shape", p.shape)) for name, p in model.named_parameters()}


def write_state(folder: Path, counters: dict[str, int], model: nn.Module, *, world_size: int, zero_stage: int) -> None:
    """The part of the state that is not tensors, with the shapes a later load is checked against."""
    state = {
        "format": FORMAT_VERSION,
        "world_size": world_size,
        "zero_stage": zero_stage,
        "counters": counters,
        "shapes": parameter_shapes(model),
    }
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")


def read_state(folder: Path, model: nn.Module, *, world_size: int, zero_stage: int) -> dict[str, int]:
    """The counters, after checking that the checkpoint fits this learner.

    Raises:
        ValueError: no checkpoint, another format, another model, or split over another number of ranks.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no learner checkpoint ({STATE_FILE} is missing)")
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if state["format"] != FORMAT_VERSION:
        raise ValueError(f"{path}: format {state['format']}; this version reads {FORMAT_VERSION}")
    _check_shapes(path, state["shapes"], parameter_shapes(model))
    for name, here in (("world_size", world_size), ("zero_stage", zero_stage)):
        if state[name] != here and not (name == "world_size" and zero_stage == 0):
            raise ValueError(
                f"{path}: saved with {name} {state[name]}, loaded with {here}; use the same, or export the model"
            )
    counters: dict[str, int] = state["counters"]
    return counters


def _check_shapes(path: Path, saved: dict[str, list[int]], here: dict[str, list[int]]) -> None:
    missing, extra = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
    if missing or extra:
        what = f"has no {missing[0]!r}" if missing else f"has {extra[0]!r}, which this model lacks"
        raise ValueError(f"{path}: the checkpoint {what}; resume with the model and learner.lora it was saved with")
    for name, shape in here.items():
        if saved[name] != shape:
            raise ValueError(
                f"{path}: {name} is {saved[name]} in the checkpoint and {shape} here; resume with the model and "
                "learner.lora it was saved with"
            )


def export_model(model: Any, weights: Sequence[tuple[str, Tensor]], folder: Path, *, source: Path | None) -> None:
    """Write ``weights`` (plain names) as a folder that transformers and vLLM load, beside the tokenizer of ``source``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
    file = folder / "model.safetensors"
    save_file(tensors, str(file), metadata={"format": "pt"})
    # It is written for this user alone; whoever serves the model may be another.
    file.chmod(0o644)
    config = model.config.to_dict() | {"dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch.")}
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
    for pattern in _COMPANIONS if source is not None else ():
        for file in sorted(source.glob(pattern)) if source is not None else ():
            shutil.copyfile(file, folder / file.name)
