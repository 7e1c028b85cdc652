"""Finding the answer in a reply: the last balanced box, else a marked answer, else the last mathematics or number.

The whole text is read and every pass is linear in its length. A list of alternatives ("41 or 42") comes back as the
whole list, so that naming several answers never earns what naming one would.
"""

from __future__ import annotations

import re

from winnowrl.envs.math.prose import (
    BETWEEN_BOXES,
    UNPAIRED,
    Formula,
    find_formulas,
    is_joint,
    is_prose_with_number,
    last_formula,
    last_number,
    marked_answer,
    percent_after,
    strip_markdown,
)

# A reply that is one short line without any of these words is the answer itself.
_PROSE = re.compile(
    r"\b(?:the|is|are|was|so|of|that|has|have|we|it|this|there|thus|hence|therefore|would|will|get|not)\b", re.I
)
_BARE_MAX_CHARS = 300
_BARE_MAX_WORDS = 4
_LONG_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z(])")

_BRACE = re.compile(r"\\.|[{}]", re.S)
_BOX = re.compile(r"\\f?boxed\s*(?=\{)|\\fbox\s*(?=\{)")
# A minus of the box itself: no operand before it ("5-\boxed{3}"), and no dash of a list or a sentence ("- \boxed{3}").
_SIGN_BEFORE = re.compile(
    r"(?:(?P<prose>[A-Za-z]{2}\s|^\s*|[:,.*_]\s?)|[$=(\[{&<>]\s?)(?P<sign>-|−|\\pm)(?P<gap>\s?)[${]{0,2}\Z", re.M
)
_SIGN_MAX_CHARS = 12
_SCRIPT_AFTER = re.compile(r" ?[\^_] ?(?:\{[^{}]{1,20}\}|-?\w)")
_POWER_OF_TEN_AFTER = re.compile(r" ?\$? ?(\\(?:times|cdot) ?10 ?\^ ?(?:\{-?\d{1,4}\}|-?\d))")
_SCALE_AFTER = re.compile(r" ?\$? ?(?:\\text ?\{ ?)?(dozen|hundred|thousand|million|billion|trillion)\b")
_ANSWER_TAG = re.compile(r"<answer>", re.I)
_END_MARKS = re.compile(r"(?:\s*(?:<\|(?:im_end|endoftext|eot_id|end|end_of_text)\|>|</s>|<eos>))+\s*\Z")
_BOX_UNBRACED = re.compile(r"\\boxed\s+([^\s{}$\\]+)")


def extract_answer(text: str, *, require_boxed: bool = False, multiline_inline_math: bool = False) -> str | None:
    """The final answer of a reply, or None.

    In this order: the last balanced ``\\boxed{}`` (boxes side by side are one list); what follows the last ``####`` or
    "answer is" / "answer:"; the whole reply when it is one short line; the last formula; the last number. What stands
    inside ``<think>`` is not read, and a ``<think>`` that was never closed hides the rest of the reply. Of a reply with
    ``<answer>`` tags only the last one is read.

    Args:
        text: The whole reply.
        require_boxed: Return None when there is no balanced box.
        multiline_inline_math: Let inline formulas span lines.
    """
    text = outside_thinking(text)
    text = text if require_boxed else inside_answer_tag(text)
    boxed = _last_boxes(text)
    if boxed is not None or require_boxed:
        return boxed or None
    formulas = find_formulas(text, multiline_inline_math)
    answer = marked_answer(text, formulas)
    if answer is None:
        answer = _bare(text, formulas)
    if answer is None:
        answer = last_formula(text, formulas)
    if answer is None and not UNPAIRED.search(text):
        answer = last_number(text)
    return answer or None


def outside_thinking(text: str) -> str:
    """``text`` without its thinking: what follows the last ``</think>``, up to a ``<think>`` left open."""
    _, closed, rest = text.rpartition("</think>")
    visible = rest if closed else text
    return visible.partition("<think>")[0]


def inside_answer_tag(text: str) -> str:
    """What the last ``<answer>`` tag holds, else the whole text; marks that end a reply are left out."""
    if "<" not in text:
        return text
    *_, last = _ANSWER_TAG.split(text)
    if len(last) < len(text):
        text = re.split("</answer>", last, maxsplit=1, flags=re.I)[0]
    # The marks stand in the last few characters, and a search from the start would try every run of spaces.
    tail = max(0, len(text) - 200)
    return text[:tail] + _END_MARKS.sub("", text[tail:])


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
    content = _with_what_is_attached(text, start, end, content)
    contents = [content + percent_after(text, end, content)]
    for earlier_start, earlier_end, earlier in reversed(boxes[:-1]):
        if not is_joint(text, earlier_end, start, BETWEEN_BOXES):
            break
        start = earlier_start
        if earlier not in contents:
            contents.insert(0, earlier)
    return ", ".join(contents)


def _with_what_is_attached(text: str, start: int, end: int, content: str) -> str:
    r"""The content with a minus, exponent, base or scale that stands outside the box: ``-\boxed{42}``, ``\boxed{42}^2``."""
    if script := _SCRIPT_AFTER.match(text, end):
        attached = script.group().strip()
        content = f"({content}){attached}" if attached[0] == "^" else content + attached
    if scale := _POWER_OF_TEN_AFTER.match(text, end) or _SCALE_AFTER.match(text, end):
        content = f"{content} {scale.group(1)}"
    found = _SIGN_BEFORE.search(text, max(0, start - _SIGN_MAX_CHARS), start)
    if found is None or (found.group("gap") and found.group("prose") is not None):
        return content
    return f"{found.group('sign')}({content})"


def _bare(text: str, formulas: list[Formula]) -> str | None:
    """The whole reply, when it is a single expression rather than prose."""
    line = strip_markdown(text)
    if not line or "\n" in line or _PROSE.search(line[:_BARE_MAX_CHARS]):
        return None
    if len(_LONG_WORD.findall(line[:_BARE_MAX_CHARS])) > _BARE_MAX_WORDS:
        return None
    if len(line) > _BARE_MAX_CHARS and re.search(r"\s[a-z]+\s", line):
        return None
    if not formulas and is_prose_with_number(line):
        return None
    has_formula_inside = formulas and not (len(formulas) == 1 and formulas[0].end - formulas[0].start == len(line))
    return None if has_formula_inside or (UNPAIRED.search(line) and not formulas) else line
