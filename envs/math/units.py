"""Units and words after a quantity: ``5.4 \\text{ cents}``, ``10 meters``, ``15\\mbox{ cm}^2``, ``5 million``.

Words that change the number are no unit: scale words multiply it, and operations, number words and hedges
("42 plus one", "42 but maybe 41") leave the answer as it stands, which no gold that is a number equals.
"""

from __future__ import annotations

import re

from winnowrl.envs.math.exact import read_number
from winnowrl.envs.math.latex import DEGREE, TRIGONOMETRIC

MAX_WORDS = 3

# Spellings of one unit; two quantities in different units of this table are different answers.
_SPELLINGS = {
    "m": "m meter meters metre metres", "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters", "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "g": "g gram grams", "kg": "kg kilogram kilograms", "mg": "mg milligram milligrams",
    "lb": "lb lbs pound pounds", "oz": "oz ounce ounces",
    "s": "s sec secs second seconds", "ms": "ms millisecond milliseconds", "min": "min mins minute minutes",
    "h": "h hr hrs hour hours", "day": "day days", "week": "week weeks", "month": "month months",
    "year": "yr yrs year years", "am": "am", "pm": "pm",
    "cent": "cent cents", "dollar": "dollar dollars usd", "euro": "euro euros eur",
    "l": "l liter liters litre litres", "ml": "ml milliliter milliliters", "gal": "gal gallon gallons",
    "deg": "deg degree degrees", "rad": "rad radian radians", "n": "newton newtons", "j": "joule joules", "w": "watt watts",
    "january": "january jan", "february": "february feb", "march": "march", "april": "april apr", "may": "may",
    "june": "june jun", "july": "july jul", "august": "august aug", "september": "september sept", "october": "october oct",
    "november": "november nov", "december": "december dec",
}  # fmt: skip
_CANONICAL = {word: unit for unit, words in _SPELLINGS.items() for word in words.split()}
_COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "kmh": "km/h", "fps": "ft/s"}
_POWER_WORDS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cubed": "3", "cu": "3"}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {f"{word}s": scale for word, scale in _SCALES.items()}

_OPERATIONS = (
    "plus minus times divided multiplied by over choose factorial power root sum difference product mod modulo base negative"
    " than least most under below twice double triple doubled tripled halved loss"
)
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety half halves third thirds quarter fourth fourths"
    " fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth"
    " thousandths millionth millionths tens ones"
)
_HEDGES = (
    "or and not no if when maybe perhaps possibly otherwise where but could would might should either"
    " alternatively alternately instead rather actually wait incorrect wrong false except unless then though else versus vs"
    " also both neither nor never cannot"
)
_NOT_UNITS = frozenset(f"{_OPERATIONS} {_NUMBER_WORDS} {_HEDGES}".split())
_BOUNDS = frozenset(
    ("up", "above", "beyond", "exceeds", "exceed", "within", "between", "any", "except", "square", "cube", "nearly")
)
# Phrases in which such a word changes nothing: 5 times, 5 apples left over, 5 two-digit numbers, 5 third graders.
_PHRASES = re.compile(
    r"\bleft[ -]?over\b|\btimes\b(?=[\s.]*$|\s+(?:as|more|per|an?|each)\b)"
    r"|\b(?:one|two|three|four|five|six|seven|eight|nine|ten)-(?:digit|point|dollar|letter|element)\b"
    r"|\b(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)[ -](?=grade)"
)
# Words that add nothing of their own to a unit.
_FILLERS = frozenset(("of", "the", "a", "an", "per", "in"))

_POWER = r"(?:\^\s*\{?\s*(\d)\s*\}?)?"
_IN_TEXT = re.compile(
    r"(?<=[\d)}\w])\s*\\text ?\{([A-Za-z .°/'-]*)\}(?:\s*(/)\s*(?:\\text ?\{)?\s*([A-Za-z]+)\s*\}?)?\s*"
    + _POWER
    + r"\s*\.?$"
)
_PLAIN = re.compile(
    r"(?<=[\d)}%])\s*((?:m/|[A-Za-z]{2,}(?:[ -][A-Za-z]{2,}| an?(?= [a-z]))*/?)(?:(?<=/)[A-Za-z]+)?)()()\s*"
    + _POWER
    + r"\s*\.?$"
)
_HALF_DAY = re.compile(r"(?<![A-Za-z])([ap])\. ?m\b\.?", re.I)
# 18 (dollars)
_BRACKETED = re.compile(r"(?<=[ {])\(([A-Za-z]{4,}(?: [A-Za-z]+)*)\)(?=\}?$)")
_POWER_IN_TEXT = re.compile(r"(\\text ?\{[^{}^]*)\^ ?\{?(\d)\}? ?\}$")
_LETTER = re.compile(r"[A-Za-z]")
_WORD = re.compile(r"[a-z]+|/")
_KNOWN_SHORT = {word for word in (*_CANONICAL, *_COMPOUND) if len(word) in (2, 3)} | {
    "sq",
    "cu",
    "st",
    "nd",
    "rd",
    "th",
}


def read_quantity(text: str) -> tuple[str, str]:
    """(what is measured, its unit) of an atom; the unit is "" when there is none, and an unknown word is itself.

    Only words after a number, a bracket or a formula are units; ``\\text{cents}`` alone is a word. ``5 million`` measures
    5000000.
    """
    text = _BRACKETED.sub(r"\1", text)
    if not _LETTER.search(text) or not _has_words(text):
        return text, ""
    unit, scale, rest = "", 1, _HALF_DAY.sub(r"\1m", text)
    if not TRIGONOMETRIC.search(rest):
        rest = rest.replace(DEGREE, "")
    # \text{ million}\text{ dollars}: two pieces at most.
    for _ in range(2):
        match = _IN_TEXT.search(_POWER_IN_TEXT.sub(r"\1}^{\2}", rest)) or _plain(rest)
        factor, named = _scaled(_words(" ".join(filter(None, match.group(1, 2, 3))))) if match else (1, [])
        if not match or _changes_the_number(named):
            break
        rest, scale = match.string[: match.start()].strip(), scale * factor
        unit = unit or _unit(named, match.group(4) or "")
    return (_times(rest, scale) if scale > 1 else rest), unit


def changes_a_number(sentence: str) -> bool:
    """True where some word of a sentence makes its number another one or no answer ("at least 5", "twice 5")."""
    words = set(re.findall("[a-z]+", _PHRASES.sub(" ", sentence.lower())))
    return not words.isdisjoint(_NOT_UNITS | _POWER_WORDS.keys() | _BOUNDS)


def is_unit_word(word: str) -> bool:
    """True for a known unit or a scale word."""
    return word.lower() in _CANONICAL or word.lower() in _SCALES or word.lower() in _COMPOUND


def _words(text: str) -> list[str]:
    return _WORD.findall(_PHRASES.sub(" ", text.lower()))


def _has_words(text: str) -> bool:
    return r"\text" in text or DEGREE in text or _PLAIN.search(text) is not None or _HALF_DAY.search(text) is not None


def _plain(text: str) -> re.Match[str] | None:
    """A single short word after a number may be a product of variables (``2ab``): only known units are taken."""
    match = _PLAIN.search(text)
    if match is None:
        return None
    words = match.group(1)
    first = re.split("[ /]", words)[0].lower()
    is_known = first in _KNOWN_SHORT or words in ("m/s", "m/min", "m/h")
    return match if is_known or (len(words) >= 4 and (len(first) >= 4 or "/" not in words)) else None


def _scaled(words: list[str]) -> tuple[int, list[str]]:
    """The factor that leading scale words make, and the words after them."""
    scale = 1
    while words and words[0] in _SCALES:
        scale *= _SCALES[words[0]]
        words = words[1:]
    return scale, words


def _changes_the_number(words: list[str]) -> bool:
    """Also where a power has no unit: ``5 squared``."""
    if not _NOT_UNITS.isdisjoint(words) or not _SCALES.keys().isdisjoint(words):
        return True
    if words and set(words) <= _POWER_WORDS.keys():
        return True
    return sum(word not in _FILLERS and word not in _POWER_WORDS and word != "/" for word in words) > MAX_WORDS


def _times(text: str, scale: int) -> str:
    number = read_number(text)
    if number is None:
        return rf"({text}) \cdot {scale}"
    return str(number.value * scale)


def _unit(words: list[str], power: str) -> str:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("/", "per"):
            parts.append([])
        elif word in _POWER_WORDS:
            power = _POWER_WORDS[word]
        else:
            parts[-1].append(_COMPOUND.get(word, _CANONICAL.get(word, word)))
    return "/".join(map(" ".join, parts)) + power


def units_conflict(gold: str, prediction: str) -> bool:
    """True when both answers name known units and not the same one (``5 cm`` against ``5 m``, a.m. against p.m.)."""
    return bool(gold and prediction) and gold != prediction and _is_known(gold) and _is_known(prediction)


def _is_known(unit: str) -> bool:
    return all(part in _SPELLINGS for part in unit.rstrip("23").split("/"))
