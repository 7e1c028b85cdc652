"""Recovering the answers of several problems from one completion that may have been cut off.

Source: CCR, section 5 of the recovery rules: marked answers only, first balanced box after each marker, a repeated
index is decided by its last balanced box, an index above N is ignored, order does not matter. A box with nothing in it
is no answer: it would earn the format reward for nothing.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from winnowrl.envs.math.extract import balanced_boxes

DUPLICATES = ("last", "none")

_MARKER = re.compile(r"^[^\S\n]*(?:#+\s*)?Answer\s*([1-9]\d*)\s*:+", re.I | re.M)
_THINKING_TAG = re.compile(r"</?think>")
_NOT_NEWLINE = re.compile(r"[^\n]")
# What shows nothing when a box is set, or only the dots of the pattern in the prompt; what stands inside it is kept.
_LAYOUT = re.compile(
    r"\\(?:h|v)?phantom\s*\{[^{}]*\}|\\[hv]space\*?\s*\{[^{}]*\}"
    r"|\\(?:text[a-z]*|math[a-z]*|[mhvf]box|boxed|operatorname|ensuremath|(?:display|text|script)style|left|right"
    r"|q?quad|en(?:space|skip)|(?:neg)?(?:thin|med|thick)space|space|nobreakspace|hfill?|null|(?:math)?strut|relax|empty"
    r"|[lcdv]?dots[cbmio]?)(?![A-Za-z])"
    r"|\\(?:[^A-Za-z{}|%#&_]|$)"
)
_UNSEEN = frozenset("~${}.…⋯\u2800\u115f\u1160\u3164\uffa0")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was recovered from a completion.

    Attributes:
        answers: [N] content of the box of each problem, or None.
        ends: [N] character offset just after that box, or None.
        ambiguous: Problems (1-based) that were answered more than once, with different contents.
        indices: Every marker's index in order of appearance, those above N included.
    """

    answers: tuple[str | None, ...]
    ends: tuple[int | None, ...]
    ambiguous: frozenset[int]
    indices: tuple[int, ...]

    @property
    def num_recovered(self) -> int:
        return sum(answer is not None for answer in self.answers)

    @property
    def is_well_formed(self) -> bool:
        """One marker with a balanced box, not an empty one, for each problem, in order, and no other marker."""
        expected = tuple(range(1, len(self.answers) + 1))
        return self.indices == expected and self.num_recovered == len(self.answers)


def recover(completion: str, num_problems: int, *, duplicates: str = "last") -> Recovery:
    """Recover the answers of ``num_problems`` problems.

    Args:
        completion: What the policy wrote, without the prompt.
        num_problems: N; markers with a higher index are ignored.
        duplicates: What a problem gets that is answered twice: the ``last`` balanced box, or ``none``.

    Raises:
        ValueError: ``num_problems`` below 1, or ``duplicates`` unknown.
    """
    if num_problems < 1:
        raise ValueError(f"num_problems is {num_problems}; allowed: 1 or more")
    if duplicates not in DUPLICATES:
        raise ValueError(f"duplicates is {duplicates!r}; allowed: {', '.join(DUPLICATES)}")
    visible = _blank_thinking(completion)
    markers = list(_MARKER.finditer(visible))
    found: dict[int, list[tuple[str, int]]] = {}
    bounds = [*(marker.start() for marker in markers[1:]), len(visible)] if markers else []
    for marker, bound in zip(markers, bounds, strict=True):
        # A number of thousands of digits is no index; int() would refuse it.
        index = int(marker.group(1)) if len(marker.group(1)) < 10 else 0
        box = _first_box(visible, marker.end(), bound)
        if 1 <= index <= num_problems and box:
            found.setdefault(index, []).append(box)
    ambiguous = frozenset(index for index, boxes in found.items() if len({content for content, _ in boxes}) > 1)
    kept = {index: boxes[-1] for index, boxes in found.items() if not (duplicates == "none" and len(boxes) > 1)}
    positions = range(1, num_problems + 1)
    return Recovery(
        tuple(kept[k][0] if k in kept else None for k in positions),
        tuple(kept[k][1] if k in kept else None for k in positions),
        ambiguous,
        tuple(int(marker.group(1)[:9]) for marker in markers),
    )


def recover_answers(completion: str, num_problems: int) -> list[str | None]:
    """The content of each problem's box, None where it was not reached or was cut."""
    return list(recover(completion, num_problems).answers)


def last_recoverable_end(completion: str, num_problems: int) -> int:
    """The character offset just after the last recoverable answer; 0 when there is none."""
    return max((end for end in recover(completion, num_problems).ends if end is not None), default=0)


def _first_box(text: str, start: int, end: int) -> tuple[str, int] | None:
    """Content and end of the first balanced box between the offsets; None without one, or when nothing is in it."""
    segment = text[start:end]
    for box_start, box_end, content in balanced_boxes(segment):
        if segment.startswith(r"\boxed", box_start):
            return None if is_blank(content) else (content, start + box_end)
    return None


def is_blank(content: str) -> bool:
    """True when a box with this content answers nothing: spacing, empty groups, or dots alone."""
    visible = _LAYOUT.sub("", content)
    return all(character in _UNSEEN or unicodedata.category(character)[0] in "ZC" for character in visible)


def _blank_thinking(text: str) -> str:
    """``text`` with thinking replaced by spaces, so that offsets stay what they were.

    A ``</think>`` without its opening tag (which a chat template may have put in the prompt) ends thinking that began
    with the text; an opening tag that is never closed hides the rest.
    """
    pieces: list[str] = []
    position, opened = 0, 0 if _starts_inside(text) else None
    for tag in _THINKING_TAG.finditer(text):
        if tag.group() == "<think>" and opened is None:
            pieces.append(text[position : tag.start()])
            position = opened = tag.start()
        elif tag.group() == "</think>" and opened is not None:
            pieces.append(_NOT_NEWLINE.sub(" ", text[position : tag.end()]))
            position, opened = tag.end(), None
    rest = text[position:]
    return "".join([*pieces, rest if opened is None else _NOT_NEWLINE.sub(" ", rest)])


def _starts_inside(text: str) -> bool:
    first = _THINKING_TAG.search(text)
    return first is not None and first.group() == "</think>"
