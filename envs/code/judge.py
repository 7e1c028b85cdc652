"""The process that runs the tests. What they call is the program's, in another sandbox; what they compare is here.

Runs inside a sandbox of its own, apart from the program's. Findings go to the parent over a pipe only this process has.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from winnowrl.envs.code.candidate import set_limits
from winnowrl.envs.code.channel import Handle, Peer, is_text
from winnowrl.envs.code.raised import MAX_LINE, MAX_SHOWN, Raised, builtin_error, is_plain, make_class, stand_for
from winnowrl.envs.code.remote import Object, Value, make_value, object_class
from winnowrl.envs.code.testing import Checks, Reporter, TestRun, shown, text_of
from winnowrl.envs.code.values import ChannelClosedError, UnsendableError
from winnowrl.envs.code.wire import Decoder, Encoder

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)


class Judge(Peer):
    """The tests' end of the channel.

    Attributes:
        last: What came of the last call, for people.
        unsupported: Why nothing can be decided, if so.
        turn: Rises whenever the program may have changed.
        is_quiet: Objects are shown without asking them.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        super().__init__(fd, max_bytes)
        self.last = ""
        self.unsupported = ""
        self.turn = 0
        self.is_quiet = False
        self.classes: dict[int, Any] = {}

    def refuse(self, reason: str) -> TypeError:
        self.unsupported = self.unsupported or f"the tests need what cannot cross the sandbox: {reason}"
        return TypeError(reason)

    def describe(self, value: Any) -> tuple[bytes, str]:
        if isinstance(value, Value):
            return b"h", str(value._remote_number)  # type: ignore[attr-defined]
        if isinstance(type(value), Raised) or isinstance(value, Raised):
            return b"h", str(value._remote._remote_number)
        if isinstance(value, _FUNCTIONS):
            return b"o", str(getattr(value, "__name__", "function"))
        # Only the tests can hold such an object: what the program sent is plain values and stand-ins.
        self.refuse(f"they hand the program an object of type {type(value).__name__}")
        raise UnsendableError(f"an object of type {type(value).__name__}")

    def import_(self, tag: bytes, number: int, name: str, plain: Any = None) -> Any:
        if tag != b"v":
            return super().import_(tag, number, name)
        if number not in self.remotes:
            self.remotes[number] = make_value(self, number, name, plain)
        return self.remotes[number]

    def make_remote(self, number: int, name: str) -> Any:
        return object_class(name)(self, number, name.split(" ", 2)[-1])

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            super().send(message)
        except UnsendableError as error:
            raise self.refuse(f"{error}") from None

    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The program may call back the functions it was handed, and nothing else."""
        try:
            function, data = arguments
            if (
                operation != "call"
                or type(data) is not bytes
                or all(function is not known for known in self.objects.values())
            ):
                return "raise", "TypeError", (), "only functions handed over by the tests can be called"
            args, kwargs = self.decoded(Decoder(data, self.import_, self.max_bytes))
            return "value", function(*args, **dict(kwargs))
        except ChannelClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - becomes the program's exception
            return self._told(error)

    def _told(self, error: Exception) -> tuple[Any, ...]:
        text = text_of(error)[:MAX_SHOWN]
        if isinstance(type(error), Raised):
            return "raise", error, (), text
        kind = type(error)
        if vars(builtins).get(kind.__name__) is not kind:
            self.refuse(f"they hand the program a function that raises {kind.__name__}")
            return "raise", "RuntimeError", (text,), text
        return (
            "raise",
            kind.__name__,
            (text,) if any(isinstance(arg, Handle) for arg in error.args) else error.args,
            text,
        )

    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = self._call(target, args, kwargs)
        except Exception as error:
            line = getattr(error, "program_line", 0)
            self.last = f"raised {type(error).__name__}: {text_of(error)}" + (f" (line {line})" if line else "")
            raise
        self.is_quiet = True
        self.last = f"returned {shown(result)}"
        self.is_quiet = False
        return result

    def _call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.turn += 1
        encoder = Encoder(self.export, self.max_bytes, shares=True)
        try:
            encoder.put((args, tuple(kwargs.items())))
        except UnsendableError as error:
            raise self.refuse(f"{error}") from None
        answer = self.ask("call", target, bytes(encoder.out))
        self.turn += 1
        if len(answer) == 3 and is_text(answer[0], "value") and answer[1] is None and type(answer[2]) is bytes:
            self._work_in_place(encoder.seen, answer[2])
            return None
        return self.settle(answer)

    def _work_in_place(self, containers: list[Any], data: bytes) -> None:
        """Give the arguments what a function that returned nothing made of them."""
        contents = self.decoded(Decoder(data, self.import_, self.max_bytes, known=containers))
        if type(contents) is not list or len(contents) != len(containers):
            raise self.closed("not the arguments")
        # All of it is read before any is changed, so that what is no content changes nothing.
        try:
            changes = [_filled(mine, theirs) for mine, theirs in zip(containers, contents, strict=True)]
        except (TypeError, ValueError) as error:
            raise self.closed("not what the arguments hold") from error
        for mine, theirs in zip(containers, changes, strict=True):
            mine.clear()
            if isinstance(mine, (dict, set)):
                (dict if isinstance(mine, dict) else set).update(mine, theirs)  # type: ignore[arg-type]
            else:
                mine.extend(theirs)

    def look(self, operation: str, *arguments: Any) -> Any:
        return self.settle(self.ask(operation, *arguments))

    def act(self, operation: str, *arguments: Any) -> Any:
        self.turn += 1
        try:
            return self.look(operation, *arguments)
        finally:
            self.turn += 1

    def settle(self, answer: tuple[Any, ...]) -> Any:
        """What the program answered with, or the exception it answered with."""
        if is_text(answer[0], "value") and len(answer) == 2:
            return self._class(answer[1])
        if is_text(answer[0], "raise") and len(answer) == 6:
            raise self._error(*answer[1:])
        raise self.closed("not an answer")

    def _error(self, kind: Any, args: Any, text: Any, line: Any, remote: Any) -> Exception:
        found = self._class(kind)
        if isinstance(found, Raised) and isinstance(remote, Object):
            text = text[:MAX_SHOWN] if type(text) is str else ""
            plain = args if type(args) is tuple and is_plain(args) else (text,)
            error: Exception = stand_for(found, plain, text, remote)
        else:
            error = builtin_error(kind, args, text)
        error.program_line = line if type(line) is int and 0 < line <= MAX_LINE else 0  # type: ignore[attr-defined]
        return error

    def _class(self, value: Any) -> Any:
        """The value, or for an exception class of the program's one that can be caught."""
        if not isinstance(value, Object) or "exception" not in value._remote_traits:
            return value
        number = value._remote_number
        if number not in self.classes:
            self.classes[number] = None  # a class that names itself among its own is none
            lineage = self.look("mro", value)
            for entry in lineage[1:] if type(lineage) is list else ():
                self._class(entry)
            self.classes[number] = make_class(value, lineage, self.classes)
        return self.classes[number] or value


def _filled(container: Any, contents: Any) -> Any:
    """What a container is to hold, of the kind it holds."""
    if type(contents) not in (list, bytes):
        raise TypeError(f"not what a {type(container).__name__} holds")
    return dict(contents) if isinstance(container, dict) else set(contents) if isinstance(container, set) else contents


def run(judge: Judge, report: Reporter, config: dict[str, Any]) -> None:
    """Load the program, bind its names, run the tests; report each finding as it is made."""
    greeting = judge.receive()
    if not is_text(greeting[0], "hello"):
        raise ChannelClosedError("no greeting")
    report("ready")
    try:
        judge.look("load")
        entry = judge.look("global", config["entry_point"])
    except Exception as error:  # noqa: BLE001 - the program's own
        line = getattr(error, "program_line", 0)
        report("invalid", f"{type(error).__name__}: {text_of(error)}" + (f" (line {line})" if line else ""))
        return
    if config["seeds_random"]:
        import random

        random.seed(0)
    # A module of its own, where unittest and dataclasses look for what the tests define.
    module = sys.modules["__main__"] = ModuleType("__main__")
    namespace = module.__dict__
    try:
        exec(config["prelude"], namespace)
    except Exception as error:  # noqa: BLE001 - it is none of the program's
        judge.unsupported = f"the prelude raises {type(error).__name__}: {text_of(error)}"
        return
    namespace[config["entry_point"]] = entry
    for name in config["program_names"]:
        if name not in namespace:
            with contextlib.suppress(Exception):  # there is none: a NameError where the tests use it
                # A module of the program's making could answer as the tests wish.
                is_module = name in sys.stdlib_module_names
                namespace[name] = import_module(name) if is_module else judge.look("global", name)
    TestRun(namespace, Checks(report, judge), config).run()


def main(config: dict[str, Any]) -> None:
    """Judge one program and report ``done`` with whether its channel broke."""
    set_limits(config["limits"])
    judge, report = Judge(config["channel"], config["max_bytes"]), Reporter(config["verdict"])
    run(judge, report, config)
    if judge.unsupported:
        report("unsupported", judge.unsupported)
    report("done", judge.is_closed)


def _die_when_closed(lifeline: int) -> None:
    """End this process, whatever it is computing, when the other end of a pipe is closed."""
    import fcntl

    # The kernel sends SIGIO then, whose default is to end the process; no code of ours has to run for it.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(lifeline, 1)
    except BlockingIOError:
        return
    os._exit(0)  # it was closed before we asked to be told


def serve(config: dict[str, Any]) -> None:
    """Fork a judge for every job that comes over the control socket, until that closes."""
    import marshal
    import signal
    import socket

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Nobody reads what tests print, and a file of it would reach its limit and fail every test that prints.
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    with socket.socket(fileno=config["control"]) as control:
        while True:
            _, fds, _, _ = socket.recv_fds(control, 16, 4)
            if len(fds) != 4:
                return
            if os.fork() == 0:
                control.close()
                _die_when_closed(fds[3])
                with os.fdopen(fds[2], "rb") as stream:
                    job = marshal.load(stream)
                main({**job, "channel": fds[0], "verdict": fds[1]})
                os._exit(0)
            for fd in fds:
                os.close(fd)
