"""Comparing two answers by structure, and their atoms exactly; what needs algebra is left to a subclass.

The same comparison runs in two places: here in the caller's process, where an atom that needs algebra raises
:class:`NeedsAlgebra`, and in a worker process with :class:`winnowrl.envs.math.symbolic.SymbolicComparison`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NoReturn

from winnowrl.envs.math.exact import Number, cuts_to, numbers_equal, read_number
from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.relations import (
    FLIPPED,
    as_interval,
    as_set,
    in_usual_order,
    is_interval_union,
    is_statement,
    name_of,
    named_values,
    oriented,
    value_of,
)
from winnowrl.envs.math.shapes import Atom, Items, Relation, Shape, is_name, to_text
from winnowrl.envs.math.units import read_quantity, units_conflict
from winnowrl.envs.math.vectors import as_column, as_rows
from winnowrl.envs.math.words import is_empty_set, is_word, same_choice, special_text, squeeze, words_of

_SET_WORDS = re.compile(r"\\cup|\\cap|\\setminus|\\mathbb|\\emptyset|\\infty")
UNORDERED = {"list", "set", "union", "either", "both"}
_CLOCK_MINUTES = re.compile(r"\d\d")


class NeedsAlgebra(Exception):  # noqa: N818 - a signal, not an error
    """An atom cannot be compared exactly."""


class GoldUnreadable(Exception):  # noqa: N818
    """The gold cannot be read as mathematics, so that only the same text could be told to equal it."""


class Comparison:
    """Structural comparison of a gold shape and a predicted one under a policy."""

    def __init__(self, policy: VerifierPolicy) -> None:
        self.policy = policy

    def same_answer(self, golds: Sequence[Shape], predictions: Sequence[Shape]) -> bool:
        """True when some reading of the prediction is a way to write the gold; a second reading of the gold (a list, see
        :func:`~winnowrl.envs.math.reading.read_shapes`) meets the last one of the prediction only."""
        if any(self.same(golds[0], prediction) for prediction in predictions):
            return True
        return len(golds) > 1 and self.same(golds[1], predictions[-1])

    def same(self, gold: Shape, prediction: Shape) -> bool:
        """True when ``prediction`` is an acceptable way to write ``gold``. Not symmetric: relations unwrap one way."""
        if gold == prediction:
            return True
        named = self._same_names(gold, prediction)
        if named is not None:
            return named
        if (
            is_statement(gold)
            and is_statement(prediction)
            and (isinstance(gold, Items) or isinstance(prediction, Items))
        ):
            return self._same_statements(gold, prediction)
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
        if gold.isdecimal() and prediction.isdecimal():
            return int(gold) == int(prediction)
        if squeeze(gold) == squeeze(prediction):
            return True
        if is_empty_set(gold) and is_empty_set(prediction):
            return True
        if same_choice(gold, prediction):
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

    def is_rounding(self, expression: str, number: Number) -> bool:
        """True when ``number`` is the value of ``expression``, cut or rounded at its last place."""
        exact = read_number(expression)
        if exact is None:
            self._leave()
        return cuts_to(exact.value, number)

    def same_equation(self, gold: Relation, prediction: Relation) -> bool:
        """Equality of two relations as statements (an equation times a constant is the same statement)."""
        self._leave()

    def same_set(self, gold: Shape, prediction: Shape) -> bool:
        """Equality of two sets written in different structures."""
        self._leave()

    def _leave(self) -> NoReturn:
        raise NeedsAlgebra

    def _same_items(self, gold: Items, prediction: Items) -> bool:
        if (is_statement(gold) or is_statement(prediction)) and "list" not in (gold.kind, prediction.kind):
            return self._mixed(gold, prediction)
        if gold.kind in UNORDERED and prediction.kind in UNORDERED:
            if "union" in (gold.kind, prediction.kind) and gold.kind != prediction.kind:
                return self._mixed(gold, prediction)
            return self._same_unordered(gold, prediction) or (gold.kind == "union" and self._mixed(gold, prediction))
        if gold.kind == "ratio" and prediction.kind == "ratio":
            return self._same_ratio(gold, prediction)
        if gold.kind == "matrix" or prediction.kind == "matrix":
            gold, prediction = as_column(gold, prediction), as_column(prediction, gold)
            return self._same_ordered(as_rows(gold).items, as_rows(prediction).items)
        if gold.kind != prediction.kind or gold.brackets != prediction.brackets:
            return self._mixed(gold, prediction) if "union" in (gold.kind, prediction.kind) else False
        return self._same_ordered(gold.items, prediction.items)

    def _same_statements(self, gold: Shape, prediction: Shape) -> bool:
        """Inequalities joined by words: the same ones in any order, or the same set of values of one name."""
        if (
            isinstance(gold, Items)
            and isinstance(prediction, Items)
            and gold.kind == prediction.kind
            and self._same_unordered(gold, prediction)
        ):
            return True
        wanted, given = as_set(gold), as_set(prediction)
        if wanted is None or given is None or name_of(gold) != name_of(prediction):
            return False
        return self.same(wanted, given)

    def _same_ratio(self, gold: Items, prediction: Items) -> bool:
        """Two terms may be scaled (6:8 is 3:4), unless the gold may be a time of day."""
        if self._same_ordered(gold.items, prediction.items):
            return True
        if len(gold.items) != 2 or len(prediction.items) != 2 or _CLOCK_MINUTES.fullmatch(to_text(gold.items[1])):
            return False
        wanted, given = ratio_value(gold), ratio_value(prediction)
        return wanted is not None and wanted == given

    def _same_names(self, gold: Shape, prediction: Shape) -> bool | None:
        """Values by name where both name them; else in the order of the names, if that is alphabetical. None: no names."""
        wanted, given = named_values(gold), named_values(prediction)
        if wanted is not None and given is not None:
            return wanted.keys() == given.keys() and all(self.same(wanted[name], given[name]) for name in wanted)
        named = wanted if wanted is not None else given
        if named is None:
            return None
        relation, bare = (gold, prediction) if wanted is not None else (prediction, gold)
        if not isinstance(bare, Items) or any(isinstance(item, Relation) for item in bare.items):
            return None
        is_ordered = bare.kind == "tuple" or (bare.kind == "list" and isinstance(relation, Items))
        if not is_ordered or not in_usual_order(named):
            return False
        values = tuple(named.values())
        return self._same_ordered(values, bare.items) if relation is gold else self._same_ordered(bare.items, values)

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
        gold, prediction = oriented(gold), oriented(prediction)
        if gold.signs == prediction.signs and len(gold.sides) > 2:
            return self._same_ordered(gold.sides, prediction.sides)
        if gold.signs != prediction.signs:
            return False
        try:
            if self._same_ordered(gold.sides, prediction.sides):
                return True
        except (NeedsAlgebra, GoldUnreadable):
            pass
        return self.same_equation(gold, prediction) if set(gold.signs) <= set(FLIPPED) else False

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
        value = value_of(prediction)
        if value is not None:
            return self.same(gold, value) or self._same_before_rounding(gold, prediction)
        interval = as_interval(prediction) if self.policy.relations_as_intervals == "both" else None
        return interval is not None and self.same(gold, interval)

    def _same_before_rounding(self, gold: Shape, prediction: Relation) -> bool:
        """The value before its decimal, where that is its rounding: ``2\\sqrt{3} \\approx 3.46``."""
        exact, rounded = prediction.sides[-2:]
        if prediction.signs[-1] != "~" or not isinstance(exact, Atom) or not isinstance(rounded, Atom):
            return False
        number = read_number(rounded.text)
        return number is not None and self.is_rounding(exact.text, number) and self.same(gold, exact)

    def _value_for_relation(self, gold: Relation, prediction: Shape) -> bool:
        if gold.is_assignment:
            return self.same(gold.sides[-1], prediction)
        if self.policy.relations_as_intervals == "never":
            return False
        interval = as_interval(gold)
        return interval is not None and self.same(interval, prediction)

    def _mixed(self, gold: Shape, prediction: Shape) -> bool:
        """Shapes of different kinds: a set of one against its member, a ratio against a fraction, sets written otherwise."""
        if is_statement(gold) and self.policy.relations_as_intervals != "never":
            wanted = as_set(gold)
            return wanted is not None and self.same(wanted, prediction)
        if is_statement(prediction):
            given = as_set(prediction) if self.policy.relations_as_intervals == "both" else None
            return given is not None and self.same(gold, given)
        for one, other in ((gold, prediction), (prediction, gold)):
            if isinstance(one, Items) and one.kind == "ratio" and isinstance(other, Atom):
                number = read_number(other.text)
                # A whole number against a ratio is rather a time or a slip.
                return number is not None and number.value.denominator > 1 and number.value == ratio_value(one)
        for one, other in ((gold, prediction), (prediction, gold)):
            if (
                isinstance(one, Items)
                and one.kind == "set"
                and len(one.items) == 1
                and isinstance(other, Atom)
                and not is_empty_set(other.text)
            ):
                return self.same(one.items[0], other) if one is gold else self.same(other, one.items[0])
        if is_interval_union(gold) and is_interval_union(prediction):
            return self.same_set(gold, prediction)
        if any(isinstance(side, Items) and side.kind == "list" for side in (gold, prediction)):
            return False
        gold_text, predicted_text = to_text(gold), to_text(prediction)
        if _SET_WORDS.search(gold_text) and _SET_WORDS.search(predicted_text):
            return self.same_set(gold, prediction)
        return False


def ratio_value(ratio: Items) -> Fraction | None:
    """What a ratio of two numbers comes to."""
    if len(ratio.items) != 2:
        return None
    top, bottom = (read_number(to_text(item)) for item in ratio.items)
    return top.value / bottom.value if top and bottom and bottom.value else None
