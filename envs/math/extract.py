"""Finding the answer in a reply: the last balanced box, else a marked answer, else the last mathematics or number.

The whole text is read and every pass is linear in its length. A list of alternatives ("41 or 42") comes back as the
whole list, so that naming several answers never earns what naming one would.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A reply that is one short line without any of these words is the answer itself.
_PROSE = re.compile(
    r"\b(?:the|is|are|was|so|of|that|has|have|we|it|this|there|thus|hence|therefore|would|will|get|not)\b", re.I
)
_BARE_MAX_CHARS = 300
_BARE_MAX_WORDS = 4
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z(])")
_JOINT_MAX_CHARS = 40

_BRACE = re.compile(r"\\.|[{}]", re.S)
_BOX = re.compile(r"\\f?boxed\s*(?=\{)|\\fbox\s*(?=\{)")
_BOX_UNBRACED = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
_BETWEEN_ALTERNATIVES = re.compile(
    r"[\s$,;/]*(?:\\text\s*\{\s*)?(?:,?\s*(?:and|or)\b)?(?:\s*\})?[\s$,;/]*(?:\\quad)?[\s$]*"
)
_PERCENT_AFTER = re.compile(r"\s{0,3}\$?\s{0,3}(?:\\?%|percent(?:age)?\b|pct\b)", re.I)

_MARKER = re.compile(
    r"####|\b(?:final\s+)?answer(?:s)?\b[*_\s]{0,4}(?:is\b|are\b|:|=)[*_:\s]{0,6}(?:that\b\s?)?"
    r"|\bfinal\s+answer\b[^.\n]{0,80}?\bis\b[*_:\s]{0,6}",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z\\*$-]|\s*$)|\s+I hope\b", re.M)
_DELIMITER = re.compile(r"\\\\|\\\$|\$\$|\$|\\[\[\]()]|\n")
_CLOSED_BY = {"$$": "$$", "$": "$", r"\[": r"\]", r"\(": r"\)"}
_UNPAIRED = re.compile(r"(?<!\d)\$(?!\s?\d)|\\[(\[]")

_NUMBER = re.compile(
    r"(?<![\w.,^])[-+]?[$€£¥]?(?:"
    r"\\frac\{-?\d+\}\{-?\d+\}"
    r"|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)"
    r"|(?:\d{1,3}(?: \d{3})+|\d++) \d++/\d++"
    r"|\d++/\d++|(?:\d++(?:\.\d++)?+|\.\d++)(?:e[-+]?\d++)?+"
    r")(?:\s*(?:\\?%|percent\b|pct\b))?(?![\w^])",
    re.I,
)
_CURRENCY = re.compile(r"[$€£¥]")
_JOIN_NUMBERS = re.compile(r"[\s*]*(?:,|\bor\b|\band\b|/|, or|, and)[\s*]*", re.I)


class _Formula(NamedTuple):
    """A formula in a text: where it stands with its delimiters, and what is between them."""

    start: int
    end: int
    content: str


def extract_answer(text: str, *, require_boxed: bool = False, multiline_inline_math: bool = False) -> str | None:
    """The final answer of a reply, or None.

    In this order: the last balanced ``\\boxed{}`` (boxes side by side are one list); what follows the last ``####`` or
    "answer is" / "answer:"; the whole reply when it is one short line; the last formula; the last number. What stands
    inside ``<think>`` is not read, and a ``<think>`` that was never closed hides the rest of the reply.

    Args:
        text: The whole reply.
        require_boxed: Return None when there is no balanced box.
        multiline_inline_math: Let inline formulas span lines.
    """
    text = outside_thinking(text)
    boxed = _last_boxes(text)
    if boxed is not None or require_boxed:
        return boxed or None
    formulas = _formulas(text, multiline_inline_math)
    return (
        _marked(text, formulas)
        or _bare(text, formulas)
        or _last_run([(f.start, f.end, f.content) for f in formulas], text, _BETWEEN_ALTERNATIVES)
        or (None if _UNPAIRED.search(text) else _last_number(text))
    )


def outside_thinking(text: str) -> str:
    """``text`` without its thinking: what follows the last ``</think>``, up to a ``<think>`` left open."""
    _, closed, rest = text.rpartition("</think>")
    visible = rest if closed else text
    return visible.partition("<think>")[0]


def balanced_boxes(text: str) -> list[tuple[int, int, str]]:
    """Every ``\\boxed{...}`` whose braces balance, outermost only: (start, end, content), in order of appearance."""
    closing = _closing_braces(text)
    boxes: list[tuple[int, int, str]] = []
    end_of_last = 0
    for match in _BOX.finditer(text):
        close = closing.get(match.end())
        if close is None or match.start() < end_of_last:
            continue
        boxes.append((match.start(), close + 1, text[match.end() + 1 : close].strip()))
        end_of_last = close + 1
    return boxes


def _closing_braces(text: str) -> dict[int, int]:
    """Index of each opening brace -> index of its closing one; escaped braces are ordinary characters."""
    pairs: dict[int, int] = {}
    open_at: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            open_at.append(match.start())
        elif match.group() == "}" and open_at:
            pairs[open_at.pop()] = match.start()
    return pairs


def _last_boxes(text: str) -> str | None:
    if "box" not in text:
        return None
    boxes = balanced_boxes(text)
    if not boxes:
        if _BOX.search(text):
            return ""  # a box that was cut is no answer, and nothing before it is the final one
        unbraced = list(_BOX_UNBRACED.finditer(text))
        return unbraced[-1].group(1) if unbraced else None
    start, end, content = boxes[-1]
    contents = [content + _percent(text, end, content)]
    for earlier_start, earlier_end, earlier in reversed(boxes[:-1]):
        if not _is_joint(text, earlier_end, start, _BETWEEN_ALTERNATIVES):
            break
        start = earlier_start
        if earlier not in contents:
            contents.insert(0, earlier)
    return ", ".join(contents)


def _percent(text: str, end: int, content: str) -> str:
    return r"\%" if _PERCENT_AFTER.match(text, end) and "%" not in content else ""


def _formulas(text: str, multiline_inline_math: bool) -> list[_Formula]:
    """The formulas of ``text`` in order, in one pass over its delimiters."""
    formulas: list[_Formula] = []
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
                content += _percent(text, match.end(), content)
                formulas.append(_Formula(opened.start(), match.end(), content))
            opened = None
        elif opened is None and token in _CLOSED_BY:
            opened = match
    return formulas


def _marked(text: str, formulas: list[_Formula]) -> str | None:
    """What follows the last marker, to the end of its sentence."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        return None
    rest = text[markers[-1].end() :]
    start = len(text) - len(rest.lstrip("*_ \n\t:"))
    newline = text.find("\n", start)
    end = len(text) if newline < 0 else newline
    # A formula that begins here may span lines; sentence ends inside it do not count.
    first = next((formula for formula in formulas if formula.start == start), None)
    search_from = first.end if first else start
    end = max(end, search_from)
    stop = _SENTENCE_END.search(text, search_from, end)
    end = stop.start() if stop else end
    inside = [(f.start, f.end, f.content) for f in formulas if start <= f.start < end]
    if inside:
        return ", ".join(content for _, _, content in inside)
    if _UNPAIRED.search(text, start, end):
        return None
    return _strip_markdown(text[start:end]) or None


def _bare(text: str, formulas: list[_Formula]) -> str | None:
    """The whole reply, when it is a single expression rather than prose."""
    line = _strip_markdown(text)
    if not line or "\n" in line or _PROSE.search(line[:_BARE_MAX_CHARS]):
        return None
    if len(_LONG_WORD.findall(line[:_BARE_MAX_CHARS])) > _BARE_MAX_WORDS:
        return None
    if len(line) > _BARE_MAX_CHARS and re.search(r"\s[a-z]+\s", line):
        return None
    has_formula_inside = formulas and not (len(formulas) == 1 and formulas[0].end - formulas[0].start == len(line))
    return None if has_formula_inside or (_UNPAIRED.search(line) and not formulas) else line


def _last_number(text: str) -> str | None:
    found = [(match.start(), match.end(), _CURRENCY.sub("", match.group()).strip()) for match in _NUMBER.finditer(text)]
    return _last_run(found, text, _JOIN_NUMBERS)


def _last_run(found: list[tuple[int, int, str]], text: str, joint: re.Pattern[str]) -> str | None:
    """The last of ``found`` with those before it that only a comma, "and" or "or" keeps apart."""
    if not found:
        return None
    start, _, content = found[-1]
    run = [content]
    for earlier_start, earlier_end, earlier in reversed(found[:-1]):
        if not _is_joint(text, earlier_end, start, joint):
            break
        run.insert(0, earlier)
        start = earlier_start
    return ", ".join(run)


def _is_joint(text: str, start: int, end: int, joint: re.Pattern[str]) -> bool:
    return end - start <= _JOINT_MAX_CHARS and joint.fullmatch(text, start, end) is not None


def _strip_markdown(text: str) -> str:
    return text.strip().strip("*_` \t").rstrip(".").strip("*_` \t")
