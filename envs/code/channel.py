"""The channel between a program and its tests. A peer asks (``call``, ``len``, …) and gets an answer.

Runs inside both sandboxes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from winnowrl.envs.code.values import ChannelClosedError, UnsendableError
from winnowrl.envs.code.wire import Decoder, encode

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What an object of the program may be able to do, as far as the other side needs to know: its stand-in can do no more.
TRAITS = (
    *("__call__", "__iter__", "__next__", "__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__"),
    *("__bool__", "__enter__", "__exit__", "__await__", "__aiter__", "__anext__", "__aenter__", "__aexit__"),
    *("__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__str__", "__format__", "__instancecheck__"),
    *("__int__", "__float__", "__complex__", "__index__", "__round__", "__trunc__", "__floor__", "__ceil__"),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__reversed__", "__fspath__", "__bytes__"),
    *("__add__", "__sub__", "__mul__", "__matmul__", "__truediv__", "__floordiv__", "__mod__", "__divmod__", "__pow__"),
    *("__lshift__", "__rshift__", "__and__", "__xor__", "__or__"),
    *("__radd__", "__rsub__", "__rmul__", "__rmatmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"),
    *("__rand__", "__rxor__", "__ror__", "__iadd__", "__isub__", "__imul__", "__iand__", "__ior__", "__ixor__"),
    "exception",
    "coroutine",
)


class Handle:
    """An object that lives on the other side, by its number."""

    __slots__ = ("_remote_name", "_remote_number", "_remote_peer")
    _remote_name: str
    _remote_number: int
    _remote_peer: Any

    def __init__(self, peer: Any, number: int, name: str) -> None:
        for slot, value in zip(Handle.__slots__, (name, number, peer), strict=True):
            object.__setattr__(self, slot, value)


class Remote(Handle):
    """A function that lives on the other side."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote_peer.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":
            return self._remote_name
        raise AttributeError(name)


def is_text(value: Any, text: str) -> bool:
    """Whether ``value`` is this very string: asked with ``==``, an object of the other side could answer."""
    return type(value) is str and value == text


class Peer(ABC):
    """One end of the channel. Both ends may ask; while one waits for its answer it serves what the other asks.

    Args:
        fd: A stream, read and written.
        max_bytes: Largest message, either way.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        self.fd, self.max_bytes = fd, max_bytes
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.remotes: dict[int, Any] = {}
        self.is_closed = False

    @abstractmethod
    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Do what the other side asked and return the answer, ``("value", …)`` or ``("raise", …)``."""

    @abstractmethod
    def describe(self, value: Any) -> tuple[bytes, str]:
        """How ``value`` is named to the other side, or :class:`UnsendableError`."""

    @abstractmethod
    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an object of the other side."""

    def make_remote(self, number: int, name: str) -> Any:
        return Remote(self, number, name)

    def ask(self, operation: str, *arguments: Any) -> tuple[Any, ...]:
        """The other side's answer."""
        self.send(("ask", operation, arguments))
        return self.wait_for_answer()

    def wait_for_answer(self) -> tuple[Any, ...]:
        while True:
            message = self.receive()
            if is_text(message[0], "ask") and len(message) == 3 and type(message[2]) is tuple:
                self.answer(message[1], message[2])
            elif is_text(message[0], "answer") and len(message) == 2 and type(message[1]) is tuple and message[1]:
                return message[1]
            else:
                raise self.closed("a message that is neither question nor answer")

    def answer(self, operation: Any, arguments: tuple[Any, ...]) -> None:
        result = self.perform(operation if type(operation) is str else "", arguments)
        try:
            self.send(("answer", result))
        except ChannelClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - e.g. no memory left, or an object that lies about its class
            reason = (
                str(error) if isinstance(error, UnsendableError) else f"an object that raises {type(error).__name__}"
            )
            self.send(("answer", ("raise", "TypeError", None, f"the program returned {reason}", 0, None)))

    def send(self, message: tuple[Any, ...]) -> None:
        if self.is_closed:
            raise ChannelClosedError("the program is gone")
        data = encode(message, self.export, self.max_bytes)
        if len(data) > self.max_bytes:
            raise UnsendableError(f"a value of {len(data) >> 10} kB; at most {self.max_bytes >> 10} kB may cross")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            raise self.closed("the program is gone") from None

    def receive(self) -> tuple[Any, ...]:
        size = int.from_bytes(self._read(4), "big")
        if size > self.max_bytes:
            raise self.closed("a message larger than allowed")
        message = self.decoded(Decoder(self._read(size), self.import_, self.max_bytes))
        if type(message) is not tuple or not message:
            raise self.closed("not a message")
        return message

    def decoded(self, decoder: Decoder) -> Any:
        try:
            return decoder.whole()
        except ChannelClosedError as error:
            raise self.closed(str(error)) from None

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.read(self.fd, size - len(parts))
            except OSError:
                part = b""
            if not part:
                raise self.closed("the program is gone")
            parts += part
        return bytes(parts)

    def closed(self, reason: str) -> ChannelClosedError:
        self.is_closed = True
        return ChannelClosedError(reason)

    def export(self, value: Any) -> tuple[bytes, int, str]:
        if issubclass(type(value), Handle):
            return b"h", value._remote_number, ""
        tag, name = self.describe(value)
        if tag == b"h":
            return tag, int(name), ""
        number = self.numbers.setdefault(id(value), len(self.objects) + 1)
        self.objects[number] = value  # keeps it alive, so its id stays its own
        return tag, number, name

    def import_(self, tag: bytes, number: int, name: str) -> Any:
        if tag == b"o":
            # One object, one Remote: tests may ask whether two results are the same object.
            if number not in self.remotes:
                self.remotes[number] = self.make_remote(number, name)
            return self.remotes[number]
        if tag == b"h" and number in self.objects:
            return self.objects[number]
        raise ChannelClosedError("an object that was never handed out")
