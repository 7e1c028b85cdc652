"""What the verifier counts as the same answer where reasonable graders differ, and how long it may think."""

from __future__ import annotations

from dataclasses import dataclass

RELATION_MODES = ("never", "gold", "both")

_TYPES: dict[str, type | tuple[type, ...]] = {
    "accept_rounded_gold": bool, "percent_accepts_bare_number": bool, "bare_gold_accepts_percent": bool,
    "decimal_places": int, "multiline_inline_math": bool, "require_boxed": bool, "time_limit_s": (int, float),
    "max_answer_chars": int, "max_nesting": int,
}  # fmt: skip
_TYPE_NAMES = {bool: "True or False", int: "a whole number", (int, float): "a number"}


@dataclass(frozen=True, slots=True)
class VerifierPolicy:
    """Options of :func:`winnowrl.envs.math.verify`.

    Attributes:
        accept_rounded_gold: A gold decimal of three or more significant digits (33.3) is met by an exact prediction
            (100/3) that rounds to it. A decimal prediction must still equal the gold.
        percent_accepts_bare_number: The gold 28% is met by 28 (a question about percent answered without the sign).
        bare_gold_accepts_percent: The gold 28 is met by 28% (data sets strip the sign); only for golds beyond 1.
        relations_as_intervals: ``never``: an inequality only equals an inequality. ``gold``: a gold inequality is met
            by the interval it describes. ``both``: an interval in the gold is met by an inequality too.
        decimal_places: Where one side is a decimal, compare both rounded to this many places, a half away from zero;
            None compares them exactly.
        multiline_inline_math: Read ``$ ... $`` and ``\\( ... \\)`` across line breaks when looking for an answer.
        require_boxed: Only a ``\\boxed{}`` counts as an answer.
        time_limit_s: Wall-clock seconds for one verdict in a worker process; over it the verdict is undecided.
        max_answer_chars: A longer answer is compared as text only.
        max_nesting: A deeper answer (brackets) is compared as text only.
    """

    accept_rounded_gold: bool = True
    percent_accepts_bare_number: bool = True
    bare_gold_accepts_percent: bool = True
    relations_as_intervals: str = "gold"
    decimal_places: int | None = None
    multiline_inline_math: bool = False
    require_boxed: bool = False
    time_limit_s: float = 5.0
    max_answer_chars: int = 1000
    max_nesting: int = 40

    def __post_init__(self) -> None:
        for name, allowed in _TYPES.items():
            value = getattr(self, name)
            is_right = isinstance(value, bool) == (allowed is bool) and isinstance(value, allowed)
            if not is_right and not (name == "decimal_places" and value is None):
                raise ValueError(f"{name} is {value!r}; allowed: {_TYPE_NAMES[allowed]}")
        if self.relations_as_intervals not in RELATION_MODES:
            raise ValueError(
                f"relations_as_intervals is {self.relations_as_intervals!r}; allowed: {', '.join(RELATION_MODES)}"
            )
        if self.decimal_places is not None and not 0 <= self.decimal_places <= 100:
            raise ValueError(f"decimal_places is {self.decimal_places}; allowed: None, or 0 to 100")
        if not 0 < self.time_limit_s <= 600:
            raise ValueError(f"time_limit_s is {self.time_limit_s}; allowed: above 0, up to 600 seconds")
        if self.max_answer_chars < 1 or self.max_nesting < 1:
            raise ValueError(
                f"max_answer_chars is {self.max_answer_chars} and max_nesting {self.max_nesting}; allowed: 1 or more"
            )


DEFAULT_POLICY = VerifierPolicy()
