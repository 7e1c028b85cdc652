"""Stand-ins for objects of the program beside the tests: what can be done to them, and what each of it may cost.

Runs inside the judge's sandbox. Nothing here lets the program answer whether something is as expected: two values are
compared here, by their plain parts, or not at all. What an object can do and its stand-in does not carry leaves the
verdict undecided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from types import FunctionType, GeneratorType
from typing import Any, Protocol, TypeVar

from winnowrl.envs.code.channel import TRAITS, Handle
from winnowrl.envs.code.values import crosses

T = TypeVar("T")
MAX_ITEMS = 1_000_000
# Items that are used up and counted at once cannot be held to be the same at two looks.
_MISCOUNTED = {"__next__", "__len__"}
# Of a stand-in's type as of the object's own; other special names are no attributes that a stand-in has.
_ASKED = ("__name__", "__qualname__", "__wrapped__", "__annotations__", "__dict__", "__module__")
_REFUSED = ("__mro_entries__", "__copy__", "__deepcopy__", "__reduce_ex__", "__getstate__")


class Asker(Protocol):
    """The judge, as far as stand-ins need it."""

    turn: int
    is_quiet: bool

    def look(self, operation: str, *arguments: Any) -> Any:
        """Ask for what does not change the program."""

    def act(self, operation: str, *arguments: Any) -> Any:
        """Ask for what may change it, after which nothing seen before is taken to hold."""

    def refuse(self, reason: str) -> TypeError:
        """Note that nothing can be decided, and why."""


class Object(Handle):
    """An object that stays with the program. It equals itself, and by its plain part what it is made of."""

    __slots__ = ("_remote_seen", "_remote_turn")
    _remote_traits: frozenset[str] = frozenset()
    _remote_base = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _ASKED:
            if name in _REFUSED:
                raise self._remote_peer.refuse(f"{name} of an object")
            raise AttributeError(name)
        return self._remote_peer.look("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote_peer.act("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._remote_peer.act("delattr", self, name)

    def __str__(self) -> str:
        return _exactly(str, self._remote_peer.look("str", self))

    def __repr__(self) -> str:
        if self._remote_peer.is_quiet:
            return f"<{self._remote_name}>"
        return _exactly(str, self._remote_peer.look("repr", self))

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if self._remote_base:
            return _plain(self) == _plain(other)
        is_object = isinstance(other, Object)
        if is_object and other._remote_base:  # type: ignore[attr-defined]
            return NotImplemented
        # With a plain value the answer is no, whatever the object would say. Two objects, or an object and one of the
        # tests' own making, might be equal, and only the program could say so.
        compares = "__eq__" in self._remote_traits or (is_object and "__eq__" in other._remote_traits)  # type: ignore[attr-defined]
        if compares and not crosses(other):
            raise self._remote_peer.refuse("comparing an object of the program's")
        return NotImplemented

    def __hash__(self) -> int:
        return self._remote_number

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._remote_peer.refuse("copying an object of the program's")


def _exactly(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__} from the program, got {type(value).__name__}")
    return value


def _seen(each: Object, what: str, look: Callable[[], Any]) -> Any:
    """What was seen of an object since the program last acted: two looks must not show two things."""
    if getattr(each, "_remote_turn", None) != each._remote_peer.turn:
        object.__setattr__(each, "_remote_turn", each._remote_peer.turn)
        object.__setattr__(each, "_remote_seen", {})
    if what not in each._remote_seen:
        each._remote_seen[what] = look()
    return each._remote_seen[what]


def _plain(value: Any) -> Any:
    """A value to compare or compute with: of an object made of a built-in type, that part."""
    if isinstance(value, Object) and value._remote_base:
        return _seen(value, "plain", lambda: value._remote_peer.look("plain", value))
    return value


def _length(self: Object) -> int:
    if self._remote_base:
        return len(_plain(self))
    length: int = _seen(self, "len", lambda: _exactly(int, self._remote_peer.look("len", self)))
    return length


def _items(self: Object) -> Any:
    """All items of an object that has a length, which must be as many."""
    if self._remote_base:
        return _plain(self)
    length = _length(self)
    if not 0 <= length <= MAX_ITEMS:
        raise TypeError(f"an object of {length} items")
    found = _seen(self, "items", lambda: _exactly(tuple, self._remote_peer.look("take", self, length + 1)))
    if len(found) != length:
        raise TypeError("an object with another number of items than its length")
    return found


class _Replay:
    """Items of an object without a length, fetched as they are needed and the same at every look."""

    def __init__(self, each: Object) -> None:
        self.peer, self.is_done = each._remote_peer, False
        self.items: list[Any] = []
        self.source = _exactly_object(self.peer.look("iter", each))

    def __iter__(self) -> Iterator[Any]:
        at = 0
        while True:
            if at == len(self.items) and not self.is_done:
                found = self.peer.look("next", self.source)
                self.is_done = type(found) is not tuple or len(found) != 1
                self.items += [] if self.is_done else found
            if at == len(self.items):
                return
            yield self.items[at]
            at += 1


def _exactly_object(value: Any) -> Object:
    if not isinstance(value, Object):
        raise TypeError(f"expected an object from the program, got {type(value).__name__}")
    return value


def _iterate(self: Object) -> Iterator[Any]:
    if self._remote_traits >= _MISCOUNTED:
        raise self._remote_peer.refuse("an iterator with a length")
    if "__next__" in self._remote_traits:
        return _exactly_object(self._remote_peer.look("iter", self))  # type: ignore[return-value]
    if self._remote_base or "__len__" in self._remote_traits:
        return iter(_items(self))
    replay: _Replay = _seen(self, "replay", lambda: _Replay(self))
    return iter(replay)


def _next(self: Object) -> Any:
    found = self._remote_peer.act("next", self)
    if type(found) is not tuple or len(found) != 1:
        raise StopIteration
    return found[0]


def _contains(self: Object, value: Any) -> bool:
    if self._remote_base:
        return value in _plain(self)
    if "__iter__" not in self._remote_traits:
        raise self._remote_peer.refuse("asking an object of the program's what it contains")
    return any(item is value or item == value for item in self)  # type: ignore[attr-defined]


def _truth(self: Object) -> bool:
    truth: bool = _seen(self, "bool", lambda: _exactly(bool, self._remote_peer.look("bool", self)))
    return truth


def _leave(self: Object, kind: Any, error: Any, trace: Any) -> None:
    """Leave a ``with``: an object of the program's may not make a failure of the tests undone."""
    self._remote_peer.act("exit", self)
    if error is not None and not isinstance(error, AssertionError) and not hasattr(error, "program_line"):
        raise self._remote_peer.refuse("an exception of the tests inside a `with` of the program's")


def _send(self: Object, value: Any) -> Any:
    raise StopIteration(self._remote_peer.act("await", self))


def _throw(self: Object, kind: Any, error: Any = None, trace: Any = None) -> Any:
    raise kind if error is None else error


def _wait(self: Object) -> Generator[Any, None, Any]:
    yield from ()
    return self._remote_peer.act("await", self)


def _is_instance(self: Object, value: Any) -> bool:
    return isinstance(value, (Object, Value)) and self._remote_peer.look("isinstance", value, self) is True


def _is_subclass(self: Object, value: Any) -> bool:
    return isinstance(value, Object) and self._remote_peer.look("issubclass", value, self) is True


_METHODS: dict[str, dict[str, Any]] = {
    "__call__": {"__call__": lambda self, *args, **kwargs: self._remote_peer.call(self, args, kwargs)},
    "__iter__": {"__iter__": _iterate},
    "__next__": {"__next__": _next},
    "__len__": {"__len__": _length},
    "__getitem__": {"__getitem__": lambda self, key: self._remote_peer.act("getitem", self, key)},
    "__setitem__": {"__setitem__": lambda self, key, value: self._remote_peer.act("setitem", self, key, value)},
    "__delitem__": {"__delitem__": lambda self, key: self._remote_peer.act("delitem", self, key)},
    "__contains__": {"__contains__": _contains},
    "__bool__": {"__bool__": _truth},
    "__enter__": {"__enter__": lambda self: self._remote_peer.act("enter", self)},
    "__exit__": {"__exit__": _leave},
    "__await__": {"__await__": _wait},
    "coroutine": {"send": _send, "throw": _throw, "close": lambda self: None},
    "__instancecheck__": {"__instancecheck__": _is_instance, "__subclasscheck__": _is_subclass},
    "__eq__": {},
    "__str__": {},
    "exception": {},
}
_UNARY = (
    *("__int__", "__float__", "__complex__", "__index__", "__round__", "__trunc__", "__floor__", "__ceil__"),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__reversed__", "__fspath__", "__bytes__"),
)
_IN_PLACE = tuple(
    name
    for name in TRAITS
    if name[:3] == "__i" and name not in ("__iter__", "__int__", "__index__", "__invert__", "__instancecheck__")
)
_BINARY = tuple(
    f"__{name}__"
    for name in [
        "add",
        "sub",
        "mul",
        "matmul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    ]
)
_ARITHMETIC = (*_BINARY, *(name for name in TRAITS if name[:3] == "__r"), "__neg__", "__pos__", "__abs__", "__invert__")
_CLASSES: dict[str, type] = {"generator": GeneratorType, "function": FunctionType}
_BASES: dict[str, type] = {"list": list, "set": set, "bytearray": bytearray, "deque": deque}


def _computing(name: str) -> Any:
    """The method that carries one operator, or leaves the verdict undecided."""

    def unary(self: Object, *options: Any) -> Any:
        return self._remote_peer.act("unary", name, self, *options)

    def binary(self: Object, other: Any) -> Any:
        # With a value of the tests' the program would see what it is compared with: abs(f(x) - 3.14) < 1e-6.
        if isinstance(other, (Object, Value)):
            return self._remote_peer.act("binary", name, self, other)
        raise self._remote_peer.refuse(f"{name} of an object of the program's and a value")

    def refused(self: Object, *others: Any) -> Any:
        raise self._remote_peer.refuse(f"{name} of an object of the program's")

    return unary if name in _UNARY else binary if name in _BINARY else refused


def _on_base(name: str) -> Any:
    """The method that applies one operator to the built-in part of an object."""
    if name in _IN_PLACE:  # what it changes is the program's
        return _computing(name)
    return lambda self, *others: getattr(_plain(self), name)(*map(_plain, others))


@lru_cache(maxsize=4096)
def object_class(described: str) -> type[Object]:
    """The class of an object's stand-in, with the special methods the object is said to have and no others."""
    mask, base, name = _read(described)
    traits = {trait for at, trait in enumerate(TRAITS) if mask >> at & 1}
    members: dict[str, Any] = {"__slots__": ()}
    kind = _CLASSES.get(name)
    own: set[str] = set()
    if base:
        kind = _BASES.get(base, dict)
        own = {trait for trait in TRAITS if hasattr(kind, trait)}
        for trait in own - traits:
            members.update(_METHODS[trait] if trait in _METHODS else {trait: _on_base(trait)})
    for trait in traits:
        members.update(_METHODS[trait] if trait in _METHODS else {trait: _computing(trait)})
    traits |= own
    members["__doc__"] = property(lambda self: self._remote_peer.look("getattr", self, "__doc__"))
    members["_remote_traits"], members["_remote_base"] = frozenset(traits), base
    if kind is not None:
        members["__class__"] = property(lambda self: kind)
    return type(name, (Object,), members)


def _read(described: str) -> tuple[int, str, str]:
    """Traits as bits, built-in type and class name of what the other side described."""
    mask, _, rest = described.partition(" ")
    base, _, name = rest.partition(" ")
    return int(mask, 16), "" if base == "-" else base, name.replace("\0", "")


class Value:
    """An instance of a subclass of an immutable built-in type: its value is here, what else it has is the program's."""

    __slots__ = ()


def make_value(peer: Asker, number: int, described: str, plain: Any) -> Any:
    """The stand-in for such an instance.

    Raises:
        TypeError: ``plain`` is not of an immutable built-in type.
    """
    mask, base, name = _read(described)
    if type(plain) not in (int, float, complex, str, bytes, tuple, frozenset) or type(plain).__name__ != base:
        raise TypeError(f"no value of {base[:40]!r}")
    kind: Any = type(plain)
    value = _value_class(mask, kind, name)(plain)
    value._remote_peer, value._remote_number = peer, number
    return value


@lru_cache(maxsize=4096)
def _value_class(mask: int, base: Any, name: str) -> Any:
    def ask(self: Any, attribute: str) -> Any:
        if attribute.startswith(("__", "_remote_")):
            raise AttributeError(attribute)
        return self._remote_peer.look("getattr", self, attribute)

    def show(self: Any) -> str:
        return (
            base.__repr__(self) if self._remote_peer.is_quiet else _exactly(str, self._remote_peer.look("repr", self))
        )

    traits = {trait for at, trait in enumerate(TRAITS) if mask >> at & 1}
    members: dict[str, Any] = {"__getattr__": ask}
    # Operators of its own, as of a vector that is a tuple; it is compared as what it is made of.
    members.update({trait: _computing(trait) for trait in traits if trait in _ARITHMETIC})
    if "__str__" in traits:
        members["__repr__"] = show
        members["__str__"] = lambda self: _exactly(str, self._remote_peer.look("str", self))
    return type(name, (Value, base), members)
