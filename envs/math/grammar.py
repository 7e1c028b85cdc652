"""Reading LaTeX as sympy trees: math-verify's grammar, with our meaning for what it reads in a way nobody writes.

The grammar is ``latex2sympy2_extended``. Its visitor is subclassed here, because no option of it decides these: what
stands side by side is multiplied (the original adds ``2(49)`` up to 51), decimals are exact rationals, and
a product sign ends the argument of a function that has no brackets.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from winnowrl.envs.math.sizes import TooLarge

# Notation that the parser reads as something else (f'(0) as 0, A^T as A, gcd(n, p-1) as 1): compared as text alone.
_OPAQUE = re.compile(
    r"'|\\prime|\^ ?\{? ?(?:T|\\top|\\ast|\*) ?\}?(?![a-z])|\\(?:gcd|lcm|text|operatorname|partial|nabla|otimes|oplus|aleph|bmod"
    r"|pmod|langle|sim|cong|forall|exists|ldots|widehat|tilde)\b|(?<!\^\{)\\circ|#|&|@"
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_DOUBLE_BRACKETS = re.compile(r"\( ?\(([^()]*)\) ?\)")
_SPACED_GROUPS = re.compile(r"(?<![\d.,^_])\d{1,3}(?: \d{3})+(?![\d.]| \d)")
_MIXED_SLASH = re.compile(r"(?<![\d.,/^_])(\d+) (\d+) ?/ ?(\d+)(?![\d.])")
_SLASH_BEFORE_BRACKET = re.compile(r"(?<![\w.,/^)}])(\d+) ?/ ?(\d+) ?(?=\()")
_NUMERAL = re.compile(r"\d[\d,]*(?:\.\d*)?|\.\d+")
_FRACTION = re.compile(r"\\frac\{?(\d+)\}?\{?(\d+)\}?")
_EXPONENT = re.compile(r"[eE][-+]?\d{5,}")


class Unreadable(Exception):  # noqa: N818 - turned into a verdict, never raised to a user
    """The parser cannot read an expression."""


def read_expression(text: str) -> Any:
    """A normalised answer as a sympy object; ``i`` is the imaginary unit and ``e`` Euler's number.

    Raises:
        Unreadable: the grammar does not cover it, or it has no one meaning (``40 2``).
        TooLarge: reading it takes the value of a number of more than a million bits.
    """
    result = _parse(text)
    if isinstance(result, Unreadable | TooLarge):
        raise result
    return result


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    if _OPAQUE.search(text):
        return Unreadable("notation that is only compared as text")
    try:
        parsed = _Reader(is_real=True, convert_degrees=True, config=_CONVERSION).parse(_prepared(text))
    except MemoryError:
        raise
    except TooLarge as error:
        return error
    except Exception as error:  # noqa: BLE001 - the parser raises bare Exception for anything it cannot read
        return Unreadable(str(error).partition("\n")[0] or type(error).__name__)
    if isinstance(parsed, list):
        return Unreadable("several expressions")
    if isinstance(parsed, sympy.Basic):
        return parsed.xreplace(_constants(parsed))
    return parsed


def _prepared(text: str) -> str:
    # The grammar takes twice as long for every bracket around a bracket.
    while text != (simpler := _DOUBLE_BRACKETS.sub(r"(\1)", text)):
        text = simpler
    text = _SPACED_GROUPS.sub(lambda match: match.group().replace(" ", ""), text)
    text = _MIXED_SLASH.sub(r"\1\\frac{\2}{\3}", text)
    # 1/2(3) is a half times three; the grammar lets a product without a sign bind closer than the slash.
    return _SLASH_BEFORE_BRACKET.sub(r"\\frac{\1}{\2}", text)


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """The grammar's visitor with our reading of products, numbers and arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._after_argument: list[Any] = []

    def parse_number(self, text: str) -> Any:
        """A decimal as the exact rational it writes."""
        text = text.replace(",", "")
        if _EXPONENT.search(text):
            raise TooLarge("numbers of more than a million bits")
        return sympy.Rational(text)

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        """Factors side by side; a whole number before a proper fraction is a mixed number."""
        if i + 1 < len(arr) and _NUMERAL.fullmatch(left := arr[i].getText()):
            right = arr[i + 1].getText()
            if right[0].isdigit() or right[0] == ".":
                raise Unreadable(f"two numbers side by side: {left} {right}"[:80])
            if fraction := _FRACTION.match(right):
                mixed = _mixed_number(left, fraction, right)
                return mixed if i + 2 == len(arr) else self._product(mixed, self.convert_postfix_list(arr, i + 2))
        first = self.convert_postfix(arr[i])
        if isinstance(first, list):
            return super().convert_postfix_list(arr, i)
        if i + 1 == len(arr) or not isinstance(first, sympy.Expr | sympy.MatrixBase):
            return first
        return self._product(first, self.convert_postfix_list(arr, i + 1))

    def _product(self, left: Any, right: Any) -> Any:
        if getattr(left, "is_Matrix", False) or getattr(right, "is_Matrix", False):
            return self.mat_mul_flat(left, right)
        return self.mul_flat(left, right)

    def convert_func(self, func: Any) -> Any:
        waiting, self._after_argument = self._after_argument, []
        value = super().convert_func(func)
        factors, self._after_argument = self._after_argument, waiting
        for factor in factors:
            value = self._product(value, factor)
        return value

    def convert_func_arg(self, arg: Any) -> Any:
        r"""The argument; without brackets it ends at a product sign: ``\sin x \cdot 2`` is twice the sine."""
        if hasattr(arg, "expr"):
            return super().convert_func_arg(arg)
        spine = [arg.mp_nofunc()]
        while _operator(spine[-1]):
            spine.append(spine[-1].mp_nofunc(0))
        # From the innermost operator outwards: a slash before the first product sign still belongs to the argument.
        last_inside = next(
            (place + 1 for place in range(len(spine) - 2, -1, -1) if _operator(spine[place]) == "times"), 0
        )
        value = self.convert_mp(spine[last_inside])
        factors = []
        for node in reversed(spine[:last_inside]):
            factor = self.convert_mp(node.mp_nofunc(1))
            if _operator(node) == "mod":
                raise Unreadable("a remainder after a function without brackets")
            factors.append(sympy.Pow(factor, -1, evaluate=False) if _operator(node) == "over" else factor)
        self._after_argument = factors
        return value


def _operator(node: Any) -> str:
    if node.MUL() or node.CMD_TIMES() or node.CMD_CDOT():
        return "times"
    if node.DIV() or node.CMD_DIV() or node.COLON():
        return "over"
    return "mod" if node.CMD_MOD() else ""


def _mixed_number(whole: str, fraction: re.Match[str], text: str) -> Any:
    top, bottom = int(fraction.group(1)), int(fraction.group(2))
    if not whole.isdigit() or fraction.end() != len(text) or top >= bottom:
        raise Unreadable(f"neither a mixed number nor a product: {whole}{text}"[:80])
    return sympy.Integer(whole) + sympy.Rational(top, bottom)


def _constants(expression: Any) -> dict[Any, Any]:
    replacements: dict[Any, Any] = {}
    for symbol in expression.free_symbols:
        if symbol.name == "i":
            replacements[symbol] = sympy.I
        elif symbol.name == "e":
            replacements[symbol] = sympy.E
    return replacements
