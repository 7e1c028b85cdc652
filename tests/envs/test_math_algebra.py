"""What an expression means to the verifier: products, decimals, roots, arguments, variables; and rounded numbers."""

from __future__ import annotations

from typing import Any

import pytest

from winnowrl.envs.math import VerifierPolicy, verify


def status(gold: str, prediction: str, **options: Any) -> str:
    return verify(gold, rf"\boxed{{{prediction}}}", VerifierPolicy(**options)).status


# gold, prediction, status. Each table holds right and wrong examples of one kind.
SIDE_BY_SIDE = [
    ("51", "2(49)", "wrong"), ("98", "2(49)", "correct"), ("7", "(3)(4)", "wrong"), ("12", "(3)(4)", "correct"),
    ("55", r"\frac{10(11)}{2}", "correct"), ("20", r"\frac12(10)(4)", "correct"), ("-6", "-3(2)", "correct"),
    ("6", r"\sqrt{4(9)}", "correct"), ("2", r"4\left(\frac12\right)", "correct"), ("9/2", r"4\left(\frac12\right)", "wrong"),
    ("3/2", "1/2(3)", "correct"), ("1/6", "1/2(3)", "wrong"), ("2(49)", "51", "wrong"), ("2(49)", "98", "correct"),
    ("42", "40 2", "wrong"), ("80", "40 2", "wrong"), ("83", r"42 \quad 41", "wrong"), ("5", "2 3", "wrong"),
    ("6", "2 3", "wrong"), ("0.3", "1.5.2", "wrong"), ("2.5", "2.0.5", "wrong"), ("5001", "5 000 + 1", "correct"),
    # a mixed number, as a factor and as a power
    (r"1\frac12\pi", r"\frac{3\pi}2", "correct"), (r"\frac{\pi}{2}", r"1\frac12\pi", "wrong"),
    (r"2^{5/2}", r"2^{2\frac12}", "correct"), (r"\frac{5\pi}{2}", r"2 1/2\pi", "correct"),
    ("17/2", r"5\frac72", "wrong"), ("35/2", r"5\frac72", "wrong"), (r"\frac34", r"1.5\frac12", "wrong"),
]  # fmt: skip

ARGUMENTS = [
    (r"2\sin x", r"\sin x\cdot 2", "correct"), (r"\sin(2x)", r"\sin x\cdot 2", "wrong"),
    (r"\cos(2x)", r"\cos 2x", "correct"), (r"\sin x\cos x", r"\sin x\cdot\cos x", "correct"),
    (r"\ln 2\cdot\ln n", r"\ln n\ln 2", "correct"), (r"3\sin^2 x", r"\sin^2 x \times 3", "correct"),
    (r"\frac{2\sin x}{3}", r"\sin x \cdot 2/3", "correct"),
]  # fmt: skip

DECIMALS_INSIDE = [
    ("100000000000", "100000000001-0.0", "wrong"), ("11524800", "11524800-0.001", "wrong"), ("1.98", "1.98+0.004", "wrong"),
    ("1.98", "1.98+0.00", "correct"), ("0.75", "0.5+0.25", "correct"), (r"\frac{5\pi}{2}", r"2.5\pi", "correct"),
    (r"\frac{\pi}{3}x", "1.0471975512x", "wrong"), ("33.3", r"33.33\cdot 1", "wrong"), ("33.3", r"\frac{100}{3}", "correct"),
    (r"x^{5/2}", "x^{2.5}", "correct"), ("0.3", "0.1+0.2", "correct"), ("7", "7+0.0000000001", "wrong"),
]  # fmt: skip

WHOLE_NUMBER_NAMES = [
    ("m", "|m|", "wrong"), ("|k|", "k", "wrong"), (r"\frac{|k|}{k}", "1", "wrong"), ("r", r"\sqrt{r^2}", "wrong"),
    ("k", r"\lfloor k\rfloor", "wrong"), (r"\lfloor k\rfloor", "k", "wrong"), ("n", r"n+0\cdot(-1)^n+|n|-n", "wrong"),
    ("n", "n+(n-3)(n-5)(n-7)(n-8)(n-10)(n-12)", "wrong"), ("(-1)^n n", "(-1)^n|n|", "wrong"),
    (r"\cos(n\pi)", "(-1)^n", "correct"), ("(-1)^n", r"\cos(n\pi)", "correct"), ("(-1)^nx", r"x\cos(n\pi)", "correct"),
    ("(-1)^n", "(-1)^{n+1}", "wrong"), ("(-1)^n", "(-1)^{n+2}", "correct"), ("n!", "n(n-1)!", "correct"),
    (r"\lceil\frac n2\rceil", r"\lfloor\frac{n+1}2\rfloor", "correct"), (r"\sum_{i=1}^n i", "n(n+1)/2", "correct"),
    (r"\sum_{i=1}^n i", "n(n-1)/2", "wrong"), ("n^2", r"n^2+\sin(n\pi)", "wrong"),
]  # fmt: skip

ODD_ROOTS = [
    ("-2", r"\sqrt[3]{-8}", "correct"), ("2", r"\sqrt[3]{-8}", "wrong"), (r"-\sqrt[3]{2}", r"\sqrt[3]{-2}", "correct"),
    (r"\sqrt[3]{\sqrt5-2}", r"-\sqrt[3]{2-\sqrt5}", "correct"), ("-2", r"\sqrt[5]{-32}", "correct"),
    ("x", r"\sqrt[3]{x^3}", "correct"), (r"x^{2/3}", r"\sqrt[3]{x^2}", "correct"), ("2i", r"\sqrt{-4}", "correct"),
    ("-2", r"\sqrt[4]{-16}", "wrong"), ("5", r"\sqrt[3]{-9^{9^{9^9}}}", "wrong"),
]  # fmt: skip

LONG_DECIMALS = [
    (r"\frac13", "0.3333334", "wrong"), (r"\frac13", "0.3333333", "correct"), (r"\pi", "3.14160", "wrong"),
    (r"\pi", "3.14159", "correct"), (r"\pi", "3.141592", "correct"), (r"\pi", "3.141593", "correct"),
    (r"\pi", "3.141591", "wrong"), ("2/3", "0.666667", "correct"), ("2/3", "0.666666", "correct"), ("2/3", "0.666668", "wrong"),
    (r"e^\pi", "23.140692632779267", "correct"), (r"e^\pi", "23.14069263279", "wrong"), ("-2/3", "-0.666667", "correct"),
    ("3.14159265", "3.141593", "correct"), ("3.14159265", "3.141594", "wrong"), (r"-\sqrt2", "-1.414213", "correct"),
]  # fmt: skip

PERCENT = [
    ("10", r"10\%", "correct"), ("28", "28 percent", "correct"), ("10", r"0.1\%", "wrong"), ("0.1", r"10\%", "correct"),
    ("0.1", r"0.1\%", "wrong"), ("1", r"1\%", "wrong"), (r"\frac{100}{3}", r"33\frac13\%", "correct"), ("28", "28/100", "wrong"),
    ("10", r"11\%", "wrong"), (r"10\%", "10", "correct"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "prediction", "expected"), SIDE_BY_SIDE)
def test_factors_side_by_side_are_multiplied(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), ARGUMENTS)
def test_product_sign_ends_an_argument_without_brackets(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), DECIMALS_INSIDE)
def test_decimal_inside_an_expression_is_exact(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), WHOLE_NUMBER_NAMES)
def test_n_is_a_whole_number_only_where_the_gold_says_so(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), ODD_ROOTS)
def test_odd_root_of_a_negative_number_is_real(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), LONG_DECIMALS)
def test_long_decimal_is_truncated_or_rounded(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), PERCENT)
def test_percent_sign_against_a_bare_gold(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(
    ("gold", "prediction", "expected"),
    [
        (r"\sqrt2", "1.41", "correct"), (r"\sqrt2", "1.42", "wrong"), (r"\pi", "3.14", "correct"), ("1/3", "0.33", "correct"),
        ("1.41", r"\sqrt2", "correct"), ("0.125", "0.13", "correct"), ("-0.125", "-0.13", "correct"), ("0.125", "0.12", "wrong"),
        ("1/3", "33/100", "wrong"),
    ],
)  # fmt: skip
def test_decimals_are_compared_to_the_places_of_the_policy(gold: str, prediction: str, expected: str) -> None:
    # A half goes away from zero: 0.125 -> 0.13.
    assert status(gold, prediction, decimal_places=2) == expected
