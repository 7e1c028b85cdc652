import csv
import dataclasses
import io
import json
import math
import random

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from winnowrl.configs.load import ConfigError
from winnowrl.gates import PrefixEditDistanceGate
from winnowrl.gates.base import Rule
from winnowrl.gates.fit_report import config_lines, summary_lines, sweep_csv, type_table
from winnowrl.gates.fit_run import fit_gate
from winnowrl.gates.fitting import (
    RuleScore,
    assign_folds,
    candidate_thresholds,
    score_by_type,
    score_rule,
    sweep,
    turn_table,
)
from winnowrl.gates.intervals import wilson_interval
from winnowrl.gates.records import RecordedGroup
from winnowrl.gates.signals import (
    action_bigram_jaccard_mean,
    action_entropy,
    auroc,
    average_ranks,
    spearman,
    unique_action_ratio,
    unique_prefix_ratio,
)
from winnowrl.training.cli.gate import app

PLAN = ("a", "b", "c", "d")


def group(number, actions, rewards, *, tokens=10.0, **fields):
    spent = tuple((tokens,) * len(each) for each in actions)
    return RecordedGroup(
        1, number, f"task-{number}", "pick", len(actions), tuple(actions), spent, tuple(rewards), **fields
    )


SAME = [PLAN] * 2
APART = [PLAN, ("x", "y", "z", "w")]


def four_groups():
    """d at turn 2 is 0, 0, 1, 1; rewards are equal, differ, equal, differ."""
    return [group(0, SAME, [0, 0]), group(1, SAME, [0, 1]), group(2, APART, [1, 1]), group(3, APART, [0, 1])]


def test_counts_and_tokens_of_a_rule():
    # Stopped: 0 (right) and 1 (wrong). Each of the four holds 2 * 4 turns of 10 tokens, half of them after turn 2.
    score = score_rule(turn_table(four_groups(), 2), Rule(distance_low=0.5))
    assert (score.tp, score.fp, score.fn, score.tn) == (1, 1, 1, 1)
    assert (score.tokens_saved, score.tokens_saved_safe, score.tokens_total) == (80, 40, 320)
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)
    assert (score.saved, score.saved_safe) == (0.25, 0.125)
    assert score.advantage_kept == pytest.approx(math.sqrt(1 / 2))


def test_a_group_that_is_over_by_the_turn_cannot_be_stopped():
    score = score_rule(turn_table(four_groups(), 4), Rule(distance_low=0.5))
    assert score.tp + score.fp == 0
    assert score.precision == score.recall == score.saved == 0.0


def test_the_replay_decides_as_the_gate_does():
    rng = random.Random(3)
    groups = []
    for number in range(200):
        lengths = [rng.randint(1, 8) for _ in range(4)]
        groups.append(group(number, [tuple(rng.choice("ab") for _ in range(n)) for n in lengths], [0, 0, 0, 1]))
    for padding in ("end", "none"):
        table = turn_table(groups, 5, padding=padding)
        gate = PrefixEditDistanceGate(turn=5, threshold=0.45, padding=padding, termination_fraction=0.7)
        replayed = gate.rule.fires(table.distance, table.termination) & table.can_stop
        live = [
            gate.decide([each[:5] for each in one.actions], [len(each) <= 5 for each in one.actions]).stop
            for one in groups
        ]
        assert replayed.tolist() == live
        assert 20 < sum(live) < 180


def test_candidates_tell_all_distances_apart_in_few_digits():
    distances = np.array([0.0, 0.1, 0.1071, 0.1214, 0.0])
    candidates = candidate_thresholds(distances)
    assert candidates == [0.05, 0.104, 0.11, 0.15]
    assert [(distances < threshold).sum() for threshold in candidates] == [2, 3, 4, 5]
    assert len(candidate_thresholds(np.linspace(0, 1, 500), limit=10)) <= 10


def test_no_threshold_above_a_distance_of_one():
    assert candidate_thresholds(np.array([0.5, 1.0])) == [0.75]


def test_types_are_scored_apart():
    groups = [*four_groups(), RecordedGroup(1, 9, "t9", "clean", 2, (PLAN, PLAN), ((10.0,) * 4,) * 2, (0.0, 0.0))]
    scores = score_by_type(turn_table(groups, 2), Rule(distance_low=0.5))
    assert scores["clean"].precision == 1.0
    assert scores["pick"].precision == 0.5
    total = scores["clean"] + scores["pick"]
    assert total == score_rule(turn_table(groups, 2), Rule(distance_low=0.5))


def test_groups_of_one_task_stay_in_one_part():
    tasks = np.array([f"task-{n % 7}" for n in range(70)])
    parts = assign_folds(tasks, folds=5, seed=1)
    assert all(len(set(parts[tasks == task].tolist())) == 1 for task in np.unique(tasks))
    assert set(parts.tolist()) == {0, 1, 2, 3, 4}
    assert parts.tolist() == assign_folds(tasks, folds=5, seed=1).tolist()


def synthetic(rng, number, *, size=8, length=12):
    """Members of a hopeless task repeat one plan with few slips; those of a teaching task differ and so do rewards."""
    is_equal = number % 2 == 0
    slip = 0.05 if is_equal else 0.5
    plan = [rng.choice("abcdef") for _ in range(length)]
    actions = [tuple(rng.choice("uvwxyz") if rng.random() < slip else step for step in plan) for _ in range(size)]
    rewards = [0.0] * size if is_equal else [float(index < 3) for index in range(size)]
    kind = ("pick", "clean")[number % 4 // 2]
    spent = ((7.0,) * length,) * size
    return RecordedGroup(number // 10, number, f"task-{number}", kind, size, tuple(actions), spent, tuple(rewards))


def test_a_fit_finds_the_gate_that_was_put_in():
    rng = random.Random(0)
    fit = fit_gate([synthetic(rng, number) for number in range(60)], precision_floor=0.9)
    assert fit.group_size == 8
    assert fit.best is not None
    assert fit.best.score.precision >= 0.9
    assert fit.best.score.recall > 0.9
    # Half the groups are stopped, the earlier the more is saved.
    assert fit.best.score.saved_safe > 0.3
    assert fit.cross_validation is not None
    assert fit.cross_validation.score.precision > 0.8
    assert set(fit.by_type) == {"pick", "clean"}
    aurocs = {row.signal: row.auroc for row in fit.signals if row.turn == fit.best.turn}
    assert aurocs["prefix_edit_distance_mean"] > 0.9


def test_without_a_good_setting_none_is_chosen():
    groups = [group(n, SAME, [0, 1]) for n in range(6)] + [group(9, APART, [0, 0])]
    fit = fit_gate(groups, turns=[2], precision_floor=0.9)
    assert fit.best is None
    assert config_lines(fit) == ""
    assert any("leave the gate off" in line for line in summary_lines(fit))


def test_stopping_everything_is_no_gate_however_precise() -> None:
    # 19 of 20 groups have equal rewards, the one that differs lies in the middle: any floor of precision up to .95 lets
    # a threshold above all distances pass, and it would leave nothing to learn from.
    rng = random.Random(2)
    groups = [synthetic(rng, 2 * number, length=6) for number in range(19)]
    groups.append(dataclasses.replace(groups[0], task_id="odd", rewards=(0.0,) * 7 + (1.0,)))
    everything = fit_gate(groups, precision_floor=0.9, kept_floor=0.0)
    assert everything.best is not None
    assert (everything.best.score.fp, everything.best.score.advantage_kept) == (1, 0.0)
    fit = fit_gate(groups, precision_floor=0.9)
    assert fit.best is None or fit.best.score.advantage_kept >= 0.9
    assert any("at random would have precision 0.950" in line for line in summary_lines(fit))


def test_the_text_says_that_thresholds_do_not_carry_over():
    rng = random.Random(0)
    fit = fit_gate([synthetic(rng, number) for number in range(20)])
    assert "do not carry over between group sizes" in " ".join(summary_lines(fit))
    assert "groups of 8" in config_lines(fit)


def test_other_group_sizes_are_left_out_and_said():
    groups = [*four_groups(), group(9, [PLAN] * 4, [0, 0, 0, 1])]
    fit = fit_gate(groups, turns=[2])
    assert len(fit.tables[0]) == 4
    assert fit.notes == ("groups of other sizes left out: 1 of 4",)
    assert fit_gate(groups, turns=[2], group_size=4).group_size == 4
    with pytest.raises(ValueError, match="group size is 5; recorded: 2, 4"):
        fit_gate(groups, group_size=5)


def test_audited_groups_stand_for_the_stopped_ones():
    # Six stopped, two audited: each audited one counts 1 + 6 / 2 = 4.
    stopped = [group(10 + n, SAME, [0, 0], was_gated=True) for n in range(6)]
    audited = [group(20, SAME, [0, 0], is_audit=True), group(21, SAME, [0, 1], is_audit=True)]
    fit = fit_gate([group(30, APART, [0, 1]), *audited, *stopped], turns=[2])
    score = score_rule(fit.tables[0], Rule(distance_low=0.5))
    assert (score.tp, score.fp, score.tn) == (4, 4, 1)
    # Eight groups by weight, but two observations.
    assert score.precision_interval == wilson_interval(1, 2)
    assert fit.notes == ("6 groups were stopped by a gate; 2 audited ones count 4.0 each",)
    fit = fit_gate([group(30, APART, [0, 1]), *stopped], turns=[2])
    assert "none audited" in fit.notes[0]


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([], "none of 0 recorded groups"),
        ([group(1, SAME, [0, 0], was_gated=True)], "none of 1 recorded groups"),
        ([group(1, [("a",), ("b",)], [0, 1])], "single turn"),
    ],
)
def test_runs_that_cannot_be_fitted_say_why(groups, text):
    with pytest.raises(ValueError, match=text):
        fit_gate(groups)


def test_signals_by_hand():
    # Third actions c, c, x and one member that ended; prefixes abc, abc, abx, ab.
    members = [("a", "b", "c", "z"), ("a", "b", "c"), ("a", "b", "x"), ("a", "b")]
    assert unique_action_ratio(members, 3) == 3 / 4
    assert unique_prefix_ratio(members, 3) == 3 / 4
    # Shares 1/2, 1/4, 1/4: 1.5 bits of log2(4) = 2.
    assert action_entropy(members, 3) == pytest.approx(0.75)
    assert action_entropy([("a",)] * 4, 1) == 0.0
    # Bigram sets {ab,bc} {ab,bc} {ab,bx} {ab}: distances 0, 2/3, 1/2, 2/3, 1/2, 1/2.
    assert action_bigram_jaccard_mean(members, 3) == pytest.approx((0 + 2 / 3 + 1 / 2 + 2 / 3 + 1 / 2 + 1 / 2) / 6)
    assert action_bigram_jaccard_mean([("a",), ("b",)], 3) == 0.0


def test_ranks_and_scores_by_hand():
    assert average_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    # Positives 2 and 3 against 1 and 2: three wins and a tie of four.
    assert auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])) == 3.5 / 4
    assert math.isnan(auroc(np.array([1.0, 2.0]), np.array([True, True])))
    assert spearman(np.arange(5.0), np.arange(5.0) ** 3)[0] == pytest.approx(1.0)
    assert spearman(np.arange(5.0), -np.arange(5.0))[0] == pytest.approx(-1.0)
    assert math.isnan(spearman(np.zeros(5), np.arange(5.0))[0])


@pytest.mark.parametrize("freedom", [1, 2, 10, 5000])
def test_p_values_at_known_points(freedom):
    # f = 1: P(|T| > t) = 1 - 2 atan(t) / pi; f = 2: 1 - t / sqrt(2 + t^2) = 1 - rho; large f: the normal tail.
    from winnowrl.gates.signals import _p_value

    rho = 0.03 if freedom == 5000 else 0.6
    t = rho * math.sqrt(freedom / (1 - rho**2))
    known = {
        1: 1 - 2 * math.atan(t) / math.pi,
        2: 1 - rho,
        10: 0.0391,  # t = 2.3717: two-sided table value
        5000: math.erfc(t / math.sqrt(2)),
    }[freedom]
    assert _p_value(rho, freedom) == pytest.approx(known, rel=2e-3)


def record(one):
    return [
        {"step": one.step, "group_id": one.group_id, "task_id": one.task_id, "task_type": one.task_type, "index": index,
         "actions": list(actions), "reward": reward, "stop_reason": "env_done", "was_gated": False, "is_audit": False,
         "num_completion_tokens": 84, "tokens_per_turn": [7] * len(actions)}
        for index, (actions, reward) in enumerate(zip(one.actions, one.rewards, strict=True))
    ]  # fmt: skip


def test_the_command_prints_and_writes_what_to_paste(tmp_path):
    rng = random.Random(1)
    folder = tmp_path / "rollouts"
    folder.mkdir()
    rows = [row for number in range(40) for row in record(synthetic(rng, number))]
    (folder / "step_000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = CliRunner().invoke(app, ["fit", str(tmp_path), "--turns", "3,6", "--precision", "0.9"])
    assert result.exit_code == 0, result.output
    assert "do not carry over between group sizes" in " ".join(result.output.split())
    assert "type: prefix_edit_distance" in result.output
    assert (tmp_path / "gate_fit.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "gate_fit.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert {row["task_type"] for row in table} == {"", "pick", "clean"}
    assert {row["turn"] for row in table} == {"3", "6"}
    from omegaconf import OmegaConf

    from winnowrl.configs.sections.gate import GateConfig

    pasted = OmegaConf.load(tmp_path / "gate_fit.yaml")
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(GateConfig), pasted["gate"]))
    assert config.type == "prefix_edit_distance"
    assert config.precision_floor == 0.9


def test_types_are_shown_as_they_are_and_nothing_over_nothing_as_a_dash():
    rng = random.Random(1)
    groups = [synthetic(rng, number) for number in range(40)]
    fit = fit_gate(groups, turns=[3], precision_floor=0.5, kept_floor=0.0)
    assert fit.best is not None
    console = Console(file=io.StringIO(), width=160)
    console.print(type_table(dataclasses.replace(fit, by_type={"[/x]": RuleScore(), "[red]": RuleScore(fn=1.0)})))
    shown = console.file.getvalue()
    assert "[/x]" in shown
    assert "[red]" in shown
    assert "nan" not in shown
    assert " - " in shown


def test_lines_of_an_earlier_fit_do_not_outlive_one_that_chose_nothing(tmp_path):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    groups = [group(n, SAME, [0, 1]) for n in range(6)] + [group(9, APART, [0, 0])]
    rows = [row for one in groups for row in record(one)]
    (folder / "step_000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "gate_fit.yaml").write_text("gate: {turn: 3}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["fit", str(tmp_path), "--turns", "2", "--precision", "0.9"])
    assert result.exit_code == 0, result.output
    assert "leave the gate off" in " ".join(result.output.split())
    assert not (tmp_path / "gate_fit.yaml").exists()


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "--turns", "a,b"], ["nowhere", "--turns", "0"]])
def test_mistakes_on_the_command_line_are_the_users(arguments):
    result = CliRunner().invoke(app, ["fit", *arguments])
    assert isinstance(result.exception, ConfigError)


def test_the_sweep_as_csv_adds_up():
    fit = fit_gate(four_groups(), turns=[2])
    rows = list(csv.DictReader(sweep_csv(fit).splitlines()))
    assert len(rows) == 2 * len(sweep(fit.tables))
