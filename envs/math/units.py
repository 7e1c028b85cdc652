"""Units and words after a quantity: ``5.4 \\text{ cents}``, ``10 meters``, ``15\\mbox{ cm}^2``."""

from __future__ import annotations

import re

# Spellings of one unit; two quantities in different units of this table are different answers.
_SPELLINGS = {
    "m": "m meter meters metre metres", "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters", "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "g": "g gram grams", "kg": "kg kilogram kilograms", "lb": "lb lbs pound pounds", "oz": "oz ounce ounces",
    "s": "s sec secs second seconds", "min": "min mins minute minutes", "h": "h hr hrs hour hours",
    "day": "day days", "week": "week weeks", "month": "month months", "year": "yr yrs year years",
    "cent": "cent cents", "dollar": "dollar dollars usd", "l": "l liter liters litre litres", "ml": "ml milliliter milliliters",
    "mph": "mph", "deg": "deg degree degrees", "rad": "rad radian radians",
}  # fmt: skip
_CANONICAL = {word: unit for unit, words in _SPELLINGS.items() for word in words.split()}

_IN_TEXT = re.compile(r"(?<=[\d)}\w])\s*\\text ?\{([A-Za-z .°/'-]*)\}\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*\.?$")
_PLAIN = re.compile(r"(?<=[\d)}%])\s*([A-Za-z]{2,}(?:[ -][A-Za-z]{2,})*)\s*(?:\^\s*\{?\s*([23])\s*\}?)?\s*\.?$")
# Words that say something about the quantity rather than name its unit.
_NOT_UNITS = re.compile(r"\b(?:or|and|not|no|if|when|maybe|perhaps|possibly|is|otherwise|where|for|mod)\b", re.I)
_KNOWN_SHORT = {word for word in _CANONICAL if len(word) == 2} | {"sq", "cu"}
_POWER_WORDS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3", "cu": "3"}


def read_quantity(text: str) -> tuple[str, str]:
    """(what is measured, its unit) of an atom; the unit is "" when there is none, and an unknown word is itself.

    Only words after a number, a bracket or a formula are units; ``\\text{cents}`` alone is a word.
    """
    for pattern in (_IN_TEXT, _PLAIN):
        match = pattern.search(text)
        if not match or _NOT_UNITS.search(match.group(1)):
            continue
        if pattern is _IN_TEXT or _is_unit_word(match.group(1)):
            words, power = match.group(1), match.group(2) or ""
            return text[: match.start()].strip(), _unit(words, power)
    return text, ""


def _is_unit_word(words: str) -> bool:
    """A single short word after a number may be a product of variables (``2ab``): only known units are taken."""
    first = words.split()[0]
    return len(words) >= 4 or first.lower() in _KNOWN_SHORT or first.lower() in _CANONICAL


def _unit(words: str, power: str) -> str:
    names = []
    for word in re.findall(r"[a-z]+", words.lower()):
        if word in _POWER_WORDS:
            power = _POWER_WORDS[word]
        else:
            names.append(_CANONICAL.get(word, word))
    return " ".join(names) + power


def units_conflict(gold: str, prediction: str) -> bool:
    """True when both answers name known units and not the same one (``5 cm`` against ``5 m``)."""
    if not gold or not prediction or gold == prediction:
        return False
    known = set(_SPELLINGS)
    return gold.rstrip("23") in known and prediction.rstrip("23") in known
