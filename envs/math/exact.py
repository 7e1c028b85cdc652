"""Exact numbers read from a normalised answer, and when two of them count as equal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from winnowrl.envs.math.policy import VerifierPolicy

MAX_DIGITS = 1000
MAX_POWER_BITS = 8192
MIN_SIGNIFICANT = 6  # a decimal of fewer digits does not stand for the unending number it rounds
MIN_SIGNIFICANT_GOLD = 3
DOUBLE_DIGITS = 15

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = re.compile(rf"({_DIGITS}?)\.(\d*)|({_DIGITS})")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{\s*(\d+)\s*\}")
_FRACTION = re.compile(r"\\frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*(-?[\d.]+)\s*\}|([\d.]+) ?/ ?(-?[\d.]+)")
_MIXED = re.compile(rf"({_DIGITS}) ?\\frac\s*\{{ ?(\d+) ?\}}\s*\{{ ?(\d+) ?\}}|({_DIGITS}) (\d+)/(\d+)")
_SCIENTIFIC = re.compile(r"([\d.]+) ?(?:[eE]|(?:\\times|\\cdot|x) ?10 ?\^ ?\{? ?)([-+]?\d{1,4}) ?\}?")
_POWER = re.compile(r"(\d+) ?\^ ?\{? ?(-?\d{1,5}) ?\}?")


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational as it was written.

    Attributes:
        value: The number; for a percentage the value over a hundred.
        places: Digits after the decimal point, or None for an integer, fraction or power.
        significant: Significant digits of a decimal, 0 otherwise.
        is_percent: Written with a percent sign.
    """

    value: Fraction
    places: int | None = None
    significant: int = 0
    is_percent: bool = False


def read_number(text: str) -> Number | None:
    """The number that ``text`` (normalised) writes, or None: integers, decimals, fractions, mixed numbers, percentages,
    scientific notation, repeating decimals and integer powers of bounded size."""
    text = text.strip()
    if not text or len(text) > MAX_DIGITS:
        return None
    sign = 1
    if text[0] in "+-":
        sign = -1 if text[0] == "-" else 1
        text = text[1:].lstrip()
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        inner = read_number(text[1:-1]) if "," not in text else None
        return _scaled(inner, sign) if inner else None
    is_percent = text.endswith("%")
    number = _read_unsigned(text[:-1].rstrip() if is_percent else text)
    if number is None:
        return None
    if is_percent:
        places = None if number.places is None else number.places + 2
        number = Number(number.value / 100, places, number.significant, True)
    return _scaled(number, sign)


def _scaled(number: Number, sign: int) -> Number:
    return Number(sign * number.value, number.places, number.significant, number.is_percent)


def _read_unsigned(text: str) -> Number | None:
    if text.isascii() and text.isdigit():
        return Number(Fraction(int(text)))
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match)
    if match := _FRACTION.fullmatch(text):
        top, bottom = (match.group(1), match.group(2)) if match.group(1) else (match.group(3), match.group(4))
        return _quotient(top, bottom)
    if match := _MIXED.fullmatch(text):
        whole, top, bottom = (group for group in match.groups() if group)
        # Only a proper fraction is read as part of a mixed number.
        if int(top) >= int(bottom):
            return None
        return Number(int(whole.replace(",", "").replace(" ", "")) + Fraction(int(top), int(bottom)))
    if match := _SCIENTIFIC.fullmatch(text):
        mantissa = _decimal_value(match.group(1))
        return None if mantissa is None else Number(mantissa * Fraction(10) ** int(match.group(2)))
    if match := _REPEATING.fullmatch(text):
        return _repeating(*match.groups())
    if match := _POWER.fullmatch(text):
        return _power(int(match.group(1)), int(match.group(2)))
    return None


def _decimal(match: re.Match[str]) -> Number | None:
    if match.group(3) is not None:
        return Number(Fraction(int(match.group(3).replace(",", "").replace(" ", ""))))
    whole = (match.group(1) or "").replace(",", "").replace(" ", "")
    digits = match.group(2)
    if not whole and not digits:
        return None
    value = Fraction(int(whole + digits or "0"), 10 ** len(digits))
    return Number(value, len(digits), len((whole + digits).lstrip("0")))


def _decimal_value(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    number = _decimal(match) if match else None
    return number.value if number else None


def _quotient(top: str, bottom: str) -> Number | None:
    numerator, denominator = _decimal_value(top.lstrip("-")), _decimal_value(bottom.lstrip("-"))
    if numerator is None or not denominator:
        return None
    sign = -1 if top.startswith("-") != bottom.startswith("-") else 1
    return Number(sign * numerator / denominator)


def _repeating(whole: str, fixed: str, cycle: str) -> Number:
    tail = Fraction(int(cycle), 10 ** len(cycle) - 1) / 10 ** len(fixed)
    return Number(Fraction(int(whole + fixed or "0"), 10 ** len(fixed)) + tail)


def _power(base: int, exponent: int) -> Number | None:
    if base.bit_length() * abs(exponent) > MAX_POWER_BITS or (base == 0 and exponent <= 0):
        return None
    return Number(Fraction(base) ** exponent)


def numbers_equal(gold: Number, prediction: Number, policy: VerifierPolicy) -> bool:
    """True when ``prediction`` counts as ``gold`` under ``policy``.

    Exactly equal values do. A decimal stands for an unending number when it has six or more significant digits and is
    its truncation or its rounding. An exact prediction stands for a decimal gold that it rounds to, where the policy
    says so.
    """
    if gold.value == prediction.value:
        return True
    if _is_percent_alike(gold, prediction, policy):
        return True
    if policy.decimal_places is not None and (gold.places is not None or prediction.places is not None):
        return rounds_alike(gold.value, prediction.value, policy)
    if gold.is_percent != prediction.is_percent:
        return False
    if prediction.places is not None:
        return _decimal_stands_for(prediction, gold)
    return policy.accept_rounded_gold and rounds_to(prediction.value, gold)


def _is_percent_alike(gold: Number, prediction: Number, policy: VerifierPolicy) -> bool:
    """The gold 28% met by 28, or the gold 28 by 28%; not 0.5 by 0.5%, which may well be meant as 50%."""
    if gold.is_percent and not prediction.is_percent:
        return policy.percent_accepts_bare_number and gold.value * 100 == prediction.value
    if prediction.is_percent and not gold.is_percent and policy.bare_gold_accepts_percent:
        return abs(gold.value) > 1 and gold.value == prediction.value * 100
    return False


def _decimal_stands_for(decimal: Number, exact: Number) -> bool:
    if decimal.significant < MIN_SIGNIFICANT or decimal.places is None:
        return False
    if exact.places is None:
        return not terminates(exact.value) and cuts_to(exact.value, decimal)
    # Two long decimals of the same number, cut at different places.
    if exact.significant < MIN_SIGNIFICANT or decimal.places == exact.places:
        return False
    longer, shorter = (decimal, exact) if decimal.places > exact.places else (exact, decimal)
    return cuts_to(longer.value, shorter)


def rounds_to(value: Fraction, gold: Number) -> bool:
    """True when ``gold`` is a decimal of three or more significant digits and ``value`` rounds to it."""
    if gold.places is None or gold.places == 0 or gold.significant < MIN_SIGNIFICANT_GOLD:
        return False
    return abs(value - gold.value) <= Fraction(1, 2 * 10**gold.places)


def cuts_to(value: Fraction, decimal: Number) -> bool:
    """True when ``decimal`` is ``value`` rounded or truncated at its last place.

    The last digits of a double are noise: with 15 or more significant digits a relative error of 1e-14 is let pass.
    """
    places = decimal.places or 0
    if decimal.value in (round_half_away(value, places), _truncate(value, places)):
        return True
    return decimal.significant >= DOUBLE_DIGITS and abs(value - decimal.value) * 10**14 <= abs(value)


def rounds_alike(left: Fraction, right: Fraction, policy: VerifierPolicy) -> bool:
    """True when the policy compares rounded decimals and both round to the same one."""
    places = policy.decimal_places
    return places is not None and round_half_away(left, places) == round_half_away(right, places)


def round_half_away(value: Fraction, places: int) -> Fraction:
    """``value`` rounded to ``places`` decimals; a half goes away from zero, as in school."""
    size = (abs(value) * 10**places + Fraction(1, 2)).__floor__()
    return Fraction(size if value >= 0 else -size, 10**places)


def _truncate(value: Fraction, places: int) -> Fraction:
    return Fraction((value * 10**places).__trunc__(), 10**places)


def terminates(value: Fraction) -> bool:
    """True when ``value`` has a finite decimal expansion."""
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1
