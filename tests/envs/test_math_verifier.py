"""The mathematics verifier: handed cases, every kind of answer, and its policy options."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from winnowrl.envs.math import VerifierPolicy, check_gold, verify, verify_answer
from winnowrl.envs.math.problems import STARTER_SET

SHARED = Path(os.environ.get("WINNOWRL_SHARED", Path(__file__).parents[2].parent / "shared"))
CASES = SHARED / "cases" / "math_verdicts.jsonl"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not on this machine")


def rows(*, policy: bool) -> list[dict[str, Any]]:
    lines = CASES.read_text(encoding="utf-8").splitlines() if CASES.exists() else []
    return [row for row in map(json.loads, lines) if bool(row.get("policy")) == policy]


@needs_cases
@pytest.mark.parametrize("row", rows(policy=False), ids=lambda row: f"{row['gold']}|{row['prediction'][:40]}")
def test_handed_verdict(row: dict[str, Any]) -> None:
    assert verify(row["gold"], row["prediction"]).status == row["expected"]


# gold, prediction, option, a value under which it is correct, a value under which it is wrong
POLICY_CASES = [
    (r"$33.3$", r"$\frac{100}{3}$", "accept_rounded_gold", True, False),
    (r"$0 < x < 12.5$", r"$(0, 12.5)$", "relations_as_intervals", "gold", "never"),
    (r"$(0, 12.5)$", r"$0 < x < 12.5$", "relations_as_intervals", "both", "gold"),
    (r"$m \in [\sqrt{2}, +\infty)$", r"$m \geq \sqrt{2}$", "relations_as_intervals", "both", "gold"),
    (r"$28\%$", "28", "percent_accepts_bare_number", True, False),
    ("28", r"$28\%$", "bare_gold_accepts_percent", True, False),
    ("0.0000001", "0.0000002", "decimal_places", 6, None),
    ("$9$", "Answer $ \n 9 \n $", "multiline_inline_math", True, False),
]


@pytest.mark.parametrize(("gold", "prediction", "option", "accepting", "refusing"), POLICY_CASES)
def test_policy_option_decides(gold: str, prediction: str, option: str, accepting: Any, refusing: Any) -> None:
    assert verify(gold, prediction, VerifierPolicy(**{option: accepting})).status == "correct"
    assert verify(gold, prediction, VerifierPolicy(**{option: refusing})).status == "wrong"


@needs_cases
def test_every_policy_row_has_an_option() -> None:
    covered = {(gold, prediction) for gold, prediction, *_ in POLICY_CASES}
    assert {(row["gold"], row["prediction"]) for row in rows(policy=True)} <= covered


@needs_cases
@pytest.mark.parametrize("row", rows(policy=True), ids=lambda row: row["gold"])
def test_default_policy_gives_the_handed_verdict(row: dict[str, Any]) -> None:
    assert verify(row["gold"], row["prediction"]).status == row["expected"]


EQUAL = [
    # numbers
    ("1000.99", "$1,000.99"), ("-10/9", r"-\frac{10}{9}"), (r"0.\overline{3}", r"\frac13"), ("10,\\!080", "10080"),
    (r"3.4 \times 10^{-31}", "3.4e-31"), ("\\$18.90", "18.9"), ("2005", "2005."), ("7/2", r"3\frac{1}{2}"), ("0", "-0.0"),
    # mixed numbers
    ("40/9", "The answer is 4 4/9."), ("9004/9", "1 000 4/9"), ("-40/9", "-4 4/9"), ("4", "4 0/9"), ("2/45", "4 4/9 percent"),
    # decimals of unending numbers
    (r"\frac{\pi}{6}", "0.5235987755982988"), ("1/3", "0.333333"), ("2/3", "0.666666"), (r"e^{\pi}", "23.140692632779267"),
    # huge and tiny powers
    (r"1999^{1999}", r"1999 \cdot 1999^{1998}"), (r"\frac{1}{2^{99}}", "1/2^99"),
    # code-style
    (r"\frac{\sqrt{2}}{2}", "sqrt(2)/2"), ("x^{x^2}", "x**(x**2)"), (r"\infty", "oo"), (r"\sqrt[3]{3}", "3^(1/3)"),
    (r"\dbinom{9}{4}", "binomial(9, 5)"), (r"|x|", "abs(x)"),
    # roots written loosely
    (r"4\sqrt{2}", r"4\sqrt(2)"), (r"\sqrt{3}", r"\sqrt3"), (r"\frac{9}{19}", r"\frac9{19}"),
    # algebra
    (r"\ln 2", r"\log 2"), ("2", r"\log 100"), (r"-\ln z", r"\ln(1/z)"), (r"\cot x", r"1/\tan(x)"), ("n!", "n(n-1)!"),
    (r"\frac{1-(-1)^n}{2}", r"\frac{1+(-1)^{n+1}}{2}"), (r"\sum_{i=1}^n i", "n(n+1)/2"), (r"\int_0^1 x^2 dx", "1/3"),
    ("-1", "i^2"), ("pq-p-q", r"1\cdot(pq - p - q)"), ("|x|", r"\sqrt{x^2}"),
    # lists, sets, tuples, intervals
    (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1-\sqrt5, 1+\sqrt5\}"), ("1,-2", r"$x=-2$ or $x=1$"), ("2, 3", r"\boxed{3} and \boxed{2}"),
    (r"(0,9) \cup (9,36)", r"(9,36) \cup (0,9)"), (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} \setminus \{0\}"),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{bmatrix} 0.2 \\ -3.6 \end{bmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "[[1,2],[3,4]]"), ("(x,y)=(1,2)", "(1, 2)"), (r"\{0\}", "0"),
    # relations
    ("y=2x+3", "2x-y+3=0"), ("2x>6", "3 < x"), ("-x<3", "x>-3"), ("k \\neq 1", "k \\ne 1"), ("f(x)=x^2", r"x\cdot x"),
    ("5", "2+3=5"), ("x=2, y=3", "y=3, x=2"), ("x>3", r"(3, \infty)"),
    # words, units, bases
    (r"\text{(C)}", "C"), (r"\text{ellipse}", "The answer is an ellipse."), ("Yes", "yes"), ("204_5", "204_{5}"),
    (r"5.4 \text{ cents}", "5.4"), (r"15\mbox{ cm}^2", r"15 \text{ square centimeters}"), (r"90^\circ", "90 degrees"),
]  # fmt: skip

DIFFERENT = [
    # near numbers
    ("0.5", "0.54"), ("12.5", "12.46"), ("33.3", "33.33"), (r"\frac{1}{3}", "0.333"), (r"\sqrt{17}", "4.12"), ("28", "28/100"),
    ("0.28", "28"), ("123456789012", "123456789013"), ("11/2", "1 1/2"), (r"1999^{1999}", r"1999^{1998}"), ("1/2^99", "1/2^98"),
    # broken mixed numbers are no number at all
    ("4", "The answer is 4 4/9."), ("4", "4 4/0"), ("0", "4 4/0"), ("11", "11 6/6"), ("12", "11 6/6"), ("73/6", "11 7/6"),
    ("139/90", "11/10 4/9"), ("71/6", "11\n5/6"),
    # algebra
    ("x", "y"), (r"\sqrt{x^2}", "x"), ("(x-1)(x+1)", "x^2-2"), (r"\Theta(n^3)", "O(n^3)"), ("-\\infty", "\\infty"),
    ("0", "3x+4y+14=0"), ("x=5", "y=5"), ("y=2x+3", "y=2x+4"), ("-x<3", "x<-3"), (r"x \geq 3", "x > 3"), ("x>3", "y>3"),
    (r"\frac{1}{2006!}", "0"),
    # structure
    ("(1,2)", "(2,1)"), ("1,2,3", "(1,2,3)"), ("[0,9)", "[0,1)"), ("1", "-[0,1)"), (r"\pm 2021", "2021"), ("1, 1, 2", "1, 2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}"), ("8:7:3", "16:14:6"),
    # words, units, bases
    ("5 cm", "5 m"), ("204_5", "204_6"), ("Yes", "No"), (r"\text{even}", "odd"), (r"\text{(C)}", r"\text{(B)}"), ("5", "five"),
    (r"\text{Evelyn}", "5"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "prediction"), EQUAL)
def test_equal_answers_are_correct(gold: str, prediction: str) -> None:
    assert verify(gold, prediction).status == "correct"


@pytest.mark.parametrize(("gold", "prediction"), DIFFERENT)
def test_different_answers_are_wrong(gold: str, prediction: str) -> None:
    assert verify(gold, prediction).status == "wrong"


@pytest.mark.parametrize(
    "prediction",
    [
        r"\boxed{41} or \boxed{42}",
        r"\boxed{41 \text{ or } 42}",
        r"\boxed{42 \text{ (or 41)}}",
        r"\boxed{42 \text{ or maybe not}}",
        r"\boxed{41, 42}",
        r"\boxed{\{41, 42\}}",
        r"\boxed{42 \pm 1}",
        "The answer is 41 or 42.",
        "The answer is 42 (or 41).",
        "It is either 41 or 42, that is clear",
        "It is $41$ or $42$.",
        "#### 41 42",
        r"\boxed{[41, 42]}",
        "42, 42",
    ],
)
def test_hedged_answer_is_never_rewarded(prediction: str) -> None:
    assert verify("42", prediction).status == "wrong"


@pytest.mark.parametrize("gold", ["", "   ", r"\boxed{5", "E(Y|X)", "1/0", "x" * 2000, "(" * 60 + "x" + ")" * 60])
def test_gold_that_cannot_be_read_is_undecided(gold: str) -> None:
    assert verify(gold, r"\boxed{7}").status == "undecided"
    assert check_gold(gold) is not None


@pytest.mark.parametrize(
    "gold",
    ["(A^T, B)", "f'(0), g'(0)", "y > f'(0)", r"[0, \gcd(a,b)]", r"\{1, f'(0)\}", "x = f'(0)", "(1, 1/0)",
     r"\begin{pmatrix} 1 \\ f'(0) \end{pmatrix}", r"(0, f'(0)) \cup (f'(0), \infty)"],
)  # fmt: skip
def test_gold_with_a_part_that_cannot_be_read_is_refused(gold: str) -> None:
    assert check_gold(gold) is not None


@pytest.mark.parametrize(
    "gold", ["f'(x) = 2x", "(x, y) = (1, 2)", "y > 3", r"(-\infty, 0) \cup [2, \infty)", "1, -2", "(B)"]
)
def test_gold_whose_parts_can_be_read_is_taken(gold: str) -> None:
    assert check_gold(gold) is None


def test_gold_read_as_text_alone_still_equals_itself() -> None:
    assert verify("E(Y|X)", r"\boxed{E(Y | X)}").status == "correct"


def test_reasons_are_short_clauses() -> None:
    assert verify("5", "I do not know").reason == "no answer found"
    assert verify("x+1", r"\boxed{x + + \frac}").reason == "prediction unparseable"
    assert verify("", "5").reason == "gold empty"
    assert verify("5", r"\boxed{5}").reason == "same text"
    assert verify("5", r"\boxed{6}").reason == "not equal"
    assert verify("5", r"\boxed{9^{9^{9^{9}}}}").reason.startswith("prediction beyond limits")


def test_answer_already_extracted_is_not_searched_again() -> None:
    assert verify_answer("5", "5").is_correct
    assert verify_answer("5", None).reason == "no answer found"
    assert verify_answer("5", "the answer is 5").status == "wrong"


def test_starter_set_can_be_judged() -> None:
    problems = [json.loads(line) for line in STARTER_SET.read_text(encoding="utf-8").splitlines()]
    assert len(problems) >= 40
    assert [problem["id"] for problem in problems if check_gold(problem["answer"])] == []


# Notation that has no value to compare: these golds equal themselves and nothing else can be judged against them.
TEXT_ONLY = {
    r"\mathbb{Z}_8", "4C^T", "A^T", r"\max\{1, |z|\}", r"\gcd(n, p-1)", r"\mathbb{R}[x] + \mathbb{R}[y]", r"\pi f'(0)",
    r"\aleph_0", "E(Y|X)", r"T^*(x) = x - \frac{2\langle v, x \rangle}{\|v\|^2}v",
}  # fmt: skip


def shared_answers() -> list[str]:
    answers: list[str] = []
    for path in sorted((SHARED / "data" / "math").glob("*.jsonl")):
        answers += [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    return answers


@pytest.mark.skipif(not shared_answers(), reason="the shared data is not on this machine")
def test_every_gold_equals_itself() -> None:
    failures = [gold for gold in set(shared_answers()) if not verify(gold, f"So it is \\boxed{{{gold}}}.").is_correct]
    assert failures == []


@pytest.mark.slow
@pytest.mark.skipif(not shared_answers(), reason="the shared data is not on this machine")
def test_golds_that_cannot_be_judged_are_the_known_ones() -> None:
    assert {gold for gold in set(shared_answers()) if check_gold(gold)} == TEXT_ONLY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relations_as_intervals": "always"}, "relations_as_intervals is 'always'; allowed: never, gold, both"),
        ({"time_limit_s": 0}, "time_limit_s is 0"),
        ({"decimal_places": -1}, "decimal_places is -1"),
        ({"decimal_places": 1.5}, "decimal_places is 1.5; allowed: a whole number"),
        ({"decimal_places": True}, "decimal_places is True; allowed: a whole number"),
        ({"accept_rounded_gold": "no"}, "accept_rounded_gold is 'no'; allowed: True or False"),
        ({"require_boxed": 1}, "require_boxed is 1; allowed: True or False"),
        ({"time_limit_s": "5"}, "time_limit_s is '5'; allowed: a number"),
        ({"relations_as_intervals": None}, "relations_as_intervals is None"),
    ],
)
def test_policy_refuses_what_is_not_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerifierPolicy(**options)
