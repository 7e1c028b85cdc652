"""The wheel and the source archive hold the whole package."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBPACKAGES = (
    "envs",
    "envs.base",
    "gates",
    "agents",
    "agents.engines",
    "training",
    "training.cli",
    "configs",
    "configs.load",
)
DATA = (
    "configs/quickstart.yaml",
    "py.typed",
    "envs/math/problems.jsonl",
    "envs/code/problems.jsonl",
    "envs/alfworld/games/rooms.json",
)


def _build(target: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("build")
    target = tmp_path_factory.mktemp("dist")
    _build(target, "--wheel", "--sdist")
    return {"wheel": next(target.glob("*.whl")), "sdist": next(target.glob("*.tar.gz"))}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_installed_archive_imports_every_subpackage_from_elsewhere(
    kind: str, archives: dict[str, Path], tmp_path: Path
) -> None:
    # The environment sees this one's libraries, so that only our archive is installed into it.
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-build-isolation"]
    command = [*pip, "--ignore-installed", str(archives[kind])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    code = (
        "import importlib, pathlib, winnowrl\n"
        f"root = pathlib.Path(winnowrl.__file__).parent\nassert {str(site)!r} in str(root), root\n"
        f"[importlib.import_module('winnowrl.' + name) for name in {SUBPACKAGES!r}]\n"
        f"missing = [name for name in {DATA!r} if not (root / name).exists()]\nassert not missing, missing\n"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
