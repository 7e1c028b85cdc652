"""The process that holds the program. It answers what the tests ask and never learns what they expect.

Runs inside the sandbox. Everything here may be taken over by the program; all that reaches the tests are values.
"""

from __future__ import annotations

import builtins
import operator
import os
import resource
import sys
from itertools import islice

from winnowrl.envs.code.channel import TRAITS, Peer
from winnowrl.envs.code.values import IMMUTABLE, MUTABLE, UnsendableError
from winnowrl.envs.code.wire import Decoder, Encoder, encode

# As in typing, whose import takes as long as the rest of the start of the process.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from winnowrl.envs.code.channel import Handle

MODULE_NAME = "program"
MAX_TEXT = 500
MAX_ARGS = 4096
_SIZING = ("__len__", "__iter__", "__contains__", "__eq__")


class Candidate(Peer):
    """Serves one program."""

    def __init__(self, fd: int, max_bytes: int, source: str) -> None:
        super().__init__(fd, max_bytes)
        self.source = source
        self.module = type(sys)(MODULE_NAME)
        self.loop: Any = None
        self.kinds: dict[type, tuple[int, str]] = {}
        sys.modules[MODULE_NAME] = self.module
        self.operations: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "global": lambda name: getattr(self.module, name),
            "getattr": getattr,
            "setattr": setattr,
            "delattr": delattr,
            "iter": iter,
            "next": _next,
            "take": lambda value, count: tuple(islice(value, count)),
            "len": len,
            "getitem": operator.getitem,
            "setitem": operator.setitem,
            "delitem": operator.delitem,
            "bool": bool,
            "str": str,
            "repr": repr,
            "plain": _plain,
            "unary": lambda name, value, *options: getattr(type(value), name)(value, *options),
            "binary": lambda name, left, right: getattr(operator, name)(left, right),
            "enter": lambda value: type(value).__enter__(value),
            "exit": lambda value: type(value).__exit__(value, None, None, None) and None,
            "await": self._await,
            "isinstance": isinstance,
            "issubclass": issubclass,
            "mro": _mro,
        }

    def describe(self, value: Any) -> tuple[bytes, str]:
        kind = type(value)
        if kind not in self.kinds:
            self.kinds[kind] = _traits(kind)
        mask, base = self.kinds[kind]
        if issubclass(kind, type):
            mask |= _bit("exception") if issubclass(value, BaseException) else 0
            mask |= _bit("__getitem__") if hasattr(value, "__class_getitem__") else 0
        return b"v" if base in IMMUTABLE else b"o", f"{mask:x} {base or '-'} {kind.__name__}"

    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            if operation == "call":
                return self._call(*arguments)
            return "value", self.operations[operation](*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever the program raises is an answer
            return self._raised(error)
        finally:
            _flush()

    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the tests."""
        encoder = Encoder(self.export, self.max_bytes)
        encoder.put((args, tuple(kwargs.items())))
        kind, *rest = self.ask("call", target, bytes(encoder.out))
        if kind == "value":
            return rest[0]
        raise _rebuilt(*rest[:3])

    def _load(self) -> None:
        exec(compile(self.source, "<program>", "exec", dont_inherit=True), self.module.__dict__)

    def _call(self, function: Callable[..., Any], data: bytes) -> tuple[Any, ...]:
        decoder = Decoder(data, self.import_, self.max_bytes, shares=True)
        args, kwargs = decoder.whole()
        result = function(*args, **dict(kwargs))
        if result is not None or not decoder.seen:
            return "value", result
        # A function that returns nothing works on its arguments in place: hand back what every container holds.
        numbers = {id(each): number for number, each in enumerate(decoder.seen)}
        encoder = Encoder(self.export, self.max_bytes, known=numbers)
        encoder.put([_contents(each) for each in decoder.seen])
        if len(encoder.out) > self.max_bytes:
            raise UnsendableError("arguments grown larger than may cross")
        return "value", None, bytes(encoder.out)

    def _await(self, value: Any) -> Any:
        import asyncio

        async def wait() -> Any:
            return await value

        self.loop = self.loop or asyncio.new_event_loop()
        return self.loop.run_until_complete(wait())

    def _raised(self, error: BaseException) -> tuple[Any, ...]:
        """Kind, arguments, text and line; and of a class the program defines, the exception itself."""
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<program>":
                line = trace.tb_lineno
            trace = trace.tb_next
        try:
            text = error.msg if isinstance(error, SyntaxError) else str(error)
        except Exception:  # noqa: BLE001 - a program may define an exception that cannot be shown
            text = ""
        kind = type(error)
        try:
            is_short = len(encode(error.args, self.export, self.max_bytes)) <= MAX_ARGS
            args = error.args if is_short and kind is not SyntaxError else None
        except Exception:  # noqa: BLE001 - what it holds is the program's
            args = None
        if vars(builtins).get(kind.__name__) is kind:
            return "raise", kind.__name__, args, text[:MAX_TEXT], line, None
        error.__traceback__ = None  # the exception is kept, and its frames need not be
        return "raise", kind, args, text[:MAX_TEXT], line, error


def _rebuilt(kind: Any, args: Any, text: Any) -> BaseException:
    """The exception that a function of the tests raised: its own object, or a built-in one."""
    if isinstance(kind, BaseException):
        return kind
    found = getattr(builtins, kind, RuntimeError)
    try:
        return found(*args)
    except TypeError:
        return RuntimeError(f"a function of the tests raised {kind}: {text}")


def _bit(name: str) -> int:
    return 1 << TRAITS.index(name)


def _traits(kind: type) -> tuple[int, str]:
    """What instances of ``kind`` can do, as bits, and the built-in type they are made of if any.

    Of such a type's own abilities nothing is said: the other side knows them.
    """
    own: set[str] = set()
    for each in kind.__mro__[:-1]:
        name = each.__name__
        is_base = (each.__module__ == "builtins" and name in (*IMMUTABLE, *MUTABLE)) or _is_collection(each)
        # Where the class counts or lists its items itself, the built-in part is not what it shows.
        if is_base and (name in IMMUTABLE or not own & set(_SIZING)):
            is_shown_otherwise = kind.__str__ is not each.__str__ or kind.__repr__ is not each.__repr__
            mask = sum(_bit(trait) for trait in TRAITS if trait in own and trait != "__str__")
            return mask | (_bit("__str__") if is_shown_otherwise else 0), name
        own |= {name for name, value in vars(each).items() if value is not None}
    mask = sum(_bit(name) for name in TRAITS if name in own)
    return mask | (_bit("coroutine") if kind.__name__ == "coroutine" else 0), ""


def _is_collection(kind: type) -> bool:
    return kind.__module__ == "collections" and kind.__name__ in MUTABLE


def _plain(value: Any) -> Any:
    """The built-in part of an instance of a subclass, read without asking the subclass."""
    kind: Any
    for kind in type(value).__mro__:
        if kind in (list, set):
            return kind(kind.__iter__(value))
        if kind is bytearray:
            return bytearray(bytearray.__getitem__(value, slice(None)))
        if kind is dict or (_is_collection(kind) and kind.__name__ == "defaultdict"):
            return dict(dict.items(value))
        if _is_collection(kind):
            if kind.__name__ == "deque":
                return kind(kind.__iter__(value), value.maxlen)
            return kind(dict(kind.items(value) if kind.__name__ == "OrderedDict" else dict.items(value)))
    raise TypeError("made of no built-in type")


def _contents(container: Any) -> Any:
    if isinstance(container, dict):
        return list(container.items())
    return bytes(container) if isinstance(container, bytearray) else list(container)


def _mro(kind: type) -> list[Any]:
    """Classes an exception is made of: names of built-in ones, module and name of standard ones, and the program's."""
    found: list[Any] = []
    for each in kind.__mro__:
        if vars(builtins).get(each.__name__) is each:
            found.append(each.__name__)
        elif each.__module__.partition(".")[0] in sys.stdlib_module_names:
            found.append((each.__module__, each.__name__))
        else:
            found.append(each)
    return found


def _flush() -> None:
    """What was printed leaves now: the process is killed, not ended."""
    try:
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - the program may have closed or replaced it
        return


def _next(iterator: Any) -> tuple[Any] | None:
    try:
        return (next(iterator),)
    except StopIteration:
        return None


def set_limits(limits: dict[str, int]) -> None:
    """Hard and soft at once, so that no code that follows can raise them."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def main(config: dict[str, Any]) -> None:
    """Greet, then answer questions until the channel closes."""
    sys.dont_write_bytecode = True
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    candidate = Candidate(config["channel"], config["max_bytes"], config["program"])
    candidate.send(("hello",))
    set_limits(config["limits"])
    while True:
        message = candidate.receive()
        if message[0] == "ask":
            candidate.answer(message[1], message[2])
