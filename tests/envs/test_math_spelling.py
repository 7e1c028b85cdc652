"""Spellings that mean the same: styles, Unicode, repeating decimals, choices, sets, ratios, vectors."""

from __future__ import annotations

import time

import pytest

from winnowrl.envs.math import verify
from winnowrl.envs.math.latex import normalize


def status(gold: str, prediction: str) -> str:
    return verify(gold, rf"\boxed{{{prediction}}}").status


STYLED = [
    ("42", r"\mathbf{42}", "correct"), ("42", r"{\bf 42}", "correct"), ("42", r"\color{red}{42}", "correct"),
    ("42", r"\underline{42}", "correct"), ("42", r"{\large 42}", "correct"), ("42", r"\mathsf{42}", "correct"),
    ("42", r"\text{Answer: }42", "correct"), ("42", r"\textcolor{blue}{42}", "correct"), ("42", r"\boldsymbol{-42}", "wrong"),
    ("42", "Answer: 42", "correct"),
]  # fmt: skip

UNICODE = [
    ("x^4", "x⁴", "correct"), ("0.001", "10⁻³", "correct"), ("1/3", "⅓", "correct"), ("7/3", "2⅓", "correct"),
    ("x_1", "x₁", "correct"), ("2/3", "2⁄3", "correct"), (r"\sqrt[3]{2}", "∛2", "correct"), (r"2\sqrt3", "√12", "correct"),
    ("2", "√12", "wrong"), ("x^{12}", "x¹²", "correct"),
]  # fmt: skip

REPEATING = [
    ("1/3", "0.333...", "correct"), ("1/3", r"0.\dot3", "correct"), ("1/6", r"0.1\dot{6}", "correct"),
    ("12/99", r"0.\dot1\dot2", "correct"), ("1/3", "0.33", "wrong"), ("1/3", r"0.\overline3", "correct"),
    ("35/99", "0.3535...", "correct"), ("1/3", "0.334...", "wrong"), (r"\pi", "3.14159...", "correct"),
]  # fmt: skip

CHOICES = [
    ("(A) 5", "(A) 6", "wrong"), ("(A) 5", "A", "correct"),
    ("(C)", r"\text{(C) }5", "correct"), ("A", "Option A", "correct"), ("(B)", r"\text{(C) }5", "wrong"),
    ("(C)", "(C) 5", "correct"), ("(C)", "(C) 5 or (D) 6", "wrong"), ("A", "Option B", "wrong"),
    (r"\text{(C)}", "C) 5", "correct"),
]  # fmt: skip

SETS = [
    (r"\emptyset", r"\text{no solution}", "correct"), (r"\text{no solutions}", r"\emptyset", "correct"),
    (r"\emptyset", r"\{\}", "correct"), (r"\emptyset", "0", "wrong"), (r"\emptyset", r"\{0\}", "wrong"),
    (r"\emptyset", r"\{\emptyset\}", "wrong"),
    ("[1,3]", r"[1,2]\cup[2,3]", "correct"), (r"[1,2]\cup[2,3]", "[1,3]", "correct"), ("[1,3]", r"[1,2)\cup(2,3]", "wrong"),
    ("[1,3]", r"[1,2]\cup[2,4]", "wrong"), ("(0,2)", r"(0,1]\cup(1,2)", "correct"),
    (r"x<-1 \text{ or } x>1", r"(-\infty,-1)\cup(1,\infty)", "correct"),
    (r"x<-1 \text{ or } x>1", r"(1,\infty)\cup(-\infty,-1)", "correct"),
    (r"x<-1 \text{ or } x>1", r"x>1 \text{ or } x<-1", "correct"),
    (r"x<-1 \text{ or } x>1", r"(-\infty,-1]\cup(1,\infty)", "wrong"),
    (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1", "wrong"), ("2<x<3", r"x>2 \text{ and } x<3", "correct"),
    (r"x>2 \text{ and } x<3", "2<x<3", "correct"), ("2<x<3", r"x>2 \text{ or } x<3", "wrong"),
    (r"x>2 \text{ and } x<3", "(2,3)", "correct"), ("2<x<3", r"x>2 \text{ and } x<4", "wrong"),
    ("2<x<3", r"y>2 \text{ and } y<3", "wrong"), ("[0,1)", "[0,1[", "correct"), ("(0,1)", "]0,1[", "correct"),
    ("(0,1]", "]0,1]", "correct"), ("[0,1]", "[0,1[", "wrong"), (r"[0,1)\cup(2,3]", r"[0,1[\cup]2,3]", "correct"),
]  # fmt: skip

LOOSE = [
    (r"\frac59", r"\frac{2(\frac 59)}{2}", "correct"), (r"\frac{5}{9}", r"\frac{\frac53}3", "correct"),
    ("8", "8th", "correct"),
    (r"\frac{1}{3}", r"\frac1{\sqrt{9}}", "correct"), ("8", "9th", "wrong"),
    (r"\frac59", r"\frac{2(\frac 58)}{2}", "wrong"),
]  # fmt: skip

RATIOS = [
    ("12", "12:1", "wrong"), ("2", "6:3", "wrong"), ("1/2", "3:6", "correct"),
    ("3:4", "6:8", "correct"), ("3:4", "3/4", "correct"), ("3/4", "3:4", "correct"), ("3:4", "4:3", "wrong"),
    ("1:20", "2:40", "wrong"), ("3:04", "6:08", "wrong"), ("3:4", "0.75", "correct"), (r"\binom52", "10", "correct"),
    (r"{5\choose2}", "10", "correct"), ("10", r"{5\choose 2}", "correct"), (r"\binom52", "11", "wrong"),
]  # fmt: skip

VECTORS = [
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", "correct"), ("(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}", "correct"),
    ("(1,2)", r"\begin{pmatrix}2\\1\end{pmatrix}", "wrong"),
    (r"\frac12\begin{pmatrix}2&4\\6&8\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "correct"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\frac12\begin{pmatrix}2&4\\6&8\end{pmatrix}", "correct"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\frac13\begin{pmatrix}2&4\\6&8\end{pmatrix}", "wrong"),
    ("2i+3j", r"2\mathbf i+3\mathbf j", "correct"), (r"2\mathbf{i}+3\mathbf{j}", "2i+3j", "correct"),
    (r"2\mathbf{i}+3\mathbf{j}", r"3\mathbf{i}+2\mathbf{j}", "wrong"), (r"2\hat{i}+3\hat{\jmath}", "2i+3j", "correct"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "prediction", "expected"), STYLED)
def test_style_and_label_around_an_answer_do_not_count(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), UNICODE)
def test_unicode_signs_are_read(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), REPEATING)
def test_repeating_decimals_are_exact(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), CHOICES)
def test_choice_is_its_letter(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), SETS)
def test_sets_are_compared_by_their_members(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), RATIOS)
def test_ratio_of_two_terms_may_be_scaled_unless_it_is_a_time(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), VECTORS)
def test_vectors_and_multiples_of_matrices(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(("gold", "prediction", "expected"), LOOSE)
def test_loose_fractions_and_ordinals_are_read(gold: str, prediction: str, expected: str) -> None:
    assert status(gold, prediction) == expected


@pytest.mark.parametrize(
    ("gold", "prediction", "expected"),
    [
        ("18", r"\mathrm{18}", "correct"), ("18", r"\textbf{18}", "correct"), ("18", r"\text{18 dollars}", "correct"),
        ("18", r"\text{18 (dollars)}", "correct"), ("5 cm", r"\text{5 m}", "wrong"), ("5", r"\text{5 million}", "wrong"),
        ("5", r"\text{5 or 6}", "wrong"), ("5", r"\text{5 or more}", "wrong"), ("5", r"\text{5 plus one}", "wrong"),
    ],
)  # fmt: skip
def test_number_and_its_words_in_one_text(gold: str, prediction: str, expected: str) -> None:
    assert verify(gold, rf"\boxed{{{prediction}}}").status == expected


@pytest.mark.parametrize("start", ["5\\text{", "\\frac{", ""])
@pytest.mark.parametrize("piece", ["$ ", "\\,", "\\quad ", "\\bf ", "1 ", "\\left"])
def test_longest_answer_is_normalised_at_once(start: str, piece: str) -> None:
    answer = start + (piece * 1000)[:990]
    begin = time.process_time()
    normalize(answer)
    # A thousand characters take a few milliseconds; cubic work on their blanks takes seconds.
    assert time.process_time() - begin < 0.5
