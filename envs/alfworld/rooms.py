"""Games of our own: a room and a goal in a few lines of JSON, turned into a PDDL problem on ALFWorld's domain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIPPED_GAMES = Path(__file__).parent / "games" / "rooms.json"

# What a thing can do follows from its kind, in the words of ALFWorld's domain.
OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
CLEANABLE = frozenset(
    {"apple", "bowl", "cloth", "cup", "egg", "fork", "ladle", "mug", "plate", "potato", "soapbar", "spoon"}
)
HEATABLE = frozenset({"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"})
COOLABLE = frozenset({"apple", "bottle", "bowl", "bread", "cup", "egg", "mug", "pan", "plate", "potato", "tomato"})
TOGGLEABLE = frozenset({"desklamp", "floorlamp"})
# Kinds that ALFWorld's actions name; PDDL wants them declared in every problem.
NAMED_RECEPTACLE_KINDS = ("sinkbasin", "fridge", "microwave")
NAMED_OBJECT_KINDS = ("knife", "butterknife")

# goal type -> (what the agent is told, the property the object must have got or None)
GOALS: dict[str, tuple[str, str | None]] = {
    "pick_and_place_simple": ("put a {object} in the {target}", None),
    "look_at_obj_in_light": ("hold the {object} next to a lit {target}", None),
    "pick_clean_then_place_in_recep": ("wash a {object} and leave it in the {target}", "isClean"),
    "pick_heat_then_place_in_recep": ("warm a {object} and leave it in the {target}", "isHot"),
    "pick_cool_then_place_in_recep": ("chill a {object} and leave it in the {target}", "isCool"),
    "pick_two_obj_and_place": ("bring two {object}s to the {target}", None),
}


@dataclass(frozen=True, slots=True)
class RoomGame:
    """One game: what stands where, and what is to be done.

    Attributes:
        id: ``split/name``.
        task_type: a key of ``GOALS``.
        object, target: kinds; ``target`` is a receptacle, or the lamp of ``look_at_obj_in_light``.
        room: (receptacle kind, kinds of the objects in it), one entry a receptacle.
        walkthrough: actions that solve it; empty = ask the planner.
    """

    id: str
    task_type: str
    object: str
    target: str
    room: tuple[tuple[str, tuple[str, ...]], ...]
    walkthrough: tuple[str, ...] = ()

    @property
    def goal(self) -> str:
        return GOALS[self.task_type][0].format(object=self.object, target=self.target)


def read_room_games(path: Path = SHIPPED_GAMES) -> list[RoomGame]:
    """The games of a JSON file ``{"rooms": {name: [[receptacle, [object, …]], …]}, "games": [{…}, …]}``.

    Raises:
        ValueError: a game names a room or a goal type that does not exist.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    return [_room_game(row, content["rooms"], path) for row in content["games"]]


def _room_game(row: Mapping[str, Any], rooms: Mapping[str, Any], path: Path) -> RoomGame:
    if row["room"] not in rooms:
        raise ValueError(f"{path}: game {row['id']!r} plays in {row['room']!r}; the rooms are {', '.join(rooms)}")
    if row["task_type"] not in GOALS:
        raise ValueError(f"{path}: game {row['id']!r} has task_type {row['task_type']!r}; allowed: {', '.join(GOALS)}")
    room = tuple((receptacle, tuple(objects)) for receptacle, objects in rooms[row["room"]])
    return RoomGame(row["id"], row["task_type"], row["object"], row["target"], room, tuple(row.get("walkthrough", ())))


def pddl_problem(game: RoomGame) -> str:
    """The PDDL problem of ``game`` on ALFWorld's domain (the domain itself comes from the alfworld package)."""
    receptacles, objects = _placed(game.room)
    object_kinds = sorted({kind for _, kind, _ in objects} | {*NAMED_OBJECT_KINDS, game.object})
    receptacle_kinds = sorted({kind for _, kind, _ in receptacles} | {*NAMED_RECEPTACLE_KINDS, game.target})
    declared = ["agent1 - agent", "loc_bar_0 - location"]
    declared += [f"{kind}Type - otype" for kind in object_kinds]
    declared += [f"{kind}Type - rtype" for kind in receptacle_kinds if kind not in object_kinds]
    declared += [f"{name} - object" for name, _, _ in objects]
    declared += [f"{name} - receptacle\n{place} - location" for name, _, place in receptacles]
    facts = ["(atLocation agent1 loc_bar_0)"]
    for name, kind, place in receptacles:
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {place})"]
        facts += [f"(openable {name})"] * (kind in OPENABLE)
    places = {name: place for name, _, place in receptacles}
    for name, kind, holder in objects:
        facts += _object_facts(name, kind, holder, places[holder])
    fitting = [kind for kind in object_kinds if kind not in TOGGLEABLE]
    facts += [f"(canContain {r}Type {o}Type)" for r in receptacle_kinds if r not in object_kinds for o in fitting]
    body = "\n".join(["(:objects", *declared, ")", "(:init", *facts, ")", f"(:goal {_goal(game)})"])
    return f"(define (problem room)\n(:domain alfred)\n{body}\n)\n"


def _placed(
    room: Sequence[tuple[str, Sequence[str]]],
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """((receptacle id, kind, location), …) and ((object id, kind, receptacle id), …)."""
    receptacles, objects = [], []
    for number, (kind, contents) in enumerate(room, start=1):
        # ALFWorld's names come from ids: "sink…sinkbasin" is shown as "sinkbasin 1".
        holder = f"sink_bar_{number}_bar_sinkbasin" if kind == "sinkbasin" else f"{kind}_bar_{number}"
        receptacles.append((holder, kind, f"loc_bar_{number}"))
        objects += [(f"{item}_bar_{number}_bar_{i}", item, holder) for i, item in enumerate(contents)]
    return receptacles, objects


def _object_facts(name: str, kind: str, holder: str, place: str) -> list[str]:
    facts = [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {holder})", f"(objectAtLocation {name} {place})"]
    kinds = {"cleanable": CLEANABLE, "heatable": HEATABLE, "coolable": COOLABLE, "toggleable": TOGGLEABLE}
    facts += [f"({ability} {name})" for ability, able in kinds.items() if kind in able]
    facts += [f"(pickupable {name})"] * (kind not in TOGGLEABLE)
    return facts


def _goal(game: RoomGame) -> str:
    object_type, target_type = f"{game.object}Type", f"{game.target}Type"
    if game.task_type == "look_at_obj_in_light":
        lit = f"(objectType ?t {target_type}) (isToggled ?t) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)"
        return (
            f"(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and {lit} (inReceptacle ?t ?r)))"
            f" (exists (?o - object ?a - agent) (and (objectType ?o {object_type}) (holds ?a ?o))))"
        )
    placed = f"(objectType ?o {object_type}) (receptacleType ?r {target_type}) (inReceptacle ?o ?r)"
    if (wanted := GOALS[game.task_type][1]) is not None:
        placed += f" ({wanted} ?o)"
    if game.task_type == "pick_two_obj_and_place":
        placed += f" (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {object_type}) (inReceptacle ?p ?r)))"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {placed})))"
