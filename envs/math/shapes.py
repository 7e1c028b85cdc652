"""What an answer is made of: lists, tuples, sets, intervals, unions, matrices, relations; atoms inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAME = re.compile(
    r"(?:\\?[a-zA-Z]+'*|\\text ?\{[^{}]*\}|\\(?:mathbf|mathbb|mathcal|vec|hat|bar|overline) ?\{[^{}]*\})"
    r"(?:_(?:\w|\{[^{}]*\}))?(?:\^\{?[*nkm\\prime]+\}?)?(?: ?\([^()=]*\))?"
)
# Commands of a calculation with numbers.
_SIGNS = re.compile(r"\\(?:cdot|times|div|frac|sqrt|binom|log|ln|lfloor|rfloor|lceil|rceil)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Atom:
    """A piece without outer structure: a number, an expression or words."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several shapes together.

    Attributes:
        kind: ``list`` (bare commas), ``set``, ``union``, ``either`` and ``both`` (statements joined by a word; all these
            unordered), or ``tuple``, ``ratio``, ``matrix`` (ordered).
        brackets: The two delimiters of a tuple or interval, such as ``[)``; empty for other kinds.
        items: The parts.
    """

    kind: str
    brackets: str
    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as ``0 < x <= 5``: ``sides`` are one more than ``signs``."""

    signs: tuple[str, ...]
    sides: tuple[Shape, ...]

    @property
    def is_assignment(self) -> bool:
        """A name given a value (``x = 5``, ``f(x) = x^2``, ``m \\in [0, 1)``) or a calculation (``2 + 3 = 5``)."""
        first = self.sides[0]
        if not set(self.signs) <= {"=", "in", "~"}:
            return False
        if isinstance(first, Items):
            return first.kind == "tuple" and all(isinstance(item, Atom) and is_name(item.text) for item in first.items)
        return isinstance(first, Atom) and (
            is_name(first.text) or not re.search("[a-zA-Z]", _SIGNS.sub("", first.text))
        )


Shape = Atom | Items | Relation


def is_name(text: str) -> bool:
    """True for what stands on the left of an assignment: ``x``, ``a_{10}``, ``f(x)``, ``\\text{Area}``."""
    return _NAME.fullmatch(text.strip()) is not None


def valued_atoms(shape: Shape) -> Iterator[Atom]:
    """The atoms of a shape that stand for a value: all but the names on the left of an assignment."""
    if isinstance(shape, Atom):
        yield shape
    elif isinstance(shape, Items):
        for item in shape.items:
            yield from valued_atoms(item)
    else:
        for side in shape.sides[1:] if shape.is_assignment else shape.sides:
            yield from valued_atoms(side)


def to_text(shape: Shape) -> str:
    """A shape as LaTeX again, for a parser that reads whole answers."""
    if isinstance(shape, Atom):
        return shape.text
    if isinstance(shape, Relation):
        names = {"<=": r"\leq", ">=": r"\geq", "!=": r"\neq", "in": r"\in"}
        parts = [to_text(shape.sides[0])]
        for sign, side in zip(shape.signs, shape.sides[1:], strict=True):
            parts += [names.get(sign, sign), to_text(side)]
        return " ".join(parts)
    inside = (r" \cup " if shape.kind == "union" else ", ").join(map(to_text, shape.items))
    if shape.kind == "set":
        return rf"\{{{inside}\}}"
    return f"{shape.brackets[0]}{inside}{shape.brackets[1]}" if shape.brackets else inside
