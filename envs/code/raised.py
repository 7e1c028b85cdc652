"""Exceptions of the program beside the tests, as the tests would catch them.

Runs inside the judge's sandbox. A built-in exception is raised as itself; for a class of the program's there is a class
of ours, derived from the same built-in and standard ones.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

from winnowrl.envs.code.remote import Object
from winnowrl.envs.code.values import crosses

MAX_SHOWN = 300
MAX_LINE = 1_000_000
MAX_CLASSES = 30
# Raised inside a generator expression or map of the tests these would end the loop early, and checks with it.
NEVER_RAISED = (StopIteration, StopAsyncIteration)
# Exceptions by which tests are run, not written.
_RUNNERS = ("unittest", "concurrent", "winnowrl")


class ProgramError(Exception):
    """The program raised something that is no ordinary exception."""


class Raised(type):
    """Class of the classes that stand for the program's exceptions: calling one makes the program make one."""

    _remote: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = cls._remote._remote_peer.call(cls._remote, args, kwargs)
        return stand_for(cls, args, None, made)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._remote, name)


def stand_for(cls: Any, args: tuple[Any, ...], text: str | None, remote: Any) -> Any:
    """An instance of a stand-in class, with the program's own exception behind it."""
    error = cls.__new__(cls, *args)
    error._remote, error._remote_text = remote, text
    return error


def _text(self: Any) -> str:
    return str(self._remote) if self._remote_text is None else self._remote_text


def _attribute(self: Any, name: str) -> Any:
    if name.startswith(("_remote", "__")) or name in ("program_line", "_remote"):
        raise AttributeError(name)
    return getattr(self._remote, name)


def make_class(remote: Object, lineage: Any, known: dict[int, Any]) -> Any:
    """The class that stands for the program's exception class ``remote``.

    Args:
        lineage: The classes it is made of as the program lists them, itself first: names of built-in ones, pairs of
            module and name of standard ones, and objects.
        known: Classes made so far, by the number of the object.
    """
    bases: list[type] = []
    for entry in lineage[:MAX_CLASSES] if type(lineage) is list else ():
        found = _allowed(entry, known)
        if found is not None and not any(issubclass(base, found) for base in bases):
            bases.append(found)
    members = {
        "_remote": remote,
        "__str__": _text,
        "__getattr__": _attribute,
        "__init__": lambda self, *args, **kwargs: None,
    }
    for chosen in (bases, bases[:1], [ProgramError]):
        try:
            return Raised(remote._remote_name, tuple(chosen), members)
        except TypeError:
            continue
    raise AssertionError("a class of one base can always be made")


def _allowed(entry: Any, known: dict[int, Any]) -> type | None:
    """A class that a stand-in may be derived from."""
    found: Any = None
    if type(entry) is str:
        found = getattr(builtins, entry, None)
    elif type(entry) is tuple and len(entry) == 2 and type(entry[0]) is str and type(entry[1]) is str:
        module, name = entry
        if module.partition(".")[0] in sys.stdlib_module_names and module.partition(".")[0] not in _RUNNERS:
            found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    elif isinstance(entry, Object):
        found = known.get(entry._remote_number)
    is_exception = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, NEVER_RAISED)
    return found if is_exception else None


def builtin_error(kind: Any, args: Any, text: Any) -> Exception:
    """The built-in exception of a name, or one of ours that says what was raised.

    All three come from the program, and an object of its own in place of a string would be asked how it reads.
    """
    name = kind if type(kind) is str else "an exception"
    text = text[:MAX_SHOWN] if type(text) is str else ""
    found = _allowed(kind, {})
    for chosen in ((args if type(args) is tuple and is_plain(args) else (text,)), (text,)):
        try:
            return found(*chosen) if found is not None else ProgramError(f"{name[:MAX_SHOWN]}: {text}")
        except (TypeError, ValueError):
            continue
    return ProgramError(f"{name[:MAX_SHOWN]}: {text}")


def is_plain(value: Any) -> bool:
    """Whether no object of the program is in a value."""
    if isinstance(value, dict):
        return all(is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return crosses(value) and all(is_plain(part) for part in value)
    return crosses(value)
