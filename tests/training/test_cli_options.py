"""An option with a value that cannot be is told in one sentence, before anything is loaded or written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from winnowrl.configs.load import ConfigError
from winnowrl.training.cli.app import app
from winnowrl.training.cli.options import check_option, output_folder


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("eval --run runs/a --step -1", "--step is -1; allowed: 0 or more"),
        ("eval --run runs/a --samples -1", "--samples is -1; allowed: 0 or more"),
        ("eval --run runs/a --temperature -0.1", "--temperature is -0.1; allowed: 0 or more"),
        ("eval --run runs/a --temperature nan", "--temperature is nan; allowed: 0 or more"),
        ("eval --run runs/a --temperature inf", "--temperature is inf; allowed: 0 or more"),
        ("eval --run runs/a --num-tasks -1", "--num-tasks is -1; allowed: 0 or more"),
        ("eval --run runs/a --output /proc/x", "--output is '/proc/x', which is no folder that can be written"),
        (f"eval --run runs/a --output {__file__}", "which is no folder that can be written (File exists)"),
        ("eval --run no_such_run", "no_such_run is no run folder"),
        ("export runs/a out --step -1", "--step is -1; allowed: 0 or more"),
        ("export runs/a out --step 2 --best", "leave one of them out"),
        ("gate fit runs/a --precision 2", "--precision is 2.0; allowed: 0 to 1"),
        ("gate fit runs/a --precision nan", "--precision is nan; allowed: 0 to 1"),
        ("gate fit runs/a --kept -1", "--kept is -1.0; allowed: 0 to 1"),
        ("gate fit runs/a --group-size -3", "--group-size is -3; allowed: 0 or more"),
        ("gate fit runs/a --folds 1", "--folds is 1; allowed: 2 or more"),
        ("gate fit runs/a --seed -1", "--seed is -1; allowed: 0 to"),
        ("gate fit runs/a --padding start", "--padding is 'start'; allowed: end, none"),
        ("gate fit runs/a --turns 0", "--turns is '0'; allowed: 1 to"),
        (f"gate fit runs/a --turns 1{30 * '0'}", "allowed: 1 to 100000"),
        ("gate fit runs/a --output /proc/x", "--output is '/proc/x', which is no folder that can be written"),
        ("doctor --deadline-s 0", "--deadline-s is 0.0; allowed: 1 or more"),
        ("doctor --deadline-s nan", "--deadline-s is nan; allowed: 1 or more"),
        ("doctor --model /nonexistent", "--model: model.path is '/nonexistent'"),
        ("resume no_such_run", "no_such_run is no run folder"),
    ],
)
def test_a_value_that_cannot_be_is_named(line: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The application turns a ConfigError into one sentence and exit code 2.
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, ConfigError), result.output
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_was_not_given_is_not_checked() -> None:
    check_option("--n", None)
    check_option("--n", 3, least=1, most=3)
    with pytest.raises(ConfigError, match="--n is nan; allowed: 1 to 3"):
        check_option("--n", math.nan, least=1, most=3)


def test_a_folder_nothing_came_into_is_taken_away_again(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), output_folder("--output", tmp_path / "new" / "deep"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(RuntimeError), output_folder("--output", tmp_path / "old"):
        raise RuntimeError
    assert (tmp_path / "old").exists()
    with output_folder("--output", tmp_path / "kept" / "deep"):
        (tmp_path / "kept" / "deep" / "file").write_text("")
    assert (tmp_path / "kept" / "deep" / "file").exists()
