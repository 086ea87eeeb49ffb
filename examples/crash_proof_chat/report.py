"""What is shown: progress while it runs, what became of the turns, and one table of figures at the end.

Nothing is wider than 80 columns. Without a terminal (a pipe, a CI log) progress is a plain line now and then,
and nothing moves.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from judge import Figures, Row, Verdict
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from service import Service
from workload import Load

WIDTH = 80
LINE_SECONDS = 2.0
BAR_WIDTH = 12  # leaves room at 80 columns for the longest title, the counts and the time
WRONG_SHOWN = 10
ANSWER_WIDTH = 43  # what 80 columns leave; in a narrower terminal it is the answers that are cut
FAULT_WIDTH = 48  # the same

TABLES = """\
An answer names what the model was given to read (how many turns, a digest of their words) and its call, so \
that one made from a wrong context is found out. Attempts: 2, as each question is submitted twice, + those \
whose worker was killed, or gave the job back."""

LEGEND = (
    ("lost", "an answer that a user has seen is not in the database"),
    ("doubled", "a question is stored more than once"),
    ("torn", "a turn is not whole, out of order, or made from a wrong context"),
    ("saved", "a job done again was given the stored answer: no model call"),
    ("kills", "while answering + while waiting (or reading what is stored)"),
)


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._moves = sys.stdout.isatty()
        self._console = Console(width=None if self._moves else WIDTH, highlight=False)
        self._console.width = min(self._console.width, WIDTH)

    def say(self, text: str = "", style: str = "") -> None:
        """Write a paragraph, at once. A word too long for a line (a path, a URI) stays whole."""
        text = textwrap.fill(text, self._console.width, break_long_words=False, break_on_hyphens=False)
        self._console.print(text, style=style, markup=False, soft_wrap=True)
        sys.stdout.flush()

    @contextmanager
    def progress(self, title: str, load: Load, kills: int) -> Iterator[Progress | Lines]:
        """Show how far a run is."""
        if not self._moves:
            yield Lines(self, title, load, kills)
            return
        with progress_bar(self._console, title, load.size) as bar:
            yield bar

    def sessions(self, title: str, verdict: Verdict) -> None:
        """Show every turn: a table for each session."""
        self.say(f"What {title} has stored", "bold")
        self.say(TABLES)
        for session, rows in verdict.rows.items():
            self.say()
            self._console.print(_session_table(session, rows, self._room(ANSWER_WIDTH)))

    def wrong_turns(self, verdict: Verdict, *, every: bool) -> None:
        """Show the turns that went wrong, in the order they were asked in; nothing if there are none."""
        wrong = wrong_turns(verdict)
        shown = wrong if every else wrong[:WRONG_SHOWN]
        if not wrong:
            return
        self.say(f"{len(wrong)} of {verdict.figures.questions} turns went wrong:", "bold")
        self._console.print(_wrong_table(shown, self._room(FAULT_WIDTH)))
        if len(shown) < len(wrong):
            self.say(f"and {len(wrong) - len(shown)} more (all of them: --verbose)")
        self.say()

    def _room(self, width: int) -> int:
        """What is left of a width, of the 80 columns, in a narrower terminal."""
        return max(width - WIDTH + self._console.width, 1)

    def details(self, figures: Figures) -> None:
        """Show every figure."""
        for line in figure_lines(figures):
            self.say(line)

    def summary(self, results: Mapping[str, Figures]) -> None:
        """Show what the designs came to, and what the columns mean."""
        self._console.print(_summary_table(results))
        self.say()
        legend = Table.grid("", "", padding=(0, 2, 0, 0))
        for row in LEGEND:
            legend.add_row(*row)
        self._console.print(legend)
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


def progress_bar(console: Console, title: str, size: int) -> Progress:
    """Progress as a bar; its one task is added."""
    columns = (TextColumn("{task.description}"), BarColumn(BAR_WIDTH), TextColumn("{task.fields[text]}"))
    bar = Progress(*columns, TimeElapsedColumn(), console=console)
    bar.add_task(title, total=size, text="")
    return bar


def follow(shown: Progress | Lines, service: Service, load: Load, kills: int) -> None:
    """Show where the service is."""
    if isinstance(shown, Lines):
        shown.show(len(service.answered), service.kills)
        return
    text = _done(len(service.answered), load.size, service.kills, kills)
    shown.update(shown.task_ids[0], completed=len(service.answered), total=load.size, text=text)


def _done(answered: int, questions: int, kills: int, wanted: int) -> str:
    return f"{answered}/{questions} answered, {kills}/{wanted} kills"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _session_table(session: str, rows: Sequence[Row], answer_width: int) -> Table:
    table = _table()
    table.add_column("#", justify="right")
    table.add_column(f"{session} asks", no_wrap=True, overflow="ellipsis")
    table.add_column("stored answer", no_wrap=True, overflow="ellipsis", max_width=answer_width)
    table.add_column("attempts", no_wrap=True, min_width=8)
    for number, row in enumerate(rows, start=1):
        cells = (str(number), row.job.question, _answer(row), _attempts(row))
        table.add_row(*cells, style="red" if row.faults else "")
    return table


def _answer(row: Row) -> str:
    """On one line: what is wrong, and the first of the answers."""
    answer = row.answers[0] if row.answers else "none"
    return f"{', '.join(row.faults).upper()}: {answer}" if row.faults else answer


def _attempts(row: Row) -> str:
    return f"{row.attempts - row.again} + {row.again}" if row.again else str(row.attempts)


def wrong_turns(verdict: Verdict) -> list[tuple[str, Row]]:
    """The turns that went wrong, with the names of their places, in the order they were asked in."""
    places = [
        (number, session, row)
        for session, rows in verdict.rows.items()
        for number, row in enumerate(rows, start=1)
        if row.faults
    ]
    places.sort(key=lambda place: place[0])  # stable: the sessions stay in their order
    return [(f"{session} {number}", row) for number, session, row in places]


def _wrong_table(wrong: Sequence[tuple[str, Row]], fault_width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (None, None, fault_width):
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=width)
    for place, row in wrong:
        for fault in row.faults:
            table.add_row(place, row.job.question, _wrong(fault, row))
    return table


def _wrong(fault: str, row: Row) -> str:
    if fault == "lost":
        gone = "1 answer seen is" if len(row.lost) == 1 else f"{len(row.lost)} answers seen are"
        return f"lost: {gone} gone, {'another is stored' if row.answers else 'none is left'}"
    if fault == "doubled":
        return f"doubled: stored {row.times} times"
    return "torn: not whole, or not from the turns before"


def _summary_table(results: Mapping[str, Figures]) -> Table:
    table = _table()
    table.add_column("")
    for header in ("lost", "doubled", "torn", "model\ncalls", "saved by\nreplay", "kills"):
        table.add_column(header, justify="right", vertical="bottom", no_wrap=True)
    for title, figures in results.items():
        counted = (figures.lost, figures.doubled, figures.torn, figures.calls_begun, figures.saved)
        kills = f"{figures.killed_while_answering} + {figures.killed_without_call}"
        table.add_row(title, *map(str, counted), kills, style="green" if figures.kept else "red")
    return table


def figure_lines(figures: Figures) -> list[str]:
    """The figures in words; where each was counted is in the README."""
    jobs = f"{figures.questions} questions, {figures.missing} of them without any answer left; "
    jobs += f"jobs handed to workers {figures.deliveries}: "
    jobs += f"acknowledged {figures.acknowledged}, killed {figures.killed}, given back {figures.given_back}"
    kills = f"killed in a model call {figures.killed_in_call}, after it {figures.killed_after_call}, "
    kills += f"before or without one {figures.killed_without_call}"
    return [jobs, kills, f"model calls begun {figures.calls_begun}, ended {figures.calls_ended}"]


def last_line(title: str, figures: Figures) -> str:
    """The line that matters."""
    kept = f"{title} {'kept its promises' if figures.kept else 'BROKE A PROMISE'}"
    counted = f"lost {figures.lost}, doubled {figures.doubled}, torn {figures.torn}"
    return f"{kept}: {counted}; model calls saved: {figures.saved}."
