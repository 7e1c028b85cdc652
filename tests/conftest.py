"""What every test may use: a tiny tokenizer and a tiny random model, made once a session."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _tiny():  # type: ignore[no-untyped-def]
    """tests/tiny.py, loaded by path: under importlib import mode the tests are no package."""
    name = "winnowrl_tests_tiny"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("tiny.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Llama with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny_model")
    _tiny().build_tiny_model(folder)
    return folder
