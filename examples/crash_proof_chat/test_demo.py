"""A shorter run of the demo, and the judge's power to see what is broken."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from rich.console import Console

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import demo  # noqa: E402 - found beside this file
from durable import DurableChat  # noqa: E402
from judge import Verdict, judge  # noqa: E402
from naive import OneDocumentChat  # noqa: E402
from report import Screen, follow, progress_bar  # noqa: E402
from service import Delivery, Service  # noqa: E402
from stand_in import Messages, reply  # noqa: E402
from workload import KillSchedule, Load  # noqa: E402

DEMO = [sys.executable, str(HERE / "demo.py")]
KILLS = 6
WIDTH = 80
TURN = re.compile(
    r"^ *\d+  Where is parcel (\d{4})\?  \d+ turns? read, digest \w{6}, call \w{8} +(\d+)(?: \+ (\d+))? *$",
    re.MULTILINE,
)
WRONG = re.compile(r"^(\w+ \d+) +Where is parcel \d{4}\?  (?:lost|doubled|torn): ", re.MULTILINE)
MORE = re.compile(r"^(\d+) of \d+ turns went wrong:$(?:.*^and (\d+) more)?", re.MULTILINE | re.DOTALL)
SUMMARY = re.compile(r"^(\w[\w ]*?) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) \+ (\d+) *$", re.MULTILINE)

Pairs = list[tuple[str, str]]


def test_a_short_run_keeps_its_promises_and_the_comparison_does_not() -> None:
    command = [*DEMO, "--seed", "7", "--questions", "3", "--kills", str(KILLS)]
    environment = {**os.environ, "COLUMNS": "200"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    kept, compared = summary_of(ended.stdout)
    assert (kept.title, kept.lost, kept.doubled, kept.torn) == ("mnemongo", 0, 0, 0)
    assert kept.saved >= 12, "the second copies of 12 questions need no model"
    assert compared.title == "one document per session"
    assert compared.lost + compared.doubled > 0
    assert min(kept.answering, compared.answering) >= KILLS
    turns = TURN.findall(ended.stdout)
    assert len({parcel for parcel, _, _ in turns}) == len(turns) >= 12, "mnemongo's turns, and only those"
    assert {first for _, first, _ in turns} == {"2"}, "each question is submitted twice"
    assert sum(int(again or 0) for _, _, again in turns) >= kept.answering + kept.waiting
    ((wrong, more),) = MORE.findall(ended.stdout)
    assert int(wrong) == len(set(WRONG.findall(ended.stdout))) + int(more or 0)
    last = f"mnemongo kept its promises: lost 0, doubled 0, torn 0; model calls saved: {kept.saved}."
    assert ended.stdout.splitlines()[-1] == last
    assert max(map(len, ended.stdout.splitlines())) <= WIDTH
    assert "\x1b" not in ended.stdout, "no animation without a terminal"
    assert not ended.stderr


def test_the_exit_code_tells_of_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = DurableChat.stored
    monkeypatch.setattr(DurableChat, "stored", lambda self, session: stored(self, session)[2:])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main(["--questions", "1", "--kills", "0", "--no-comparison"]) == 1
    shown = capsys.readouterr().out
    (broken,) = summary_of(shown)
    assert (broken.lost, broken.doubled, broken.torn) == (4, 0, 0)
    assert shown.count("lost: 1 answer seen is gone, none is left") == 4
    assert shown.splitlines()[-1].startswith("mnemongo BROKE A PROMISE: lost 4, doubled 0, torn 0;")


class Result(NamedTuple):
    """A row of the last table."""

    title: str
    lost: int
    doubled: int
    torn: int
    calls: int
    saved: int
    answering: int
    waiting: int


def summary_of(shown: str) -> list[Result]:
    """The rows of the last table."""
    return [Result(title, *map(int, counted)) for title, *counted in SUMMARY.findall(shown)]


def verdict_of(change: Callable[[Pairs], Messages], questions: int = 3) -> Verdict:
    """The judge's verdict on a perfect run, after ``change`` to what one session has stored."""
    load = Load(1, questions)
    stored: dict[str, Messages] = {}
    deliveries: list[Delivery] = []
    calls = []
    for session, jobs in load.sessions.items():
        messages: Pairs = []
        for job in jobs:
            number = len(deliveries) + 1
            call = f"{number:08}"
            messages.append(("user", job.question))
            messages.append(("assistant", reply(messages, call)))
            deliveries.append(Delivery(number, job, "acknowledged", messages[-1][1]))
            calls += [{"event": event, "call": call, "delivery": number} for event in ("begin", "end")]
        stored[session] = messages
    stored["ben"] = change(list(stored["ben"]))
    return judge(load, stored, deliveries, calls)


@pytest.mark.parametrize(
    ("change", "lost", "doubled", "torn"),
    [
        pytest.param(lambda said: said, 0, 0, 0, id="nothing"),
        pytest.param(lambda said: said[:0], 3, 0, 0, id="all is gone"),
        pytest.param(lambda said: said[:4], 1, 0, 0, id="the last turn is gone"),
        pytest.param(
            lambda said: said[2:], 1, 0, 2, id="the first is gone: the context of the others is not theirs"
        ),
        pytest.param(lambda said: said[:5], 1, 0, 1, id="an answer is gone"),
        pytest.param(lambda said: said[:4] + said[5:], 1, 0, 1, id="a question is gone"),
        pytest.param(lambda said: [*said, *said[4:]], 0, 1, 1, id="a turn is there twice"),
        pytest.param(lambda said: [*said, said[5]], 0, 0, 1, id="an answer is there twice"),
        pytest.param(lambda said: [*said[:2], *said[4:], *said[2:4]], 0, 0, 2, id="another order"),
        pytest.param(
            lambda said: [*said[:5], ("assistant", reply(said[:5], "x"))], 1, 0, 1, id="no such call"
        ),
    ],
)
def test_the_judge_sees(change: Callable[[Pairs], Messages], lost: int, doubled: int, torn: int) -> None:
    figures = verdict_of(change).figures
    assert (figures.lost, figures.doubled, figures.torn) == (lost, doubled, torn)
    assert figures.kept == (lost == doubled == torn == 0)


@pytest.mark.parametrize(
    ("every", "shown", "more"),
    [pytest.param(False, 10, 2, id="ten of them"), pytest.param(True, 12, 0, id="every one")],
)
def test_of_turns_that_went_wrong_ten_are_shown(
    capsys: pytest.CaptureFixture[str], every: bool, shown: int, more: int
) -> None:
    verdict = verdict_of(lambda said: [*said, *said], questions=12)
    Screen().wrong_turns(verdict, every=every)
    lines = capsys.readouterr().out
    assert list(dict.fromkeys(WRONG.findall(lines))) == [f"ben {number}" for number in range(1, shown + 1)]
    assert MORE.findall(lines) == [("12", str(more) if more else "")]
    assert lines.count("doubled: stored 2 times") == shown


def test_nothing_is_said_of_turns_that_went_right(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().wrong_turns(verdict_of(lambda said: said), every=True)
    assert not capsys.readouterr().out


def test_a_broken_turn_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = verdict_of(lambda said: [*said[:2], *said[4:], *said[:2]])
    Screen().sessions("a design", verdict)
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= WIDTH
    assert sum("Where is parcel" in line for line in shown) == 12
    rows = shown[next(number for number, line in enumerate(shown) if "ben asks" in line) + 1 :][:3]
    faults = [re.fullmatch(r" *\d  Where is parcel \d{4}\?  ([A-Z, ]+): .* 1 *", row) for row in rows]
    assert [fault and fault[1] for fault in faults] == ["DOUBLED, TORN", "LOST", "TORN"]


@pytest.mark.parametrize("title", [DurableChat.title, OneDocumentChat.title])
def test_the_progress_bar_has_its_time_at_80_columns(title: str) -> None:
    console, load = Console(file=StringIO(), width=WIDTH), Load(1, 30)
    bar = progress_bar(console, title, load.size)
    bar.start_task(bar.task_ids[0])
    service = Service(load, KillSchedule(1), kills=30, start_worker=Mock(), called=set)
    service.answered, service.kills = {job for jobs in load.sessions.values() for job in jobs[1:]}, 30
    follow(bar, service, load, 30)
    with console.capture() as drawn:
        console.print(bar.get_renderable())
    assert re.fullmatch(rf"{title} .* 116\D+120 .* 30\D+30 kills 0:00:00\s*", drawn.get())


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int, code: int) -> None:
    mark = f"CRASH_PROOF_CHAT={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, name: value, "TMPDIR": str(tmp_path)}
    command = [*DEMO, "--no-comparison"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while "answered" not in (line := process.stdout.readline()):
            assert line, "the demo ended early"
        assert len(processes_with(mark)) > 2, "the demo, its server and its workers"
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(30) == code
    deadline = time.monotonic() + 10
    while processes_with(mark):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def processes_with(mark: str) -> list[int]:
    """The processes, zombies not among them, that were started with this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # gone, or another user's
            continue
    return found
