from __future__ import annotations

import io
import re

from rich.console import Console

from winnowrl.training.console import RunConsole


def _console(*, is_terminal: bool) -> tuple[RunConsole, io.StringIO]:
    out = io.StringIO()
    return RunConsole(Console(file=out, force_terminal=is_terminal, width=140, highlight=False)), out


def test_plain_output_has_no_escape_codes_and_one_line_a_step() -> None:
    console, out = _console(is_terminal=False)
    with console.phase("generate", 4) as phase:
        phase.advance()
    console.step_line(1, 20, {"reward/mean": 0.5, "seconds/step": 2.0})
    console.step_line(2, 20, {"reward/mean": 0.75})
    console.warn("careful [not markup]")
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    assert lines[0].split()[:2] == ["step", "reward"]
    assert re.match(r"\s*1/20\s+0\.500", lines[1])
    assert lines[2].split()[1] == "0.750"
    assert lines[3] == "warning: careful [not markup]"


def test_a_terminal_shows_a_bar_for_the_phase() -> None:
    console, out = _console(is_terminal=True)
    with console.phase("generate", 4) as phase:
        phase.advance(3)
        assert phase.done == 3
    assert "generate" in out.getvalue()


def test_the_heading_comes_back_every_twenty_lines() -> None:
    console, out = _console(is_terminal=False)
    for step in range(1, 42):
        console.step_line(step, 41, {})
    assert sum("reward" in line for line in out.getvalue().splitlines()) == 3


def test_text_of_others_in_tables_is_no_markup() -> None:
    console, out = _console(is_terminal=False)
    console.table("t", ["", "mean"], [["mean of [/x]", "0.5"], ["[red]", "1"]])
    assert "mean of [/x]" in out.getvalue()
    assert "[red]" in out.getvalue()
