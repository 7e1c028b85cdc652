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
import shutil
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
from winnowrl.envs.code.image import DEVICES, HOW_TO_GET, SandboxUnavailableError, get_image
from winnowrl.envs.code.seccomp import build_filter
from winnowrl.envs.code.usage import Usage, children, read_usage

logger = logging.getLogger(__name__)

SandboxKind = Literal["bubblewrap", "none"]
NOBODY = 65534
KILL_WAIT_S = 5.0
# The modules below are sent along in compiled form: nothing of ours lies on the sandbox's disk.
BOOTSTRAP = """
import marshal, sys
codes, main, config = marshal.load(sys.stdin.buffer)
for name, code in codes:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
getattr(module, main)(config)
"""


class SandboxFailureError(RuntimeError):
    """The sandbox itself did not work this time; says nothing about the program."""


class Sandbox:
    """One process in a sandbox of its own, started at once.

    Args:
        modules: Our modules that are sent inside, in the order of their imports.
        main: Function of the last one that is called.
        config: Its argument; plain values and code objects.
        limits: What bounds its ``/tmp`` and memory.
        fds: Descriptors it inherits.
        output: Descriptor for its stdout and stderr.
        kind: ``none`` starts a plain process instead: no protection but resource limits.
        dies_with_thread: The kernel kills it when the thread that started it ends (or our process does).
        may_lose_children: It may have the kernel forget its children as they end, and with them what they used.
    """

    def __init__(
        self,
        modules: Sequence[str],
        main: str,
        config: dict[str, Any],
        limits: Limits,
        fds: Sequence[int],
        output: int,
        kind: SandboxKind = "bubblewrap",
        dies_with_thread: bool = True,
        may_lose_children: bool = False,
    ) -> None:
        self.limits = limits
        self.is_confined = kind == "bubblewrap"
        self.dies_with_thread = dies_with_thread
        self.cpu_s = 0.0
        message = os.memfd_create("winnowrl-program", os.MFD_CLOEXEC)
        seccomp = -1
        try:
            names = [f"{__package__}.{name}" for name in modules]
            fill(message, marshal.dumps(([(name, _code_of(name)) for name in names], main, config)))
            rules = build_filter(may_lose_children=may_lose_children) if kind == "bubblewrap" else None
            if rules:
                seccomp = os.memfd_create("winnowrl-seccomp", os.MFD_CLOEXEC)
                fill(seccomp, rules)
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
            command, environment = _command(self.limits, seccomp, self.dies_with_thread), {}
            fds = [*fds, seccomp] if seccomp >= 0 else fds
            if os.geteuid() == 0 and (setpriv := _setpriv()):
                command = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
            elif os.geteuid() == 0:
                user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        try:
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
        except OSError as error:
            raise SandboxFailureError(f"no process could be started: {error}") from error
        self.pid = self.process.pid

    def usage(self) -> Usage:
        """What everything inside uses together now."""
        return read_usage(self.pid)

    def wait(self, timeout_s: float) -> int | None:
        """The exit status once it has ended, or None after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.process.returncode is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
            elif time.monotonic() >= deadline:
                return None
            else:
                time.sleep(0.001)
        return self.process.returncode

    def kill(self) -> int:
        """Kill everything inside and reap it; calling it twice is fine. Returns the exit status.

        The first process inside is killed first: the kernel ends its whole namespace with it, and bubblewrap, its
        parent, reaps it and goes.
        """
        first = children(self.pid) if self.process.returncode is None and self.is_confined else []
        for child in first:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        if not first or self.wait(KILL_WAIT_S) is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.process.returncode is None:
                    os.killpg(self.pid, signal.SIGKILL)
        status = self.wait(KILL_WAIT_S)
        assert status is not None, f"process {self.pid} outlived SIGKILL by {KILL_WAIT_S} s"
        return status


def fill(fd: int, data: bytes) -> None:
    """Write ``data`` to a file and rewind it."""
    with os.fdopen(os.dup(fd), "wb") as stream:
        stream.write(data)
    os.lseek(fd, 0, os.SEEK_SET)


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
        "RLIMIT_SIGPENDING": 64,
    }


@lru_cache(maxsize=1)
def require_sandbox() -> None:
    """Start a sandbox once and see that it holds.

    Raises:
        SandboxUnavailableError: it does not start, or shows more than it should; says how to get it.
    """
    from winnowrl.envs.code.runner import run_tests

    program = (
        "import os\ndef look():\n    return [os.getuid() != 0, sorted(os.listdir('/dev')), os.path.exists('/proc/1')]"
    )
    tests = f"assert look() == [True, {sorted(DEVICES)!r}, False]"
    try:
        result = run_tests(program, tests, "look", Limits(wall_s=20.0))
    except SandboxFailureError as error:
        raise SandboxUnavailableError(f"bubblewrap does not work here ({error}): {HOW_TO_GET}") from error
    if result.status != "passed":
        raise SandboxUnavailableError(f"the sandbox does not hold ({result.message}, {result.failures}): {HOW_TO_GET}")


@lru_cache(maxsize=1)
def warn_unsafe() -> None:
    logger.warning(
        "sandbox is 'none': UNSAFE. Programs that the model writes run as this user, with its files and its network; "
        "use it only in a machine you can throw away"
    )


def _command(limits: Limits, seccomp: int, dies_with_thread: bool) -> list[str]:
    image = get_image()
    command = [str(image.bwrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--as-pid-1"]
    command += ["--die-with-parent"] if dies_with_thread else []
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


@lru_cache(maxsize=1)
def _setpriv() -> str | None:
    """The program that changes the user. Asked to do that itself, ``subprocess`` forks the whole trainer, whose page
    tables take a tenth of a second per gigabyte to copy; otherwise it does not (vfork)."""
    return shutil.which("setpriv")


@lru_cache(maxsize=8)
def _code_of(name: str) -> CodeType:
    spec = util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return compile(path.read_text(encoding="utf-8"), f"<{name}>", "exec", dont_inherit=True, optimize=0)
