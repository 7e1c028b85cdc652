"""The algebra service: what a worker process of :mod:`winnowrl.envs.isolation` runs to judge answers."""

from __future__ import annotations

import contextlib
from dataclasses import fields

from sympy.core.cache import clear_cache

from winnowrl.envs.isolation.server import Job, Service
from winnowrl.envs.math.compare import GoldUnreadable
from winnowrl.envs.math.grammar import Unreadable, read_expression
from winnowrl.envs.math.policy import VerifierPolicy
from winnowrl.envs.math.reading import read_shapes
from winnowrl.envs.math.sizes import TooLarge
from winnowrl.envs.math.symbolic import SymbolicComparison

JOBS_PER_CACHE = 100

_WARM_UP = (
    r"\frac{x+2}{7}", r"4\sqrt{2}-\sqrt[3]{x}", r"e^{16}-1", r"\tan^{2}(y)+1", r"\binom{9}{4}", r"n!+(n+1)!", r"f(x)+g(2)",
    r"\sum_{k=0}^{n-1} F_{k}", r"\log_{2} 3 \cdot \ln n", r"|x|+\sin 2x \cos x", r"\int_{0}^{1} x^{2} dx", r"2\pi r+x_{1}",
    r"(0,1)\cup[2,3)", r"\{1,2\}", r"3 \times 10^{-3}", r"a(b+c)-\frac{a}{b}(x-1)^{2}", r"\infty", r"x/2-y+1.5",
)  # fmt: skip


def prepare() -> Service:
    """Warm the parser up and return the judge."""
    for text in _WARM_UP:
        # A grammar that no longer reads a warm-up line only costs speed.
        with contextlib.suppress(Unreadable):
            read_expression(text)
    num_jobs = 0

    def answer(job: Job) -> Job:
        nonlocal num_jobs
        num_jobs += 1
        if num_jobs % JOBS_PER_CACHE == 0:
            clear_cache()
        return _judge(job)

    return answer


def _judge(job: Job) -> Job:
    """Judge ``job["prediction"]`` against ``job["gold"]`` (both normalised) under ``job["policy"]``."""
    policy = VerifierPolicy(**{field.name: job["policy"][field.name] for field in fields(VerifierPolicy)})
    try:
        golds = read_shapes(job["gold"], is_gold=True)
        same = SymbolicComparison(policy).same_answer(golds, read_shapes(job["prediction"]))
        status, reason = ("correct", "equal") if same else ("wrong", "not equal")
    except GoldUnreadable as error:
        status, reason = "undecided", f"gold unparseable: {error}"
    except Unreadable:
        status, reason = "wrong", "prediction unparseable"
    except TooLarge as error:
        status, reason = "wrong", f"prediction beyond limits: {error}"
    except MemoryError:
        status, reason = "undecided", "out of memory"
    except RecursionError:
        status, reason = "undecided", "nested too deep to evaluate"
    except Exception as error:  # noqa: BLE001 - a fault inside sympy says nothing about the answer
        status, reason = "undecided", f"verifier error: {type(error).__name__}"
    return {"status": status, "reason": reason[:200]}
