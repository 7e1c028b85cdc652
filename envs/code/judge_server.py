"""Keeps one sandbox from which judges are forked, so that each run starts one interpreter and not two.

Judges run the task set's tests, never a model's program, so they may share a sandbox; each is a fresh fork of a process
that has run nothing yet.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import socket
import threading
from typing import Any

from winnowrl.envs.code.execution import Limits
from winnowrl.envs.code.sandbox import Sandbox, SandboxFailureError, SandboxKind, fill
from winnowrl.envs.isolation.output import OutputFile

SERVER_LIMITS = Limits(disk_mb=1)
# Well below the largest file the sandbox may write, or a judge that warns would fail what it judges.
COMPLAINTS_BYTES = 64 << 10


class JudgeServer:
    """The sandbox and the socket jobs go to. ``submit`` may be called from any thread."""

    def __init__(self, kind: SandboxKind) -> None:
        self.process_id = os.getpid()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._complaints = OutputFile(COMPLAINTS_BYTES)
        config = {"control": theirs.fileno()}
        modules = ("values", "wire", "channel", "candidate", "testing", "remote", "raised", "judge")
        with theirs:
            # Started by whichever thread came first, it must outlive that thread; it ends when the socket closes.
            self._sandbox = Sandbox(
                modules, "serve", config, SERVER_LIMITS, [theirs.fileno()], self._complaints.fileno(), kind, False, True
            )

    @property
    def is_alive(self) -> bool:
        return self.process_id == os.getpid() and self._sandbox.wait(0) is None

    def submit(self, job: dict[str, Any], channel: int, verdict: int, lifeline: int) -> None:
        """Hand a job over with its descriptors; the judge dies when the other end of ``lifeline`` is closed.

        Raises:
            SandboxFailureError: the server is gone.
        """
        message = os.memfd_create("winnowrl-job", os.MFD_CLOEXEC)
        try:
            fill(message, marshal.dumps(job))
            with self._lock:
                self._complaints.trim()
                socket.send_fds(self._control, [b"job"], [channel, verdict, message, lifeline])
        except OSError as error:
            raise SandboxFailureError(
                f"the sandbox of the tests is gone: {self.complaints().decode(errors='replace') or error}"
            ) from error
        finally:
            os.close(message)

    def complaints(self) -> bytes:
        """The end of what it wrote to standard error, which is nothing unless something is wrong."""
        return self._complaints.end()

    def close(self) -> None:
        """End it and every judge in it; calling it twice is fine."""
        if self._control.fileno() >= 0 and self.process_id == os.getpid():
            self._control.close()
            self._sandbox.kill()
            self._complaints.close()


_servers: dict[SandboxKind, JudgeServer] = {}
_servers_lock = threading.Lock()


def get_judge_server(kind: SandboxKind) -> JudgeServer:
    """The server of this process, started at the first call and again after it died or our process was forked."""
    with _servers_lock:
        server = _servers.get(kind)
        if server is None or not server.is_alive:
            server = _servers[kind] = JudgeServer(kind)
        return server


def _forget_servers() -> None:
    """In a forked process: the servers are the parent's, and the lock may have been held when it forked."""
    global _servers_lock
    _servers.clear()
    _servers_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_servers)


@atexit.register
def _close_servers() -> None:
    for server in _servers.values():
        with contextlib.suppress(OSError):
            server.close()
