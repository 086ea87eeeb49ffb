"""What is shown: progress while it runs, tables and figures at the end.

Without a terminal (a pipe, a CI log) progress is a plain line now and then, and nothing moves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from judge import Figures, Row, Verdict
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from service import Service
from workload import Load

LINE_SECONDS = 2.0
LOG_WIDTH = 100


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._moves = sys.stdout.isatty()
        self._console = Console(width=None if self._moves else LOG_WIDTH, highlight=False, soft_wrap=False)

    def say(self, text: str = "", style: str = "") -> None:
        """Write a line, at once."""
        self._console.print(text, style=style, markup=False, soft_wrap=True)
        sys.stdout.flush()

    @contextmanager
    def progress(self, title: str, load: Load, kills: int) -> Iterator[Progress | Lines]:
        """Show how far a run is."""
        if not self._moves:
            yield Lines(self, title, load, kills)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as bar:
            bar.add_task(title, total=load.size, text="")
            yield bar

    def verdict(self, title: str, verdict: Verdict) -> None:
        """Show a table for each session, then the figures."""
        for session, rows in verdict.rows.items():
            self._console.print(_table(f"{title}: session of {session}", rows))
        for line in figure_lines(verdict.figures):
            self.say(line)
        style = "bold green" if verdict.figures.kept else "bold red"
        self.say(promise_line(title, verdict.figures), style)
        self.say()


class Lines:
    """Progress as plain lines."""

    def __init__(self, screen: Screen, title: str, load: Load, kills: int) -> None:
        self._screen, self._title, self._load, self._kills = screen, title, load, kills
        self._begun = self._last = time.monotonic()

    def show(self, answered: int, kills: int) -> None:
        """Write a line, if the last one is some time ago."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            done = _done(answered, self._load.size, kills, self._kills)
            self._screen.say(f"{self._title}: {done}, {now - self._begun:.0f} s")


def follow(shown: Progress | Lines, service: Service, load: Load, kills: int) -> None:
    """Show where the service is."""
    if isinstance(shown, Lines):
        shown.show(len(service.answered), service.kills)
        return
    text = _done(len(service.answered), load.size, service.kills, kills)
    shown.update(shown.task_ids[0], completed=len(service.answered), total=load.size, text=text)


def _done(answered: int, questions: int, kills: int, wanted: int) -> str:
    return f"{answered} of {questions} questions answered, {kills} of {wanted} kills"


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table("#", "question", "answer", title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("attempts", justify="right")
    table.add_column("killed", justify="right")
    for number, row in enumerate(rows, start=1):
        cells = (str(number), row.job.question, _answer(row), str(row.attempts), str(row.killed))
        table.add_row(*cells, style="red" if row.faults else "")
    return table


def _answer(row: Row) -> str:
    lines = [*row.answers, *(f"LOST: {answer}" for answer in row.lost)]
    notes = [fault.upper() for fault in row.faults if fault != "lost"]
    return "\n".join([*lines, *notes])


def figure_lines(figures: Figures) -> list[str]:
    """The figures in words; where each was counted is in the README."""
    jobs = f"{figures.questions} questions, jobs handed to workers {figures.deliveries}: "
    jobs += f"acknowledged {figures.acknowledged}, killed {figures.killed}, given back {figures.given_back}"
    kills = f"killed in a model call {figures.killed_in_call}, after it {figures.killed_after_call}, "
    kills += f"without one (waiting, reading, replaying) {figures.killed_without_call}"
    return [jobs, kills, f"model calls begun {figures.calls_begun}, ended {figures.calls_ended}"]


def promise_line(title: str, figures: Figures) -> str:
    """The line that matters."""
    missing = f" (without any answer left: {figures.missing})" if figures.missing else ""
    return (
        f"{title}: lost {figures.lost}{missing}, doubled {figures.doubled}, torn {figures.torn}; "
        f"model calls saved by replay: {figures.saved}"
    )
