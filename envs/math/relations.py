"""Relations as other shapes: the interval an inequality describes, the values that equations give to names."""

from __future__ import annotations

from winnowrl.envs.math.shapes import Atom, Items, Relation, Shape, is_name, to_text
from winnowrl.envs.math.words import squeeze

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


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
        low, high = Atom(r"-\infty"), sides[1]
        opening, closing = "(", "]" if signs[0] == "<=" else ")"
    elif len(sides) == 2 and isinstance(sides[1], Atom) and is_name(sides[1].text):
        low, high = sides[0], Atom(r"\infty")
        opening, closing = "[" if signs[0] == "<=" else "(", ")"
    else:
        return None
    return Items("tuple", opening + closing, (low, high))


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


def _has_name(relation: Relation) -> bool:
    return isinstance(relation.sides[0], Atom) and is_name(relation.sides[0].text)
