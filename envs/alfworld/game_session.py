"""One game inside its worker: states are kept by content, so that any known one can be continued without replaying.

Only worker processes import this module.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fast_downward
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
from textworld.envs.pddl import PddlEnv
from textworld.envs.pddl.logic import Atom

from winnowrl.envs.alfworld import wire
from winnowrl.envs.alfworld.memo import Translations
from winnowrl.envs.alfworld.rooms import RoomGame, pddl_problem, read_room_games

NOTHING_HAPPENS = "Nothing happens."
MAX_SNAPSHOTS = 20_000
MAX_OPEN_STATES = 32


@dataclass(slots=True)
class Snapshot:
    """A state: fast-downward's number for it, and TextWorld's facts as a difference to the first state.

    ``is_mirrored``: the facts say all there is to say. They do until an action with conditional effects is played,
    which TextWorld applies to its facts whether or not the condition held.
    """

    state_id: int
    added: frozenset[Any]
    removed: frozenset[Any]
    is_mirrored: bool


class GameSession:
    """TextWorld playing one game; every request names the state that it starts from."""

    def __init__(self, game: dict[str, Any], translations: Translations) -> None:
        self.translations = translations
        self.env = PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
        AlfredDemangler(self.env).load(game)
        state = self.env.reset()
        self.opening = str(state.feedback)
        self._first_facts = frozenset(self.env._pddl_state.facts)
        self._first = Snapshot(self.env.downward_lib.get_state_id(), frozenset(), frozenset(), True)
        self._conditional = _actions_with_conditions(self.env._pddl_state.task)
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        # key -> what TextWorld holds of that state (its valid actions are costly to list again)
        self._open: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
        self._current = self.root = self._remember(is_mirrored=True)

    def step(self, key: str, path: Sequence[str], action: str) -> dict[str, Any]:
        """Play ``action`` in the state ``key``, which ``path`` leads to from the first state."""
        self._go_to(key, path)
        return {"feedback": self._play(action), **self.describe()}

    def describe(self) -> dict[str, Any]:
        state = self.env.state
        return {"key": self._current, "admissible": state["admissible_commands"], "won": bool(state["won"])}

    def plan(self) -> list[str]:
        """Actions from the first state to success, by fast-downward's planner."""
        self._go_to(self.root, ())
        data, library = self.env._game_data, self.env.downward_lib
        library.load_sas_replan(
            self.translations.translate_for_planner(data["pddl_domain"], data["pddl_problem"]).encode()
        )
        return [str(action) for action in self.env._pddl_state.replan(self.env._entity_infos)]

    def _play(self, action: str) -> str:
        was_mirrored = self._snapshot(self._current).is_mirrored
        feedback = str(self.env.step(action)[0].feedback)
        # TextWorld also says that nothing happened when it could not read an effect of an action it had applied.
        is_plain = self.env._last_action.name not in self._conditional and feedback != NOTHING_HAPPENS
        self._current = self._remember(was_mirrored and is_plain)
        return feedback

    def _remember(self, is_mirrored: bool) -> str:
        facts = frozenset(self.env._pddl_state.facts)
        added, removed = facts - self._first_facts, self._first_facts - facts
        key = self._key(added, removed, is_mirrored)
        self._snapshots[key] = Snapshot(self.env.downward_lib.get_state_id(), added, removed, is_mirrored)
        if len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)
        self._open[key] = self.env.state, self.env._pddl_state._operators
        if len(self._open) > MAX_OPEN_STATES:
            self._open.popitem(last=False)
        return key

    def _key(self, added: frozenset[Any], removed: frozenset[Any], is_mirrored: bool) -> str:
        """A name for the state that is the same in every worker: of its facts and, where need be, the planner's state."""
        digest = hashlib.blake2b(digest_size=16)
        for facts in (added, removed):
            digest.update("\n".join(sorted(map(str, facts))).encode() + b"\0")
        if not is_mirrored:
            library = self.env.downward_lib
            atoms = (Atom * library.get_state_size())()
            library.get_state(atoms)
            for atom in atoms:
                digest.update(atom._name + b"\n")
        return digest.hexdigest()

    def _go_to(self, key: str, path: Sequence[str]) -> None:
        if key == self._current:
            return
        if key == self.root or key in self._snapshots:
            self._restore(key)
            return
        self._restore(self.root)
        for action in path:
            self._play(action)
        if self._current != key:
            raise RuntimeError(f"the actions {list(path)} lead to the state {self._current}, not to {key}")

    def _restore(self, key: str) -> None:
        snapshot = self._snapshot(key)
        state = self.env._pddl_state
        wanted = (self._first_facts - snapshot.removed) | snapshot.added
        facts = frozenset(state.facts)
        for fact in facts - wanted:
            state._facts[fact.signature].discard(fact)
        for fact in wanted - facts:
            state._facts[fact.signature].add(fact)
        self.env.downward_lib.set_state_id(snapshot.state_id)
        self._reopen(key)
        self._current = key

    def _snapshot(self, key: str) -> Snapshot:
        return self._first if key == self.root else self._snapshots[key]

    def _reopen(self, key: str) -> None:
        if key in self._open:
            self._open.move_to_end(key)
            self.env.state, self.env._pddl_state._operators = self._open[key]
            return
        self.env.state = textworld.core.GameState()
        self.env._gather_infos()
        self._open[key] = self.env.state, self.env._pddl_state._operators


def _actions_with_conditions(task: Any) -> frozenset[str]:
    truth = fast_downward.translate.pddl.conditions.Truth
    return frozenset(
        action.name for action in task.actions if any(not isinstance(e.condition, truth) for e in action.effects)
    )


def load_game(source: str) -> dict[str, Any]:
    """The game that ``source`` names: the path of a ``.tw-pddl`` file, or ``FILE.json#ID`` for a room of ours."""
    path, _, game_id = source.partition("#")
    if not game_id:
        game: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        return game
    return room_as_game(next(game for game in read_room_games(Path(path)) if game.id == game_id))


def room_as_game(game: RoomGame) -> dict[str, Any]:
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace("UNKNOWN GOAL", game.goal)
    domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    return {"pddl_domain": domain, "grammar": grammar, "pddl_problem": pddl_problem(game)}


def warm_up(cache: Path) -> None:
    """Play the first shipped game for some steps, so that every worker starts with the grammar parsed."""
    fast_downward.load_lib()
    session = _open_session(room_as_game(read_room_games()[0]), cache)
    for action in ("look", "inventory", "go to fridge 1", "open fridge 1", "examine fridge 1", "go to cabinet 1"):
        session._play(action)


def _open_session(game: dict[str, Any], cache: Path) -> GameSession:
    translations = Translations(cache)
    translations.install()
    return GameSession(game, translations)


def answer_requests(connection: socket.socket, cache: Path) -> None:
    """Serve one trainer until it closes the connection; what a request raises is its answer."""
    session: GameSession | None = None

    def open_game(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal session
        session = _open_session(load_game(request["game"]), cache)
        return {"opening": session.opening, **session.describe()}

    def step(request: dict[str, Any]) -> dict[str, Any]:
        assert session is not None, "step before open"
        return session.step(request["key"], request["path"], request["action"])

    def plan(_: dict[str, Any]) -> dict[str, Any]:
        assert session is not None, "plan before open"
        return {"actions": session.plan()}

    orders: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"open": open_game, "step": step, "plan": plan}
    while True:
        try:
            request = wire.receive(connection, None)
        except EOFError:
            return
        try:
            answer = orders[request["order"]](request)
        except Exception as error:  # noqa: BLE001 - TextWorld raises anything; the trainer decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        wire.send(connection, answer)
