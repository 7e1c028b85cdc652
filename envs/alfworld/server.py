"""The trainer's side of the worker processes: a fork server, its workers, and a pool that bounds their number."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winnowrl.envs.alfworld import wire

START_TIMEOUT_S = 60.0
CONTROL_TIMEOUT_S = 10.0
HOW_TO_INSTALL = (
    "ALFWorld needs: pip install 'winnowrl[alfworld]' (docs/alfworld.md has a recipe without its large pins; in a clone "
    "of the repository, python setup/install.py --alfworld)"
)


class GameError(RuntimeError):
    """TextWorld could not load or play a game."""


class WorkerCrashError(RuntimeError):
    """A worker process ended by itself; it is replaced at the next request."""


class WorkerTimeoutError(TimeoutError):
    """A worker gave no answer in time; it was killed and is replaced at the next request."""


class ForkServer:
    """One helper process that has TextWorld loaded and forks workers. Start and stop it as often as you like."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False

    def prewarm(self) -> None:
        """Start loading TextWorld without waiting for it."""
        with self._lock:
            self._start()

    def fork(self, timeout_s: float = START_TIMEOUT_S) -> tuple[int, socket.socket]:
        """(process id, connection) of a new worker."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            try:
                self._await_ready(timeout_s)
                pid = self._ask_for_worker(theirs)
            except BaseException:
                ours.close()
                raise
        return pid, ours

    def kill(self, pid: int) -> str:
        """Kill a worker's process group and reap it. How it ended, in words."""
        with self._lock:
            if self._control is None:
                return "its server had ended"
            try:
                status = self._ask(f"kill {pid}")["status"]
            except (OSError, EOFError):
                self._stop()
                return "its server had ended"
        if status is None:
            return "it had ended"
        return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """Let go of what belongs to the process that this one was forked from."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        self._process, self._control, self._is_ready = None, None, False

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        ours, theirs = socket.socketpair()
        # One hash seed for all workers, ever: nothing a game says may hang on the order of a set.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "ALFWORLD_DATA": str(self.cache)}
        self.cache.mkdir(parents=True, exist_ok=True)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", f"{__package__}.worker", str(theirs.fileno()), str(self.cache)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._control, self._is_ready = ours, False

    def _await_ready(self, timeout_s: float) -> None:
        self._start()
        if self._is_ready:
            return
        assert self._control is not None
        try:
            answer = wire.receive(self._control, timeout_s)
        except TimeoutError:
            self._stop()
            raise WorkerTimeoutError(f"TextWorld did not load within {timeout_s:g} s") from None
        except EOFError:
            self._stop()
            raise WorkerCrashError(
                "the process that loads TextWorld ended at its start (its messages are on stderr)"
            ) from None
        if "error" in answer:
            self._stop()
            raise ImportError(f"TextWorld could not be loaded ({answer['error']}). {HOW_TO_INSTALL}")
        self._is_ready = True

    def _ask_for_worker(self, theirs: socket.socket) -> int:
        try:
            return int(self._ask("fork -", theirs)["pid"])
        except (OSError, EOFError) as error:
            self._stop()
            raise WorkerCrashError(
                f"the process that forks ALFWorld workers is gone ({error}); the next one is new"
            ) from None

    def _ask(self, order: str, descriptor: socket.socket | None = None) -> dict[str, Any]:
        assert self._control is not None
        self._control.settimeout(CONTROL_TIMEOUT_S)
        socket.send_fds(self._control, [order.encode()], [] if descriptor is None else [descriptor.fileno()])
        return wire.receive(self._control, CONTROL_TIMEOUT_S)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(CONTROL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process, self._control, self._is_ready = None, None, False


class GameWorker:
    """One worker process, playing one game."""

    def __init__(self, server: ForkServer, game: str, timeout_s: float) -> None:
        self.server, self.game = server, game
        deadline = time.monotonic() + timeout_s
        self.pid, self._connection = server.fork(timeout_s)
        self.is_alive = True
        self.first = self.ask({"order": "open", "game": game}, max(0.1, deadline - time.monotonic()))

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to ``request``.

        Raises:
            WorkerTimeoutError, WorkerCrashError: no answer; the worker is gone.
            GameError: TextWorld raised.
        """
        what = f"ALFWorld game {self.game}, {request['order']} {request.get('action', '')!r}"
        try:
            self._connection.settimeout(timeout_s)
            wire.send(self._connection, request)
            answer = wire.receive(self._connection, timeout_s)
        except TimeoutError:
            self.close()
            raise WorkerTimeoutError(
                f"{what}: no answer from worker {self.pid} within {timeout_s:g} s; killed"
            ) from None
        except (EOFError, OSError):
            raise WorkerCrashError(f"{what}: worker {self.pid} ended ({self.close()})") from None
        if "error" in answer:
            if request["order"] == "open":
                self.close()
            hint = "; a goal that nothing in the room can meet does this" if "KeyError" in answer["error"] else ""
            raise GameError(f"{what}: TextWorld raised {answer['error']}{hint}")
        return answer

    def close(self) -> str:
        """Kill the worker and reap it; twice is fine."""
        if not self.is_alive:
            return "closed before"
        self.is_alive = False
        self._connection.close()
        return self.server.kill(self.pid)


class WorkerPool:
    """At most ``max_workers`` workers; the one that was used longest ago makes room for a new one."""

    def __init__(self, server: ForkServer, max_workers: int) -> None:
        self.server, self.max_workers = server, max_workers
        self._changed = threading.Condition()
        self._idle: OrderedDict[str, GameWorker] = OrderedDict()
        self._num_busy = 0

    @contextmanager
    def lease(self, game: str, timeout_s: float) -> Iterator[GameWorker]:
        """The worker of ``game``, started if need be, for the caller alone."""
        worker = self._take(game, timeout_s)
        try:
            worker = worker if worker is not None and worker.is_alive else GameWorker(self.server, game, timeout_s)
            yield worker
        finally:
            self._give_back(worker)

    def stop(self) -> None:
        """End all idle workers."""
        with self._changed:
            workers, self._idle = list(self._idle.values()), OrderedDict()
        for worker in workers:
            worker.close()

    def forget(self) -> None:
        """Let go of what belongs to the process that this one was forked from."""
        self._changed = threading.Condition()
        for worker in self._idle.values():
            worker.is_alive = False
            worker._connection.close()
        self._idle, self._num_busy = OrderedDict(), 0

    def pids(self) -> list[int]:
        with self._changed:
            return [worker.pid for worker in self._idle.values()]

    def _take(self, game: str, timeout_s: float) -> GameWorker | None:
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: game in self._idle or self._num_busy < self.max_workers, timeout=timeout_s
            )
            if not has_room:
                raise WorkerTimeoutError(
                    f"ALFWorld game {game}: all {self.max_workers} workers were busy for {timeout_s:g} s; raise max_workers"
                )
            self._num_busy += 1
            worker = self._idle.pop(game, None)
            surplus = []
            while self._idle and len(self._idle) + self._num_busy > self.max_workers:
                surplus.append(self._idle.popitem(last=False)[1])
        for other in surplus:
            other.close()
        return worker

    def _give_back(self, worker: GameWorker | None) -> None:
        with self._changed:
            self._num_busy -= 1
            if worker is not None and worker.is_alive:
                self._idle[worker.game] = worker
            self._changed.notify_all()
