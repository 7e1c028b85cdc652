"""What a person sees of a run: a progress bar for the phase at work, a line a step, a table at the end.

Plain text without colours or moving bars when the output is no terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

COLUMNS: tuple[tuple[str, str, str], ...] = (
    # heading, metric, format
    ("reward", "reward/mean", "{:.3f}"),
    ("informative", "groups/informative_share", "{:.0%}"),
    ("tok/s", "tokens/generated_per_s", "{:.0f}"),
    ("entropy", "policy/entropy", "{:.3f}"),
    ("mismatch", "mismatch/mean_abs", "{:.1e}"),
    ("grad", "learner/grad_norm", "{:.2f}"),
    ("generate", "seconds/generate", "{:.1f}s"),
    ("train", "seconds/train", "{:.1f}s"),
    ("sync", "seconds/sync", "{:.1f}s"),
    ("step", "seconds/step", "{:.1f}s"),
)
PLAIN_REPORT_S = 20.0


class Phase:
    """Progress of one phase. ``advance`` may be called from anywhere in the phase."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name, self.total, self.done = name, total, 0

    def advance(self, count: int = 1) -> None:
        self.done += count

    def grow(self, count: int) -> None:
        """There is more to do than was known at the start."""
        if self.total is not None:
            self.total += count


class _BarPhase(Phase):
    def __init__(self, name: str, total: int | None, progress: Progress) -> None:
        super().__init__(name, total)
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        self._progress.update(self._task, completed=self.done)

    def grow(self, count: int) -> None:
        super().grow(count)
        self._progress.update(self._task, total=self.total)


class _PlainPhase(Phase):
    """Says how far it is when it takes long, for logs that somebody follows."""

    def __init__(self, name: str, total: int | None, console: Console) -> None:
        super().__init__(name, total)
        self._console = console
        self._next_report = time.monotonic() + PLAIN_REPORT_S

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + PLAIN_REPORT_S
            of_total = f" of {self.total}" if self.total else ""
            self._console.print(f"  {self.name}: {self.done}{of_total}")


class RunConsole:
    """Prints a run.

    Args:
        console: For tests; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, soft_wrap=not sys.stdout.isatty(), highlight=False)
        self._lines_since_heading = 0

    @property
    def is_live(self) -> bool:
        return self.console.is_terminal

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", markup=False)

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Phase]:
        """A phase with a progress bar; ``total`` counts what ``advance`` is called for."""
        if not self.is_live:
            yield _PlainPhase(name, total, self.console)
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn() if total else TextColumn(""),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            yield _BarPhase(name, total, progress)

    def step_line(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """One line of the step's metrics, under a heading repeated every 20 lines."""
        width = len(str(num_steps)) * 2 + 1
        if self._lines_since_heading % 20 == 0:
            heading = " ".join(f"{name:>11}" for name, _, _ in COLUMNS)
            self.console.print(f"{'step':>{width}} {heading}", style="bold", markup=False)
        self._lines_since_heading += 1
        cells = []
        for _, metric, form in COLUMNS:
            value = metrics.get(metric)
            cells.append(f"{'-' if value is None else form.format(value):>11}")
        self.console.print(f"{f'{step}/{num_steps}':>{width}} {' '.join(cells)}", markup=False)

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*map(escape, row))
        self.console.print(table)
