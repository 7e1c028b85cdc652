"""The scoring service of ``winnowrl/ReasoningGym-v0``: runs a data set's own scorer where it can do no harm.

Traps of those scorers that are handled here: some evaluate the answer as Python (an answer that is no plain literal or
arithmetic is compared as text instead), some raise on garbage (a wrong answer, not a failed episode), some give garbage
a little or even full marks (the marks of garbage are the floor), and some never end (this process is killed).

Garbage is words, and what is of the right kind but was written without reading the question: small numbers, the
reference with its numbers replaced by 0 or 1, and the references of other entries. Where one of the latter earns full
marks it may be right, and counts for nothing; but a number that differs from the reference shows that the scorer cannot
be believed, and the reply is compared with the reference instead.
"""

from __future__ import annotations

import ast
import base64
import inspect
import json
import pickle
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from winnowrl.envs.isolation.server import Job, Service

GARBAGE = ("?", "nonsense reply")
TYPED_GARBAGE = ("0", "1", "2", "10", "-1")
FILLERS = ("0", "1")
SAME_NUMBER = 1e-4
FULL_MARKS = 1 - 1e-6

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_PLAIN = re.compile(r"[\w\s+\-*/^()=,.\[\]]*")
_ATTRIBUTE = re.compile(r"[A-Za-z_)\]]\s*\.\s*[A-Za-z_]|__")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RATIONAL = re.compile(r"([-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:\s*/\s*(\d{1,30}))?")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "exp",
    "log",
    "ln",
    "sqrt",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "pi",
    "Abs",
}


def prepare() -> Service:
    """Load reasoning-gym and return the scorer."""
    import reasoning_gym  # noqa: F401 - loaded before the first fork

    return score


def score(job: Job) -> Job:
    """Score ``job["answer"]`` for the pickled entry of a data set; see :func:`entry_job`."""
    entry = pickle.loads(base64.b64decode(job["entry"]))
    config = json.dumps(job["config"], sort_keys=True)
    dataset = _dataset(job["dataset"], config)
    answer: str = job["answer"]
    expected = entry["answer"]
    if _evaluates(job["dataset"]) and not is_plain(answer):
        is_same = isinstance(expected, str) and answer.strip() == expected.strip()
        return _reply(float(is_same), "same text" if is_same else "answer holds code and was not evaluated")
    floor = _floor(job["dataset"], config, job["entry"], tuple(job["others"]))
    if floor >= FULL_MARKS:
        is_same = isinstance(expected, str) and (
            answer.strip() == expected.strip() or _differ(answer, expected) is False
        )
        return _reply(float(is_same), "compared with the reference: the scorer gives garbage full marks")
    marks = _marks(dataset, answer, entry)
    if marks is None:
        return _reply(0.0, "prediction unparseable")
    value = min(1.0, max(0.0, (marks - floor) / (1.0 - floor)))
    return _reply(value, "full marks" if value >= FULL_MARKS else f"scored {marks:.3g}, garbage {floor:.3g}")


def entry_job(
    dataset: str, config: dict[str, Any], entry: dict[str, Any], answer: str, others: Sequence[str] = ()
) -> Job:
    """The job that scores ``answer``; the entry travels as it is, since generators need not be reproducible elsewhere.

    Args:
        others: References of other entries of the data set.
    """
    pickled = base64.b64encode(pickle.dumps(entry)).decode()
    return {"dataset": dataset, "config": config, "entry": pickled, "answer": answer, "others": list(others)}


def is_plain(answer: str) -> bool:
    """True for a Python literal, and for arithmetic over numbers, single letters and elementary functions."""
    try:
        ast.literal_eval(answer.strip())
        return True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    if not _PLAIN.fullmatch(answer) or _ATTRIBUTE.search(answer):
        return False
    return all(len(name) == 1 or name in _FUNCTIONS for name in _IDENTIFIER.findall(answer))


def _reply(value: float, reason: str) -> Job:
    return {"status": "correct" if value >= FULL_MARKS else "wrong", "reason": reason, "score": value}


def _marks(dataset: Any, answer: str, entry: dict[str, Any]) -> float | None:
    try:
        return float(dataset.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - scorers raise all kinds of errors on answers they did not expect
        return None


@lru_cache(maxsize=64)
def _floor(name: str, config: str, pickled: str, others: tuple[str, ...]) -> float:
    """The most marks that garbage earns for an entry: the same for every reply, whoever scores it."""
    dataset, entry = _dataset(name, config), pickle.loads(base64.b64decode(pickled))
    floor = max(_marks(dataset, garbage, entry) or 0.0 for garbage in GARBAGE)
    if floor >= FULL_MARKS:
        return floor
    expected = entry["answer"] if isinstance(entry["answer"], str) else ""
    shapes = [_NUMBER.sub(filler, expected) for filler in FILLERS]
    for garbage in dict.fromkeys((*TYPED_GARBAGE, *shapes, *others)):
        marks = _marks(dataset, garbage, entry) or 0.0
        if marks < FULL_MARKS:
            floor = max(floor, marks)
        elif _differ(garbage, expected):
            return marks
    return floor


def _differ(first: str, second: str) -> bool | None:
    """Whether two texts are different numbers; None when one of them is no number."""
    numbers = [_number(first), _number(second)]
    if numbers[0] is None or numbers[1] is None:
        return None
    return abs(numbers[0] - numbers[1]) > SAME_NUMBER * max(1.0, abs(numbers[1]))


def _number(text: str) -> float | None:
    """A decimal or a fraction, finite."""
    found = _RATIONAL.fullmatch(text.strip())
    if not found or not float(found.group(2) or 1):
        return None
    return float(found.group(1)) / float(found.group(2) or 1)


@lru_cache(maxsize=16)
def _dataset(name: str, config: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **{"size": 1, "seed": 0, **json.loads(config)})


@lru_cache(maxsize=256)
def _evaluates(name: str) -> bool:
    """True when the module of a data set evaluates text; which text is not worth finding out."""
    from reasoning_gym.factory import DATASETS

    return _EVALUATES.search(inspect.getsource(inspect.getmodule(DATASETS[name][0]))) is not None  # type: ignore[arg-type]
