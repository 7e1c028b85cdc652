"""How large the numbers of an expression are, measured before anything evaluates it."""

from __future__ import annotations

from typing import Any

import sympy

MAX_BITS = 1_000_000


class TooLarge(Exception):  # noqa: N818 - turned into a verdict, never raised to a user
    """Evaluating an expression would take numbers of more than a million bits."""


def check_size(expression: Any) -> None:
    """Refuse an expression whose integers would be huge, before anything evaluates it.

    Raises:
        TooLarge: more than a million bits, or a tower of powers.
    """
    if isinstance(expression, sympy.Basic) and _bits(expression, 0) > MAX_BITS:
        raise TooLarge("numbers of more than a million bits")


def _bits(expression: Any, depth: int) -> float:
    """An upper bound on the binary digits of an expression's value, from its unevaluated tree."""
    if depth > 200:
        raise TooLarge("nested too deep")
    if isinstance(expression, sympy.Rational):
        return float(max(int(expression.p).bit_length(), int(expression.q).bit_length()))
    if isinstance(expression, sympy.Pow | sympy.exp):
        base, exponent = expression.as_base_exp()
        base_bits = _bits(base, depth + 1)
        if isinstance(exponent, sympy.Rational) and abs(exponent) < 2**40:
            return base_bits * max(1.0, float(abs(exponent)))
        return _power_bits(base_bits, _bits(exponent, depth + 1))
    parts = [_bits(argument, depth + 1) for argument in expression.args]
    if isinstance(expression, sympy.factorial | sympy.factorial2 | sympy.gamma | sympy.binomial | sympy.Product):
        return _power_bits(2.0, max(parts, default=1.0) + 6)
    if isinstance(expression, sympy.Mul):
        return sum(parts)
    if isinstance(expression, sympy.Add):
        return max(parts, default=0.0) + len(parts)
    return max(parts, default=3.0)


def _power_bits(base_bits: float, exponent_bits: float) -> float:
    # An exponent of b bits is at most 2^b; beyond 40 bits no base is small enough.
    if exponent_bits > 40:
        return float("inf")
    return float(base_bits * 2.0**exponent_bits)
