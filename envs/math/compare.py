"""Comparing two answers by structure, and their atoms exactly; what needs algebra is left to a subclass.

The same comparison runs in two places: here in the caller's process, where an atom that needs algebra raises
:class:`NeedsAlgebra`, and in a worker process with :class:`winnowrl.envs.math.symbolic.SymbolicComparison`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from winnowrl.envs.math.exact import Number, numbers_equal, read_number
from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.shapes import Atom, Items, Relation, Shape, is_name
from winnowrl.envs.math.units import read_quantity, units_conflict

_SET_WORDS = re.compile(r"\\cup|\\cap|\\setminus|\\mathbb|\\emptyset|\\infty")
_WORDS = re.compile(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*")
_FREE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_ONE_BRACED = re.compile(r"\{(\w)\}")
_ARTICLE = re.compile(r"^(?:an?|the) (?=\w)")
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_ORDER = {"<", "<=", ">", ">="}
UNORDERED = {"list", "set", "union"}


class NeedsAlgebra(Exception):  # noqa: N818 - a signal, not an error
    """An atom cannot be compared exactly."""


class GoldUnreadable(Exception):  # noqa: N818
    """The gold cannot be read as mathematics, so that only the same text could be told to equal it."""


class Comparison:
    """Structural comparison of a gold shape and a predicted one under a policy."""

    def __init__(self, policy: VerifierPolicy) -> None:
        self.policy = policy

    def same(self, gold: Shape, prediction: Shape) -> bool:
        """True when ``prediction`` is an acceptable way to write ``gold``. Not symmetric: relations unwrap one way."""
        if gold == prediction:
            return True
        if isinstance(gold, Relation) and isinstance(prediction, Relation):
            return self._same_relation(gold, prediction)
        if isinstance(prediction, Relation):
            return self._relation_for_value(gold, prediction)
        if isinstance(gold, Relation):
            return self._value_for_relation(gold, prediction)
        if isinstance(gold, Items) and isinstance(prediction, Items):
            return self._same_items(gold, prediction)
        if isinstance(gold, Atom) and isinstance(prediction, Atom):
            return self.same_atom(gold.text, prediction.text)
        return self._mixed(gold, prediction)

    def same_atom(self, gold: str, prediction: str) -> bool:
        """Two atoms: the same text, numbers, words or, with algebra, expressions."""
        if squeeze(gold) == squeeze(prediction):
            return True
        gold_words, predicted_words = words_of(gold), words_of(prediction)
        if is_word(gold) or is_word(prediction):
            return gold_words is not None and gold_words == predicted_words
        (gold, gold_unit), (prediction, predicted_unit) = read_quantity(gold), read_quantity(prediction)
        if units_conflict(gold_unit, predicted_unit):
            return False
        if squeeze(gold) == squeeze(prediction):
            return True
        gold_number, predicted_number = read_number(gold), read_number(prediction)
        if gold_number and predicted_number:
            return numbers_equal(gold_number, predicted_number, self.policy)
        if special_text(gold) or special_text(prediction):
            return False
        if not prediction:
            return False
        return self.algebra(gold, prediction, gold_number, predicted_number)

    def algebra(self, gold: str, prediction: str, gold_number: Number | None, predicted_number: Number | None) -> bool:
        """Equality of two expressions of which at least one is no plain number."""
        self._leave()

    def same_equation(self, gold: Relation, prediction: Relation) -> bool:
        """Equality of two relations as statements (an equation times a constant is the same statement)."""
        self._leave()

    def same_set(self, gold: Shape, prediction: Shape) -> bool:
        """Equality of two sets written in different structures."""
        self._leave()

    def _leave(self) -> NoReturn:
        raise NeedsAlgebra

    def _same_items(self, gold: Items, prediction: Items) -> bool:
        if gold.kind in UNORDERED and prediction.kind in UNORDERED:
            if "union" in (gold.kind, prediction.kind) and gold.kind != prediction.kind:
                return self._mixed(gold, prediction)
            return self._same_unordered(gold, prediction) or (gold.kind == "union" and self._mixed(gold, prediction))
        if gold.kind == "matrix" or prediction.kind == "matrix":
            return self._same_ordered(_as_rows(gold).items, _as_rows(prediction).items)
        if gold.kind != prediction.kind or gold.brackets != prediction.brackets:
            return self._mixed(gold, prediction) if "union" in (gold.kind, prediction.kind) else False
        return self._same_ordered(gold.items, prediction.items)

    def _same_ordered(self, gold: Sequence[Shape], prediction: Sequence[Shape]) -> bool:
        return len(gold) == len(prediction) and all(map(self.same, gold, prediction))

    def _same_unordered(self, gold: Items, prediction: Items) -> bool:
        wanted = self._distinct(gold) if gold.kind == "set" else list(gold.items)
        given = self._distinct(prediction) if prediction.kind == "set" else list(prediction.items)
        if len(wanted) != len(given):
            return False
        for item in wanted:
            match = next((index for index, candidate in enumerate(given) if self.same(item, candidate)), None)
            if match is None:
                return False
            del given[match]
        return True

    def _distinct(self, items: Items) -> list[Shape]:
        return list(dict.fromkeys(items.items))

    def _same_relation(self, gold: Relation, prediction: Relation) -> bool:
        if gold.is_assignment and prediction.is_assignment:
            named = isinstance(gold.sides[0], Atom) and is_name(gold.sides[0].text)
            if not named or self.same(gold.sides[0], prediction.sides[0]):
                return self.same(gold.sides[-1], prediction.sides[-1])
            if "in" in (*gold.signs, *prediction.signs):
                return False
        if gold.is_assignment != prediction.is_assignment and "in" in (gold.signs[0], prediction.signs[0]):
            return self._membership_and_inequality(gold, prediction)
        gold, prediction = _oriented(gold), _oriented(prediction)
        if gold.signs == prediction.signs and len(gold.sides) > 2:
            return self._same_ordered(gold.sides, prediction.sides)
        if gold.signs != prediction.signs:
            return False
        try:
            if self._same_ordered(gold.sides, prediction.sides):
                return True
        except (NeedsAlgebra, GoldUnreadable):
            pass
        return self.same_equation(gold, prediction) if set(gold.signs) <= set(_FLIPPED) else False

    def _membership_and_inequality(self, gold: Relation, prediction: Relation) -> bool:
        """``m \\in [2, 5)`` and ``2 <= m < 5``, of the same name."""
        membership, inequality = (gold, prediction) if gold.is_assignment else (prediction, gold)
        if not any(self._is_text_of(membership.sides[0], side) for side in inequality.sides):
            return False
        if gold is membership:
            return self._relation_for_value(gold.sides[-1], prediction)
        return self._value_for_relation(gold, prediction.sides[-1])

    def _is_text_of(self, left: Shape, right: Shape) -> bool:
        return squeeze(to_text(left)) == squeeze(to_text(right))

    def _relation_for_value(self, gold: Shape, prediction: Relation) -> bool:
        if prediction.is_assignment:
            return self.same(gold, prediction.sides[-1])
        interval = as_interval(prediction) if self.policy.relations_as_intervals == "both" else None
        return interval is not None and self.same(gold, interval)

    def _value_for_relation(self, gold: Relation, prediction: Shape) -> bool:
        if gold.is_assignment:
            return self.same(gold.sides[-1], prediction)
        if self.policy.relations_as_intervals == "never":
            return False
        interval = as_interval(gold)
        return interval is not None and self.same(interval, prediction)

    def _mixed(self, gold: Shape, prediction: Shape) -> bool:
        """Shapes of different kinds: a set of one against its member, and sets written in different ways."""
        for one, other in ((gold, prediction), (prediction, gold)):
            if isinstance(one, Items) and one.kind == "set" and len(one.items) == 1 and isinstance(other, Atom):
                return self.same(one.items[0], other) if one is gold else self.same(other, one.items[0])
        gold_text, predicted_text = to_text(gold), to_text(prediction)
        if _SET_WORDS.search(gold_text) and _SET_WORDS.search(predicted_text):
            return self.same_set(gold, prediction)
        return False


def as_interval(relation: Relation) -> Shape | None:
    """The interval that an inequality about one name describes, or None."""
    relation = _oriented(relation)
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


def _oriented(relation: Relation) -> Relation:
    """The same statement with every inequality sign pointing the same way."""
    if relation.signs and set(relation.signs) <= {">", ">="}:
        return Relation(tuple(_FLIPPED[sign] for sign in reversed(relation.signs)), tuple(reversed(relation.sides)))
    return relation


def _as_rows(items: Items) -> Items:
    """A list of lists ``[[1, 2], [3, 4]]`` as the matrix it writes."""
    if items.kind == "tuple" and items.brackets == "[]":
        rows = [row for row in items.items if isinstance(row, Items) and row.brackets == "[]"]
        if len(rows) == len(items.items):
            return Items("matrix", "", tuple(rows))
    return items if items.kind == "matrix" else Items("matrix", "", (items,))


def squeeze(text: str) -> str:
    """``text`` without what never changes its meaning: braces around one character, and spaces other than those between
    two digits (``1 1/2`` is not ``11/2``)."""
    return _ONE_BRACED.sub(r"\1", _FREE_SPACE.sub("", text)).replace(r"\text", "")


def words_of(text: str) -> str | None:
    """The words of an answer in words (``\\text{ellipse}``, ``Yes``, ``(B)``), in lower case unless a single letter."""
    text = _TEXT.sub(r"\1", text).strip().strip(".!\"'` ")
    if choice := _CHOICE.fullmatch(text):
        return choice.group(1)
    if _WORDS.fullmatch(text):
        return text if len(text) == 1 else _ARTICLE.sub("", re.sub(r"[\s-]+", " ", text.lower()))
    return None


def is_word(text: str) -> bool:
    """True for words of a language, as against variables and their products and differences (``xy``, ``pq-p-q``)."""
    words = words_of(text)
    if not words:
        return False
    longest = max(map(len, re.split(r"[ -]", words)))
    return (
        text.lstrip("({ ").startswith(r"\text")
        or longest >= 4
        or (longest == 3 and "-" in text)
        or words in {"yes", "no"}
    )


def special_text(text: str) -> bool:
    """True for atoms that only equal themselves: an ellipsis, a number with a base, a digit inside a word."""
    text = text.strip()
    if text in (r"\ldots", "") or re.fullmatch(r"[0-9A-F]+_\{?\d+\}?", text):
        return True
    return re.fullmatch(r"[A-Za-z]{2,}\d+[A-Za-z0-9]*", text) is not None


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
