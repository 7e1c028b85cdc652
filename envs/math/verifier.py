"""Judging an answer: exact where that decides it, in a worker process where it takes algebra."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import lru_cache

from winnowrl.envs.math.compare import Comparison, GoldUnreadable, NeedsAlgebra
from winnowrl.envs.math.extract import extract_answer
from winnowrl.envs.math.latex import normalize
from winnowrl.envs.math.policy import DEFAULT_POLICY, VerifierPolicy
from winnowrl.envs.math.pool import get_pool
from winnowrl.envs.math.reading import nesting, read_shapes
from winnowrl.envs.math.shapes import Shape, valued_atoms
from winnowrl.envs.math.words import squeeze
from winnowrl.envs.verdict import Verdict


def verify(gold: str, prediction: str, policy: VerifierPolicy = DEFAULT_POLICY) -> Verdict:
    """Judge a reply against a reference answer.

    Args:
        gold: The reference answer, bare, in ``$...$`` or as a text with a ``\\boxed{}``.
        prediction: The whole reply; the answer is taken from it by :func:`extract_answer`.
        policy: What counts as the same answer, and the time limit.

    Returns:
        ``undecided`` when the gold cannot be read or the limit was reached; never an exception for what a text holds.
        Blocks for up to ``policy.time_limit_s`` (and for a free worker); call it from a thread in an event loop.
    """
    start = time.perf_counter()
    answer = extract_answer(
        prediction, require_boxed=policy.require_boxed, multiline_inline_math=policy.multiline_inline_math
    )
    status, reason = _judge(gold, answer, policy)
    return Verdict(status, reason, time.perf_counter() - start)  # type: ignore[arg-type]


def verify_answer(gold: str, answer: str | None, policy: VerifierPolicy = DEFAULT_POLICY) -> Verdict:
    """Judge an answer that was already taken from its reply; None is an answer that was not found."""
    start = time.perf_counter()
    status, reason = _judge(gold, answer, policy)
    return Verdict(status, reason, time.perf_counter() - start)  # type: ignore[arg-type]


def check_gold(gold: str, policy: VerifierPolicy = DEFAULT_POLICY) -> str | None:
    """Why ``gold`` could not serve as a reference answer, or None when it can.

    A gold that is only readable as text (``E(Y|X)``), or a part of which is, is refused: a prediction that differs from
    it could never be judged.
    """
    read = _read_gold(gold, policy.max_answer_chars, policy.max_nesting)
    if isinstance(read, str):
        return read
    # Judged against a number they do not contain, only an unreadable gold or part of one leaves that undecided.
    for text in dict.fromkeys((gold, *(atom.text for reading in read[1] for atom in valued_atoms(reading)))):
        status, reason = _judge(text, "9140773.25", policy)
        if status == "undecided":
            return reason
    return None


def _judge(gold: str, answer: str | None, policy: VerifierPolicy) -> tuple[str, str]:
    read = _read_gold(gold, policy.max_answer_chars, policy.max_nesting)
    if isinstance(read, str):
        return "undecided", read
    if answer is None or not answer.strip():
        return "wrong", "no answer found"
    gold_text, golds = read
    if answer.strip() == gold.strip():
        return "correct", "same text"
    if len(answer) > policy.max_answer_chars:
        same = squeeze(answer).lstrip("0") == squeeze(gold_text).lstrip("0")
        return ("correct", "same text") if same else ("wrong", f"prediction beyond limits: {len(answer)} characters")
    if nesting(answer) > policy.max_nesting:
        return "wrong", f"prediction beyond limits: nested {nesting(answer)} deep"
    text = normalize(answer)
    if not text:
        return "wrong", "no answer found"
    if squeeze(text) == squeeze(gold_text):
        return "correct", "same text"
    return _compare(gold_text, golds, text, policy)


def _compare(gold_text: str, golds: tuple[Shape, ...], text: str, policy: VerifierPolicy) -> tuple[str, str]:
    try:
        same = Comparison(policy).same_answer(golds, read_shapes(text))
    except NeedsAlgebra:
        job = {"gold": gold_text, "prediction": text, "policy": asdict(policy)}
        reply = get_pool().run(job, policy.time_limit_s)
        return reply.status, reply.reason
    except GoldUnreadable as error:
        return "undecided", f"gold unparseable: {error}"
    return ("correct", "equal") if same else ("wrong", "not equal")


@lru_cache(maxsize=4096)
def _read_gold(gold: str, max_chars: int, max_nesting: int) -> tuple[str, tuple[Shape, ...]] | str:
    """(normalised text, readings) of a gold, or the reason why it cannot be judged."""
    if not isinstance(gold, str) or not gold.strip():
        return "gold empty"
    answer = extract_answer(gold) if r"\boxed" in gold or "####" in gold else gold
    if answer is None:
        return "gold unparseable: no balanced box"
    if len(answer) > max_chars:
        return f"gold unparseable: longer than {max_chars} characters"
    if nesting(answer) > max_nesting:
        return f"gold unparseable: nested more than {max_nesting} deep"
    text = normalize(answer)
    if not text:
        return "gold empty"
    return text, read_shapes(text, is_gold=True)
