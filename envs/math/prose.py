"""Finding an answer in prose: what a marker ("the answer is", ``####``) announces, the last formula, the last number.

Several answers come back as one list, and an answer that the text denies ("not $42$") does not come back at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from winnowrl.envs.math.units import changes_a_number, is_unit_word

BETWEEN_ALTERNATIVES = re.compile(
    r"[\s$,;/]*(?:\\text\s*\{\s*)?(?:,?\s*(?:and|or)\b)?(?:\s*\})?[\s$,;/]*(?:\\quad)?[\s$]*"
)
# Also "x = [box] or x = [box]".
BETWEEN_BOXES = re.compile(BETWEEN_ALTERNATIVES.pattern + r"(?:[A-Za-z](?:_\{?\w\}?)?\s?=[\s$]*)?")
_JOINT_MAX_CHARS = 40
_PERCENT_AFTER = re.compile(r"\s{0,3}\$?\s{0,3}(?:\\?%|percent(?:age)?\b|pct\b)", re.I)

_MARKER = re.compile(
    r"####|\b(?:final\s+)?answer(?:s)?\b[*_\s]{0,4}(?:is\b|are\b|:|:|=)[*_:\s]{0,6}(?:that\b\s?)?"
    r"|\bcorrect\s+(?:option|choice)\s+is\b:?|\bAns:|答案(?:应该)?\s?(?:是|为|為|:|:)[*_::\s]{0,6}"
    r"|\bfinal\s+answer\b[^.\n]{0,80}?\bis\b[*_:\s]{0,6}",
    re.I,
)
# Here and below a run of blanks is tried from its first one only: tried from each, a long run takes minutes.
_SENTENCE_END = re.compile(r"(?<!\bi\.e)(?<!\be\.g)[.!?](?=\s+[A-Z\\*$-]|\s*$)|(?<!\s)\s+I hope\b|。", re.M)
_BEFORE_ANSWER = re.compile(r"[*_\s:}]*(?:(?:\.{2,}|…)\s*)?[*_\s]*")
_DELIMITER = re.compile(r"\\\\|\\\$|\$\$|\$|\\[\[\]()]|\n")
_CLOSED_BY = {"$$": "$$", "$": "$", r"\[": r"\]", r"\(": r"\)"}
UNPAIRED = re.compile(r"(?<!\d)\$(?!\s?-?[\d.])|\\[(\[]")

_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.,^])(?:[-+]?[$€£¥]|\\?\$?[-+])?(?:"
    r"\\frac\{-?\d+\}\{-?\d+\}"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)"
    r"|(?:\d{1,3}(?: \d{3}){1,8}|\d++) \d++/\d++"
    r"|\d++/\d++|(?:\d++(?:\.\d++)?+|\.\d++)(?:e[-+]?\d++)?+"
    r")(?:\s*(?:\\?%|percent\b|pct\b))?(?![A-Za-z0-9_^])",
    re.I,
)
_CURRENCY = re.compile(r"\\?[$€£¥]")
_JOIN_NUMBERS = re.compile(r"[\s*]*(?:,|\bor\b|\band\b|/|, or|, and)[\s*]*", re.I)

# What follows gives a reason and is no part of the answer.
_REASON = re.compile(
    r"(?:,|(?<!\s))\s+(?:since|because|which)\b|,\s+(?:as|assuming|so)\b"
    r"|(?<=[\d$}]),?\s+(?:and\s+)?(?:not|rather than|instead of)\s+(?=[$\d\\-])",
    re.I,
)
_DENIED = re.compile(
    r"(?:\bnot\b|n't\b|\bnever\b|\bcannot\b|\bneither\b|\bnor\b|不是)(?:\s+[a-z]+){0,3}[\s$*(:]*\Z", re.I
)
# Words before a number, other than the name of a value ("Area = 5").
_STARTS_AS_PROSE = re.compile(r"(?:[A-Za-z]+:|[A-Za-z][a-z]+(?: [a-z]+)+:?)[*_]*\s(?!\s*=)")
_FOREIGN = re.compile(r"[\u0400-\u06ff\u0900-\u0dff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_HEDGE = re.compile(
    r"\b(?:or|either|neither|maybe|perhaps|possibly|could|might|may|not|no|than|least|most|about|between|to \d)\b", re.I
)
_STARTS_AS_SENTENCE = re.compile(
    r"(?!(?:sin|cos|tan|log|ln|sqrt|exp)\b)(?=.*[a-z]{3}|.*[\u3040-\u9fff])(?:[A-Za-z'’]{2}|[\u3040-\u9fff])"
)
_NO_SENTENCE = re.compile(r"[^A-Za-z0-9\u3040-\u9fff /,.:$€£%'’-]|\s-\s|[A-Za-z](?:-|\s?/\s?)\d")
_NUMBERS = re.compile(r"\d+(?:[.,/]\d+)*")
_NEXT_WORD = re.compile(r"\s?([A-Za-z]+)")
_DENIED_MAX_CHARS = 60
_ALTERNATIVE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|alternatively)\b", re.I)
# A sentence that takes an answer back; after the clear ones nothing that stood before counts as given.
_CLEAR_RETRACTION = (
    r"actually|correction|scratch that|sorry|oops|on second thoughts?|i mean|or (?:maybe|perhaps|possibly|rather|it)"
    r"|maybe|perhaps|possibly|alternatively"
)
_RETRACTION = re.compile(
    rf"(?:\A|[.!?;\n])(?:[^\S\n]|[*_(-])*(?:(?P<clear>{_CLEAR_RETRACTION})|or|wait|no|hmm+|(?P<loose>but|however)|rather|instead)\b"
    r"|\b(?:could|might|may) (?:also |as well )?be\b|\b(?:correct|right|real|true) (?:one|value) is\b",
    re.I,
)
# What stands before a number that is given as a value: "it is 20", "no, 20", "= 20".
_VALUE_BEFORE = re.compile(
    r"(?:\b(?:is|are|was|be|equals?|get|gives?|makes?|think|so|us|to|maybe|perhaps|actually|rather|or|no|wait|but|however|answer)\b|[=,:])"
    r"[\s$*(:]*\Z",
    re.I,
)
_MARKS = '*_` \t"“”'
_EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f]")
# The signs at the end of a proof are no formula.
_END_OF_PROOF = {r"\blacksquare", r"\square", r"\Box", r"\qed", r"\checkmark"}
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
            if content and content not in _END_OF_PROOF:
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
    start = len(text) - len(rest) + _BEFORE_ANSWER.match(rest).end()  # type: ignore[union-attr]
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
        if re.match(r"(?:[A-Za-z]+ ){0,2}(?:not|never)\b", sentence, re.I):
            return ""
        return only_quantity(sentence) or sentence or None
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
    kinds = found.groupdict()
    is_clear = bool(kinds.get("clear"))
    later = _named_later(text, found, formulas, only_values=bool(kinds.get("loose")))
    if later is None:
        return "" if is_clear else answer
    first = _NUMBER.match(answer.strip("$ "))
    is_same = later.strip("$ ") in (answer.strip("$ "), first and first.group())
    return answer if is_same else f"{answer}, {later}"


def _named_later(text: str, found: re.Match[str], formulas: list[Formula], *, only_values: bool) -> str | None:
    """What is named after ``found``; "however" need not take an answer back, and there only a value counts ("it is 20",
    not "they lay 16 eggs")."""
    after = [formula for formula in formulas if formula.start >= found.start()]
    numbers = [(found.end() + start, found.end() + end, number) for start, end, number in _numbers(text[found.end() :])]
    for candidates, joint in ((after, BETWEEN_ALTERNATIVES), (numbers, _JOIN_NUMBERS)):
        if only_values:
            candidates = [one for one in candidates if "=" in one[2] or _is_value(text, found.start(), one[0])]
        if later := last_run(candidates, text, joint):
            return later
    return None


def _is_value(text: str, start: int, end: int) -> bool:
    return _VALUE_BEFORE.search(text, max(start, end - _DENIED_MAX_CHARS), end) is not None


def last_formula(text: str, formulas: list[Formula]) -> str | None:
    """The last formula, with those that only "and", "or" or a comma keeps apart; "" where the text denies it."""
    if formulas and _is_denied(text, 0, formulas[-1].start):
        return ""
    return last_run(formulas, text, BETWEEN_ALTERNATIVES)


def last_number(text: str) -> str | None:
    """The last number in prose, with its neighbours of a list; None where the text denies it."""
    found = _numbers(text)
    if found and _is_denied(text, 0, found[-1][0]):
        return None
    return last_run(found, text, _JOIN_NUMBERS)


def _numbers(text: str) -> list[tuple[int, int, str]]:
    return [(match.start(), match.end(), _CURRENCY.sub("", match.group()).strip()) for match in _NUMBER.finditer(text)]


def is_prose_with_number(line: str) -> bool:
    """True for a line of words with a number (``Weng earned $10``, ``Total: 5``) that holds no hedge."""
    has_words = _STARTS_AS_PROSE.match(line) or _FOREIGN.search(line)
    return bool(has_words) and _NUMBER.search(line) is not None and not _HEDGE.search(line)


def only_quantity(sentence: str) -> str | None:
    """The one number of a sentence in words (``she has 5 apples left``), with its unit; None where there is no such."""
    has_words = _STARTS_AS_SENTENCE.match(sentence) or _FOREIGN.search(sentence)
    first = _NEXT_WORD.match(sentence)
    is_name = first is not None and is_unit_word(first.group(1))
    if not has_words or is_name or _NO_SENTENCE.search(sentence):
        return None
    if len(_NUMBERS.findall(sentence)) != 1:
        return None
    found = _numbers(sentence)
    if len(found) != 1 or changes_a_number(sentence):
        return None
    _, end, number = found[0]
    next_word = _NEXT_WORD.match(sentence, end)
    return f"{number} {next_word.group(1)}" if next_word and is_unit_word(next_word.group(1)) else number


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
    return _EMOJI.sub("", text).strip().strip(_MARKS).rstrip(".。").strip(_MARKS)
