"""The process that runs the tests. What they call is the program's, in another sandbox; what they compare is here.

Runs inside a sandbox of its own, apart from the program's. Findings go to the parent over a pipe only this process has.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from winnowrl.envs.code.candidate import set_limits
from winnowrl.envs.code.testing import MAX_SHOWN, Checks, Reporter, TestRun, shown, text_of
from winnowrl.envs.code.wire import ChannelClosedError, Peer, ProgramError, Remote, is_text

MAX_LINE = 1_000_000
# Raised inside a generator expression or map of the tests these would end the loop early, and checks with it.
NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit)


class Judge(Peer):
    """The tests' end of the channel."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        super().__init__(fd, max_bytes)
        self.last = ""
        self.unsupported = ""

    def may_export(self, value: Any) -> bool:
        if isinstance(value, (FunctionType, BuiltinFunctionType)):
            return True
        # Only the tests can hold such an object: what the program sent is plain values and Remotes.
        self.unsupported = f"the tests hand the program an object of type {type(value).__name__}"
        return False

    def perform(self, operation: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The program may call back the functions it was handed, and nothing else."""
        try:
            function, args, kwargs = arguments
            if operation != "call" or all(function is not known for known in self.objects.values()):
                return "raise", ["TypeError"], "only functions handed over by the tests can be called", 0
            return "value", function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - becomes the program's exception
            return "raise", [type(error).__name__], text_of(error)[:MAX_SHOWN], 0

    def call(self, target: Remote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            self.send(("ask", "call", (target, args, kwargs)))
            answer = self.wait_for_answer()
            if len(answer) == 3 and is_text(answer[0], "value") and answer[1] is None:
                _work_in_place(args, answer[2])
                answer = answer[:2]
            result = self.settle(answer)
        except Exception as error:
            line = getattr(error, "program_line", 0)
            self.last = f"raised {type(error).__name__}: {text_of(error)}" + (f" (line {line})" if line else "")
            raise
        self.last = f"returned {shown(result)}"
        return result

    def settle(self, answer: tuple[Any, ...]) -> Any:
        if is_text(answer[0], "value") and len(answer) == 2:
            return answer[1]
        if is_text(answer[0], "raise") and len(answer) == 4 and type(answer[1]) is list:
            raise _exception(*answer[1:])
        raise self._closed("not an answer")


def _work_in_place(args: tuple[Any, ...], changed: Any) -> None:
    """Give the arguments what a function that returned nothing made of them."""
    if type(changed) is tuple and len(changed) == len(args):
        for mine, theirs in zip(args, changed, strict=True):
            _replace(mine, theirs)


def _replace(mine: Any, theirs: Any) -> None:
    if type(mine) is not type(theirs):
        return
    if type(mine) in (list, bytearray):
        mine[:] = theirs
    elif type(mine) in (dict, set):
        mine.clear()
        mine.update(theirs)


def _exception(names: list[Any], text: Any, line: Any) -> Exception:
    """The nearest built-in exception of those the program's is made of.

    All three come from the program, and an object of its own in place of a string would be asked how it reads.
    """
    names = [name for name in names if type(name) is str]
    text = text[:MAX_SHOWN] if type(text) is str else ""
    error: Exception = ProgramError(f"{names[0][:MAX_SHOWN] if names else 'an exception'}: {text}")
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NEVER_RAISED):
            if kind is Exception:
                break
            with contextlib.suppress(TypeError):
                error = kind(text)
                break
    error.program_line = line if type(line) is int and 0 < line <= MAX_LINE else 0  # type: ignore[attr-defined]
    return error


def run(judge: Judge, report: Reporter, config: dict[str, Any]) -> None:
    """Load the program, bind its names, run the tests; report each finding as it is made."""
    greeting = judge.receive()
    if not is_text(greeting[0], "hello"):
        raise ChannelClosedError("no greeting")
    report("ready")
    try:
        judge.ask("load")
        entry = judge.ask("global", config["entry_point"])
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
                namespace[name] = import_module(name) if is_module else judge.ask("global", name)
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
