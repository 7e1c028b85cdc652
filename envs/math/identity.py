"""Testing whether two expressions are identical by evaluating both to many digits at fixed points.

Two expressions built from elementary functions that agree to 25 digits at several unrelated points are the same
function for every purpose of grading; one clear difference proves that they are not.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.trigonometric import TrigonometricFunction

DIGITS = 30
# Irrational-looking rationals: no accidental zeros, both signs, inside and outside (-1, 1).
_REAL = (
    "0.7310585786", "-0.8414709848", "1.9283746561", "-1.7724538509", "2.6457513111",
    "0.3678794412", "-2.2360679775", "3.3166247904", "1.2020569032", "-0.5671432904",
)  # fmt: skip
_POSITIVE = tuple(value for value in _REAL if not value.startswith("-"))
# Irregular, so that no short product of differences vanishes on all of them. A sum up to -3 has no agreed meaning: the
# bounds of sums and products take the positive ones, which are small enough to add up.
_INTEGERS = (4, -7, 0, 11, 30, -18, 53, 101, -4, 7)
_SUM_LIMITS = (5, 8, 3, 12, 7, 10, 23, 38)
_INTEGER_NAMES = {"n", "m", "k", "N", "M", "K"}
MIN_AGREEING_POINTS = 3
ENOUGH_AGREEING_POINTS = 5


def is_undefined(expression: Any) -> bool:
    """True for a constant such as 1/0 that has no value, finite or infinite."""
    return not expression.free_symbols and bool(sympy.N(expression).has(sympy.nan, sympy.zoo))


def has_value(value: Any) -> bool:
    """True for a finite number, real or complex."""
    return (
        bool(getattr(value, "is_number", False))
        and value.is_finite is not False
        and not value.has(sympy.nan, sympy.zoo)
    )


def with_real_roots(expression: Any) -> Any:
    """The expression with real odd roots (the cube root of -8 as -2), where sympy takes the principal, complex ones."""
    if not any(map(_is_odd_root, expression.atoms(sympy.Pow))):
        return expression
    return expression.replace(_is_odd_root, _real_root)


def _is_odd_root(part: Any) -> bool:
    if not isinstance(part, sympy.Pow) or not isinstance(part.exp, sympy.Rational):
        return False
    return bool(part.exp.q > 1 and part.exp.q % 2)


def _real_root(power: Any) -> Any:
    sign = sympy.sign(power.base) if power.exp.p % 2 else 1
    return sympy.Mul(sign, sympy.Pow(sympy.Abs(power.base), power.exp, evaluate=False), evaluate=False)


class PointTest:
    """Two expressions over the same sample points.

    Args:
        left, right: Sympy expressions. An undefined function is replaced by one variable for each distinct argument.
    """

    def __init__(self, left: Any, right: Any) -> None:
        replacements = _undefined_functions(left, right)
        self.left, self.right = left.xreplace(replacements), right.xreplace(replacements)
        self.symbols = sorted(self.left.free_symbols | self.right.free_symbols, key=lambda symbol: str(symbol.name))
        self.tolerance = sympy.Float("1e-20")
        # What is below this is the rounding of a zero: at sample points values are of ordinary size, while a constant
        # may be as small as 1/2004! and is evaluated until its digits are certain.
        self.zero = sympy.Float("1e-30" if self.symbols else "1e-90")

    def agree(self) -> bool | None:
        """True or False when the points decide; None when too few of them can be evaluated."""
        if not self.symbols:
            exact = [side.doit() for side in (self.left, self.right)]
            if all(isinstance(side, sympy.Rational) for side in exact):
                return bool(exact[0] == exact[1])
            values = self._evaluate({})
            return None if values is None else self._close(*values)
        if self.left.free_symbols != self.right.free_symbols and self._is_simple():
            return False
        agreed = None
        for points in self._point_sets():
            agreed = self._agree_at(points)
            if agreed:
                break
        return agreed

    def _agree_at(self, points: list[dict[Any, Any]]) -> bool | None:
        """Whether both agree wherever ``left`` is real; -ln z and ln(1/z) differ off its domain only.

        Where ``left`` is complex counts only when it is written with i or is real nowhere.
        """
        is_complex = self.left.has(sympy.I)
        num_agreeing = 0
        off_domain: list[bool] = []
        for point in points:
            values = self._evaluate(point)
            if values is None:
                continue
            is_close = self._close(*values)
            if not is_complex and not values[0].is_real:
                off_domain.append(is_close)
            elif not is_close:
                return False
            else:
                num_agreeing += 1
                if num_agreeing == ENOUGH_AGREEING_POINTS:
                    return True
        if num_agreeing >= MIN_AGREEING_POINTS:
            return True
        if num_agreeing or len(off_domain) < MIN_AGREEING_POINTS:
            return None
        return all(off_domain)

    def constant_ratio(self) -> Any:
        """left / right where it is the same non-zero real number at all points, else None."""
        if not self.symbols:
            return None
        ratios = []
        for point in self._points(_REAL):
            values = self._evaluate(point)
            if values and abs(values[1]) > self.tolerance:
                ratios.append(sympy.N(values[0] / values[1], DIGITS))
        if len(ratios) < MIN_AGREEING_POINTS or any(not self._close(ratios[0], ratio) for ratio in ratios):
            return None
        return ratios[0] if ratios[0].is_real and abs(ratios[0]) > self.tolerance else None

    def _is_simple(self) -> bool:
        """Polynomials of a few plain terms, where a variable on one side only means a difference."""
        return all(side.is_Symbol or side.is_Number for side in (self.left, self.right))

    def _point_sets(self) -> list[list[dict[Any, Any]]]:
        if any(map(_has_symbolic_bounds, (self.left, self.right))):
            return [self._points(_SUM_LIMITS)]
        # After mixed signs, positive values only: a logarithm of each of several variables has few real points.
        sets = [[*self._points(_REAL), *self._points(_POSITIVE)]]
        if any(symbol.name in _INTEGER_NAMES for symbol in self.symbols) and self._lives_on_integers():
            sets.append(self._points(_REAL, _INTEGERS))
        return sets

    def _lives_on_integers(self) -> bool:
        """The gold is written for whole numbers; ``n`` alone does not make ``|n|`` equal to ``n``."""
        if _has_integer_mark(self.left):
            return True
        rounds = (sympy.floor, sympy.ceiling)
        return bool(self.left.has(*rounds) and (self.right.has(*rounds) or _has_integer_mark(self.right)))

    def _points(self, values: tuple[Any, ...], whole: tuple[int, ...] | None = None) -> list[dict[Any, Any]]:
        """Each variable walks the values from its own start, moved by its own amount; n, m and k walk ``whole``."""
        return [
            {symbol: self._value(values, whole, start, place) for place, symbol in enumerate(self.symbols)}
            for start in range(len(values))
        ]

    def _value(self, values: tuple[Any, ...], whole: tuple[int, ...] | None, start: int, place: int) -> Any:
        walked = whole if whole and self.symbols[place].name in _INTEGER_NAMES else values
        return _point(walked[(start + place) % len(walked)]) + place // len(walked)

    def _evaluate(self, point: dict[Any, Any]) -> tuple[Any, Any] | None:
        values = []
        for side in (self.left, self.right):
            value = _number_at(side, point)
            if value is None:
                return None
            values.append(value)
        return values[0], values[1]

    def _close(self, left: Any, right: Any) -> bool:
        scale, difference = max(abs(left), abs(right)), abs(left - right)
        if self.symbols or not left or not right:
            return bool(difference <= max(self.tolerance * scale, self.zero))
        return bool(difference <= self.tolerance * scale)


def _point(value: str | int) -> Any:
    return sympy.Integer(value) if isinstance(value, int) else sympy.Float(value, 50)


def _number_at(expression: Any, point: dict[Any, Any]) -> Any:
    value = expression.xreplace(point) if point else expression
    if value.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative):
        value = value.doit()
    # A rounding error is no imaginary part; a constant may really be tiny, and keeps all it has.
    value = sympy.N(value, DIGITS, chop=bool(point))
    return value if has_value(value) else None


def _undefined_functions(*expressions: Any) -> dict[Any, Any]:
    found = sorted(set().union(*(expression.atoms(AppliedUndef) for expression in expressions)), key=str)
    return {function: sympy.Symbol(f"value of {_with_plain_arguments(function)}", real=True) for function in found}


def _with_plain_arguments(function: Any) -> Any:
    """f(2*n*n) and f(2*n**2) are one value."""
    return function.func(*(sympy.expand(argument.doit()) for argument in function.args))


def _has_symbolic_bounds(expression: Any) -> bool:
    """A sum over 1..n means something only where n is an integer."""
    return any(
        bound.free_symbols
        for total in expression.atoms(sympy.Sum, sympy.Product)
        for limit in total.limits
        for bound in limit[1:]
    )


def _has_integer_mark(expression: Any) -> bool:
    """(-1)^n, n!, a sum, or a sine of a multiple of pi: notation for whole numbers only."""
    if expression.has(sympy.factorial, sympy.factorial2, sympy.binomial, sympy.Sum, sympy.Product):
        return True
    powers = expression.atoms(sympy.Pow)
    if any(
        power.base.is_number and power.exp.free_symbols and bool(power.base < 0)
        for power in powers
        if power.base.is_real
    ):
        return True
    trigonometric = expression.atoms(TrigonometricFunction)
    return any(function.has(sympy.pi) and function.free_symbols for function in trigonometric)
