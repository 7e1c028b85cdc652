"""How a program's answers reach its tests: plain values only, rebuilt on the other side from their bytes.

Runs inside both sandboxes. Objects that are no plain values stay where they are and are named by a number, so nothing a
program defines (an ``__eq__`` that always agrees) is ever run beside the tests.
"""

from __future__ import annotations

from winnowrl.envs.code.values import (
    IMMUTABLE,
    ChannelClosedError,
    UnsendableError,
    construct,
    deconstruct,
    excess_of,
    is_mutable,
)

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Export = Callable[[Any], tuple[bytes, int, str]]
    Import = Callable[[bytes, int, str], Any]

MAX_DEPTH = 60
# Bytes that a list takes for each item: no range may be longer than the longest list that could cross.
ITEM_BYTES = 8
# For values that are on no channel.
MAX_BYTES = 2 << 20
_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"s", frozenset: b"z"}


class Encoder:
    """Writes plain values as bytes.

    Args:
        export: Names an object that is no plain value, or raises :class:`UnsendableError`.
        max_bytes: Largest message, which bounds how long a range may be.
        shares: Write a container that occurs again as a reference to its first occurrence.
        known: Containers by ``id`` that the other side has and that are written as their number.
    """

    def __init__(
        self, export: Export, max_bytes: int, *, shares: bool = False, known: dict[int, int] | None = None
    ) -> None:
        self.out = bytearray()
        self.max_items = max_bytes // ITEM_BYTES
        self.export, self.shares, self.known = export, shares, known or {}
        self.seen: list[Any] = []
        self.numbers: dict[int, int] = {}

    def put(self, value: Any, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise UnsendableError(f"a value nested deeper than {MAX_DEPTH} levels")
        kind = type(value)
        out = self.out
        if value is None or kind is bool:
            out += b"N" if value is None else b"T" if value else b"F"
        elif kind is int:
            self._blob(b"i", b"%x" % value)
        elif kind is str:
            self._blob(b"u", value.encode("utf-8", "surrogatepass"))
        elif kind is float:
            self._blob(b"f", repr(value).encode())
        elif kind is bytes:
            self._blob(b"b", value)
        elif id(value) in self.known or id(value) in self.numbers:
            is_known = id(value) in self.known
            self._blob(b"k" if is_known else b"r", b"%d" % (self.known if is_known else self.numbers)[id(value)])
            return
        elif kind in _SEQUENCES:
            out += _SEQUENCES[kind] + len(value).to_bytes(4, "big")
            for item in value:
                self.put(item, depth + 1)
        elif kind is dict:
            out += b"d" + len(value).to_bytes(4, "big")
            for key, item in value.items():
                self.put(key, depth + 1)
                self.put(item, depth + 1)
        else:
            self._put_other(value, depth)
        if self.shares and is_mutable(value):
            self.numbers[id(value)] = len(self.seen)
            self.seen.append(value)  # which keeps it alive, so its id stays its own

    def _put_other(self, value: Any, depth: int) -> None:
        parts = deconstruct(value)
        if parts is not None:
            if excess := excess_of(*parts, self.max_items):
                raise UnsendableError(excess)
            self._blob(b"x", parts[0].encode())
            self.put(parts[1], depth + 1)
            return
        tag, number, name = self.export(value)
        self._blob(tag, b"%d %s" % (number, name[:120].encode("utf-8", "replace")))
        if tag == b"v":
            self.put(IMMUTABLE[name.split(" ")[1]](value), depth + 1)

    def _blob(self, tag: bytes, data: bytes) -> None:
        self.out += tag + len(data).to_bytes(4, "big") + data


def encode(value: Any, export: Export, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a plain value.

    Raises:
        UnsendableError: nested deeper than ``MAX_DEPTH``, a range or number too large, or ``export`` refuses an object.
    """
    encoder = Encoder(export, max_bytes)
    encoder.put(value)
    return bytes(encoder.out)


_CONSTANTS = {b"N": None, b"T": True, b"F": False}


class Decoder:
    """Reads what :class:`Encoder` wrote, of exact built-in types only.

    Args:
        importer: Finds or makes the stand-in of an object.
        max_bytes: Largest message, which bounds how long a range may be.
        shares: References to containers read before are allowed; ``seen`` has all of them in the writer's order.
        known: The containers that the writer may refer to by their number.
    """

    def __init__(
        self,
        data: bytes,
        importer: Import,
        max_bytes: int,
        *,
        shares: bool = False,
        known: list[Any] | None = None,
    ) -> None:
        self.data, self.at, self.importer = data, 0, importer
        self.max_items = max_bytes // ITEM_BYTES
        self.shares, self.known = shares, known or []
        self.seen: list[Any] = []

    def take(self, depth: int = 0) -> Any:
        if depth > MAX_DEPTH + 2:
            raise ChannelClosedError("nested too deep")
        tag = self.data[self.at : self.at + 1]
        if tag in _CONSTANTS:
            self.at += 1
            return _CONSTANTS[tag]
        size = int.from_bytes(self.data[self.at + 1 : self.at + 5], "big")
        self.at += 5
        if tag in b"ltszd" and tag:
            value = self._take_items(tag, size, depth)
        else:
            value = self._take_blob(tag, size, depth)
            if tag in b"kr":
                return value
        if self.shares and is_mutable(value):
            self.seen.append(value)
        return value

    def _take_blob(self, tag: bytes, size: int, depth: int) -> Any:
        blob = self.data[self.at : self.at + size]
        self.at += size
        if len(blob) != size:
            raise ChannelClosedError("a value cut short")
        if tag == b"i":
            return int(blob, 16)
        if tag == b"u":
            return blob.decode("utf-8", "surrogatepass")
        if tag == b"f":
            return float(blob)
        if tag == b"b":
            return blob
        if tag in b"kr":
            number = int(blob)
            return (self.known if tag == b"k" else self.seen)[number if number >= 0 else len(self.data)]
        if tag == b"x":
            arguments = self.take(depth + 1)
            if type(arguments) is not tuple:
                raise ChannelClosedError("a value without its parts")
            return construct(blob.decode(), arguments, self.max_items)
        number_text, _, name = blob.decode("utf-8", "replace").partition(" ")
        if tag == b"v":
            return self.importer(tag, int(number_text), name, self.take(depth + 1))  # type: ignore[call-arg]
        return self.importer(tag, int(number_text), name)

    def _take_items(self, tag: bytes, size: int, depth: int) -> Any:
        if size > len(self.data) - self.at:
            raise ChannelClosedError("a container cut short")
        items = [self.take(depth + 1) for _ in range(size * 2 if tag == b"d" else size)]
        if tag == b"d":
            return dict(zip(items[::2], items[1::2], strict=True))
        kind: type = {b"l": list, b"t": tuple, b"s": set, b"z": frozenset}[tag]
        return kind(items)

    def whole(self) -> Any:
        """The one value that the bytes hold.

        Raises:
            ChannelClosedError: they hold no value, or more, or one too large for the memory or stack that is left.
        """
        try:
            value = self.take()
        except (IndexError, ValueError, ArithmeticError, TypeError, MemoryError, RecursionError) as error:
            raise ChannelClosedError(f"not a value: {type(error).__name__}") from None
        if self.at != len(self.data):
            raise ChannelClosedError("bytes after the value")
        return value


def decode(data: bytes, importer: Import, max_bytes: int = MAX_BYTES) -> Any:
    """The value of :func:`encode`'s bytes.

    Raises:
        ChannelClosedError: the bytes are no value.
    """
    return Decoder(data, importer, max_bytes).whole()
