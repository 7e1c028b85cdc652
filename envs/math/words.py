"""Answers as text: what never changes a meaning, words of a language, and atoms that only equal themselves."""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*")
_FREE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_ONE_BRACED = re.compile(r"\{(\w)\}")
_ARTICLE = re.compile(r"^(?:an?|the) (?=\w)")
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_BOLD_LETTER = re.compile(r"\\(?:mathbf|boldsymbol|mathsf|bm) ?\{ ?(\(?[A-J]\)?) ?\}")
_CHOICE = re.compile(r"(?:(?i:option|choice) )?\(?([A-Z])\)?")
_LABELLED = re.compile(r"(?:\(([A-J])\)[.:]?|([A-J])[).:])(\s*)\S")
_NO_SOLUTION = {"no solution", "no solutions", "no real solution", "no real solutions", "none", "empty set"}


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


def same_choice(gold: str, prediction: str) -> bool:
    """The same letter, alone in one of the two: ``(C)`` against ``\\text{(C) }5``, ``C) 5`` or ``Option C``."""
    (letter, is_alone), (other, is_other_alone) = _choice(gold), _choice(prediction)
    return letter is not None and letter == other and (is_alone or is_other_alone)


def _choice(text: str) -> tuple[str | None, bool]:
    plain = _BOLD_LETTER.sub(r"\1", _TEXT.sub(r"\1", text)).strip()
    if match := _CHOICE.fullmatch(plain.strip(".")):
        return match.group(1), True
    match = _LABELLED.match(plain)
    if match is None or not (match.group(3) or r"\text" in text):
        return None, False
    return match.group(1) or match.group(2), False


def is_empty_set(text: str) -> bool:
    """True for the empty set as a sign or in words."""
    return squeeze(text) in (r"\emptyset", r"\{\}") or words_of(text) in _NO_SOLUTION
