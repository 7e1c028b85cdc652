"""What the members of a group have computed, shared: a graph of game states, filled as actions are first played.

A node is a state, found by its content, not by the actions that led to it: members that meet again in one state share
everything from there on. An action that is not admissible leads nowhere and costs nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winnowrl.envs.alfworld.server import ForkServer, WorkerPool, WorkerTimeoutError


@dataclass(slots=True, eq=False)
class Node:
    """A state of a game.

    Attributes:
        key: its content in a digest.
        admissible: the actions that change something here, sorted.
        won: the goal is met.
        parent, action: one way to get here; None at the first state.
        edges: action -> (what the game says, the next state).
    """

    key: str
    admissible: tuple[str, ...]
    won: bool
    parent: Node | None = None
    action: str = ""
    edges: dict[str, tuple[str, Node]] = field(default_factory=dict)

    def path(self) -> list[str]:
        """The actions from the first state to here."""
        actions, node = list[str](), self
        while node.parent is not None:
            actions.append(node.action)
            node = node.parent
        return actions[::-1]


class GameGraph:
    """The known states of one game. Its worker computes what is not known yet, one request at a time."""

    def __init__(self, game: str, book: GameBook) -> None:
        self.game, self.book = game, book
        self.opening = ""
        self.root: Node | None = None
        self.num_users = 0
        self.lock = threading.Lock()
        self._nodes: dict[str, Node] = {}

    def open(self, timeout_s: float) -> Node:
        """The first state; the first caller loads the game."""
        if self.root is None:
            with self._alone(timeout_s), self.book.workers.lease(self.game, timeout_s) as worker:
                if self.root is None:
                    self.opening = worker.first["opening"]
                    self.root = self._node(worker.first, None, "")
        return self.root

    def advance(self, node: Node, action: str, timeout_s: float) -> tuple[str, Node, bool]:
        """(what the game says, next state, whether this was known) for an admissible ``action`` in ``node``."""
        known = node.edges.get(action)
        if known is None:
            with self._alone(timeout_s):
                known = node.edges.get(action)
                if known is None:
                    return *self._compute(node, action, timeout_s), False
        self.book.count(shared=1)
        return *known, True

    def plan(self, timeout_s: float) -> list[str]:
        with self._alone(timeout_s), self.book.workers.lease(self.game, timeout_s) as worker:
            return [str(action) for action in worker.ask({"order": "plan"}, timeout_s)["actions"]]

    def clear(self) -> int:
        """Forget all states but the first; members go on from the ones they hold. How many were forgotten."""
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            # A member holds the states on its own way; without edges these hold no others.
            node.edges = {}
        return len(nodes)

    def _compute(self, node: Node, action: str, timeout_s: float) -> tuple[str, Node]:
        request = {"order": "step", "key": node.key, "path": node.path(), "action": action}
        with self.book.workers.lease(self.game, timeout_s) as worker:
            answer = worker.ask(request, timeout_s)
        edge = sys.intern(answer["feedback"]), self._node(answer, node, action)
        node.edges[action] = edge
        self.book.count(computed=1)
        return edge

    def _node(self, answer: dict[str, Any], parent: Node | None, action: str) -> Node:
        node = self._nodes.get(answer["key"])
        if node is None:
            admissible = tuple(sys.intern(command) for command in answer["admissible"])
            node = self._nodes[answer["key"]] = Node(answer["key"], admissible, answer["won"], parent, action)
            self.book.added_node()
        return node

    def _alone(self, timeout_s: float) -> _Held:
        # A member that waits behind a stuck one must outlast it, or one failure would become many.
        return _Held(self.lock, 10 * timeout_s, self.game)


class _Held:
    """Holds a lock, with a deadline."""

    def __init__(self, lock: threading.Lock, timeout_s: float, game: str) -> None:
        self.lock, self.timeout_s, self.game = lock, timeout_s, game

    def __enter__(self) -> None:
        if not self.lock.acquire(timeout=self.timeout_s):
            raise WorkerTimeoutError(f"ALFWorld game {self.game}: waited {self.timeout_s:g} s for other members' steps")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class GameBook:
    """All games that one process plays: their graphs, within ``max_states`` states, and their workers.

    Args:
        cache: folder of translations.
        max_workers: worker processes at a time.
        max_states: states kept over all games, about 1 kB each; games not in use go first.
        linger_s: how long workers wait for a next user after the last has closed.
    """

    def __init__(self, cache: Path, max_workers: int, max_states: int, linger_s: float) -> None:
        self.max_states, self.linger_s = max_states, linger_s
        self.server = ForkServer(cache)
        self.workers = WorkerPool(self.server, max_workers)
        self._lock = threading.Lock()
        self._graphs: OrderedDict[str, GameGraph] = OrderedDict()
        self._num_states = 0
        self._counts = {"computed": 0, "shared": 0, "states": 0}
        self._timer: threading.Timer | None = None

    def acquire(self, game: str) -> GameGraph:
        """The graph of ``game``, counted as in use until :meth:`release`."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            graph = self._graphs.setdefault(game, GameGraph(game, self))
            self._graphs.move_to_end(game)
            graph.num_users += 1
            return graph

    def release(self, graph: GameGraph) -> None:
        with self._lock:
            graph.num_users -= 1
            if self._timer is None and not any(other.num_users for other in self._graphs.values()):
                self._timer = threading.Timer(self.linger_s, self._stop_if_unused)
                self._timer.daemon = True
                self._timer.start()

    def count(self, computed: int = 0, shared: int = 0) -> None:
        with self._lock:
            self._counts["computed"] += computed
            self._counts["shared"] += shared

    def added_node(self) -> None:
        with self._lock:
            self._num_states += 1
            if self._num_states > self.max_states:
                self._forget_states()

    def counts(self) -> dict[str, int]:
        """Transitions computed, transitions answered from the graph, states and workers held now."""
        with self._lock:
            return {**self._counts, "states": self._num_states, "workers": len(self.workers.pids())}

    def clear(self) -> None:
        """Forget every game that is not in use, and end the idle workers."""
        with self._lock:
            for graph in [graph for graph in self._graphs.values() if graph.num_users == 0]:
                self._num_states -= graph.clear()
                del self._graphs[graph.game]
        self.workers.stop()

    def stop(self) -> None:
        """End all processes; what is known stays known."""
        self.workers.stop()
        self.server.stop()

    def forget_processes(self) -> None:
        """After a fork: the processes and the waiting members are the parent's."""
        self._lock = threading.Lock()
        self._timer = None
        for graph in self._graphs.values():
            graph.lock = threading.Lock()
        self.workers.forget()
        self.server.forget()

    def _forget_states(self) -> None:
        # Unused games first, each kind from the one used longest ago.
        for graph in sorted(self._graphs.values(), key=lambda graph: graph.num_users > 0):
            if self._num_states <= self.max_states // 2:
                return
            self._num_states -= graph.clear()
            if graph.num_users == 0:
                del self._graphs[graph.game]

    def _stop_if_unused(self) -> None:
        with self._lock:
            self._timer = None
            # Under the lock: a member that comes now waits, and then starts workers of its own.
            if not any(graph.num_users for graph in self._graphs.values()):
                self.stop()


_books: dict[tuple[Path, int, int, float], GameBook] = {}
_books_lock = threading.Lock()


def game_book(cache: Path, max_workers: int, max_states: int, linger_s: float) -> GameBook:
    """The book of these settings; environments with equal settings share it."""
    with _books_lock:
        key = (cache, max_workers, max_states, linger_s)
        if key not in _books:
            _books[key] = GameBook(*key)
        return _books[key]


def transition_counts() -> dict[str, int]:
    """Over all environments of this process: transitions computed and shared, states and workers held."""
    total = {"computed": 0, "shared": 0, "states": 0, "workers": 0}
    for book in list(_books.values()):
        for name, count in book.counts().items():
            total[name] += count
    return total


def shutdown() -> None:
    """End all worker processes of this process; environments still open start new ones when they need them."""
    for book in list(_books.values()):
        book.stop()


def _after_fork() -> None:
    global _books_lock
    _books_lock = threading.Lock()
    for book in _books.values():
        book.forget_processes()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)
