"""Keeps the console for the run: libraries' banners, bars and deprecations go to the log level of warnings that matter."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

# torch sets its own logger's level again while it is imported; it says on every CPU that it finds no Triton.
NOISY_LOGGERS = ("vllm", "deepspeed", "DeepSpeed", "transformers", "torch", "torch._library.triton", "httpx")
ENVIRONMENT = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DS_ACCELERATOR_LOG_LEVEL": "ERROR",
}
# NVIDIA's and AMD's drivers make them.
GPU_NODES = ("/dev/nvidiactl", "/dev/kfd")


def quiet_libraries() -> None:
    """Call before torch, vLLM or DeepSpeed are imported. ``WINNOWRL_LOG=DEBUG`` leaves everything on."""
    if os.environ.get("WINNOWRL_LOG", "").upper() == "DEBUG":
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not any(Path(node).exists() for node in GPU_NODES):
        # Others import DeepSpeed before the learner does; it would warn that it finds no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_progress_bars() -> None:
    """Turn off the bars of transformers, once it is imported."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
