"""Finding the answer in a reply."""

from __future__ import annotations

import time

import pytest

from winnowrl.envs.math import extract_answer
from winnowrl.envs.math.extract import balanced_boxes


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{6} and then \boxed{5", "6"),
        (r"\boxed{5", None),
        (r"\boxed 5 it is", "5"),
        (r"\fbox{x}", "x"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{2} and \boxed{3}", "2, 3"),
        (r"\boxed{3} $ and $ \boxed{3}", "3"),
        (r"$\boxed{28}$ percent", r"28\%"),
        ("<think>\\boxed{1}</think>\nAnswer: 2", "2"),
        ("<think>\\boxed{1}</think> hm", "hm"),
        ("<think> \\boxed{1}", None),
        ("\\boxed{1} thinking</think> \\boxed{2}", "2"),
        ("some steps\n#### 1,234", "1,234"),
        ("**Final Answer:** **73**", "73"),
        ("The final answer is $14{,}916$. I hope it is correct.", "14{,}916"),
        ("The answer is 4 4/9. Good.", "4 4/9"),
        ("The answer is $x = 3$ or $x = 4$.", "x = 3, x = 4"),
        ("Answer:\n$$\nx + 1\n$$", "x + 1"),
        ("We have $a$, thus $b$.", "b"),
        ("It costs $5 and $6 is paid, so it is $7", "7"),
        ("She makes 18 dollars every day.", "18"),
        ("there are 41, 42 or 43 of them", "41, 42, 43"),
        ("2 2/3", "2 2/3"),
        ("", None),
        ("I do not know what it is", None),
    ],
)
def test_extracts(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is not $42$.", None),
        ("The answer is definitely not 42.", None),
        ("The answer isn't $42$.", None),
        ("So it cannot be 42.", None),
        ("The answer is not positive, so it is 0.", None),
        ("The answer is 41. The answer is not 42, but $40$.", "40"),
        ("The answer is $42$, not $41$.", "42"),
    ],
)
def test_denied_answer_is_no_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.\nActually, it is 41.", "42, 41"),
        ("The answer is 42. Or maybe 41.", "42, 41"),
        ("The answer is 42. Or maybe forty-one.", None),
        ("The answer is $42$. Wait, it is $41$.", "42, 41"),
        ("The answer is 42. But it could also be 41.", "42, 41"),
        ("The answer is $42$ or 41.", "42, 41"),
        ("The answer is $42$ or more.", "42, another"),
        ("The answer is 41, which is odd, or 42.", "41, 42"),
        ("The answer is 42. Wait, let me check: 6*7 = 42.", "42"),
        ("The answer is 42. We considered 3 cases, but only 2 of them count.", "42"),
        ("The answer is 41. No: the answer is 42.", "42"),
    ],
)
def test_answer_taken_back_comes_with_what_replaces_it(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The answer is $42$ since $6\cdot 7=42$.", "42"),
        ("The answer is 42 because 6*7=42.", "42"),
        ("The answer is $42$, which is even.", "42"),
        (r"The answer is $x$, which solves $x^2=2$.", "x"),
    ],
)
def test_reason_after_an_answer_is_not_part_of_it(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"-\boxed{42}", "-(42)"),
        (r"$x = -\boxed{42}$", "-(42)"),
        (r"Thus $- \boxed{42}$", "-(42)"),
        (r"which is -\boxed{42}.", "-(42)"),
        (r"$\pm\boxed{42}$", r"\pm(42)"),
        (r"\boxed{42}^2", "(42)^2"),
        (r"\boxed{42}^{n+1}", "(42)^{n+1}"),
        (r"\boxed{204}_5", "204_5"),
        (r"which is -$\boxed{42}$", "-(42)"),
        (r"$-{\boxed{42}}$", "-(42)"),
        (r"$\boxed{3.4} \times 10^{-31}$", r"3.4 \times 10^{-31}"),
        (r"$\boxed{5}$ million people", "5 million"),
        (r"\boxed{5}\text{ million}", "5 million"),
        (r"- $\boxed{42}$", "42"),
        # no sign of the box: an item of a list, a dash, a subtraction
        (r"- \boxed{42}", "42"),
        (r"the answer - \boxed{42}", "42"),
        (r"$5-\boxed{3}=2$", "3"),
        (r"5 -\boxed{3}", "3"),
        (r"\boxed{42}!", "42"),
    ],
)
def test_sign_and_exponent_outside_a_box_belong_to_it(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: She makes $18 every day.", "18"),
        ("The answer is that Tom needs 5 more apples.", "5"),
        ("The answer is that it is 5 cm long.", "5 cm"),
        ("The answer is that she has 5 million coins.", "5 million"),
        ("The answer is therefore 18.", "18"),
        ("The answer is that she paid $1,200.", "1,200"),
        ("The answer is that she ate 1/2 of it.", "1/2"),
        ("Weng earned $10.", "10"),
        ("A: 18", "18"),
        ("She sold 48 + 24 = 72 clips.", "72"),
        ("Area = 5", "Area = 5"),
        ("The answer is that it was -5 degrees.", "-5 degrees"),
        ("#### xy - 1", "xy - 1"),
        ("The answer is xy/2.", "xy/2"),
        ("The answer is June 20.", "June 20"),
        # words that change the number
        ("The answer is at least 5.", "at least 5"),
        ("The answer is twice 5.", "twice 5"),
        ("The answer is up to 5.", "up to 5"),
        ("The answer is minus 18.", "minus 18"),
        ("Could be 5, could be 6.", "Could be 5, could be 6"),
    ],
)
def test_one_number_of_a_sentence_is_its_answer(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 32. However, she could also eat 16 eggs.", "32"),
        ("The answer is 18 dollars. Wait, let me check: 9*2 = 18.", "18 dollars"),
        ("The answer is 18. However, it is 20.", "18, 20"),
        ("The answer is 18. But I think 20 is right.", "18, 20"),
        ("The answer is 18. Wait, we forgot 2 eggs, so 20.", "18, 20"),
        ("The answer is 5 and not 6.", "5"),
        ("The answer is $18$ dollars, so Janet makes $18$ dollars.", "18"),
        ("The answer is 18, as computed above.", "18"),
        ("The answer is one half, i.e. $\\frac{1}{2}$.", "\\frac{1}{2}"),
    ],
)
def test_what_follows_an_answer_takes_it_back_or_does_not(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer> <answer>5</answer>", "5"),
        ("<answer>$x = 5$</answer> The number 6", "$x = 5$"),
        ("<answer>5", "5"),
        ("<answer></answer> 5", None),
        ("The answer is 5.<|im_end|>", "5"),
        ("5</s>", "5"),
        ("The total is $-4.", "-4"),
        ("#### $-1,300", "$-1,300"),
        ("So $x=\\boxed{1}$ or $x=\\boxed{-2}$.", "1, -2"),
        ("$a=\\boxed{3}$, so $a+5=\\boxed{8}$", "8"),
        ("Hence $n = 5$. $\\blacksquare$", "n = 5"),
        ("\\text{Answer: } 5", "5"),
        ("The answer is “5”. 🎉", "5"),
        ("The correct option is (C) 5.", "(C) 5"),
        ("所以答案是18。", "18"),
        ("答案:18", "18"),
        ("答案不是18", None),
        ("因此共有18个。", "18"),
        ("Ответ: 18 долларов.", "18"),
    ],
)
def test_ways_to_mark_an_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_whole_text_is_read() -> None:
    assert extract_answer(r"\boxed{42}" + " and this is why." * 500) == "42"
    assert extract_answer("why? " * 5000 + r"\boxed{42}") == "42"


def test_required_box_leaves_no_other_answer() -> None:
    assert extract_answer("The answer is 5.", require_boxed=True) is None
    assert extract_answer(r"The answer is \boxed{5}.", require_boxed=True) == "5"


def test_inline_formula_over_lines_is_an_option() -> None:
    text = "Answer $ \n 9 \n $"
    assert extract_answer(text) is None
    assert extract_answer(text, multiline_inline_math=True) == "9"


def test_boxes_are_outermost_and_in_order() -> None:
    text = r"\boxed{a\boxed{b}} {\boxed{c}"
    assert [content for _, _, content in balanced_boxes(text)] == [r"a\boxed{b}", "c"]
    assert [text[start:end] for start, end, _ in balanced_boxes(text)] == [r"\boxed{a\boxed{b}}", r"\boxed{c}"]


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 30000, "7" * 200_000 + "A", "\\(" * 100_000, "\\[" * 100_000 + "x", "$" * 200_001, " " * 200_000 + "x",
     "answer is " * 20_000, "answer is 5. " + "but " * 50_000, "answer is 5. or maybe " * 9_000,
     *("The answer is 5" + unit * (200_000 // len(unit)) + "x" for unit in ("\n", "\n ", "\n*", " ", "\r", "\t", ". ")),
     "The answer is " + "\r" * 200_000, "5 or " + "000 " * 50_000,
     "{" * 100_000 + "}" * 100_000, "5 , " * 50_000, "<answer>" * 20_000,
     "</s> " * 40_000, "答案是" * 60_000, "answer is 5. however it is 5" * 6_000, "\\boxed{5} " * 20_000, "or " * 60_000],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_time_is_linear_in_hostile_text(text: str) -> None:
    start = time.process_time()
    extract_answer(text)
    # Linear work on 200 kB takes a fraction of a second; quadratic work would take minutes.
    assert time.process_time() - start < 5
