"""Whole runs on a tiny random model: the loop, its files, resume after kill -9, evaluation, the user's mistakes."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from winnowrl.agents.recording import read_run
from winnowrl.configs.load import ConfigError
from winnowrl.training.batch import NonFiniteUpdateError
from winnowrl.training.evaluate_command import EvaluationRequest, run_evaluation
from winnowrl.training.run import resume, train
from winnowrl.training.trackers import check_trackers

SUPPORT = Path(__file__).parents[1] / "support"
# Wall-clock figures and memory differ from run to run; everything else must not.
TIMED = ("seconds/", "time/", "memory/", "_per_s", "collect/seconds", "saved_s", "/mfu")


def tiny_config(model: Path, folder: Path, **sections: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "run": {"folder": str(folder), "num_steps": 4, "name": "tiny", "trackers": []},
        "model": {"path": str(model), "dtype": "float32"},
        "environment": {"id": "winnowrl_test_env:WinnowTest/Parity-v0"},
        "conversation": {"template": "plain", "turn_tokens": 3, "rollout_tokens": 12, "context_tokens": 96},
        "engine": {"type": "transformers", "dtype": "float32", "is_deterministic": True},
        "collector": {"tasks_per_step": 3, "rollouts_per_task": 4},
        "learner": {"learning_rate": 1e-3},
        "evaluation": {"num_tasks": 6, "samples_per_task": 2, "temperature": 1.0},
        "checkpoint": {"every_steps": 2},
    }
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config


@pytest.fixture(autouse=True)
def _support_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SUPPORT))


def comparable_rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(mark in k for mark in TIMED)} for row in rows]


def undocumented_names(folder: Path) -> list[str]:
    """Names a run logs that docs/metrics.md does not have, written out or in its short forms."""
    patterns: list[str] = []
    for line in (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().splitlines():
        full = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("| `") else ():
            # `a/b_c`, `_d`, `e` stands for a/b_c, a/b_d, a/e; an ellipsis or <part> for anything.
            start = full.rpartition("_")[0] if name.startswith("_") else f"{full.partition('/')[0]}/"
            full = name if "/" in name else start + name
            patterns += [re.sub(r"…|<part>", ".+", written) for written in (full, name)]
    names = {name for row in comparable_rows(folder) for name in row}
    return sorted(name for name in names - {"step"} if not any(re.fullmatch(p, name) for p in patterns))


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SUPPORT), "WINNOWRL_PRELOADED": "1", **environment}
    command = [sys.executable, "-m", "winnowrl.training.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=240)


def write_config(path: Path, config: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_a_run_writes_its_folder_and_says_what_it_came_to(tiny_model_path: Path, tmp_path: Path) -> None:
    summary = train(tiny_config(tiny_model_path, tmp_path))
    folder = tmp_path / "tiny"
    assert summary["is_finished"]
    assert summary["steps"] == 4
    assert summary["heldout_tasks"] == 6
    assert 0 <= summary["heldout_before"] <= 1
    assert summary["train_seconds"] > 0
    assert summary["peak_rss_bytes"] > 10**8
    assert json.loads((folder / "summary.json").read_text())["heldout_after"] == summary["heldout_after"]
    rows = comparable_rows(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["policy_version"] == 4
    assert rows[0]["mismatch/mean_abs"] < 1e-4
    assert rows[0]["mismatch/after_sync"] < 1e-4
    assert len(list(read_run(folder / "rollouts"))) == 4 * 3 * 4
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step_000002", "step_000004"]
    assert (folder / "evaluations" / "before" / "report.md").read_text().startswith("# Evaluation")
    ledger = summary["ledger"]["total"]
    assert sum(ledger["tokens"].values()) == sum(row["tokens/generated"] for row in rows)


@pytest.mark.parametrize(
    "sections",
    [
        {"environment": {"kwargs": {"num_turns": 3}}},
        {"allocator": {"type": "vigor", "rounds": 2}, "objective": {"loss_type": "dapo", "weighting": "task"}},
        {"allocator": {"type": "vip", "least_rollouts": 3, "most_rollouts": 6}},
        {"selector": {"type": "cbs_star"}, "objective": {"loss_type": "gspo"}},
        {"selector": {"type": "cbs", "buffer_rounds": 2}, "objective": {"dual_clip": 10.0}},
        {
            "selector": {"replay": {"type": "advantage_prioritized", "warmup_steps": 1}},
            "objective": {"dual_clip": 10.0},
        },
        {"selector": {"dynamic_sampling": {"type": "refill"}}, "learner": {"num_iterations": 2, "num_minibatches": 2}},
        {
            "environment": {"kwargs": {"num_turns": 3}},
            "gate": {
                "type": "prefix_edit_distance",
                "turn": 2,
                "threshold": 0.9,
                "audit_fraction": 0.5,
                "respend": True,
            },
        },
        {"learner": {"lora": {"rank": 4}}, "objective": {"kl_coef": 0.01}},
        {"objective": {"loss_type": "dr_grpo", "overlong_penalty": 0.5, "overlong_cache": 4}},
    ],
    ids=["multi-turn", "vigor+dapo", "vip", "cbs_star+gspo", "cbs", "replay", "refill", "gate", "lora+kl", "dr_grpo"],
)
def test_every_part_runs_inside_a_training_run(sections: dict[str, Any], tiny_model_path: Path, tmp_path: Path) -> None:
    evaluation = {"before": False, "after": False}
    summary = train(tiny_config(tiny_model_path, tmp_path, evaluation=evaluation, run={"num_steps": 3}, **sections))
    assert summary["steps"] == 3
    assert summary["policy_version"] >= 1
    assert undocumented_names(tmp_path / "tiny") == []


def test_a_run_killed_in_the_middle_of_a_step_resumes_to_the_same_rows(tiny_model_path: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "environment": {"id": "winnowrl_test_env:WinnowTest/DeadlyParity-v0"},
        "run": {"num_steps": 5},
        "selector": {"type": "cbs_star", "replay": {"type": "advantage_prioritized", "warmup_steps": 1}},
        "objective": {"dual_clip": 10.0},
        "evaluation": {"after": False},
    }
    straight = write_config(tmp_path / "a.yaml", tiny_config(tiny_model_path, tmp_path / "straight", **sections))
    assert run_cli("train", straight).returncode == 0
    killed = write_config(tmp_path / "b.yaml", tiny_config(tiny_model_path, tmp_path / "killed", **sections))
    # Evaluation begins 12 episodes and a step 12: the 51st lies within the fourth step, after the save of the second.
    assert run_cli("train", killed, WINNOWRL_TEST_KILL_AT="51").returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / "tiny"
    assert [row["step"] for row in comparable_rows(folder)] == [1, 2, 3]
    done = run_cli("resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert "resuming after step 2" in done.stdout
    assert comparable_rows(folder) == comparable_rows(tmp_path / "straight" / "tiny")


def test_resuming_exactly_at_the_end_of_an_epoch_goes_on(tiny_model_path: Path, tmp_path: Path) -> None:
    # 12 tasks, 3 a step: the epoch ends with step 4.
    evaluation = {"before": False, "after": False}
    train(tiny_config(tiny_model_path, tmp_path / "a", evaluation=evaluation, run={"num_steps": 4}))
    resume(tmp_path / "a" / "tiny", ["run.num_steps=6"])
    train(tiny_config(tiny_model_path, tmp_path / "b", evaluation=evaluation, run={"num_steps": 6}))
    # The learning-rate schedule is constant, so that a longer run differs in nothing else.
    assert comparable_rows(tmp_path / "a" / "tiny") == comparable_rows(tmp_path / "b" / "tiny")


def test_ctrl_c_finishes_the_step_saves_and_can_be_resumed(tiny_model_path: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_model_path, tmp_path, run={"num_steps": 200}, evaluation={"before": False})
    env = {**os.environ, "PYTHONPATH": str(SUPPORT), "WINNOWRL_PRELOADED": "1"}
    command = [sys.executable, "-m", "winnowrl.training.cli", "train", write_config(tmp_path / "c.yaml", config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    metrics = tmp_path / "tiny" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "stopping after this step" in output
    steps = [row["step"] for row in comparable_rows(tmp_path / "tiny")]
    assert (tmp_path / "tiny" / "checkpoints" / f"step_{steps[-1]:06d}" / "manifest.json").exists()
    summary = resume(tmp_path / "tiny", [f"run.num_steps={steps[-1] + 1}"])
    assert summary["steps"] == steps[-1] + 1


def test_evaluating_a_run_reads_its_checkpoint_and_refuses_trained_tasks(tiny_model_path: Path, tmp_path: Path) -> None:
    summary = train(tiny_config(tiny_model_path, tmp_path, evaluation={"temperature": 0.0, "samples_per_task": 1}))
    report = run_evaluation(EvaluationRequest(run=tmp_path / "tiny", output=tmp_path / "again"))
    assert report["mean"]["mean"] == summary["heldout_after"]
    untrained = run_evaluation(EvaluationRequest(run=tmp_path / "tiny", step=0, output=tmp_path / "zero"))
    assert untrained["mean"]["mean"] == summary["heldout_before"]
    with pytest.raises(ConfigError, match="measure memory"):
        run_evaluation(EvaluationRequest(run=tmp_path / "tiny", tasks="train"))


def test_an_exported_run_loads_in_transformers_and_remembers_its_tasks(tiny_model_path: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from winnowrl.training.export import export_run

    config = tiny_config(tiny_model_path, tmp_path, evaluation={"before": False, "after": False})
    train(config)
    folder = export_run(tmp_path / "tiny", tmp_path / "model")
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    path = write_config(tmp_path / "c.yaml", config)
    with pytest.raises(ConfigError, match="trained on"):
        run_evaluation(EvaluationRequest(model=str(folder), config=path, tasks="train"))
    with pytest.raises(ConfigError, match="not empty"):
        export_run(tmp_path / "tiny", tmp_path / "model")


def test_no_way_leads_from_trained_tasks_to_an_evaluation(tiny_model_path: Path, tmp_path: Path) -> None:
    from winnowrl.training.export import export_run
    from winnowrl.training.preflight import trained_tasks

    sums = {letter: [{"prompt": f"{letter}{i}", "answer": str(i)} for i in range(4)] for letter in "ABC"}
    first, second, third = (_rows(tmp_path / f"{letter}.jsonl", *rows) for letter, rows in sums.items())

    def config(model: Path, name: str, train_on: str, evaluate_on: str) -> dict[str, Any]:
        environment = {"id": "winnowrl/Math-v0", "kwargs": {"source": train_on, "eval_source": evaluate_on}}
        sections = {"environment": environment, "evaluation": {"before": False, "after": False}}
        return tiny_config(model, tmp_path, **sections, run={"name": name, "num_steps": 1})

    train(config(tiny_model_path, "first", first, third))
    # Another train split, named at evaluation, does not hide the run's own.
    request = EvaluationRequest(
        run=tmp_path / "first", step=0, tasks=first, overrides=(f"environment.kwargs.source={second}",)
    )
    with pytest.raises(ConfigError, match="measure memory"):
        run_evaluation(request)
    exported = export_run(tmp_path / "first", tmp_path / "exported")
    with pytest.raises(ConfigError, match="was trained on"):
        train(config(exported, "again", second, first))
    # A second export remembers both.
    train(config(exported, "second", second, third))
    folder = export_run(tmp_path / "second", tmp_path / "second_export")
    assert {task.prompt[0] for task in trained_tasks(str(folder))} == {"A", "B"}


def test_evaluations_of_different_questions_have_different_folders(tmp_path: Path) -> None:
    from winnowrl.training.evaluate_command import _default_output

    requests = [
        EvaluationRequest(model="a/policy"),
        EvaluationRequest(model="b/policy"),
        EvaluationRequest(model="policy", samples=8),
        EvaluationRequest(model="policy", tasks="x/test.jsonl"),
        EvaluationRequest(model="policy", tasks="y/test.jsonl"),
        EvaluationRequest(model="policy", overrides=("sampling.top_k=5",)),
    ]
    folders = [_default_output(request, None) for request in requests]
    assert len(set(folders)) == len(folders)
    assert _default_output(EvaluationRequest(model="policy"), None) == Path("evaluations/policy")


def test_a_task_whose_answer_was_mended_is_evaluated_anew(tiny_model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    _rows(path, {"id": "one", "prompt": "1+1", "answer": "3"}, {"id": "two", "prompt": "2+2", "answer": "4"})
    config = write_config(tmp_path / "c.yaml", tiny_config(tiny_model_path, tmp_path))
    request = EvaluationRequest(model=str(tiny_model_path), config=config, tasks=str(path), output=tmp_path / "out")
    run_evaluation(request)
    before = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    _rows(path, {"id": "one", "prompt": "1+1", "answer": "2"}, {"id": "two", "prompt": "2+2", "answer": "4"})
    (tmp_path / "out" / "report.json").unlink()
    run_evaluation(request)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["tasks"] != before["tasks"]


def _rows(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["collector.rollouts_pertask=4"], "collector.rollouts_per_task"),
        (["run.num_steps=many"], "run.num_steps"),
        (["model.path=/no/such/model"], "no such folder"),
        (["environment.kwargs={num_turns: 2, turns: 3}"], "num_turns"),
        (["environment.id=NoSuch-v0"], "does not know"),
        (["collector.rollouts_per_task=1"], "at least 2 rollouts"),
        (["conversation.context_tokens=4"], "conversation.context_tokens"),
        (["run.folder=/proc/runs"], "cannot be written"),
        (["environment.eval_split=train"], "held-out"),
        (["gate.turn=3"], "gate.type"),
        (["engine.type=openai"], "engine.type"),
        (["selector.type=cbs"], "objective.dual_clip"),
        (["run.trackers=[wandb]"], "run.trackers names 'wandb', which is not installed"),
        (["learner.lora={rank: 2, target_modules: [q_proj, nope]}"], "target_modules names 'nope'; allowed: "),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    overrides: list[str],
    sentence: str,
    tiny_model_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    path = write_config(tmp_path / "c.yaml", tiny_config(tiny_model_path, tmp_path / "runs"))
    assert _main("train", path, *overrides) == 2
    error = capfd.readouterr().err.strip()
    assert error.startswith("error: ")
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "no rows"),
        ([{"problem": "1+1"}], "no answer column"),
        ([{"problem": "1+1", "answer": ""}], "answer is empty"),
    ],
)
def test_bad_task_files_are_named(
    rows: list[dict[str, Any]], sentence: str, tiny_model_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = _rows(tmp_path / "tasks.jsonl", *rows)
    environment = {"id": "winnowrl/Math-v0", "kwargs": {"source": source}}
    config = tiny_config(tiny_model_path, tmp_path / "runs")
    config["environment"] = environment
    assert _main("train", write_config(tmp_path / "c.yaml", config)) == 2
    error = capfd.readouterr().err
    assert sentence in error
    assert "tasks.jsonl" in error


def test_a_folder_named_like_a_tracker_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As wandb leaves one where it ran.
    (tmp_path / "winnow_tracker").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="'winnow_tracker', which is not installed"):
        check_trackers(["tensorboard", "winnow_tracker"])
    (tmp_path / "winnow_tracker" / "__init__.py").touch()
    importlib.invalidate_caches()
    check_trackers(["winnow_tracker"])


@pytest.mark.parametrize(
    ("override", "sentence"),
    [("run.trackers=[trackio]", "not installed"), ("learner.lora={rank: 1, target_modules: [nope]}", "names 'nope'")],
)
def test_a_dry_run_checks_what_training_alone_needs(
    override: str,
    sentence: str,
    tiny_model_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    path = write_config(tmp_path / "c.yaml", tiny_config(tiny_model_path, tmp_path))
    assert _main("train", path, "--dry-run", override) == 2
    assert sentence in capfd.readouterr().err
    # An evaluation needs neither.
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 0}, evaluation={"after": False}))
    assert _main("eval", "--run", str(tmp_path / "tiny"), "--step", "0", "run.trackers=[trackio]") == 0


def test_an_existing_run_folder_is_not_overwritten(
    tiny_model_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    assert _main("train", write_config(tmp_path / "c.yaml", tiny_config(tiny_model_path, tmp_path))) == 2
    assert "exists already" in capfd.readouterr().err


def test_a_dry_run_prints_the_derived_numbers_and_writes_nothing(
    tiny_model_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path / "c.yaml", tiny_config(tiny_model_path, tmp_path / "runs"))
    assert _main("train", path, "--dry-run") == 0
    printed = capfd.readouterr().out
    for number in ("rollouts a step", "most tokens generated a step", "optimizer steps a step", "memory in all"):
        assert number in printed
    assert not (tmp_path / "runs").exists()


def _main(*arguments: str) -> int:
    """The command in this process; its exit code."""
    from winnowrl.training.cli.app import run_app

    earlier = sys.argv
    sys.argv = ["winnowrl", *arguments]
    try:
        run_app()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = earlier
    return 0


def test_a_folder_is_written_by_one_process_at_a_time(tiny_model_path: Path, tmp_path: Path) -> None:
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation={"before": False, "after": False}))
    hold = (
        "import sys; from winnowrl.training.run_folder import RunFolder\n"
        "with RunFolder.open(sys.argv[1]).locked():\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "tiny")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        config = (tmp_path / "tiny/config.yaml").read_text()
        with pytest.raises(ConfigError, match="being written by another process"):
            resume(tmp_path / "tiny", ["run.num_steps=2"])
        assert (tmp_path / "tiny/config.yaml").read_text() == config
        holder.kill()
    assert resume(tmp_path / "tiny", ["run.num_steps=2"])["steps"] == 2


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("run: {num_steps: 1}")
    (tmp_path / ".lock").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        resume(tmp_path)


def test_an_update_that_is_not_finite_stops_the_run_and_spoils_no_checkpoint(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnowrl.training.learner import engine

    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation={"before": False, "after": False}))
    monkeypatch.setattr(engine.TrainingEngine, "_clip", lambda self: float("nan"))
    with pytest.raises(NonFiniteUpdateError, match=r"gradient of this update is not a finite number.*lower learner"):
        resume(tmp_path / "tiny", ["run.num_steps=4"])
    assert [path.name for path in (tmp_path / "tiny/checkpoints").iterdir()] == ["step_000002"]
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(SUPPORT))
    assert resume(tmp_path / "tiny", ["run.num_steps=4"])["is_finished"]


def test_what_cannot_be_resumed_is_said_in_a_sentence(tiny_model_path: Path, tmp_path: Path) -> None:
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation={"before": False, "after": False}))
    folder = tmp_path / "tiny"
    with pytest.raises(ConfigError, match=r"run.num_steps is 1, but .* is at step 2 already; give 2 or more"):
        resume(folder, ["run.num_steps=1"])
    file = folder / "checkpoints/step_000002/state.pt"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(ConfigError, match=r"cannot go on from checkpoint .*step_000002.* remove that folder"):
        resume(folder, ["run.num_steps=3"])
    (folder / "checkpoints/step_000002/manifest.json").write_text("[]")
    (folder / "metrics.jsonl").write_text('[]\n{"x": 1}\nnothing\n')
    assert resume(folder, ["run.num_steps=3"])["steps"] == 3
    assert [row["step"] for row in comparable_rows(folder)] == [1, 2, 3]


def test_a_finished_run_is_left_as_it_is(tiny_model_path: Path, tmp_path: Path) -> None:
    summary = train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*") if path.name != ".lock"}
    assert resume(tmp_path / "tiny") == json.loads(json.dumps(summary))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*") if path.name != ".lock"}


def _score_evaluations(
    monkeypatch: pytest.MonkeyPatch, scores: dict[int, float], die_at: int | None = None
) -> list[int]:
    """Evaluations give these scores by policy version (0 where none is named); the steps evaluated, in order."""
    from winnowrl.training import loop
    from winnowrl.training.evaluate import EvaluationReport, TaskRow

    seen: list[int] = []

    def evaluate(collector: Any, tasks: Any, settings: Any, *, folder: Path, **_: Any) -> EvaluationReport:
        version = collector.engine.policy_version
        if version == die_at:
            raise SystemExit("killed in an evaluation")
        seen.append(version)
        report = EvaluationReport([TaskRow("a", "", [scores.get(version, 0.0)], [0.0], [1], 0, [""])], 1, 0.95)
        folder.mkdir(parents=True, exist_ok=True)
        report.write(folder)
        return report

    monkeypatch.setattr(loop, "evaluate_policy", evaluate)
    return seen


def _kept_scores(folder: Path) -> dict[int, float | None]:
    from winnowrl.training.checkpoint import CheckpointStore

    return {c.step: c.metrics.get("eval/mean") for c in CheckpointStore(folder / "checkpoints").all()}


def test_the_step_evaluated_best_is_kept_with_its_own_score(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Checkpoints are due at 3 and 6 alone; evaluations at 0, 2, 4 and 6. The untrained model does better than any step.
    seen = _score_evaluations(monkeypatch, {0: 0.9, 2: 0.3, 4: 0.6, 6: 0.5})
    checkpoint = {"every_steps": 3, "keep_last": 1, "best_metric": "eval/mean"}
    evaluation = {"every_steps": 2}
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 6}, evaluation=evaluation, checkpoint=checkpoint))
    assert seen == [0, 2, 4, 6]
    assert _kept_scores(tmp_path / "tiny") == {4: 0.6, 6: 0.5}


@pytest.mark.parametrize("after", [True, False])
def test_an_evaluation_cut_short_is_made_when_the_run_goes_on(
    after: bool, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = {"every_steps": 2, "before": False, "after": after}
    checkpoint = {"every_steps": 0, "keep_last": 3, "best_metric": "eval/mean"}
    config = tiny_config(tiny_model_path, tmp_path, evaluation=evaluation, checkpoint=checkpoint)
    for step in (2, 4):
        _score_evaluations(monkeypatch, {2: 0.2}, die_at=step)
        with pytest.raises(SystemExit):
            train(config) if step == 2 else resume(tmp_path / "tiny")
        # The checkpoint that an evaluation speaks of stands before it, and claims no score of another step.
        assert _kept_scores(tmp_path / "tiny") == ({2: None} if step == 2 else {2: 0.2, 4: None})
    assert _score_evaluations(monkeypatch, {4: 0.4}) == []
    summary = resume(tmp_path / "tiny")
    assert summary["is_finished"]
    assert summary["heldout_after"] == (0.4 if after else None)
    assert _kept_scores(tmp_path / "tiny") == {2: 0.2, 4: 0.4}


def test_a_finished_run_without_a_summary_does_not_train_again(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}))
    rows = comparable_rows(tmp_path / "tiny")
    (tmp_path / "tiny/summary.json").unlink()
    again = resume(tmp_path / "tiny")
    assert (again["heldout_before"], again["heldout_after"]) == (summary["heldout_before"], summary["heldout_after"])
    assert comparable_rows(tmp_path / "tiny") == rows


def test_the_summary_of_an_earlier_end_does_not_end_a_longer_run(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _score_evaluations(monkeypatch, {2: 0.2})
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation={"before": False}))
    _score_evaluations(monkeypatch, {}, die_at=4)
    with pytest.raises(SystemExit):
        resume(tmp_path / "tiny", ["run.num_steps=4"])
    _score_evaluations(monkeypatch, {4: 0.4})
    summary = resume(tmp_path / "tiny")
    assert (summary["steps"], summary["heldout_after"]) == (4, 0.4)
    assert json.loads((tmp_path / "tiny/summary.json").read_text())["steps"] == 4
    assert resume(tmp_path / "tiny") == json.loads(json.dumps(summary))


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_in_its_last_step_is_evaluated_when_it_goes_on(
    asked: signal.Signals, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnowrl.training import loop

    def check_sync(config: Any, parts: Any, outcome: Any, run_async: Any, step: int) -> dict[str, float]:
        if step == 2:
            os.kill(os.getpid(), asked)
        return {}

    seen = _score_evaluations(monkeypatch, {2: 0.2})
    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_sync", check_sync)
        summary = train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation={"before": False}))
    assert (summary["is_finished"], summary["steps"], seen) == (False, 2, [])
    summary = resume(tmp_path / "tiny")
    assert (summary["is_finished"], summary["heldout_after"], seen) == (True, 0.2, [2])


def test_a_final_evaluation_asked_for_later_is_made(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _score_evaluations(monkeypatch, {1: 0.3})
    evaluation = {"before": False, "after": False}
    assert train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation=evaluation))["is_finished"]
    assert resume(tmp_path / "tiny", ["evaluation.after=true"])["heldout_after"] == 0.3


def _watch_evaluations(monkeypatch: pytest.MonkeyPatch, die_at: int | None = None) -> list[tuple[int, int]]:
    """(tasks, policy version) of each chunk evaluated; the process "dies" before chunk number ``die_at``."""
    from winnowrl.agents.collector import Collector

    seen: list[tuple[int, int]] = []
    evaluate = Collector.evaluate

    async def watched(self: Collector, tasks: Any, **settings: Any) -> Any:
        if len(seen) + 1 == die_at:
            raise SystemExit("killed in an evaluation")
        seen.append((len(tasks), self.engine.policy_version))
        return await evaluate(self, tasks, **settings)

    monkeypatch.setattr(Collector, "evaluate", watched)
    return seen


@pytest.mark.parametrize("num_steps", [2, 3])
def test_an_evaluation_goes_on_under_the_same_policy_and_begins_anew_under_another(
    num_steps: int, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = {"before": False, "max_parallel_tasks": 2}
    with monkeypatch.context() as patch:
        _watch_evaluations(patch, die_at=2)
        with pytest.raises(SystemExit):
            train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation=evaluation))
    seen = _watch_evaluations(monkeypatch)
    summary = resume(tmp_path / "tiny", [f"run.num_steps={num_steps}"])
    # Two of six tasks were done at step 2.
    assert seen == ([(2, 2)] * 2 if num_steps == 2 else [(2, 3)] * 3)
    assert summary["heldout_tasks"] == 6


def test_evaluations_of_steps_to_be_made_again_are_forgotten(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = {"before": False, "every_steps": 1}
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 4}, evaluation=evaluation))
    run_evaluation(EvaluationRequest(run=tmp_path / "tiny", samples=1))
    shutil.rmtree(tmp_path / "tiny/checkpoints/step_000004")
    seen = _watch_evaluations(monkeypatch)
    resume(tmp_path / "tiny")
    assert seen == [(6, 3), (6, 4)]
    names = ["after", "eval_step_000004_samples_1", "step_000001", "step_000002", "step_000003"]
    assert sorted(path.name for path in (tmp_path / "tiny/evaluations").iterdir()) == names


def test_a_finished_evaluation_is_read_where_only_its_score_was_lost(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winnowrl.training.checkpoint import CheckpointStore

    def die(*_: Any) -> None:
        raise SystemExit("killed before the score is written")

    evaluation = {"before": False}
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "add_metrics", die)
        with pytest.raises(SystemExit):
            train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation=evaluation))
    seen = _watch_evaluations(monkeypatch)
    summary = resume(tmp_path / "tiny")
    assert seen == []
    assert _kept_scores(tmp_path / "tiny") == {2: summary["heldout_after"]}


@pytest.mark.parametrize(
    ("change", "num_made"), [({}, 4), ({"step": 0}, 6), ({"overrides": ("conversation.turn_tokens=2",)}, 6)]
)
def test_an_evaluation_by_command_takes_no_rows_of_another_policy_or_setting(
    change: dict[str, Any], num_made: int, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = {"before": False, "after": False, "max_parallel_tasks": 2}
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation=evaluation))
    asked: dict[str, Any] = {"run": tmp_path / "tiny", "output": tmp_path / "out"}
    with monkeypatch.context() as patch:
        _watch_evaluations(patch, die_at=2)
        with pytest.raises(SystemExit):
            run_evaluation(EvaluationRequest(**asked))
    seen = _watch_evaluations(monkeypatch)
    assert run_evaluation(EvaluationRequest(**asked, **change))["num_tasks"] == 6
    assert sum(num_tasks for num_tasks, _ in seen) == num_made


def test_the_best_checkpoint_by_a_metric_of_the_step_is_kept_and_exported(
    tiny_model_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from winnowrl.training.export import export_run

    def config(name: str, **checkpoint: Any) -> dict[str, Any]:
        evaluation = {"before": False, "after": False}
        return tiny_config(
            tiny_model_path,
            tmp_path,
            run={"num_steps": 4, "name": name},
            evaluation=evaluation,
            checkpoint={"every_steps": 1, "keep_last": 1, **checkpoint},
        )

    train(config("tokens", best_metric="length/mean", best_mode="min"))
    lengths = {row["step"]: row["length/mean"] for row in comparable_rows(tmp_path / "tokens")}
    best = max(step for step, length in lengths.items() if length == min(lengths.values()))
    assert {p.name for p in (tmp_path / "tokens/checkpoints").iterdir()} == {f"step_{best:06d}", "step_000004"}
    train(config("nothing", best_metric="reward/beauty"))
    assert "checkpoint.best_metric is 'reward/beauty', which step 4 did not log" in " ".join(
        capfd.readouterr().out.split()
    )
    with pytest.raises(ConfigError, match=r"no checkpoint of .* has a reward/beauty"):
        export_run(tmp_path / "nothing", tmp_path / "model", best=True)
    train(config("none"))
    with pytest.raises(ConfigError, match=r"ran without checkpoint\.best_metric"):
        export_run(tmp_path / "none", tmp_path / "model", best=True)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("full_at", ["model.safetensors", "config.json", "tokenizer"])
def test_a_disk_full_during_an_export_leaves_nothing_that_looks_like_a_model(
    full_at: str, exists: bool, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    from winnowrl.training.export import export_run
    from winnowrl.training.learner import state

    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation={"before": False, "after": False}))
    target = tmp_path / "model"
    if exists:
        target.mkdir()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if full_at == "model.safetensors":
            patch.setattr("safetensors.torch.save_file", full)
        elif full_at == "config.json":
            patch.setattr(state.Path, "write_text", full)
        else:
            patch.setattr(state.shutil, "copyfile", full)
        with pytest.raises(ConfigError, match=r"model cannot be written \(No space left on device\)"):
            export_run(tmp_path / "tiny", target)
    assert list(target.iterdir() if exists else tmp_path.glob("*model*")) == []
    assert AutoModelForCausalLM.from_pretrained(export_run(tmp_path / "tiny", target)).num_parameters() > 0
    assert not list(tmp_path.glob("**/*.writing"))


def test_an_export_to_a_file_or_below_one_is_said_in_a_sentence(tiny_model_path: Path, tmp_path: Path) -> None:
    from winnowrl.training.export import export_run

    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation={"before": False, "after": False}))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="file is a file; name a folder"):
        export_run(tmp_path / "tiny", tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot be written"):
        export_run(tmp_path / "tiny", tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("schedule", "num_steps", "is_said"), [("linear", 4, True), ("linear", 2, False), ("constant", 4, False)]
)
def test_what_another_number_of_steps_does_to_the_learning_rate_is_said(
    schedule: str,
    num_steps: int,
    is_said: bool,
    tiny_model_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    evaluation = {"before": False, "after": False}
    learner = {"schedule": schedule}
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 2}, evaluation=evaluation, learner=learner))
    capfd.readouterr()
    resume(tmp_path / "tiny", [f"run.num_steps={num_steps}"])
    captured = capfd.readouterr()
    said = " ".join((captured.out + captured.err).split())
    assert ("after step 2 the learning rate jumps to that of a run of 4 steps" in said) is is_said


def test_a_cut_configuration_stops_what_reads_a_run_and_an_override_is_written_whole(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    from winnowrl.training.export import export_run

    evaluation = {"before": False, "after": False}
    train(tiny_config(tiny_model_path, tmp_path, run={"num_steps": 1}, evaluation=evaluation))
    path = tmp_path / "tiny/config.yaml"
    resume(tmp_path / "tiny", ["run.num_steps=2"])
    whole = path.read_text()
    # The first half is a whole configuration too: all that is missing has defaults.
    path.write_text(whole[: whole.index("objective:")])
    for read in (
        lambda: resume(tmp_path / "tiny", ["run.num_steps=3"]),
        lambda: run_evaluation(EvaluationRequest(run=tmp_path / "tiny")),
        lambda: export_run(tmp_path / "tiny", tmp_path / "model"),
    ):
        with pytest.raises(ConfigError, match=r"tiny/config\.yaml was cut or changed"):
            read()
    path.write_text(whole)
    assert resume(tmp_path / "tiny", ["run.num_steps=3"])["steps"] == 3
