"""The values that may cross between a program and its tests: what each is made of, and how it is made again.

Runs inside both sandboxes, where nothing else of this package exists, and imports little so that a process starts fast.
"""

from __future__ import annotations

import builtins

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Larger numbers of these kinds are slow to work with: int(Decimal("1e999999999")) takes minutes, Fraction finds a
# common divisor and range divides. Integers have no such bound: to read one takes as long as it is.
MAX_DIGITS = 10_000
MAX_BITS = (10**MAX_DIGITS).bit_length()


class ChannelClosedError(Exception):
    """The other side is gone, or sent what is no message."""


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


def excess_of(name: str, parts: tuple[Any, ...], max_items: int) -> str:
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


def construct(name: str, arguments: tuple[Any, ...], max_items: int) -> Any:
    """The value of that kind and those parts.

    Raises:
        ChannelClosedError: no such value may cross. What the constructors raise is raised as well.
    """
    kinds = [type(argument) for argument in arguments]
    # The kinds are checked because some constructors compute: bytearray(10**12), Fraction("1e999999999").
    if kinds == _MEASURED.get(name) and (excess := excess_of(name, arguments, max_items)):
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


def deconstruct(value: Any) -> tuple[str, tuple[Any, ...]] | None:
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
    return value is None or type(value) in _PLAIN or deconstruct(value) is not None


def is_mutable(value: Any) -> bool:
    """Whether a value may cross and be changed in place."""
    kind = type(value)
    return kind in (list, dict, set, bytearray) or (kind.__module__ == "collections" and kind.__name__ in _COLLECTIONS)
