"""The process that forks game workers: ``python -m winnowrl.envs.alfworld.worker FD``.

It imports TextWorld once; every worker is a fork of it, ready in milliseconds, its imports shared with the others.
A worker plays one game in a process group of its own. When the trainer goes away the connection closes and all of
them end; a worker also ends with its parent, whatever it is computing.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from winnowrl.envs.alfworld import wire

PR_SET_PDEATHSIG = 1
TICK_S = 1.0


def serve(control: socket.socket, cache: Path) -> None:
    """Answer ``fork`` (with a socket for the worker) and ``kill`` until the other side closes."""
    parent, children = os.getppid(), set[int]()
    try:
        while os.getppid() == parent:
            _reap(children)
            if not select.select([control], [], [], TICK_S)[0]:
                continue
            data, descriptors, _, _ = socket.recv_fds(control, 64, 1)
            if not data:
                return
            order, _, argument = data.decode().partition(" ")
            if order == "fork":
                pid = _fork(control, socket.socket(fileno=descriptors[0]), cache)
                children.add(pid)
                wire.send(control, {"pid": pid})
            else:
                wire.send(control, {"status": _kill(int(argument), children)})
    finally:
        for pid in list(children):
            _kill(pid, children)


def _fork(control: socket.socket, connection: socket.socket, cache: Path) -> int:
    pid = os.fork()
    if pid:
        connection.close()
        return pid
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        control.close()
        from winnowrl.envs.alfworld.game_session import answer_requests

        answer_requests(connection, cache)
        status = 0
    finally:
        # No exit handlers and no buffered output of the parent in the child.
        os._exit(status)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            children.discard(pid)


def _kill(pid: int, children: set[int]) -> int | None:
    """Kill a child's whole group and reap it; its wait status, or None where it had ended before."""
    if pid not in children:
        return None
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            return status
        # A child that has just been forked may not lead a group yet.
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.001)


def main(arguments: list[str]) -> None:
    control, cache = socket.socket(fileno=int(arguments[0])), Path(arguments[1])
    ready: dict[str, Any] = {"ready": os.getpid()}
    try:
        # fast_downward reads its options from sys.argv when it is imported, and overwrites it later.
        sys.argv = ["translate.py", "domain", "task"]
        from winnowrl.envs.alfworld import game_session, memo

        memo.install()
        game_session.warm_up(cache)
    except Exception as error:  # noqa: BLE001 - whatever keeps TextWorld from loading is told to the trainer
        ready = {"error": f"{type(error).__name__}: {error}"}
    wire.send(control, ready)
    if "ready" in ready:
        serve(control, cache)


if __name__ == "__main__":
    main(sys.argv[1:])
