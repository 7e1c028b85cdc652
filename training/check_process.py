"""Runs the checks of an environment in a process of their own: what loops, leaves or crashes there is a finding."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from winnowrl.configs.load import ConfigError
from winnowrl.envs.checking import FIRST, CheckResult, run_checks
from winnowrl.training.quiet import quiet_libraries

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

START_S = 120.0
GRACE_S = 5.0
WATCH_EVERY_S = 0.2


def check_apart(
    env_id: str, kwargs: Mapping[str, Any], deadline_s: float, on_start: Callable[[str], None] = lambda name: None
) -> list[CheckResult]:
    """As :func:`~winnowrl.envs.checking.check_environment`, each check with a deadline.

    A check that does not end in time, or that ends the process, has failed; the later ones are not tried.

    Args:
        deadline_s: Seconds one check may take.
        on_start: Told the name of each check before it begins.

    Raises:
        ConfigError: there is no such environment, or ``kwargs`` are wrong.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, os.getpid(), env_id, dict(kwargs), deadline_s))
    process.start()
    theirs.close()
    results: list[CheckResult] = []
    name, wait_s, started = FIRST, START_S, time.monotonic()
    try:
        while True:
            kind, value = _receive(ours, process, wait_s)
            if kind == "started":
                name, wait_s, started = value, deadline_s + GRACE_S, time.monotonic()
                on_start(name)
            elif kind == "found":
                results.append(value)
            elif kind == "refused":
                raise ConfigError(value)
            elif kind == "done":
                process.join(GRACE_S)
                return results
            else:
                return [*results, CheckResult(name, "failed", value, time.monotonic() - started)]
    finally:
        ours.close()
        _end(process)


def _receive(pipe: Connection, process: BaseProcess, wait_s: float) -> tuple[str, Any]:
    if not pipe.poll(wait_s):
        return "late", f"no end within {wait_s:g} s"
    try:
        message: tuple[str, Any] = pipe.recv()
    except EOFError:
        process.join(GRACE_S)
        return "gone", f"the process ended in it, with exit code {process.exitcode}"
    return message


def _end(process: BaseProcess) -> None:
    """With all that the environment has started in its process group."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _run(pipe: Connection, parent: int, env_id: str, kwargs: dict[str, Any], deadline_s: float) -> None:
    """The child: tell the parent what is begun and what was found."""
    os.setsid()
    quiet_libraries()
    watch = _Watch(pipe, parent, deadline_s)

    def begin(name: str) -> None:
        watch.start_anew()
        pipe.send(("started", name))

    begin(FIRST)
    try:
        if kwargs:
            _refuse_wrong_arguments(env_id, kwargs)
        for result in run_checks(env_id, kwargs, begin):
            pipe.send(("found", result))
    except ConfigError as error:
        pipe.send(("refused", str(error)))
    except ValueError as error:
        pipe.send(("refused", f"{error}; `winnowrl env list` shows what there is"))
    else:
        pipe.send(("done", None))


def _refuse_wrong_arguments(env_id: str, kwargs: dict[str, Any]) -> None:
    """A wrong argument is the user's mistake, not the environment's; some show only when tasks are read."""
    from winnowrl.configs.sections.environment import EnvironmentConfig
    from winnowrl.training.preflight import make_env, read_task_set

    config = EnvironmentConfig(id=env_id, kwargs=kwargs)
    env = make_env(config)
    try:
        for split in (config.train_split, config.eval_split):
            read_task_set(env, split, env_id)
    finally:
        env.close()


class _Watch:
    """A thread that says where a check hangs, and ends the process when its time is over or its parent is gone."""

    def __init__(self, pipe: Connection, parent: int, deadline_s: float) -> None:
        self._pipe, self._parent, self._deadline_s = pipe, parent, deadline_s
        self._started = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def start_anew(self) -> None:
        self._started = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._started < self._deadline_s and os.getppid() == self._parent:
            time.sleep(WATCH_EVERY_S)
        with contextlib.suppress(OSError):
            line = _line_of_main_thread()
            self._pipe.send(("late", f"no end within {self._deadline_s:g} s" + (f", at {line}" if line else "")))
        os._exit(1)


def _line_of_main_thread() -> str:
    from winnowrl.envs.registry import users_line

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return users_line(traceback.extract_stack(frame)) if frame is not None else ""
