"""A child process that hosts many instances of one environment and answers one request at a time.

Started by :mod:`winnowrl.agents.worker_link` with the numbers of a socket and of a lifeline pipe. It leads a session of
its own, so that it is killed with everything it started; when the parent goes, the lifeline closes and the whole session
ends with it, even in the middle of a step.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

HEADER = struct.Struct(">Q")


def write_frame(payload: Any) -> bytes:
    """A length-prefixed pickle of ``payload``."""
    data = pickle.dumps(payload, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data


def read_frame(stream: BinaryIO) -> Any:
    """The next frame. Raises EOFError when the other side has gone."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        raise EOFError
    (size,) = HEADER.unpack(header)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Host:
    """The environments of this process, by slot number.

    One is made at once, so that importing what it needs is not charged to the first episode.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._spare = make()
        self._environments: dict[int, Any] = {}

    def reset(self, slot: int, seed: int, task: Any) -> Any:
        if slot not in self._environments:
            spare, self._spare = self._spare, None
            self._environments[slot] = spare if spare is not None else self._make()
        return self._environments[slot].reset(seed=seed, options={"task": task})

    def step(self, slot: int, action: str) -> Any:
        environment = self._environments.get(slot)
        if environment is None:
            raise RuntimeError("step() was called before reset()")
        return environment.step(action)

    def drop(self, slot: int) -> None:
        """Forget an instance whose state is no longer known to be sound."""
        environment = self._environments.pop(slot, None)
        if environment is not None:
            with contextlib.suppress(Exception):
                environment.close()

    def close(self) -> None:
        for slot in list(self._environments):
            self.drop(slot)


def serve(connection: socket.socket) -> None:
    """Answer requests until the parent goes or asks to stop."""
    stream = connection.makefile("rb")
    setup = read_frame(stream)
    host = Host(_maker(setup))
    connection.sendall(write_frame(None))
    with contextlib.suppress(EOFError):
        while (request := read_frame(stream)) is not None:
            operation, arguments = request
            connection.sendall(_answer(getattr(host, operation), arguments))
    host.close()


def _maker(setup: dict[str, Any]) -> Callable[[], Any]:
    import gymnasium

    spec = pickle.loads(setup["spec"])
    return lambda: gymnasium.make(spec, disable_env_checker=True, **setup["kwargs"])


def _answer(operation: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return write_frame((True, operation(*arguments)))
    except BaseException as error:  # noqa: BLE001 - the episode boundary: whatever the environment raises is its answer
        trace = traceback.format_exc(limit=-4)
        return write_frame((False, (f"{type(error).__name__}: {error}"[:1500], trace[-4000:])))


def _die_with_parent(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_die_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    code = 1
    try:
        serve(connection)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reads the last words of a worker that dies
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # What an environment leaves running (threads that do not end) must not keep the process.
        os._exit(code)
