"""Relations as other shapes: the interval an inequality describes, the values that equations give to names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from winnowrl.envs.math.exact import read_number
from winnowrl.envs.math.shapes import Atom, Items, Relation, Shape, is_name, to_text
from winnowrl.envs.math.words import squeeze

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


# Quantities that a problem asks for by an expression: m + n, the size of a set, an angle.
_ASKED = re.compile(r"[a-zA-Z](?: ?\+ ?[a-zA-Z])+|\|[A-Z]\||\\angle ?\{? ?[A-Z]{1,3} ?\}?")
# Coordinates whose usual order is not the alphabetical one.
_COORDINATES = (["rho", "theta", "phi"],)

INFINITY, MINUS_INFINITY = Atom(r"\infty"), Atom(r"-\infty")


def as_interval(relation: Relation) -> Shape | None:
    """The interval that an inequality about one name describes, or None."""
    relation = oriented(relation)
    signs, sides = relation.signs, relation.sides
    if not set(signs) <= {"<", "<="}:
        return None
    if len(sides) == 3 and isinstance(sides[1], Atom) and is_name(sides[1].text):
        low, high = sides[0], sides[2]
        opening, closing = "[" if signs[0] == "<=" else "(", "]" if signs[1] == "<=" else ")"
    elif len(sides) == 2 and isinstance(sides[0], Atom) and is_name(sides[0].text):
        low, high = MINUS_INFINITY, sides[1]
        opening, closing = "(", "]" if signs[0] == "<=" else ")"
    elif len(sides) == 2 and isinstance(sides[1], Atom) and is_name(sides[1].text):
        low, high = sides[0], INFINITY
        opening, closing = "[" if signs[0] == "<=" else "(", ")"
    else:
        return None
    return Items("tuple", opening + closing, (low, high))


def is_statement(shape: Shape) -> bool:
    """True for an inequality, or several joined by "and" or "or"."""
    if isinstance(shape, Relation):
        return set(shape.signs) <= {"<", "<=", ">", ">="}
    return isinstance(shape, Items) and shape.kind in ("either", "both")


def as_set(statement: Shape) -> Shape | None:
    """The interval, or the union of intervals, of inequalities about one name; None where there is no one name."""
    if isinstance(statement, Relation):
        return as_interval(statement)
    if not isinstance(statement, Items) or name_of(statement) is None:
        return None
    intervals = [as_set(item) for item in statement.items]
    if any(interval is None for interval in intervals):
        return None
    if statement.kind == "either":
        return Items("union", "", tuple(interval for interval in intervals if interval is not None))
    return _common(intervals[0], intervals[1]) if len(intervals) == 2 else None


def _common(left: Shape | None, right: Shape | None) -> Shape | None:
    """What two half-lines share: ``x > 2`` and ``x < 3``."""
    if not isinstance(left, Items) or not isinstance(right, Items) or "union" in (left.kind, right.kind):
        return None
    if left.items[0] == MINUS_INFINITY:
        left, right = right, left
    if left.items[1] != INFINITY or right.items[0] != MINUS_INFINITY or left.items[0] == MINUS_INFINITY:
        return None
    return Items("tuple", left.brackets[0] + right.brackets[1], (left.items[0], right.items[1]))


def name_of(statement: Shape) -> str | None:
    """The one name that all inequalities of a statement are about."""
    if isinstance(statement, Relation):
        names = [side.text for side in statement.sides if isinstance(side, Atom) and is_name(side.text)]
        return squeeze(names[0]) if len(names) == 1 else None
    names = [name_of(item) or "" for item in statement.items] if isinstance(statement, Items) else []
    return names[0] if len(set(names)) == 1 and names[0] else None


def is_interval_union(shape: Shape) -> bool:
    """An interval or a union of intervals."""
    if not isinstance(shape, Items):
        return False
    if shape.kind == "union":
        return all(map(is_interval_union, shape.items))
    return shape.kind == "tuple" and len(shape.items) == 2


def oriented(relation: Relation) -> Relation:
    """The same statement with every inequality sign pointing the same way."""
    if relation.signs and set(relation.signs) <= {">", ">="}:
        return Relation(tuple(FLIPPED[sign] for sign in reversed(relation.signs)), tuple(reversed(relation.sides)))
    return relation


def named_values(shape: Shape) -> dict[str, Shape] | None:
    """The values of two or more different names, in their order: ``x = 1, y = 2`` or ``(x, y) = (1, 2)``; else None."""
    if isinstance(shape, Relation):
        names, values = shape.sides[0], shape.sides[-1]
        if (
            not isinstance(names, Items)
            or not isinstance(values, Items)
            or not shape.is_assignment
            or shape.signs != ("=",)
        ):
            return None
        if len(names.items) != len(values.items) or values.kind != "tuple":
            return None
        pairs = list(zip(names.items, values.items, strict=True))
    elif isinstance(shape, Items) and shape.kind == "list" and len(shape.items) > 1:
        if not all(isinstance(item, Relation) and item.signs == ("=",) and _has_name(item) for item in shape.items):
            return None
        pairs = [(item.sides[0], item.sides[1]) for item in shape.items if isinstance(item, Relation)]
    else:
        return None
    named = {squeeze(to_text(name)): value for name, value in pairs}
    return named if len(named) == len(pairs) else None


def in_usual_order(names: Iterable[str]) -> bool:
    """True for names in the order in which bare values stand for them."""
    spelled = [name.removeprefix("\\") for name in names]
    return spelled == sorted(spelled) or spelled in _COORDINATES


def value_of(relation: Relation) -> Shape | None:
    """What ``x = 5``, ``m + n = 5`` or ``5 = x`` says the answer is; None for an equation or an inequality."""
    first, last = relation.sides[0], relation.sides[-1]
    if relation.signs == ("=",) and isinstance(last, Atom) and re.fullmatch("[a-zA-Z]", last.text):
        return first if isinstance(first, Atom) and read_number(first.text) else last
    if relation.is_assignment:
        return last
    is_asked = isinstance(first, Atom) and _ASKED.fullmatch(first.text) and set(relation.signs) <= {"="}
    return last if is_asked and isinstance(last, Atom) and read_number(last.text) else None


def _has_name(relation: Relation) -> bool:
    return isinstance(relation.sides[0], Atom) and is_name(relation.sides[0].text)
