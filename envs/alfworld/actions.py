"""From an agent's reply to a game's action: what is taken from the text, and which admissible action it means."""

from __future__ import annotations

import re
from collections.abc import Sequence

MATCHES = ("exact", "near")
# A reply's last characters hold its action; nothing longer is an action of these games.
MAX_REPLY = 4_000
MAX_ACTION = 120

_TAG, _END_TAG = re.compile("<action>", re.IGNORECASE), re.compile("</action>", re.IGNORECASE)
_LABELLED = re.compile(r"^[ \t]*(?:action|act|command)[ \t]*:[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_LEADING = re.compile(r"^[\s>*\-`\"']+")
_TRAILING = re.compile(r"[\s.!`\"'*]+$")
_PUT = re.compile(r"^(?:put|place) (.+?) (?:in/on|inside|into|onto|in|on) (?:the )?(.+)$")


def extract_action(reply: str) -> str:
    """The part of ``reply`` that is meant as the action, normalised.

    In this order: the last ``<action>…</action>`` (the end tag may be missing where it is a stop string), the last line
    ``Action: …``, the last line that is not empty. Normalised: lower case, single blanks, no quotes, list marks or
    full stop around it, and ``put X in/on Y`` as the games say it since 0.4, ``move X to Y``. Linear in the reply's length.
    """
    tail = reply[-MAX_REPLY:]
    if (tagged := _TAG.split(tail))[1:]:
        chosen = _END_TAG.split(tagged[-1], maxsplit=1)[0]
    elif labelled := _LABELLED.findall(tail):
        chosen = labelled[-1]
    else:
        chosen = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
    return normalise_action(chosen)


def normalise_action(text: str) -> str:
    action = " ".join(text[: 4 * MAX_ACTION].split()).lower()
    action = _TRAILING.sub("", _LEADING.sub("", action))[:MAX_ACTION]
    return _PUT.sub(r"move \1 to \2", action)


def match_action(action: str, admissible: Sequence[str], *, match: str = "exact", cutoff: float = 0.8) -> str | None:
    """The admissible action that ``action`` means, or None.

    Args:
        action: normalised.
        admissible: sorted.
        match: ``exact``, or ``near``: the most similar one with at least ``cutoff`` normalised similarity (1 minus
            Levenshtein distance over the longer length); the first in order where two are equally near.
    """
    if action in admissible:
        return action
    if match == "exact" or not action:
        return None
    from rapidfuzz import process
    from rapidfuzz.distance import Levenshtein

    found = process.extractOne(
        action, admissible, scorer=Levenshtein.normalized_similarity, processor=None, score_cutoff=cutoff
    )
    return None if found is None else str(found[0])


def group_actions(admissible: Sequence[str]) -> str:
    """The admissible actions in one line, each verb once: ``go to [bed 1, desk 1]; take [pen 1 from desk 1]; look``."""
    groups: dict[str, list[str]] = {}
    for action in admissible:
        verb, _, rest = action.partition(" ")
        if verb == "go":
            verb, rest = "go to", rest.removeprefix("to ")
        groups.setdefault(verb, []).append(rest)
    parts = [f"{verb} [{', '.join(rests)}]" if rests != [""] else verb for verb, rests in groups.items()]
    return "; ".join(parts)
