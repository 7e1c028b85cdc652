"""Equality of expressions by algebra: read with math-verify's LaTeX parser, decided exactly or at sample points.

Runs only inside a worker process that is killed at a deadline. Nothing here evaluates text as code: the parser is a
grammar, and identities are tested by evaluating the parsed trees to many digits.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify as math_verify_grade

from winnowrl.envs.math.compare import Comparison, GoldUnreadable, to_text
from winnowrl.envs.math.exact import MIN_SIGNIFICANT, Number, rounds_to
from winnowrl.envs.math.identity import PointTest, TooLarge, check_size, has_value, is_float, is_undefined
from winnowrl.envs.math.shapes import Relation, Shape

# Notation that the parser reads as something else (f'(0) as 0, A^T as A, gcd(n, p-1) as 1): compared as text alone.
_OPAQUE = re.compile(
    r"'|\\prime|\^ ?\{? ?(?:T|\\top|\\ast|\*) ?\}?(?![a-z])|\\(?:gcd|lcm|text|operatorname|partial|nabla|otimes|oplus|aleph|bmod"
    r"|pmod|langle|sim|cong|forall|exists|ldots|widehat|tilde|circ)\b|#|&|@"
)
_NO_NORMALIZATION = None
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_DOUBLE_BRACKETS = re.compile(r"\( ?\(([^()]*)\) ?\)")
_LOGARITHM = re.compile(r"\\log(?![a-z_ ]*_)(?!\s*_)")


class Unreadable(Exception):  # noqa: N818 - turned into a verdict, never raised to a user
    """The parser cannot read an expression."""


class SymbolicComparison(Comparison):
    """The structural comparison with algebra for its atoms."""

    def algebra(self, gold: str, prediction: str, gold_number: Number | None, predicted_number: Number | None) -> bool:
        left = self._read_gold(gold)
        right = read_expression(prediction)
        if self._equal(left, right, gold_number, predicted_number):
            return True
        # log without a base is the natural one to some and the decimal one to others.
        if _LOGARITHM.search(gold) or _LOGARITHM.search(prediction):
            left, right = (read_expression(_LOGARITHM.sub(r"\\ln", text)) for text in (gold, prediction))
            return self._equal(left, right, gold_number, predicted_number)
        return False

    def same_equation(self, gold: Relation, prediction: Relation) -> bool:
        left = self._read_gold(to_text(gold.sides[0])) - self._read_gold(to_text(gold.sides[1]))
        right = read_expression(to_text(prediction.sides[0])) - read_expression(to_text(prediction.sides[1]))
        check_size(left)
        check_size(right)
        ratio = PointTest(left, right).constant_ratio()
        return ratio is not None and (ratio > 0 or gold.signs[0] in ("=", "!="))

    def same_set(self, gold: Shape, prediction: Shape) -> bool:
        left, right = self._read_gold(to_text(gold)), read_expression(to_text(prediction))
        return bool(
            math_verify_grade(
                left,
                right,
                timeout_seconds=None,
                allow_set_relation_comp=self.policy.relations_as_intervals == "both",
            )
        )

    def _read_gold(self, text: str) -> Any:
        try:
            expression = read_expression(text)
            if isinstance(expression, sympy.Basic):
                check_size(expression)
            return expression
        except (Unreadable, TooLarge) as error:
            raise GoldUnreadable(str(error)) from None

    def _equal(self, left: Any, right: Any, gold_number: Number | None, predicted_number: Number | None) -> bool:
        if left == right:
            return True
        if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
            return bool(math_verify_grade(left, right, timeout_seconds=None))
        check_size(right)
        if is_undefined(left):
            raise GoldUnreadable("it has no value")
        if gold_number and predicted_number is None and gold_number.places is not None:
            return self._rounds_to_gold(right, gold_number)
        if predicted_number and predicted_number.places is not None:
            return _decimal_stands_for(predicted_number, left)
        points = PointTest(left, right)
        agreed = points.agree()
        if agreed is not None:
            return agreed
        return bool(math_verify_grade(left, right, timeout_seconds=None))

    def _rounds_to_gold(self, expression: Any, gold: Number) -> bool:
        value = exact_value(expression, (gold.places or 0) + 20)
        if value is None:
            return False
        if value == gold.value or (self.policy.accept_rounded_gold and rounds_to(value, gold)):
            return True
        # A float inside the expression (0.5 + 0.25) carries binary rounding.
        return is_float(expression) and abs(value - gold.value) <= abs(gold.value) / 10**9


def _decimal_stands_for(decimal: Number, expression: Any) -> bool:
    value = exact_value(expression, (decimal.places or 0) + 20)
    if value is None:
        return False
    if value == decimal.value:
        return True
    is_long = decimal.significant >= MIN_SIGNIFICANT
    return is_long and abs(value - decimal.value) <= max(Fraction(1, 10 ** (decimal.places or 0)), abs(value) / 10**13)


def exact_value(expression: Any, digits: int) -> Fraction | None:
    """The value of a constant real expression to ``digits`` significant digits, or None."""
    if expression.free_symbols:
        return None
    value = expression.doit() if not is_float(expression) else expression
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    value = sympy.N(value, min(digits, 1000))
    if not has_value(value) or not value.is_real:
        return None
    return Fraction(str(value))


def read_expression(text: str) -> Any:
    """A normalised answer as a sympy object; ``i`` is the imaginary unit and ``e`` Euler's number.

    Raises:
        Unreadable: the grammar does not cover it.
    """
    result = _parse(text)
    if isinstance(result, Unreadable):
        raise result
    return result


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    if _OPAQUE.search(text):
        return Unreadable("notation that is only compared as text")
    # The grammar takes twice as long for every bracket around a bracket.
    while text != (simpler := _DOUBLE_BRACKETS.sub(r"(\1)", text)):
        text = simpler
    try:
        parsed = latex2sympy(text, is_real=True, normalization_config=_NO_NORMALIZATION, conversion_config=_CONVERSION)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the parser raises bare Exception for anything it cannot read
        return Unreadable(str(error).partition("\n")[0] or type(error).__name__)
    if isinstance(parsed, list):
        return Unreadable("several expressions")
    if isinstance(parsed, sympy.Basic):
        return parsed.xreplace(_constants(parsed))
    return parsed


def _constants(expression: Any) -> dict[Any, Any]:
    replacements: dict[Any, Any] = {}
    for symbol in expression.free_symbols:
        if symbol.name == "i":
            replacements[symbol] = sympy.I
        elif symbol.name == "e":
            replacements[symbol] = sympy.E
    return replacements
