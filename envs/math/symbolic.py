"""Equality of expressions by algebra: read with math-verify's LaTeX parser, decided exactly or at sample points.

Runs only inside a worker process that is killed at a deadline. Nothing here evaluates text as code: the parser is a
grammar, and identities are tested by evaluating the parsed trees to many digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy
from math_verify import verify as math_verify_grade

from winnowrl.envs.math.compare import Comparison, GoldUnreadable
from winnowrl.envs.math.exact import MIN_SIGNIFICANT, Number, cuts_to, rounds_alike, rounds_to
from winnowrl.envs.math.grammar import Unreadable, read_expression
from winnowrl.envs.math.identity import PointTest, has_value, is_undefined, with_real_roots
from winnowrl.envs.math.relations import is_interval_union
from winnowrl.envs.math.shapes import Items, Relation, Shape, to_text
from winnowrl.envs.math.sizes import TooLarge, check_size

_DECIMAL = re.compile(r"\d*\.\d")
_LOGARITHM = re.compile(r"\\log(?![a-z_ ]*_)(?!\s*_)")


class SymbolicComparison(Comparison):
    """The structural comparison with algebra for its atoms."""

    def algebra(self, gold: str, prediction: str, gold_number: Number | None, predicted_number: Number | None) -> bool:
        left = self._read_gold(gold)
        right = read_expression(prediction)
        if self._equal(left, right, prediction, gold_number, predicted_number):
            return True
        if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
            real_left, real_right = with_real_roots(left), with_real_roots(right)
            if real_left is not left or real_right is not right:
                return self._equal(real_left, real_right, prediction, gold_number, predicted_number)
        # log without a base is the natural one to some and the decimal one to others.
        if _LOGARITHM.search(gold) or _LOGARITHM.search(prediction):
            left, right = (read_expression(_LOGARITHM.sub(r"\\ln", text)) for text in (gold, prediction))
            return self._equal(left, right, prediction, gold_number, predicted_number)
        return False

    def is_rounding(self, expression: str, number: Number) -> bool:
        read = read_expression(expression)
        if not isinstance(read, sympy.Expr):
            return False
        check_size(read)
        value = exact_value(read, (number.places or 0) + 20)
        return value is not None and cuts_to(value, number)

    def same_equation(self, gold: Relation, prediction: Relation) -> bool:
        golds = [self._read_gold(to_text(side)) for side in gold.sides[:2]]
        predictions = [read_expression(to_text(side)) for side in prediction.sides[:2]]
        # Matrices and sets have no difference to test; their structure has been compared before.
        if not all(isinstance(side, sympy.Expr) for side in (*golds, *predictions)):
            return False
        left, right = golds[0] - golds[1], predictions[0] - predictions[1]
        check_size(left)
        check_size(right)
        ratio = PointTest(left, right).constant_ratio()
        return ratio is not None and (ratio > 0 or gold.signs[0] in ("=", "!="))

    def same_set(self, gold: Shape, prediction: Shape) -> bool:
        if is_interval_union(gold) and is_interval_union(prediction):
            return bool(self._interval_set(gold, self._read_gold) == self._interval_set(prediction, read_expression))
        left, right = self._read_gold(to_text(gold)), read_expression(to_text(prediction))
        return bool(
            math_verify_grade(
                left,
                right,
                timeout_seconds=None,
                allow_set_relation_comp=self.policy.relations_as_intervals == "both",
            )
        )

    def _interval_set(self, shape: Shape, read: Callable[[str], Any]) -> Any:
        assert isinstance(shape, Items)
        if shape.kind == "union":
            return sympy.Union(*(self._interval_set(item, read) for item in shape.items))
        low, high = (read(to_text(item)) for item in shape.items)
        check_size(low)
        check_size(high)
        return sympy.Interval(low.doit(), high.doit(), shape.brackets[0] == "(", shape.brackets[1] == ")")

    def _read_gold(self, text: str) -> Any:
        try:
            expression = read_expression(text)
            if isinstance(expression, sympy.Basic):
                check_size(expression)
            return expression
        except (Unreadable, TooLarge) as error:
            raise GoldUnreadable(str(error)) from None

    def _equal(
        self, left: Any, right: Any, prediction: str, gold_number: Number | None, predicted_number: Number | None
    ) -> bool:
        if left == right:
            return True
        if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
            return bool(math_verify_grade(left, right, timeout_seconds=None))
        check_size(right)
        if is_undefined(left):
            raise GoldUnreadable("it has no value")
        if gold_number and predicted_number is None and gold_number.places is not None:
            return self._rounds_to_gold(right, prediction, gold_number)
        if predicted_number and predicted_number.places is not None:
            return self._decimal_stands_for(predicted_number, left)
        points = PointTest(left, right)
        agreed = points.agree()
        if agreed is not None:
            return agreed
        return bool(math_verify_grade(left, right, timeout_seconds=None))

    def _rounds_to_gold(self, expression: Any, prediction: str, gold: Number) -> bool:
        value = exact_value(expression, (gold.places or 0) + 20)
        if value is None:
            return False
        if value == gold.value or rounds_alike(value, gold.value, self.policy):
            return True
        # What holds a decimal is not exact: 1.98 + 0.004 is another number than 1.98.
        return self.policy.accept_rounded_gold and not _DECIMAL.search(prediction) and rounds_to(value, gold)

    def _decimal_stands_for(self, decimal: Number, expression: Any) -> bool:
        value = exact_value(expression, (decimal.places or 0) + 20)
        if value is None:
            return False
        if value == decimal.value or rounds_alike(value, decimal.value, self.policy):
            return True
        return decimal.significant >= MIN_SIGNIFICANT and cuts_to(value, decimal)


def exact_value(expression: Any, digits: int) -> Fraction | None:
    """The value of a constant real expression to ``digits`` significant digits, or None."""
    if expression.free_symbols:
        return None
    value = expression.doit()
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    value = sympy.N(value, min(digits, 1000))
    if not has_value(value) or not value.is_real:
        return None
    return Fraction(str(value))
