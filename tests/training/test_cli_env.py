"""``winnowrl env``: what a user types, from a new package to its first training step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner, Result

from winnowrl.configs.load import ConfigError, load_config
from winnowrl.envs.scaffold import write_package
from winnowrl.training.cli.env import app

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, typed: str = "") -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments), input=typed)


def run_python(folder: Path, *arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a fresh process in which ``folder`` is installed."""
    env = {**os.environ, "PYTHONPATH": str(folder), "WINNOWRL_PRELOADED": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=280, cwd=at or folder
    )


def install(package: Path, site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(package)], check=True, timeout=280)


def test_the_list_shows_the_built_in_environments() -> None:
    result = run("list")
    assert result.exit_code == 0
    for name in ("Arithmetic", "GuessNumber", "Math", "CCR", "ALFWorld", "Code"):
        assert f"winnowrl/{name}-v0" in result.output
    assert "CartPole" not in result.output


def test_a_sound_environment_is_checked_with_exit_code_0() -> None:
    result = run("check", "winnowrl/Arithmetic-v0", "max_operand=20")
    assert result.exit_code == 0, result.output
    assert "11 passed, 0 warnings, 0 failed" in result.output


def test_a_faulty_environment_is_checked_with_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(
        "import gymnasium\nfrom winnowrl.envs.arithmetic import ArithmeticEnv\n"
        "class ForgetfulEnv(ArithmeticEnv):\n"
        "    def respond(self, action): return '', float(len(action) // int(action)), True, False, {}\n"
        "gymnasium.register('Forgetful-v0', entry_point=ForgetfulEnv, max_episode_steps=1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("check", "forgetful:Forgetful-v0")
    assert result.exit_code == 1
    assert "an empty action raises ValueError" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "nowhere/Nothing-v0"), "nowhere"),
        (("check", "no_such_module_here:Nothing-v0"), "cannot be imported"),
        (("check", "winnowrl/Arithmetic-v0", "max_operand"), "name=value"),
        (("check", "winnowrl/Arithmetic-v0", "max_operand=-1"), "max_operand is -1"),
        (("check", "winnowrl/Arithmetic-v0", "max_operant=1"), "max_operant"),
        (("play", "winnowrl/Arithmetic-v0", "--split", "test"), "it has: train, eval"),
        (("play", "winnowrl/Arithmetic-v0", "--task", "100000"), "--task is 100000"),
        (("check", "winnowrl/Math-v0", "source=/nonexistent.jsonl"), "task file /nonexistent.jsonl does not exist"),
        (("check", "winnowrl/Math-v0", "min_level=9"), "the train split of the starter set is empty"),
        (("check", "winnowrl/Math-v0", "format_weight=a"), "kwargs.format_weight is 'a'; allowed: a number"),
        (("check", "winnowrl/Math-v0", "verifier=3"), "kwargs.verifier is 3; allowed: a mapping"),
        (("check", "winnowrl/CCR-v0", "num_problems=100000"), "fewer than num_problems = 100000"),
        (("check", "winnowrl/CCR-v0", "num_problems=abc"), "num_problems is 'abc'; allowed: a whole number"),
        (("check", "winnowrl/CCR-v0", "num_problems=1.5"), "num_problems is 1.5; allowed: a whole number"),
        (("check", "winnowrl/Code-v0", "limits={wall_s: a}"), "limits.wall_s is 'a'; allowed: a number"),
        (("check", "winnowrl/Arithmetic-v0", "num_train=-1"), "split 'train' holds no task"),
        (("check", "winnowrl/Arithmetic-v0", "operators=-"), "put it in quotes"),
        (("check", "winnowrl/Arithmetic-v0", "--deadline-s", "0"), "--deadline-s is 0.0; allowed: 1 or more"),
        (("check", "winnowrl/Arithmetic-v0", "--deadline-s", "nan"), "--deadline-s is nan; allowed: 1 or more"),
        (("play", "winnowrl/Math-v0", "min_level=a"), "min_level is 'a'; allowed: a number"),
        (("play", "winnowrl/CCR-v0", "num_groups=1.5"), "num_groups is 1.5; allowed: a whole number"),
        (("play", "winnowrl/Arithmetic-v0", "--seed", "-1"), "--seed is -1; allowed: 0 to"),
        (("play", "winnowrl/Arithmetic-v0", "--max-tokens", "0"), "--max-tokens is 0; allowed: 1 or more"),
        (("play", "winnowrl/Arithmetic-v0", "--temperature", "-1"), "--temperature is -1.0; allowed: 0 or more"),
        (("play", "winnowrl/Arithmetic-v0", "--temperature", "nan"), "--temperature is nan; allowed: 0 or more"),
        (("play", "winnowrl/Arithmetic-v0", "--model", "/nonexistent"), "--model: model.path is '/nonexistent'"),
        (("new", "1two"), "no name of a Python package"),
        (("new", "json"), "the name of another package"),
        (("new", "numpy"), "the name of an installed package"),
        (("new", "PyYAML"), "the name of an installed package"),  # a distribution with another module
        (("new", "yaml"), "the name of an installed package"),
        (("new", "wordy", "--folder", "/proc"), "--folder is '/proc'"),
        (("new", "wordy", "--folder", __file__), "Not a directory"),
    ],
)
def test_the_users_mistake_is_named(arguments: tuple[str, ...], told: str) -> None:
    # The application turns a ConfigError into one sentence and exit code 2.
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert told in str(result.exception)


SUBJECT = """
import gymnasium
import os
import sys
from winnowrl.envs.arithmetic import ArithmeticEnv

class SubjectEnv(ArithmeticEnv):
{member}

gymnasium.register("Subject-v0", entry_point=SubjectEnv, max_episode_steps=1)
"""


def write_subject(folder: Path, member: str) -> Path:
    """A module ``subject`` with one environment, which has this method, from line 8 on."""
    path = folder / "subject.py"
    path.write_text(SUBJECT.format(member=member))
    return path


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax ({path}, line 2)"),
        ("\nraise RuntimeError('no licence')\n", "RuntimeError: no licence ({path}, line 2)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ({path}, line 2)"),
        ("import json\njson.loads('{')\n", "({path}, line 2)"),
        ("import gymnasium\ngymnasium.register('a b')\n", "({path}, line 2)"),
        ("import no_such_module_here\n", "No module named 'no_such_module_here' ({path}, line 1)"),
    ],
)
@pytest.mark.parametrize("command", ["check", "play"])
def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    command: str, source: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "broken_module.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(command, "broken_module:X-v0")
    assert isinstance(result.exception, ConfigError)
    assert told.format(path=path) in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("    def respond(self, action):\n        sys.exit(3)", "called sys.exit(3) ({path}, line 9)"),
        ("    def respond(self, action):\n        os._exit(3)", "the process ended in it, with exit code 3"),
        ("    def respond(self, action):\n        while True:\n            pass", "no end within 3 s, at {path}, line"),
        ("    def task_set(self, split):\n        return {}[split]", "raised KeyError: 'train' ({path}, line 9)"),
        ("    def __init__(self, render_mode=None):\n        os.listdir(3.5)", "({path}, line 9)"),
    ],
    ids=["leaves", "dies", "loops", "no tasks", "not made"],
)
def test_what_an_environment_does_to_its_process_is_a_finding(
    member: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_subject(tmp_path, member)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("check", "subject:Subject-v0", "--deadline-s", "3")
    assert result.exit_code == 1, result.exception
    assert told.format(path=path) in " ".join(result.output.split())


def test_a_fault_of_the_tasks_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_subject(tmp_path, "    def task_set(self, split):\n        raise ValueError('no tasks today')")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("check", "subject:Subject-v0")
    assert result.output.count("no tasks today") == 1
    assert "1 passed, 0 warnings, 1 failed" in result.output
    assert "9 checks after the last one were not tried" in result.output


def test_the_process_of_the_checks_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The environment starts a process of its own and hangs: neither outlives the check.
    note = tmp_path / "pids"
    member = (
        "    def respond(self, action):\n"
        "        import subprocess, time\n"
        "        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"        open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "        time.sleep(600)"
    )
    write_subject(tmp_path, member)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("check", "subject:Subject-v0", "--deadline-s", "2").exit_code == 1
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in map(int, note.read_text().split()) if is_running(pid)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert alive == []


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_number_with_an_exponent_is_a_number() -> None:
    result = run("play", "winnowrl/ALFWorld-v0", "near_cutoff=1e9")
    assert "near_cutoff is 1000000000.0; allowed: above 0" in str(result.exception)


def test_a_folder_of_the_same_name_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Python finds any folder on its path as a namespace package; a scaffold's own folder in the present one is such.
    (tmp_path / "word_sorting").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("new", "word_sorting", "--folder", str(tmp_path / "elsewhere")).exit_code == 0
    (tmp_path / "word_counting.py").write_text("")
    result = run("new", "word_counting", "--folder", str(tmp_path / "elsewhere"))
    assert "the name of an installed package" in str(result.exception)


def test_a_person_plays_to_the_end() -> None:
    # Guess 3 of a number from 1 to 5 that is no multiple of three, then the rest.
    result = run("play", "winnowrl/GuessNumber-v0", "highest=5", typed='3\n"""\n1\n"""\n2\n4\n5\n')
    assert result.exit_code == 0, result.output
    assert "reward 1 in" in result.output
    assert "the environment ended it" in result.output


def test_giving_up_ends_the_game() -> None:
    result = run("play", "winnowrl/GuessNumber-v0", typed="50\n")
    assert result.exit_code == 0
    assert "given up" in result.output


def test_the_turn_limit_ends_a_game() -> None:
    result = run("play", "winnowrl/GuessNumber-v0", "max_guesses=100", typed="200\n" * 50)
    assert "reward 0 in 10 turns; the turn limit ended it" in result.output


def test_a_model_plays(tiny_model_path: Path) -> None:
    result = run("play", "winnowrl/Arithmetic-v0", "--model", str(tiny_model_path), "--max-tokens", "4")
    assert result.exit_code == 0, result.exception
    assert "model>" in result.output
    assert "in 1 turns" in result.output


def test_a_new_package_is_whole_and_its_configuration_loads(tmp_path: Path) -> None:
    result = run("new", "word-sorting", "--folder", str(tmp_path))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "word_sorting"
    named = re.search(r"make (\S+) and the tasks", result.output)
    assert named is not None
    assert Path(named.group(1)).is_file()
    assert load_config(folder / "train.yaml").environment.id == "word_sorting/WordSorting-v0"
    rows = [
        json.loads(line)
        for split in ("train", "eval")
        for line in (folder / f"src/word_sorting/tasks/{split}.jsonl").open()
    ]
    assert len({row["prompt"] for row in rows}) == len(rows) == 500
    with pytest.raises(ValueError, match="exists already"):
        write_package("word_sorting", tmp_path)


def test_a_new_package_passes_its_own_tests(tmp_path: Path) -> None:
    folder, _ = write_package("word_sorting", tmp_path)
    result = run_python(folder / "src", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests"))
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_new_package_is_found_from_the_folder_it_was_written_in(tmp_path: Path) -> None:
    # The folder word_sorting stands in the present folder, which the command puts on the path; an editable install adds src.
    folder, env_id = write_package("word_sorting", tmp_path)
    result = run_python(
        folder / "src", "-m", "winnowrl.training.cli", "env", "check", f"word_sorting:{env_id}", at=tmp_path
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_example_passes_its_own_tests() -> None:
    folder = ROOT / "examples/corridor"
    result = run_python(folder / "src", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("which", ["example", "new"])
def test_an_installed_package_is_listed_and_trains_at_once(which: str, tiny_model_path: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    package = ROOT / "examples/corridor" if which == "example" else write_package("word_sorting", tmp_path)[0]
    copy = tmp_path / "copy"  # a build leaves files beside the sources
    subprocess.run(["cp", "-r", str(package), str(copy)], check=True)
    install(copy, site)
    config = yaml.safe_load((package / "train.yaml").read_text())
    env_id = config["environment"]["id"]
    listed = run_python(site, "-m", "winnowrl.training.cli", "env", "list")
    assert env_id in listed.stdout
    trained = run_python(
        site,
        *("-m", "winnowrl.training.cli", "train", str(package / "train.yaml")),
        *("run.num_steps=2", "run.trackers=[]", "run.name=first", f"run.folder={tmp_path}"),
        *(f"model.path={tiny_model_path}", "engine.type=transformers", "evaluation.num_tasks=4"),
        *("collector.tasks_per_step=2", "collector.rollouts_per_task=2"),
    )
    assert trained.returncode == 0, trained.stdout[-3000:] + trained.stderr[-3000:]
    summary = json.loads((tmp_path / "first/summary.json").read_text())
    assert summary["is_finished"]
    assert summary["steps"] == 2


def test_the_environment_of_the_documentation_passes_its_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs/environments.md").read_text()
    source = text.partition("    # parity.py\n")[2].partition("\nand a run of it")[0]
    lines = [line[4:] for line in source.splitlines()]
    assert len([line for line in lines if line]) <= 15
    (tmp_path / "parity.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run("check", "parity:Parity-v0")
    assert result.exit_code == 0, result.output
