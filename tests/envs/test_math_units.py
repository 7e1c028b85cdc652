"""Words after a number: units, scale words, and words that change what the answer says."""

from __future__ import annotations

import pytest

from winnowrl.envs.math import verify
from winnowrl.envs.math.units import read_quantity

SCALES = [
    ("5", r"5\text{ million}", "wrong"), ("5000000", r"5\text{ million}", "correct"), ("5", "5 dozen", "wrong"),
    ("60", "5 dozen", "correct"), ("24", "2 dozen eggs", "correct"), ("5000", r"5\text{ thousand}", "correct"),
    ("5", "5 hundred", "wrong"), ("5500000", "5.5 million dollars", "correct"), (r"5\text{ million}", "5,000,000", "correct"),
    (r"5\text{ million}", "5", "wrong"), ("5300000", r"5.3\text{ million}\text{ dollars}", "correct"),
    ("300000", "3 hundred thousand", "correct"), (r"2000\pi", r"2\pi\text{ thousand}", "correct"), ("5", "5 eggs dozen", "wrong"),
]  # fmt: skip

CHANGES = [
    ("5", "5 factorial", "wrong"), ("5", "5 squared", "wrong"), (r"25\text{ cm}^2", r"25\text{ cm squared}", "correct"),
    ("42", "42 plus one", "wrong"), ("42", r"42\text{ minus one}", "wrong"), ("42", "42 less than", "wrong"),
    ("42", "42 but could be forty one", "wrong"), ("42", r"42\text{ alternatively forty one}", "wrong"),
    ("42", r"42\text{ forty-one}", "wrong"), ("5", "5 tenths", "wrong"), ("5", "5 degrees below zero", "wrong"),
    ("5", r"5\text{ mod }7", "wrong"), ("5", "5 apples that Ann bought last week", "wrong"),
    ("18", "18 dollars every day", "correct"),
    ("42", r"42\text{ apples}", "correct"), ("16", "16 square units", "correct"), ("2ab", "2 ab", "correct"),
    ("5", "5m", "wrong"),
]  # fmt: skip

UNITS = [
    ("8", "8 more chickens", "correct"), ("8", "8 fewer songs", "correct"), ("18", "18 dollars less", "correct"),
    ("8", "8 more than Bob", "wrong"), ("8", "8 or more", "wrong"),
    ("5", "5 times", "correct"), ("5", "5 times as many", "correct"), ("5", "5 times two", "wrong"),
    ("5", "5 times a day", "correct"), ("5", "5 apples left over", "correct"), ("5", "5 over two", "wrong"),
    ("8", "8 women are left", "correct"), ("8", r"8\text{ is wrong}", "wrong"), ("8", "8 is not", "wrong"),
    ("18", "18 dollars for lunch", "correct"), ("45", r"45\text{ three-digit numbers}", "correct"),
    ("18", "18 dollars a week", "correct"), ("60", "60 km/h", "correct"), ("60", "60 m/s", "correct"),
    ("60", "60 dollars/hour", "correct"), ("60 km/h", "60 m/s", "wrong"), ("2", "2ab/c", "wrong"), ("2", "2m/n", "wrong"),
    ("45", "45 fifth graders", "correct"), ("45", "45 fifths", "wrong"), ("42", "42 forty-one", "wrong"),
]  # fmt: skip

KNOWN_UNITS = [
    (r"3:30\text{ p.m.}", r"3:30\text{ a.m.}", "wrong"), ("3:30 pm", "3:30 p.m.", "correct"), ("3:30 p.m.", "3:30 a.m.", "wrong"),
    ("3:30", r"3:30\text{ p.m.}", "correct"), ("3:30", "3:31", "wrong"),
    (r"10\text{ m/s}", r"10\text{ km/h}", "wrong"), (r"10\text{ m/s}", r"10\text{ meters per second}", "correct"),
    (r"10\text{ mph}", r"10\text{ miles/hour}", "correct"), (r"10\text{ mph}", r"10\text{ km/h}", "wrong"),
    ("10", r"10\text{ m/s}", "correct"), ("10", r"10\text{ m}/\text{s}", "correct"),
    (r"9.8\text{ m/s}", r"9.8\text{ m/s}^2", "wrong"),
    (r"9.8\text{ m/s}^2", r"9.8\text{ m/s^2}", "correct"), ("5", r"5\text{ m}", "correct"), ("5 cm", r"5\text{ m}", "wrong"),
    (r"15\mbox{ cm}^2", r"15\text{ square centimeters}", "correct"), (r"15\text{ cm}^2", r"15\text{ cm}^3", "wrong"),
    ("5 May", "5 June", "wrong"), ("x", r"x\text{ cm}", "correct"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "prediction", "expected"), SCALES)
def test_scale_words_multiply(gold: str, prediction: str, expected: str) -> None:
    assert verify(gold, rf"\boxed{{{prediction}}}").status == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), CHANGES)
def test_words_that_change_the_number_are_no_unit(gold: str, prediction: str, expected: str) -> None:
    assert verify(gold, rf"\boxed{{{prediction}}}").status == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), UNITS)
def test_words_that_only_name_what_is_counted_are_a_unit(gold: str, prediction: str, expected: str) -> None:
    assert verify(gold, rf"\boxed{{{prediction}}}").status == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), KNOWN_UNITS)
def test_known_units_conflict(gold: str, prediction: str, expected: str) -> None:
    assert verify(gold, rf"\boxed{{{prediction}}}").status == expected


def test_quantity_and_unit_are_told_apart() -> None:
    assert read_quantity(r"5.4 \text{ cents}") == ("5.4", "cent")
    assert read_quantity("12 miles per hour") == ("12", "mi/h")
    assert read_quantity("2 dozen eggs") == ("24", "eggs")
    assert read_quantity("42 plus one") == ("42 plus one", "")
    assert read_quantity("2ab") == ("2ab", "")
