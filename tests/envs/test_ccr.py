"""``winnowrl/CCR-v0``: recovery rules, fixed denominator, rewards, grouping. B1 to B8 are the worked values of its spec."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import winnowrl.envs  # noqa: F401 - registers the environments
from winnowrl.envs.ccr import CCREnv, group_metrics, last_recoverable_end, recover, recover_answers
from winnowrl.envs.ccr.theory import (
    conciseness_gain,
    informative_probability,
    num_completed,
    reasoning_gain,
    reward_noise,
    update_variance,
)


def answer_lines(answers: dict[int, str]) -> str:
    return "\n".join(f"work on it\nAnswer {k}: \\boxed{{{answer}}}" for k, answer in answers.items())


def environment_with_task(**options: Any) -> tuple[CCREnv, tuple[str, ...]]:
    environment = CCREnv(**options)
    task = environment.task_set("train")[0]
    environment.reset(seed=0, options={"task": task})
    return environment, task.metadata["answers"]


@pytest.mark.parametrize(
    ("completion", "answers"),
    [
        ("Answer 1: \\boxed{5}\nAnswer 2: \\boxed{6}\nAnswer 3: \\boxed{7}", ["5", "6", "7"]),
        # rule 1: line start, heading marks, case, spaces, several colons; not within a line
        ("## Answer 1 :: \\boxed{5}\n  answer2: \\boxed{6}", ["5", "6", None]),
        ("so Answer 1: \\boxed{5}", [None, None, None]),
        ("Answer 0: \\boxed{5}\nAnswer 01: \\boxed{6}", [None, None, None]),
        # rule 1: not in thinking, whether closed, left open or opened in the prompt
        ("<think>\nAnswer 1: \\boxed{9}\n</think>\nAnswer 2: \\boxed{6}", [None, "6", None]),
        ("Answer 1: \\boxed{9}\n</think>\nAnswer 2: \\boxed{6}", [None, "6", None]),
        ("Answer 1: \\boxed{5}\n<think>\nAnswer 2: \\boxed{6}", ["5", None, None]),
        # rule 2: the first balanced box before the next marker
        ("Answer 1: \\boxed{5} or \\boxed{6}\nAnswer 2: none\nAnswer 3: \\boxed{7}", ["5", None, "7"]),
        ("Answer 1: \\boxed{\\frac{1}{2}}\nAnswer 2: \\boxed{\\frac{1}{", ["\\frac{1}{2}", None, None]),
        ("Answer 1: \\boxed{5\nAnswer 2: \\boxed{6}", [None, "6", None]),
        ("Answer 1: \\boxed{\\{1, 2\\}}", ["\\{1, 2\\}", None, None]),
        # rule 3: the last balanced one wins
        ("Answer 1: \\boxed{5}\nAnswer 1: \\boxed{8}\nAnswer 1: \\boxed{9", ["8", None, None]),
        # rule 4: an index above N is ignored, and still ends the section before it
        ("Answer 1: see below\nAnswer 4: \\boxed{1}\nAnswer 2: \\boxed{6}", [None, "6", None]),
        ("Answer " + "9" * 5000 + ": \\boxed{1}", [None, None, None]),
        # rule 5: no fallback by position
        ("\\boxed{5}\n\\boxed{6}\n\\boxed{7}", [None, None, None]),
        # rule 6: any order
        ("Answer 3: \\boxed{7}\nAnswer 1: \\boxed{5}", ["5", None, "7"]),
        ("", [None, None, None]),
    ],
)
def test_recovery_rules(completion: str, answers: list[str | None]) -> None:
    assert recover_answers(completion, 3) == answers


BLANKS = (
    *(
        "",
        "  ",
        "~",
        "\\,",
        "\\ ",
        "\\;\\!\\:",
        "\\quad",
        "\\qquad ~",
        "{}",
        "{ {} }",
        "\\text{}",
        "\\text{ }",
        "\\mathrm{ }",
    ),
    *("$ $", "\\(\\)", "\\hspace{1em}", "\\phantom{5}", "\\left.\\right.", "\\boxed{}", "\u00a0", "\u200b", "\u2800"),
    *("...", "\\ldots", "\\dots", "…", "\n\t"),
)


@pytest.mark.parametrize("blank", BLANKS)
def test_an_empty_box_is_no_answer_and_earns_no_format(blank: str) -> None:
    environment, _ = environment_with_task(num_problems=3)
    _, reward, _, _, info = environment.step(answer_lines(dict.fromkeys((1, 2, 3), blank)))
    assert (reward, info["reward_parts"]["format"]) == (0.0, 0.0)
    assert (info["ccr"]["recovered"], info["ccr"]["n_eff"]) == ([False] * 3, 0)


@pytest.mark.parametrize(
    "answer", ["0", "x", "\\emptyset", "\\{\\}", "-", "\\text{no}", "\\%", "∞", ".5", "\\frac{1}{2}", "数"]
)
def test_what_shows_is_an_answer(answer: str) -> None:
    assert recover_answers(f"Answer 1: \\boxed{{{answer}}}", 1) == [answer]


def test_an_empty_box_counts_as_a_cut_one_among_duplicates_and_ends_no_loss() -> None:
    # Rule 3: the last balanced one wins, and an empty box is none. The second box after a marker never counts (rule 2).
    text = "Answer 1: \\boxed{5}\nAnswer 1: \\boxed{~}\nAnswer 2: \\boxed{} or \\boxed{6}"
    assert recover_answers(text, 2) == ["5", None]
    assert text[: last_recoverable_end(text, 2)] == "Answer 1: \\boxed{5}"


def test_duplicates_are_flagged_and_may_earn_nothing() -> None:
    text = "Answer 1: \\boxed{5}\nAnswer 1: \\boxed{8}\nAnswer 2: \\boxed{6}\nAnswer 2: \\boxed{6}"
    assert recover(text, 2).ambiguous == {1}
    assert recover(text, 2, duplicates="none").answers == (None, None)
    assert not recover(text, 2).is_well_formed


def test_last_recoverable_end_is_after_the_box() -> None:
    text = "Answer 2: \\boxed{6} done\nAnswer 1: \\boxed{5} and now prob"
    end = last_recoverable_end(text, 3)
    assert text[:end].endswith("\\boxed{5}")
    assert last_recoverable_end("<think>x</think>\n" + text, 3) == end + len("<think>x</think>\n")
    assert last_recoverable_end("Problem 1 is har", 3) == 0


def test_every_cut_of_a_completion_recovers_a_prefix() -> None:
    # P1: cutting a completion can only take later answers away.
    text = answer_lines({1: "\\frac{1}{2}", 2: "6", 3: "7"})
    counts = [recover(text[:end], 3).num_recovered for end in range(len(text) + 1)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 3)


def test_denominator_is_the_number_assigned() -> None:
    environment, golds = environment_with_task(num_problems=3)
    _, reward, terminated, _, info = environment.step(answer_lines({1: golds[0]}) + "\nAnswer 2: \\boxed{1")
    assert terminated
    assert info["reward_parts"] == {"accuracy": pytest.approx(1 / 3), "format": 0.0}
    assert reward == pytest.approx(1 / 3)
    assert info["ccr"]["correct"] == [True, False, False]
    assert info["ccr"]["recovered"] == [True, False, False]
    assert info["ccr"]["n_eff"] == 1


def test_broken_format_does_not_gate_accuracy() -> None:
    environment, golds = environment_with_task(num_problems=2)
    out_of_order = answer_lines({2: golds[1], 1: golds[0]})
    _, reward, _, _, info = environment.step(out_of_order)
    assert info["reward_parts"] == {"accuracy": 1.0, "format": 0.0}
    assert (reward, info["success"]) == (1.0, True)


def test_weights_combine_the_parts() -> None:
    # B8: w = (1, 0.5); one of three right with good format: 1/3 + 0.5 = 0.8333.
    environment, golds = environment_with_task(num_problems=3, accuracy_weight=1.0, format_weight=0.5)
    _, reward, _, _, _ = environment.step(answer_lines({1: golds[0], 2: "-999", 3: "-999"}))
    assert reward == pytest.approx(0.8333333, abs=1e-6)


def test_undecided_part_takes_the_rollout_out() -> None:
    environment = CCREnv(num_problems=2, verifier={"time_limit_s": 0.3})
    task = next(
        task
        for task in environment.task_set("train")
        if any("x" in gold or "pi" in gold for gold in task.metadata["answers"])
    )
    environment.reset(options={"task": task})
    hostile = r"\binom{1000000000}{100000000}"
    info = environment.step(answer_lines({1: hostile, 2: hostile}))[4]
    assert info["verdict"].status == "undecided"
    assert info["verdict"].reason.startswith("problem ")


def test_mask_offset_is_given_only_when_asked_and_an_answer_is_there() -> None:
    text = "Answer 1: \\boxed{5} then it goes on"
    environment, _ = environment_with_task()
    assert "loss_text_end" not in environment.step(text)[4]
    environment, _ = environment_with_task(mask_after_last_answer=True)
    assert environment.step(text)[4]["loss_text_end"] == text.index(" then")
    environment.reset(seed=0)
    assert "loss_text_end" not in environment.step("cut before any ans")[4]


def test_evaluation_is_single_problem() -> None:
    environment = CCREnv()
    task = environment.task_set("eval")[0]
    observation, _ = environment.reset(options={"task": task})
    assert "Problem 2" not in observation
    assert task.prompt in observation
    _, reward, _, _, info = environment.step(f"I get \\boxed{{{task.answer}}}")
    assert (reward, info["success"]) == (1.0, True)


def test_one_problem_is_an_ordinary_rollout() -> None:
    environment, golds = environment_with_task(num_problems=1, format_weight=0.0)
    assert environment.step(answer_lines({1: golds[0]}))[1] == 1.0


def test_train_and_eval_share_no_problem() -> None:
    environment = CCREnv(num_problems=3)
    asked = {i for task in environment.task_set("train") for i in task.metadata["problem_ids"]}
    assert not asked & {task.id for task in environment.task_set("eval")}


@pytest.mark.parametrize("grouping", ["random", "stratified"])
def test_groups_are_seeded_and_hold_each_problem_once_a_pass(grouping: str) -> None:
    tasks = CCREnv(num_problems=3, grouping=grouping, seed=5).task_set("train")
    again = CCREnv(num_problems=3, grouping=grouping, seed=5).task_set("train")
    other = CCREnv(num_problems=3, grouping=grouping, seed=6).task_set("train")
    assert list(tasks) == list(again)
    assert [task.id for task in tasks] != [task.id for task in other]
    used = list(itertools.chain.from_iterable(task.metadata["problem_ids"] for task in tasks))
    assert len(used) == len(set(used))


def test_more_groups_than_one_pass_hold_no_problem_twice() -> None:
    tasks = CCREnv(num_problems=3, num_groups=40).task_set("train")
    assert len(tasks) == 40
    assert len({task.id for task in tasks}) == 40
    assert all(len(set(task.metadata["problem_ids"])) == 3 for task in tasks)


def test_stratified_groups_are_of_similar_difficulty(tmp_path: Path) -> None:
    path = tmp_path / "levels.jsonl"
    rows = [{"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i), "level": i % 9} for i in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def spread(grouping: str) -> float:
        tasks = CCREnv(source=str(path), grouping=grouping).task_set("train")
        return statistics.pstdev(statistics.mean(task.metadata["levels"]) for task in tasks)

    assert spread("stratified") < 0.6 * spread("random")


def test_stratified_needs_levels(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_text(
        "".join(json.dumps({"problem": f"{i}?", "answer": "1"}) + "\n" for i in range(20)), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="has no level"):
        CCREnv(source=str(path), grouping="stratified").task_set("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_problems": 0}, "num_problems is 0"),
        ({"grouping": "sorted"}, "grouping is 'sorted'; allowed: random, stratified"),
        ({"duplicates": "first"}, "duplicates is 'first'; allowed: last, none"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"num_problems": True}, "num_problems is True; allowed: a whole number"),
        ({"num_problems": 1.5}, "num_problems is 1.5; allowed: a whole number"),
        ({"num_problems": "abc"}, "num_problems is 'abc'; allowed: a whole number"),
        ({"num_groups": 1.5}, "num_groups is 1.5; allowed: a whole number or null"),
        ({"num_examples": 17}, "num_examples is 17; allowed: 0 to 16"),
        ({"accuracy_weight": "x"}, "accuracy_weight is 'x'; allowed: a number"),
        ({"accuracy_weight": math.nan}, "accuracy_weight is nan; allowed: a number"),
        ({"accuracy_weight": math.inf}, "accuracy_weight is inf; allowed: 0 or more"),
        ({"format_weight": -1}, "format_weight is -1; allowed: 0 or more"),
        ({"mask_after_last_answer": "no"}, "mask_after_last_answer is 'no'; allowed: true or false"),
        ({"seed": -1}, "seed is -1; allowed: 0 or more"),
        ({"min_level": "a"}, "min_level is 'a'; allowed: a number or null"),
        ({"source": 3}, "source is 3; allowed: text or null"),
        ({"verifier": 3}, "verifier is 3; allowed: a mapping"),
        ({"verifier": {"time_limit_s": "a"}}, "verifier.time_limit_s is 'a'; allowed: a number"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CCREnv(**options)


def test_passes_gymnasium_check_and_pickles() -> None:
    check_env(gymnasium.make("winnowrl/CCR-v0").unwrapped, skip_render_check=True)
    environment, _ = environment_with_task()
    copy = pickle.loads(pickle.dumps(environment))
    assert copy.reset(seed=3)[0] == environment.reset(seed=3)[0]


# --- B1 to B8 ---------------------------------------------------------------------------------------------------------


def centred(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def accuracies_of_counts(counts: list[int]) -> list[float]:
    """Accuracy rewards of replies to one task with so many right answers each."""
    environment, golds = environment_with_task(num_problems=3)
    rewards = []
    for count in counts:
        environment.reset(options={"task": environment.task_set("train")[0]})
        text = answer_lines(dict(enumerate(golds[:count], start=1)))
        rewards.append(environment.step(text)[4]["reward_parts"]["accuracy"])
    return rewards


def test_b1_counts_give_centred_advantages() -> None:
    # counts [0, 1, 2, 1] of N = 3: r = [0, 1/3, 2/3, 1/3], mean 1/3, a = [-1/3, 0, 1/3, 0]
    rewards = accuracies_of_counts([0, 1, 2, 1])
    assert rewards == pytest.approx([0, 1 / 3, 2 / 3, 1 / 3])
    assert centred(rewards) == pytest.approx([-1 / 3, 0, 1 / 3, 0])
    assert statistics.pstdev(rewards) == pytest.approx(0.2357022604, abs=1e-9)
    assert statistics.stdev(rewards) == pytest.approx(0.2721655270, abs=1e-9)


@pytest.mark.parametrize(
    ("pmf", "num_candidates", "expected"),
    [
        ([0.5, 0.5], 8, 0.9921875),
        ([0.9, 0.1], 8, 0.56953278),
        ([0.7, 0.2, 0.08, 0.02], 4, 0.75825888),
        ([1.0, 0.0, 0.0, 0.0], 16, 0.0),
        ([0.0, 0.0, 1.0, 0.0], 8, 0.0),
        ([math.comb(3, c) * 0.05**c * 0.95 ** (3 - c) for c in range(4)], 8, 0.7080108629),
        ([0.95, 0.05], 8, 0.3365795687),
        ([math.comb(3, c) * 0.5**3 for c in range(4)], 8, 0.9992177486),
    ],
)
def test_b2_informative_probability(pmf: list[float], num_candidates: int, expected: float) -> None:
    assert informative_probability(pmf, num_candidates) == pytest.approx(expected, abs=1e-9)


def test_b2_brute_force_over_all_outcomes() -> None:
    pmf = [0.7, 0.2, 0.08, 0.02]
    total = sum(
        math.prod(pmf[c] for c in outcome) for outcome in itertools.product(range(4), repeat=4) if len(set(outcome)) > 1
    )
    assert informative_probability(pmf, 4) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([3000, 2500, 3200], 2), ([3000, 2500, 2500], 3), ([8001, 1, 1], 0), ([2000, 1000, 1000], 3)],
)
def test_b3_completed_problems(lengths: list[int], expected: int) -> None:
    assert num_completed(lengths, 8000) == expected


def test_b4_gains() -> None:
    assert conciseness_gain([0.5, 0.6, 0.3], 1, 3) == pytest.approx(0.3)
    assert reasoning_gain(0.2, [0.5], 3) == pytest.approx(-0.1)
    assert reasoning_gain(0.2, [], 3) == pytest.approx(0.0666666667)
    assert reasoning_gain(0.2, [], 3, length_penalty=1e-4, extra_tokens=400) == pytest.approx(0.0266666667)


def test_b5_reward_noise() -> None:
    theta = [0.9, 0.5, 0.2]
    assert reward_noise(theta) == pytest.approx(0.0555555556)
    assert reward_noise(theta, 4) == pytest.approx(0.0416666667)
    assert reward_noise([0.5] * 3) == pytest.approx(1 / 12)


def test_b6_update_variance() -> None:
    values = [update_variance(n, 0.2) for n in (1, 2, 3, 4)]
    assert values == pytest.approx([1.0, 0.6, 0.4666666667, 0.4])


def test_b7_token_savings() -> None:
    # The reported savings follow from the reported tokens a step.
    for before, after, saved, factor in ((975_464, 174_957, 0.8206, 5.575), (793_832, 165_788, 0.7912, 4.788)):
        assert 1 - after / before == pytest.approx(saved, abs=5e-5)
        assert before / after == pytest.approx(factor, abs=5e-4)


def rollout(correct: list[bool], recovered: list[bool] | None = None) -> dict[str, Any]:
    recovered = recovered or [True] * len(correct)
    return {"num_problems": len(correct), "correct": correct, "recovered": recovered, "n_eff": sum(recovered)}


def test_b8_accuracy_and_total_variance_are_told_apart() -> None:
    # R = acc + 0.5 fmt: B1's counts with fmt [1, 1, 0, 1]
    rewards = [a + 0.5 * f for a, f in zip(accuracies_of_counts([0, 1, 2, 1]), [1, 1, 0, 1], strict=True)]
    assert centred(rewards) == pytest.approx([-0.208333, 0.125, -0.041667, 0.125], abs=1e-6)
    # No answer right in any rollout: the total varies through format alone.
    starved = [rollout([False] * 3) for _ in range(4)]
    totals = [0.5, 0.0, 0.5, 0.5]
    assert centred(totals) == pytest.approx([0.125, -0.375, 0.125, 0.125])
    metrics = group_metrics([starved], [totals])
    assert (metrics["accuracy_informative_groups"], metrics["reward_informative_groups"]) == (0.0, 1.0)


def test_equal_counts_starve_a_group_though_rewards_are_positive() -> None:
    group = [rollout([True, False, False]), rollout([False, True, False])]
    assert group_metrics([group], [[1 / 3, 1 / 3]])["accuracy_informative_groups"] == 0.0


def test_group_metrics_count_positions() -> None:
    group = [rollout([True, False], [True, False]), rollout([True, True])]
    metrics = group_metrics([group, [rollout([False, False], [False, False])]], [[0.5, 1.0], [0.0]])
    assert metrics["accuracy_informative_groups"] == 0.5
    assert metrics["answers_recovered"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert metrics["position_accuracy/1"] == pytest.approx(2 / 3)
    assert metrics["position_recovered/2"] == pytest.approx(1 / 3)
    assert [metrics[f"count_probability/{c}"] for c in range(3)] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert group_metrics([], []) == {}
    with pytest.raises(ValueError, match="differ in shape"):
        group_metrics([group], [[1.0]])


def test_worked_examples_are_well_formed_right_and_no_problem_of_the_set() -> None:
    environment, _ = environment_with_task(source="sums", num_problems=3, num_examples=16)
    prompt = environment.task_set("train")[0].prompt
    *examples, asked = re.split(r"(?<=\})\n\n", prompt)
    assert len(examples) == 16
    assert len({*examples}) == 16
    problems = {t.prompt for split in ("train", "eval") for t in environment.single.task_set(split)}
    for example in examples:
        recovery = recover(example, 3)
        assert recovery.is_well_formed
        sums = re.findall(r"What is (\d+) \+ (\d+)\?", example)
        assert [int(a) + int(b) for a, b in sums] == [int(answer or "") for answer in recovery.answers]
        assert not problems & {f"What is {a} + {b}?" for a, b in sums}
    assert asked.count("### Problem") == 3
    assert prompt.endswith("?\n\n"), "a reply begins on a line of its own"


def test_without_examples_the_prompt_is_as_before() -> None:
    plain, _ = environment_with_task(source="sums")
    shown, _ = environment_with_task(source="sums", num_examples=1)
    assert plain.task_set("train")[0].prompt.split("\n\n")[1:] == shown.task_set("train")[0].prompt.split("\n\n")[-4:-1]
    with pytest.raises(ValueError, match="num_examples is -1; allowed: 0 to 16"):
        CCREnv(num_examples=-1)


def test_sums_are_right_and_split_without_overlap() -> None:
    environment = CCREnv(source="sums", grouping="stratified")
    train, held_out = (environment.single.task_set(split) for split in ("train", "eval"))
    assert len(train) + len(held_out) == 1600
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    for task in [*train, *held_out]:
        a, b = map(int, re.findall(r"\d+", task.prompt))
        assert task.answer == str(a + b)
        assert task.metadata["level"] == 1 + (a > 9) + (b > 9)
    for group in environment.task_set("train"):
        assert len(group.metadata["levels"]) == 3
