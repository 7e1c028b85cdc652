"""How a program's answers reach its tests: plain values only, rebuilt on the other side from their bytes.

Runs inside the sandbox, where nothing else of this package exists, and imports little so that a process starts fast.
A peer asks (``call``, ``len``, …) and gets an answer; objects that are no plain values stay where they are and are
named by a number, so nothing a program defines (an ``__eq__`` that always agrees) is ever run beside the tests.
"""

from __future__ import annotations

import builtins
import os
from abc import ABC, abstractmethod

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Export = Callable[[Any], tuple[bytes, int, str]]
    Import = Callable[[bytes, int, str], Any]

MAX_DEPTH = 60
# Larger numbers of these kinds are slow to work with: int(Decimal("1e999999999")) takes minutes, Fraction finds a
# common divisor and range divides. Integers have no such bound: to read one takes as long as it is.
MAX_DIGITS = 10_000
MAX_BITS = (10**MAX_DIGITS).bit_length()
# Bytes that a list takes for each item: no range may be longer than the longest list that could cross.
ITEM_BYTES = 8
# For values that are on no channel.
MAX_BYTES = 2 << 20


class ChannelClosedError(Exception):
    """The other side is gone, or sent what is no message."""


class ProgramError(Exception):
    """The program raised something that is no ordinary exception."""


class UnsendableError(TypeError):
    """A value that cannot cross: too large, too deep, or of a kind the receiving side must not rebuild."""


_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (*_PLAIN, range, bytearray)}
_TYPES |= {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}
# A program whose `Bad` is one of these would have `except Bad` of the tests catch their own failed asserts.
del _TYPES["Exception"], _TYPES["AssertionError"]
_COLLECTIONS = ("OrderedDict", "Counter", "defaultdict", "deque")
_TIMES = ("date", "time", "datetime", "timedelta", "timezone")
# Types of the parts of what must not be too large.
_MEASURED: dict[str, list[type]] = {"range": [int, int, int], "Fraction": [int, int], "Decimal": [str]}


def _excess(name: str, parts: tuple[Any, ...], max_items: int) -> str:
    """What makes a value of these parts too large to cross, or nothing. The parts are of the right types."""
    if name in ("range", "Fraction") and any(part.bit_length() > MAX_BITS for part in parts):
        return f"a {name} of numbers of more than {MAX_DIGITS} digits"
    # Its length may be more than len() can say.
    if name == "range" and range(*parts)[max_items:]:
        return f"a range of more than {max_items} items"
    if name == "Decimal":
        from decimal import Decimal

        _, digits, exponent = Decimal(*parts).as_tuple()
        if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_DIGITS):
            return f"a Decimal of more than {MAX_DIGITS} digits or with an exponent beyond ±{MAX_DIGITS}"
    return ""


def _construct(name: str, arguments: tuple[Any, ...], max_items: int) -> Any:
    kinds = [type(argument) for argument in arguments]
    # The kinds are checked because some constructors compute: bytearray(10**12), Fraction("1e999999999").
    if kinds == _MEASURED.get(name) and (excess := _excess(name, arguments, max_items)):
        raise ChannelClosedError(excess)
    if name == "complex" and kinds == [float, float]:
        return complex(*arguments)
    if name == "range" and kinds == [int, int, int]:
        return range(*arguments)
    if name == "slice" and len(kinds) == 3 and set(kinds) <= {int, type(None)}:
        return slice(*arguments)
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
    if name in _COLLECTIONS and len(kinds) == 2 and kinds[0] is list:
        return _construct_collection(name, *arguments)
    if name in _TIMES and arguments:
        return _construct_time(name, *arguments)
    raise ChannelClosedError(f"no value of kind {name[:40]!r} may cross")


def _construct_collection(name: str, items: list[Any], option: Any) -> Any:
    import collections

    if name == "deque" and type(option) in (int, type(None)):
        return collections.deque(items, option)
    if name == "defaultdict" and (option is None or any(option is kind for kind in _PLAIN)):
        return collections.defaultdict(option, dict(items))
    if name == "OrderedDict":
        return collections.OrderedDict(dict(items))
    if name == "Counter":
        counter: collections.Counter[Any] = collections.Counter()
        dict.update(counter, items)
        return counter
    raise ChannelClosedError(f"no {name} of this kind may cross")


def _construct_time(name: str, *arguments: Any) -> Any:
    import datetime

    *numbers, last = arguments
    if name == "timezone":
        numbers, is_allowed = [], type(last) is datetime.timedelta
    elif name in ("time", "datetime"):
        is_allowed = type(last) in (datetime.timezone, type(None))
    else:
        is_allowed = type(last) is int
    if is_allowed and all(type(number) is int for number in numbers):
        return getattr(datetime, name)(*arguments)
    raise ChannelClosedError(f"no {name} of this kind may cross")


def _deconstruct(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Constructor name and arguments of the few other values that may cross."""
    kind = type(value)
    if kind is complex:
        return "complex", (value.real, value.imag)
    if kind is range or kind is slice:
        return kind.__name__, (value.start, value.stop, value.step)
    if kind is bytearray:
        return "bytearray", (bytes(value),)
    if kind is type and any(value is known for known in _TYPES.values()):
        return "type", (value.__name__,)
    home, name = kind.__module__, kind.__name__
    if home == "decimal" and name == "Decimal":
        return "Decimal", (str(value),)
    if home == "fractions" and name == "Fraction":
        return "Fraction", (value.numerator, value.denominator)
    if home == "collections" and name == "deque":
        return name, (list(value), value.maxlen)
    if home == "collections" and name in _COLLECTIONS:
        option = value.default_factory if name == "defaultdict" else None
        if option is None or any(option is known for known in _PLAIN):
            return name, (list(value.items()), option)
    if home == "datetime" and name in _TIMES:
        return _deconstruct_time(name, value)
    return None


def _deconstruct_time(name: str, value: Any) -> tuple[str, tuple[Any, ...]] | None:
    if name == "timedelta":
        return name, (value.days, value.seconds, value.microseconds)
    if name == "timezone":
        return name, (value.utcoffset(None),)
    day = (value.year, value.month, value.day) if name != "time" else ()
    if name == "date":
        return name, day
    if value.tzinfo is not None and type(value.tzinfo).__name__ != "timezone":
        return None
    return name, (*day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo)


_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"s", frozenset: b"z"}
# How the built-in part of an instance of a subclass is read without asking the subclass.
IMMUTABLE: dict[str, Callable[[Any], Any]] = {
    "int": int.__pos__,
    "float": float.__pos__,
    "complex": complex.__pos__,
    "str": lambda value: str.__getitem__(value, slice(None)),
    "bytes": lambda value: bytes.__getitem__(value, slice(None)),
    "tuple": lambda value: tuple.__getitem__(value, slice(None)),
    "frozenset": lambda value: frozenset(frozenset.__iter__(value)),
}
MUTABLE = ("list", "dict", "set", "bytearray", *_COLLECTIONS)


def crosses(value: Any) -> bool:
    """Whether a value goes to the other side as itself, what it holds left aside."""
    return value is None or type(value) in _PLAIN or _deconstruct(value) is not None


def is_mutable(value: Any) -> bool:
    """Whether a value may cross and be changed in place."""
    kind = type(value)
    return kind in (list, dict, set, bytearray) or (kind.__module__ == "collections" and kind.__name__ in _COLLECTIONS)


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
        parts = _deconstruct(value)
        if parts is not None:
            if excess := _excess(*parts, self.max_items):
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
            return _construct(blob.decode(), arguments, self.max_items)
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
