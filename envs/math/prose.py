"""Finding an answer in prose: what a marker ("the answer is", ``####``) announces, the last formula, the last number.

Several answers come back as one list, and an answer that the text denies ("not $42$") does not come back at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

BETWEEN_ALTERNATIVES = re.compile(
    r"[\s$,;/]*(?:\\text\s*\{\s*)?(?:,?\s*(?:and|or)\b)?(?:\s*\})?[\s$,;/]*(?:\\quad)?[\s$]*"
)
_JOINT_MAX_CHARS = 40
_PERCENT_AFTER = re.compile(r"\s{0,3}\$?\s{0,3}(?:\\?%|percent(?:age)?\b|pct\b)", re.I)

_MARKER = re.compile(
    r"####|\b(?:final\s+)?answer(?:s)?\b[*_\s]{0,4}(?:is\b|are\b|:|=)[*_:\s]{0,6}(?:that\b\s?)?"
    r"|\bfinal\s+answer\b[^.\n]{0,80}?\bis\b[*_:\s]{0,6}",
    re.I,
)
# Here and below a run of blanks is tried from its first one only: tried from each, a long run takes minutes.
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z\\*$-]|\s*$)|(?<!\s)\s+I hope\b", re.M)
_DELIMITER = re.compile(r"\\\\|\\\$|\$\$|\$|\\[\[\]()]|\n")
_CLOSED_BY = {"$$": "$$", "$": "$", r"\[": r"\]", r"\(": r"\)"}
UNPAIRED = re.compile(r"(?<!\d)\$(?!\s?\d)|\\[(\[]")

_NUMBER = re.compile(
    r"(?<![\w.,^])[-+]?[$€£¥]?(?:"
    r"\\frac\{-?\d+\}\{-?\d+\}"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)"
    r"|(?:\d{1,3}(?: \d{3}){1,8}|\d++) \d++/\d++"
    r"|\d++/\d++|(?:\d++(?:\.\d++)?+|\.\d++)(?:e[-+]?\d++)?+"
    r")(?:\s*(?:\\?%|percent\b|pct\b))?(?![\w^])",
    re.I,
)
_CURRENCY = re.compile(r"[$€£¥]")
_JOIN_NUMBERS = re.compile(r"[\s*]*(?:,|\bor\b|\band\b|/|, or|, and)[\s*]*", re.I)

# What follows gives a reason and is no part of the answer.
_REASON = re.compile(
    r"(?:,|(?<!\s))\s+(?:since|because|which)\b|(?<=[\d$}]),?\s+(?:not|rather than|instead of)\s+(?=[$\d\\-])", re.I
)
_DENIED = re.compile(r"(?:\bnot\b|n't\b|\bnever\b|\bcannot\b|\bneither\b|\bnor\b)(?:\s+[a-z]+){0,3}[\s$*(:]*\Z", re.I)
_DENIED_MAX_CHARS = 60
_ALTERNATIVE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|alternatively)\b", re.I)
# A sentence that takes an answer back; after the clear ones nothing that stood before counts as given.
_CLEAR_RETRACTION = (
    r"actually|correction|scratch that|sorry|oops|on second thoughts?|i mean|or (?:maybe|perhaps|possibly|rather|it)"
    r"|maybe|perhaps|possibly|alternatively"
)
_RETRACTION = re.compile(
    rf"(?:\A|[.!?;\n])(?:[^\S\n]|[*_(-])*(?:(?P<clear>{_CLEAR_RETRACTION})|or|wait|no|hmm+|but|however|rather|instead)\b"
    r"|\b(?:could|might|may) (?:also |as well )?be\b|\b(?:correct|right|real|true) (?:one|value) is\b",
    re.I,
)
_IN_REASON = re.compile(r"\b(?:or|also|actually|alternatively|maybe|perhaps)\b", re.I)


class Formula(NamedTuple):
    """A formula in a text: where it stands with its delimiters, and what is between them."""

    start: int
    end: int
    content: str


def percent_after(text: str, end: int, content: str) -> str:
    return r"\%" if _PERCENT_AFTER.match(text, end) and "%" not in content else ""


def find_formulas(text: str, multiline_inline_math: bool) -> list[Formula]:
    """The formulas of ``text`` in order, in one pass over its delimiters."""
    formulas: list[Formula] = []
    opened: re.Match[str] | None = None
    for match in _DELIMITER.finditer(text):
        token = match.group()
        if token == "\n":
            if opened and opened.group() in ("$", r"\(") and not multiline_inline_math:
                opened = None
        elif opened and token == _CLOSED_BY[opened.group()]:
            # "$5 and $6": a closing dollar is not followed by a digit.
            if token == "$" and text[match.end() : match.end() + 1].isdigit():
                opened = match
                continue
            content = text[opened.end() : match.start()].strip()
            if content:
                content += percent_after(text, match.end(), content)
                formulas.append(Formula(opened.start(), match.end(), content))
            opened = None
        elif opened is None and token in _CLOSED_BY:
            opened = match
    return formulas


def marked_answer(text: str, formulas: list[Formula]) -> str | None:
    """What follows the last marker, to the end of its sentence; "" where that is denied, None without a marker."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        return None
    rest = text[markers[-1].end() :]
    start = len(text) - len(rest.lstrip("*_ \n\t:"))
    end = _sentence_end(text, start, formulas)
    stop = _reason(text, start, end, formulas)
    answer = _stated(text, start, stop, formulas)
    if not answer:
        return answer
    return _with_later_answer(answer, text, stop, end, formulas)


def _sentence_end(text: str, start: int, formulas: list[Formula]) -> int:
    newline = text.find("\n", start)
    end = len(text) if newline < 0 else newline
    # A formula that begins here may span lines; sentence ends inside it do not count.
    first = next((formula for formula in formulas if formula.start == start), None)
    search_from = first.end if first else start
    end = max(end, search_from)
    stop = _SENTENCE_END.search(text, search_from, end)
    return stop.start() if stop else end


def _reason(text: str, start: int, end: int, formulas: list[Formula]) -> int:
    """Where the sentence turns from its answer to the reason for it, or its end."""
    found = _REASON.search(text, start, end)
    if found is None or not text[start : found.start()].strip("*_ ,"):
        return end
    is_inside = any(formula.start < found.start() < formula.end for formula in formulas)
    return end if is_inside else found.start()


def _stated(text: str, start: int, end: int, formulas: list[Formula]) -> str | None:
    inside = [formula for formula in formulas if start <= formula.start < end]
    if not inside:
        if UNPAIRED.search(text, start, end):
            return None
        sentence = strip_markdown(text[start:end])
        return "" if re.match(r"(?:\w+ ){0,2}(?:not|never)\b", sentence, re.I) else sentence or None
    if _is_denied(text, start, inside[0].start):
        return ""
    contents = [formula.content for formula in inside]
    places = [start, *(place for formula in inside for place in (formula.start, formula.end)), end]
    around = " ".join(text[left:right] for left, right in zip(places[::2], places[1::2], strict=True))
    if _ALTERNATIVE.search(around) and len(contents) == 1:
        contents.append(last_number(around) or "another")
    return ", ".join(contents)


def _with_later_answer(answer: str, text: str, stop: int, end: int, formulas: list[Formula]) -> str:
    """``answer``, with what the text names after taking it back."""
    found = _RETRACTION.search(text, end) or _IN_REASON.search(text, stop, end)
    if found is None:
        return answer
    later = last_run([formula for formula in formulas if formula.start >= found.start()], text, BETWEEN_ALTERNATIVES)
    later = later or last_number(text[found.end() :])
    if later is None:
        return "" if found.groupdict().get("clear") else answer
    return answer if later.strip("$ ") == answer.strip("$ ") else f"{answer}, {later}"


def last_formula(text: str, formulas: list[Formula]) -> str | None:
    """The last formula, with those that only "and", "or" or a comma keeps apart; "" where the text denies it."""
    if formulas and _is_denied(text, 0, formulas[-1].start):
        return ""
    return last_run(formulas, text, BETWEEN_ALTERNATIVES)


def last_number(text: str) -> str | None:
    """The last number in prose, with its neighbours of a list; None where the text denies it."""
    found = [(match.start(), match.end(), _CURRENCY.sub("", match.group()).strip()) for match in _NUMBER.finditer(text)]
    if found and _is_denied(text, 0, found[-1][0]):
        return None
    return last_run(found, text, _JOIN_NUMBERS)


def last_run(found: Sequence[tuple[int, int, str]], text: str, joint: re.Pattern[str]) -> str | None:
    """The last of ``found`` with those before it that only a comma, "and" or "or" keeps apart."""
    if not found:
        return None
    start, _, content = found[-1]
    run = [content]
    for earlier_start, earlier_end, earlier in reversed(found[:-1]):
        if not is_joint(text, earlier_end, start, joint):
            break
        run.insert(0, earlier)
        start = earlier_start
    return ", ".join(run)


def is_joint(text: str, start: int, end: int, joint: re.Pattern[str]) -> bool:
    return end - start <= _JOINT_MAX_CHARS and joint.fullmatch(text, start, end) is not None


def _is_denied(text: str, start: int, end: int) -> bool:
    return _DENIED.search(text, max(start, end - _DENIED_MAX_CHARS), end) is not None


def strip_markdown(text: str) -> str:
    """``text`` without the marks of emphasis and the full stop around it."""
    return text.strip().strip("*_` \t").rstrip(".").strip("*_` \t")
