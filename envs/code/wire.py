"""How a program's answers reach its tests: plain values only, rebuilt on the other side from their bytes.

Runs inside the sandbox, where nothing else of this package exists, and imports little so that a process starts fast.
A peer asks (``call``, ``len``, …) and gets an answer; objects that are no plain values stay where they are and are
named by a number, so nothing a program defines (an ``__eq__`` that always agrees) is ever run beside the tests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Export = Callable[[Any], tuple[bytes, int, str]]
    Import = Callable[[bytes, int, str], Any]

MAX_DEPTH = 60


class ChannelClosedError(Exception):
    """The other side is gone, or sent what is no message."""


class ProgramError(Exception):
    """The program raised something that is no ordinary built-in exception."""


class UnsendableError(TypeError):
    """A value that cannot cross: too large, too deep, or of a kind the receiving side must not rebuild."""


_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_TYPES: dict[str, type] = {kind.__name__: kind for kind in _PLAIN}


def _construct(name: str, arguments: tuple[Any, ...]) -> Any:
    kinds = [type(argument) for argument in arguments]
    # The kinds are checked because some constructors compute: bytearray(10**12), Fraction("1e999999999").
    if name == "complex" and kinds == [float, float]:
        return complex(*arguments)
    if name == "range" and kinds == [int, int, int]:
        return range(*arguments)
    if name == "bytearray" and kinds == [bytes]:
        return bytearray(arguments[0])
    if name == "Decimal" and kinds == [str]:
        from decimal import Decimal

        return Decimal(arguments[0])
    if name == "Fraction" and kinds == [int, int]:
        from fractions import Fraction

        return Fraction(*arguments)
    if name == "type" and kinds == [str] and arguments[0] in _TYPES:
        return _TYPES[arguments[0]]
    raise ChannelClosedError(f"no value of kind {name[:40]!r} may cross")


def _deconstruct(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Constructor name and arguments of the few other values that may cross."""
    kind = type(value)
    if kind is complex:
        return "complex", (value.real, value.imag)
    if kind is range:
        return "range", (value.start, value.stop, value.step)
    if kind is bytearray:
        return "bytearray", (bytes(value),)
    if kind is type and any(value is known for known in _PLAIN):
        return "type", (value.__name__,)
    if kind.__name__ == "Decimal" and kind.__module__ == "decimal":
        return "Decimal", (str(value),)
    if kind.__name__ == "Fraction" and kind.__module__ == "fractions":
        return "Fraction", (value.numerator, value.denominator)
    return None


_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"s", frozenset: b"z"}
_BASES: tuple[type, ...] = (int, float, str, bytes, list, tuple, dict, set, frozenset)


def encode(value: Any, export: Export) -> bytes:
    """The bytes of a plain value. Instances of subclasses of built-in types go as the built-in type.

    Raises:
        UnsendableError: nested deeper than ``MAX_DEPTH``, or ``export`` refuses an object.
    """
    out = bytearray()
    _put(out, value, export, 0)
    return bytes(out)


def _put(out: bytearray, value: Any, export: Export, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UnsendableError(f"a value nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind is bool:
        out += b"N" if value is None else b"T" if value else b"F"
    elif kind is int:
        _blob(out, b"i", b"%x" % value)
    elif kind is str:
        _blob(out, b"u", value.encode("utf-8", "surrogatepass"))
    elif kind is float:
        _blob(out, b"f", repr(value).encode())
    elif kind in _SEQUENCES:
        out += _SEQUENCES[kind] + len(value).to_bytes(4, "big")
        for item in value:
            _put(out, item, export, depth + 1)
    elif kind is dict:
        out += b"d" + len(value).to_bytes(4, "big")
        for key, item in value.items():
            _put(out, key, export, depth + 1)
            _put(out, item, export, depth + 1)
    elif kind is bytes:
        _blob(out, b"b", value)
    else:
        _put_other(out, value, export, depth)


def _put_other(out: bytearray, value: Any, export: Export, depth: int) -> None:
    parts = _deconstruct(value)
    if parts is not None:
        _blob(out, b"x", parts[0].encode())
        _put(out, parts[1], export, depth + 1)
        return
    for base in _BASES:
        if isinstance(value, base):
            _put(out, base(value), export, depth)  # type: ignore[call-arg]
            return
    tag, number, name = export(value)
    _blob(out, tag, b"%d %s" % (number, name[:80].encode("utf-8", "replace")))


def _blob(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag + len(data).to_bytes(4, "big") + data


def decode(data: bytes, importer: Import) -> Any:
    """The value of :func:`encode`'s bytes, built of exact built-in types only.

    Raises:
        ChannelClosedError: the bytes are no value.
    """
    try:
        value, end = _take(data, 0, importer, 0)
    except (IndexError, ValueError, ArithmeticError, TypeError, UnicodeError) as error:
        raise ChannelClosedError(f"not a value: {type(error).__name__}") from None
    if end != len(data):
        raise ChannelClosedError("bytes after the value")
    return value


_CONSTANTS = {b"N": None, b"T": True, b"F": False}


def _take(data: bytes, at: int, importer: Import, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH + 2:
        raise ChannelClosedError("nested too deep")
    tag = data[at : at + 1]
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at + 1
    size = int.from_bytes(data[at + 1 : at + 5], "big")
    at += 5
    if tag in b"ltszd" and tag:
        return _take_items(data, at, tag, size, importer, depth)
    blob, end = data[at : at + size], at + size
    if len(blob) != size:
        raise ChannelClosedError("a value cut short")
    if tag == b"i":
        return int(blob, 16), end
    if tag == b"u":
        return blob.decode("utf-8", "surrogatepass"), end
    if tag == b"f":
        return float(blob), end
    if tag == b"b":
        return blob, end
    if tag == b"x":
        arguments, end = _take(data, end, importer, depth + 1)
        if type(arguments) is not tuple:
            raise ChannelClosedError("a value without its parts")
        return _construct(blob.decode(), arguments), end
    number, _, name = blob.decode("utf-8", "replace").partition(" ")
    return importer(tag, int(number), name), end


def _take_items(data: bytes, at: int, tag: bytes, size: int, importer: Import, depth: int) -> tuple[Any, int]:
    if size > len(data) - at:
        raise ChannelClosedError("a container cut short")
    items = []
    for _ in range(size * 2 if tag == b"d" else size):
        item, at = _take(data, at, importer, depth + 1)
        items.append(item)
    if tag == b"d":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    kind: type = {b"l": list, b"t": tuple, b"s": set, b"z": frozenset}[tag]
    return kind(items), at


class Remote:
    """An object that lives on the other side. It equals only itself and has no order: no operator is trusted."""

    __slots__ = ("_name", "_number", "_peer")

    def __init__(self, peer: Peer, number: int, name: str) -> None:
        self._peer, self._number, self._name = peer, number, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self, name)

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] = _exactly(Remote, self._peer.ask("iter", self))
        return iterator

    def __next__(self) -> Any:
        found = self._peer.ask("next", self)
        if type(found) is not tuple or len(found) != 1:
            raise StopIteration
        return found[0]

    def __len__(self) -> int:
        length: int = _exactly(int, self._peer.ask("len", self))
        return length

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("setitem", self, key, value)

    def __bool__(self) -> bool:
        truth: bool = _exactly(bool, self._peer.ask("bool", self))
        return truth

    def __str__(self) -> str:
        text: str = _exactly(str, self._peer.ask("str", self))
        return text

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._number == self._number

    def __hash__(self) -> int:
        return self._number


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__} from the program, got {type(value).__name__}")
    return value


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
        self.remotes: dict[int, Remote] = {}
        self.is_closed = False

    @abstractmethod
    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Do what the other side asked and return the answer: ``("value", v)`` or ``("raise", names, text, line)``."""

    @abstractmethod
    def may_export(self, value: Any) -> bool:
        """Whether the other side may hold a stand-in for ``value``."""

    def call(self, target: Remote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask("call", target, args, kwargs)

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The other side's answer, or the exception it answered with."""
        self.send(("ask", operation, arguments))
        return self.settle(self.wait_for_answer())

    def settle(self, answer: tuple[Any, ...]) -> Any:
        if is_text(answer[0], "value") and len(answer) == 2:
            return answer[1]
        raise ProgramError(repr(answer[1:]))

    def wait_for_answer(self) -> tuple[Any, ...]:
        while True:
            message = self.receive()
            if is_text(message[0], "ask") and len(message) == 3 and type(message[2]) is tuple:
                self.answer(message[1], message[2])
            elif is_text(message[0], "answer") and len(message) == 2 and type(message[1]) is tuple and message[1]:
                return message[1]
            else:
                raise self._closed("a message that is neither question nor answer")

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
            self.send(("answer", ("raise", ["TypeError"], f"the program returned {reason}", 0)))

    def send(self, message: tuple[Any, ...]) -> None:
        if self.is_closed:
            raise ChannelClosedError("the program is gone")
        data = encode(message, self._export)
        if len(data) > self.max_bytes:
            raise UnsendableError(f"a value of {len(data) >> 10} kB; at most {self.max_bytes >> 10} kB may cross")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            raise self._closed("the program is gone") from None

    def receive(self) -> tuple[Any, ...]:
        size = int.from_bytes(self._read(4), "big")
        if size > self.max_bytes:
            raise self._closed("a message larger than allowed")
        try:
            message = decode(self._read(size), self._import)
        except ChannelClosedError as error:
            raise self._closed(str(error)) from None
        if type(message) is not tuple or not message:
            raise self._closed("not a message")
        return message

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.read(self.fd, size - len(parts))
            except OSError:
                part = b""
            if not part:
                raise self._closed("the program is gone")
            parts += part
        return bytes(parts)

    def _closed(self, reason: str) -> ChannelClosedError:
        self.is_closed = True
        return ChannelClosedError(reason)

    def _export(self, value: Any) -> tuple[bytes, int, str]:
        if type(value) is Remote:
            return b"h", value._number, ""
        if not self.may_export(value):
            raise UnsendableError(f"an object of type {type(value).__name__}")
        number = self.numbers.setdefault(id(value), len(self.objects) + 1)
        self.objects[number] = value  # keeps it alive, so its id stays its own
        return b"o", number, type(value).__name__

    def _import(self, tag: bytes, number: int, name: str) -> Any:
        if tag == b"o":
            # One object, one Remote: tests may ask whether two results are the same object.
            return self.remotes.setdefault(number, Remote(self, number, name))
        if tag == b"h" and number in self.objects:
            return self.objects[number]
        raise ChannelClosedError("an object that was never handed out")
