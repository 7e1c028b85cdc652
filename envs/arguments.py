"""Checks the arguments of an environment against its annotations, so that a wrong one is named before it is used."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    NoneType: "null",
}
_MAPPINGS = (dict, Mapping)
_SEQUENCES = (list, tuple, set, frozenset, Sequence)


def check_arguments(creator: Callable[..., Any], arguments: Mapping[str, Any], where: str = "") -> None:
    """Compare ``arguments`` with the annotations of ``creator``; names it does not annotate are passed over.

    In a constructor, ``check_arguments(ThisEnv, locals())`` as its first line checks all of them.

    Args:
        creator: A function, or a class whose ``__init__`` is meant.
        where: What stands before the names in the message, e.g. ``limits.``.

    Raises:
        ValueError: a value of another type, or one that is no number where a number is wanted.
    """
    annotations = _annotations(creator.__init__ if isinstance(creator, type) else creator)  # type: ignore[misc]
    for name, value in arguments.items():
        annotation = annotations.get(name, Any)
        if not _fits(value, annotation):
            quoted = not isinstance(value, str) and _fits("", annotation)
            hint = f" (to give it as text, put it in quotes: '\"{value}\"')" if quoted else ""
            raise ValueError(f"{where}{name} is {value!r}; allowed: {_describe(annotation)}{hint}")


def check_range(name: str, value: float, *, least: float = 0, most: float = math.inf) -> None:
    """Refuse a number outside ``least`` to ``most``, and one that is not finite.

    Raises:
        ValueError: naming the argument, what came and what is allowed.
    """
    if not least <= value <= most or value == math.inf:
        allowed = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{name} is {value}; allowed: {allowed}")


@lru_cache(maxsize=256)
def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved one by one: a name that exists for type checkers alone leaves its parameter unchecked, and no other."""
    found: dict[str, Any] = {}
    defaults = inspect.signature(function).parameters
    for name, annotation in getattr(function, "__annotations__", {}).items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            found[name] = get_type_hints(holder, globalns=getattr(function, "__globals__", {}))[name]
        except Exception:  # noqa: BLE001 - an annotation is any expression of a stranger's
            continue
        if name in defaults and defaults[name].default is None:
            found[name] = Optional[found[name]]  # noqa: UP045 - what stands there may be any object
    return found


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value may be given for an annotation; one that is not known here allows anything."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(allowed) and value == allowed for allowed in parts)
    if annotation in (None, NoneType):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation in (int, float):
        kind = numbers.Integral if annotation is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool) and value == value
    if annotation in (str, Path):
        # A configuration writes a path as text.
        return isinstance(value, str | annotation)
    kind = origin or annotation
    if kind in _MAPPINGS:
        return isinstance(value, Mapping) and (len(parts) != 2 or all(_fits(v, parts[1]) for v in value.values()))
    if kind in _SEQUENCES:
        # A configuration has lists alone, whatever kind of sequence is wanted.
        is_sequence = isinstance(value, list | tuple | set | frozenset)
        is_uniform = len(parts) == 1 or (len(parts) == 2 and parts[1] is ...)
        return is_sequence and (not is_uniform or all(_fits(each, parts[0]) for each in value))
    return True


def _describe(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in parts))
    if origin is Literal:
        return ", ".join(map(str, parts))
    kind = origin or annotation
    if kind in _MAPPINGS:
        return "a mapping of name: value"
    if kind in _SEQUENCES:
        return f"a list, each {_describe(parts[0])}" if parts and parts[0] is not Any else "a list"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))
