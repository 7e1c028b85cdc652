"""Messages between processes: a length and a JSON object, over a Unix socket, every wait with a deadline."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!I")
MAX_BYTES = 64 * 1024 * 1024


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, timeout_s: float | None) -> dict[str, Any]:
    """The next message.

    Raises:
        TimeoutError: the whole message did not arrive within ``timeout_s`` (None = wait for ever).
        EOFError: the other side is gone.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise EOFError(f"a message of {length} bytes; at most {MAX_BYTES} are taken")
    message: dict[str, Any] = json.loads(_exactly(connection, length, deadline))
    return message


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("no answer in time")
            connection.settimeout(remaining)
        else:
            connection.settimeout(None)
        try:
            part = connection.recv(min(count, 1 << 20))
        except ConnectionError as error:
            raise EOFError(str(error)) from error
        if not part:
            raise EOFError("the other side closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
