"""Starts a process inside bubblewrap, watches it, and kills it with everything it started.

Inside: a read-only root with an interpreter and nothing else, a private ``/tmp`` of bounded size, own user, process,
network, IPC, host-name and cgroup namespaces, no capabilities, no way to gain any, a system-call filter. Where we are
root, the process is another, unprivileged user from its first instruction: resource limits do not bind root.
"""

from __future__ import annotations

import contextlib
import logging
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib import util
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from winnowrl.envs.code.execution import Limits
from winnowrl.envs.code.image import DEVICES, HOW_TO_GET, SandboxUnavailable, get_image
from winnowrl.envs.code.seccomp import build_filter

logger = logging.getLogger(__name__)

SandboxKind = Literal["bubblewrap", "none"]
NOBODY = 65534
KILL_WAIT_S = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")
# The modules below are sent along in compiled form: nothing of ours lies on the sandbox's disk.
BOOTSTRAP = """
import marshal, sys
codes, main, config = marshal.load(sys.stdin.buffer)
for name, code in codes:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
sys.modules[main].main(config)
"""


class SandboxFailure(RuntimeError):
    """The sandbox itself did not work this time; says nothing about the program."""


class Sandbox:
    """One process in a sandbox of its own, started at once.

    Args:
        module: Which of our modules runs inside: ``candidate`` or ``judge``.
        config: Its configuration; plain values and code objects.
        limits: What bounds its ``/tmp`` and memory.
        fds: Descriptors it inherits.
        output: Descriptor for its stdout and stderr.
        kind: ``none`` starts a plain process instead: no protection but resource limits.
    """

    def __init__(
        self,
        module: str,
        config: dict[str, Any],
        limits: Limits,
        fds: Sequence[int],
        output: int,
        kind: SandboxKind = "bubblewrap",
    ) -> None:
        self.limits = limits
        message = os.memfd_create("winnowrl-program", os.MFD_CLOEXEC)
        seccomp = -1
        try:
            names = [f"{__package__}.{name}" for name in ("wire", "candidate", module)]
            codes = [(name, _code_of(name)) for name in dict.fromkeys(names)]
            with os.fdopen(os.dup(message), "wb") as stream:
                marshal.dump((codes, names[-1], config), stream)
            os.lseek(message, 0, os.SEEK_SET)
            rules = build_filter() if kind == "bubblewrap" else None
            if rules:
                seccomp = os.memfd_create("winnowrl-seccomp", os.MFD_CLOEXEC)
                os.write(seccomp, rules)
                os.lseek(seccomp, 0, os.SEEK_SET)
            self._start(kind, message, seccomp, fds, output)
        finally:
            os.close(message)
            if seccomp >= 0:
                os.close(seccomp)

    def _start(self, kind: SandboxKind, message: int, seccomp: int, fds: Sequence[int], output: int) -> None:
        user: dict[str, Any] = {}
        if kind == "none":
            command = [sys.executable, "-I", "-S", "-c", BOOTSTRAP]
            environment = {"PYTHONHASHSEED": "0", "PATH": "/nonexistent"}
        else:
            command, environment = _command(self.limits, seccomp), {}
            fds = [*fds, seccomp] if seccomp >= 0 else fds
            if os.geteuid() == 0:
                user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.process = subprocess.Popen(
            command,
            stdin=message,
            stdout=output,
            stderr=output,
            pass_fds=fds,
            env=environment,
            cwd="/",
            start_new_session=True,
            **user,
        )
        self.pid = self.process.pid

    def resident_mb(self) -> float:
        """Memory that all processes inside hold, shared pages counted once per process."""
        pages = 0
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names alone, many times a second
                    waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
            except (OSError, IndexError, ValueError):
                continue
        return pages * PAGE / 2**20

    def kill(self) -> int:
        """Kill everything inside and reap it; calling it twice is fine. Returns the exit status.

        The first process inside is killed first: the kernel ends its whole namespace with it, and bubblewrap, its
        parent, reaps it and goes.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        for child in self._children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._is_bwrap():
                return self.process.wait(timeout=KILL_WAIT_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.process.wait(timeout=KILL_WAIT_S)

    def _is_bwrap(self) -> bool:
        return Path(str(self.process.args[0])).name == "bwrap"  # type: ignore[index]

    def _children(self) -> list[int]:
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []


def kernel_limits(limits: Limits) -> dict[str, int]:
    """``Limits`` as resource limits, set by the process inside before it runs anything foreign."""
    return {
        "RLIMIT_AS": limits.memory_mb << 20,
        "RLIMIT_CPU": max(1, -int(-limits.cpu_s // 1)),
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.disk_mb << 20,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 0,
    }


@lru_cache(maxsize=1)
def require_sandbox() -> None:
    """Start a sandbox once and see that it holds.

    Raises:
        SandboxUnavailable: it does not start, or shows more than it should; says how to get it.
    """
    from winnowrl.envs.code.runner import run_tests

    program = "import os\ndef look():\n    return [os.getuid() != 0, sorted(os.listdir('/dev')), os.path.exists('/proc/1')]"
    tests = f"assert look() == [True, {sorted(DEVICES)!r}, False]"
    try:
        result = run_tests(program, tests, "look", Limits(wall_s=20.0))
    except SandboxFailure as error:
        raise SandboxUnavailable(f"bubblewrap does not work here ({error}): {HOW_TO_GET}") from error
    if result.status != "passed":
        raise SandboxUnavailable(f"the sandbox does not hold ({result.message}, {result.failures}): {HOW_TO_GET}")


@lru_cache(maxsize=1)
def warn_unsafe() -> None:
    logger.warning(
        "sandbox is 'none': UNSAFE. Programs that the model writes run as this user, with its files and its network; "
        "use it only in a machine you can throw away"
    )


def _command(limits: Limits, seccomp: int) -> list[str]:
    image = get_image()
    command = [str(image.bwrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--as-pid-1", "--die-with-parent"]
    command += ["--hostname", "sandbox", "--ro-bind", str(image.root), "/"]
    for device in DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    command += ["--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp", "--clearenv"]
    for name, value in _environment(image.library_path).items():
        command += ["--setenv", name, value]
    if seccomp >= 0:
        command += ["--seccomp", str(seccomp)]
    return [*command, "--", str(image.python), "-S", "-s", "-P", "-c", BOOTSTRAP]


def _environment(library_path: str) -> dict[str, str]:
    # A fixed hash seed: members of a group see sets in the same order.
    return {"LD_LIBRARY_PATH": library_path, "PYTHONHASHSEED": "0", "HOME": "/tmp", "LANG": "C.UTF-8"}


@lru_cache(maxsize=8)
def _code_of(name: str) -> CodeType:
    spec = util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return compile(path.read_text(encoding="utf-8"), f"<{name}>", "exec", dont_inherit=True, optimize=0)


