"""How far apart the members of a group have moved after K actions.

G members of the group, K the turn, d(a, b) the unit-cost Levenshtein distance over whole action strings (never over
characters or model tokens). A prefix is what a member did in its first K turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

PADDINGS = ("end", "none")
_END = "\0"


def group_distance(action_prefixes: Sequence[Sequence[str]], turn: int, *, padding: str = "end") -> float:
    """Mean normalised edit distance over all G(G-1)/2 pairs of prefixes.

    With ``padding="end"`` a member that ended before turn K is filled up to K with an END mark that equals no action,
    and every pair is divided by K. With ``padding="none"`` each pair is divided by the longer of its two prefixes; two
    empty prefixes are at 0, an empty and a non-empty one at 1.

    Args:
        action_prefixes: [G] action strings of each member; what lies beyond ``turn`` is ignored.
        turn: K, in actions.
        padding: "end" or "none".

    Returns:
        A number in [0, 1]; 0 when all members did the same.

    Raises:
        ValueError: fewer than two members, ``turn`` below 1, or an unknown padding.

    Source: arXiv 2605.05802, section 3.
    """
    if len(action_prefixes) < 2:
        raise ValueError(f"action_prefixes has {len(action_prefixes)} member(s); a distance needs at least 2")
    check_turn(turn)
    check_padding(padding)
    counts = Counter(_encode(action_prefixes, turn, pad=padding == "end"))
    if len(counts) == 1:
        return 0.0
    prefixes = list(counts)
    multiplicity = np.fromiter(counts.values(), dtype=np.float64, count=len(prefixes))
    edits = cdist(prefixes, prefixes, scorer=Levenshtein.distance, dtype=np.uint32).astype(np.float64)
    # The diagonal is zero, so equal members add nothing, and both orders of a pair are counted: divide by G(G-1).
    num_pairs = len(action_prefixes) * (len(action_prefixes) - 1)
    if padding == "end":
        # Whole numbers until the one division: groups at the same distance come out equal to the last bit.
        return float(multiplicity @ edits @ multiplicity) / (num_pairs * turn)
    return float(multiplicity @ (edits / _longer(prefixes)) @ multiplicity) / num_pairs


def termination_fraction(action_prefixes: Sequence[Sequence[str]], turn: int) -> float:
    """Share of members that ended with fewer than K actions. Ending exactly at turn K does not count.

    Args:
        action_prefixes: [G] action strings of each member.
        turn: K, in actions.
    """
    if not action_prefixes:
        raise ValueError("action_prefixes is empty; a group has at least one member")
    check_turn(turn)
    return sum(len(actions) < turn for actions in action_prefixes) / len(action_prefixes)


def check_turn(turn: int) -> None:
    """Raise ``ValueError`` unless ``turn`` is a turn number."""
    if turn < 1:
        raise ValueError(f"turn is {turn}; allowed: 1 or more (actions taken before the group is judged)")


def check_padding(padding: str) -> None:
    """Raise ``ValueError`` unless ``padding`` is known."""
    if padding not in PADDINGS:
        raise ValueError(f"padding is {padding!r}; allowed: {', '.join(PADDINGS)}")


def _encode(action_prefixes: Iterable[Sequence[str]], turn: int, *, pad: bool) -> list[str]:
    """Each prefix as a string with one character per action, so that the string distance is the action distance."""
    codes: defaultdict[str, str] = defaultdict(lambda: chr(len(codes) + 1))
    prefixes = ["".join(map(codes.__getitem__, actions[:turn])) for actions in action_prefixes]
    return [prefix.ljust(turn, _END) for prefix in prefixes] if pad else prefixes


def _longer(prefixes: list[str]) -> npt.NDArray[np.float64]:
    """[M, M] length of the longer of two prefixes, at least 1."""
    lengths = np.fromiter(map(len, prefixes), dtype=np.float64, count=len(prefixes))
    longer: npt.NDArray[np.float64] = np.maximum(np.maximum.outer(lengths, lengths), 1.0)
    return longer
