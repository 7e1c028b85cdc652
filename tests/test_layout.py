"""The one-way rule and the heavy-import rule of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("envs", "gates", "agents", "training", "configs")
ALLOWED = {
    "envs": {"envs"},
    "gates": {"gates", "configs"},
    "agents": {"agents", "envs", "gates", "configs"},
    "training": {"training", "agents", "envs", "gates", "configs"},
    "configs": {"configs"},
}
HEAVY = ("torch", "vllm", "deepspeed", "ray", "alfworld", "textworld", "transformers", "peft", "math_verify", "sympy")
FORBIDDEN_NAMES = {"utils", "helpers", "common"} | set(sys.stdlib_module_names)


def _modules(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "templates" not in path.parts)


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write winnowrl.…"
            if node.module == "winnowrl":
                names |= {f"winnowrl.{alias.name}" for alias in node.names}
            else:
                names.add(node.module or "")
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    for path in _modules(package):
        ours = {name.split(".")[1] for name in _imports(path) if name.startswith("winnowrl.")}
        assert ours & set(PACKAGES) <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_imported_under_their_full_name(package: str) -> None:
    for path in _modules(package):
        bare = {name.split(".")[0] for name in _imports(path)} & {"envs", "gates", "agents", "training", "configs"}
        assert not bare, f"{path} imports {bare} without winnowrl."


@pytest.mark.parametrize(
    "module",
    [
        "winnowrl",
        "winnowrl.envs",
        "winnowrl.envs.base",
        "winnowrl.envs.arithmetic",
        "winnowrl.envs.math",
        "winnowrl.envs.code",
        "winnowrl.envs.ccr",
        "winnowrl.envs.alfworld",
        "winnowrl.gates",
        "winnowrl.agents",
        "winnowrl.configs.schema",
        "winnowrl.configs.load",
        "winnowrl.training",
        "winnowrl.training.cli.app",
    ],
)
def test_importing_pulls_in_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_module_has_a_name_that_says_nothing_or_shadows_the_standard_library() -> None:
    for package in PACKAGES:
        for path in _modules(package):
            assert path.stem not in FORBIDDEN_NAMES or path.parent.name == "cli", path
