"""Answers with parts, names or signs around them: named values, grouped digits, degrees, sets, spellings."""

from __future__ import annotations

import pytest

from winnowrl.envs.math import verify


def status(gold: str, prediction: str) -> str:
    return verify(gold, rf"\boxed{{{prediction}}}").status


NAMED = [
    ("x=1, y=2", "2, 1", "wrong"), ("x=1, y=2", "1, 2", "correct"), ("x=1, y=2", "y=2, x=1", "correct"),
    ("(x,y)=(1,2)", "x=1, y=2", "correct"), ("(x,y)=(1,2)", "y=2, x=1", "correct"), ("(x,y)=(1,2)", "x=2, y=1", "wrong"),
    ("x=1,y=2", "(x,y)=(1,2)", "correct"), ("x=1,y=2", "(y,x)=(2,1)", "correct"), ("x=1,y=2", "(1,2)", "correct"),
    ("x=1,y=2", "(2,1)", "wrong"), ("x=1,y=2", r"\{1,2\}", "wrong"), ("(1,2)", "x=1, y=2", "correct"),
    ("(1,2)", "y=1, x=2", "wrong"), ("1, 2", "x=2, y=1", "wrong"), ("x=1, x=2", "2, 1", "correct"),
    ("x=1, y=2", "a=1, b=2", "wrong"), ("x=1, y=2, z=3", "x=1, z=3, y=2", "correct"), ("x=1, y=2", "x=1, y=3", "wrong"),
    (r"B=\begin{pmatrix} 1 & 2 \end{pmatrix}", "y=2x+3", "wrong"),
    ("m=2, b=3", "b=3, m=2", "correct"), ("m=2, b=3", "2, 3", "wrong"), ("(x,y)=(1,2)", "1, 2", "wrong"),
]  # fmt: skip

COORDINATES = [
    (r"(3, \frac{\pi}{2})", r"(r,\theta)=(3, \pi/2)", "correct"),
    (r"(3, \frac{\pi}{2})", r"r=3, \theta=\frac{\pi}{2}", "correct"),
    (r"(3, \frac{\pi}{2})", r"(\theta,r)=(\pi/2, 3)", "wrong"), ("(1,2,3)", r"(\rho,\theta,\phi)=(1,2,3)", "correct"),
    (r"r=3, \theta=1", "(1,3)", "wrong"),
]  # fmt: skip

CALCULATIONS = [
    ("18", r"9 \times 2 = 18", "correct"), ("5", r"\sqrt{25}=5", "correct"), ("5", r"\frac{10}{2}=5", "correct"),
    ("5", r"\binom{5}{1} = 5", "correct"), ("6", "2+3=5", "wrong"), ("5", r"\frac{x}{2}=5", "wrong"), ("5", "2x=5", "wrong"),
    ("5", "m+n=5", "correct"), ("5", "a+b=2+3=5", "correct"), ("5", "|A|=5", "correct"), ("5", "5=x", "correct"),
    ("5", "6=x", "wrong"), (r"90^\circ", r"\angle ABC = 90^\circ", "correct"), ("x+y=5", "5", "wrong"),
    ("x+y=5", "x+z=5", "wrong"),
    ("x<3", "|x|<3", "wrong"), ("y", "x=y", "correct"),
]  # fmt: skip

ROUNDED = [
    (r"\frac12", r"\frac12\approx 0.5", "correct"), (r"2\sqrt3", r"2\sqrt3\approx 3.46", "correct"),
    (r"2\sqrt3", r"x=2\sqrt3\approx 3.46", "correct"), ("3.46", r"2\sqrt3\approx 3.46", "correct"),
    ("18", r"17.6\approx 18", "correct"),
    ("41", r"41\approx 42", "wrong"), ("41", r"41\approx 41.5", "wrong"), (r"2\sqrt3", r"2\sqrt3\approx 3.6", "wrong"),
    (r"3\sqrt3", r"2\sqrt3\approx 3.46", "wrong"),
]  # fmt: skip

GROUPED_DIGITS = [
    ("1000", "1,000 dollars", "correct"), ("1000", r"1,000\text{ dollars}", "correct"), ("x=1000", "x=1,000", "correct"),
    ("1000", "x=1,000", "correct"), (r"10000\pi", r"10,000\pi", "correct"), ("1000x", "1,000x", "correct"),
    (r"\frac{10000}3", r"\frac{10,000}3", "correct"), (r"\sqrt{1000}", r"\sqrt{1,000}", "correct"),
    ("5001", "5,000 + 1", "correct"),
    ("1000, 2000", "1,000, 2,000", "correct"), (r"\{1000,2000\}", r"\{1,000, 2,000\}", "correct"),
    ("x>1000", "x>1,000", "correct"),
    ("1000.5", "1,000.50", "correct"), ("1000", "1,00", "wrong"), ("1000", "1,0000", "wrong"), ("123", "0,123", "wrong"),
    # a list or a number: both readings of an answer count, of a gold the list only where no number is likely
    (r"\{100,200\}", "100,200", "correct"), ("100200", "100,200", "correct"), ("100,200,300", "300,200,100", "correct"),
    ("100,200", "200,100", "wrong"), ("1,234,567", "1,567,234", "wrong"), ("2,125", "125, 2", "wrong"), ("42", "42,000", "wrong"),
    ("(100,200)", "(100200)", "wrong"), ("100200", "(100,200)", "wrong"), ("f(1,200)", "f(1200)", "wrong"),
]  # fmt: skip

DEGREES = [
    (r"\frac12", r"\sin 30^\circ", "correct"), (r"2-\sqrt3", r"\tan 15^\circ", "correct"),
    (r"\sin 30^\circ", r"\sin 30", "wrong"),
    (r"\sin 30^\circ", r"\frac12", "correct"), (r"\cos 20^\circ", r"\sin 70^\circ", "correct"), ("1/2", "sin(30°)", "correct"),
    (r"\frac18", r"\cos 20^\circ\cdot\cos 40^\circ\cdot\cos 80^\circ", "correct"), ("1", r"\tan\frac{90^\circ}2", "correct"),
    (r"30^\circ", "30", "correct"), ("30", r"30\degree", "correct"), (r"\theta=30^\circ", "30", "correct"),
    ("1", r"\tan 45", "wrong"), (r"\frac{\sqrt{2}}{2}", r"\frac{\sqrt{2}}2", "correct"),
    (r"\frac{1}{x^{2}}", r"\frac1{x^{2}}", "correct"),
    (r"\frac12, 30^\circ", r"\sin 30^\circ, 30", "correct"), (r"\frac{270}7\text{ degrees}", r"\frac{270}7^\circ", "correct"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "prediction", "expected"), NAMED)
def test_named_values_are_compared_by_name(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), GROUPED_DIGITS)
def test_commas_group_digits_or_part_a_list(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), DEGREES)
def test_degrees_count_inside_a_sine(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), COORDINATES)
def test_coordinates_have_their_usual_order(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), CALCULATIONS)
def test_calculation_and_quantity_asked_for_have_a_value(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), ROUNDED)
def test_value_and_its_rounding_are_one_answer(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


def test_infinity_in_a_list_is_not_alone() -> None:
    assert status(r"-\infty", r"-\infty, -\infty+1") == "wrong"
    assert status(r"\mathbb{R}", r"(-\infty, \infty)") == "correct"
