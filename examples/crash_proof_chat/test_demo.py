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
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import demo  # noqa: E402 - found beside this file
from durable import DurableChat  # noqa: E402
from judge import Figures, judge  # noqa: E402
from service import Delivery  # noqa: E402
from stand_in import Messages, reply  # noqa: E402
from workload import Load  # noqa: E402

DEMO = [sys.executable, str(HERE / "demo.py")]
KILLS = 6
PROMISES = re.compile(r"^(.+): lost (\d+).*, doubled (\d+), torn (\d+); .*: (\d+)$", re.MULTILINE)
KILLED = re.compile(r"killed in a model call (\d+), after it (\d+),")

Pairs = list[tuple[str, str]]


def test_a_short_run_keeps_its_promises_and_the_comparison_does_not() -> None:
    command = [
        sys.executable,
        str(HERE / "demo.py"),
        "--seed",
        "7",
        "--questions",
        "3",
        "--kills",
        str(KILLS),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (durable, *figures, saved), (naive, lost, doubled, _, _) = PROMISES.findall(ended.stdout)
    assert (durable, figures) == ("mnemongo", ["0", "0", "0"])
    assert int(saved) >= 12, "the second copies of 12 questions need no model"
    assert naive == "one document per session"
    assert int(lost) + int(doubled) > 0
    for in_call, after_call in KILLED.findall(ended.stdout):
        assert int(in_call) + int(after_call) >= KILLS
    assert "\x1b" not in ended.stdout, "no animation without a terminal"
    assert not ended.stderr


def test_the_exit_code_tells_of_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = DurableChat.stored
    monkeypatch.setattr(DurableChat, "stored", lambda self, session: stored(self, session)[2:])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main(["--questions", "1", "--kills", "0", "--no-comparison"]) == 1
    assert "mnemongo: lost 4 (without any answer left: 4), doubled 0, torn 0" in capsys.readouterr().out


def figures_of(change: Callable[[Pairs], Messages]) -> Figures:
    """The judge's figures of a perfect run, after ``change`` to what one session has stored."""
    load = Load(1, 3)
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
    return judge(load, stored, deliveries, calls).figures


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
    figures = figures_of(change)
    assert (figures.lost, figures.doubled, figures.torn) == (lost, doubled, torn)
    assert figures.kept == (lost == doubled == torn == 0)


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
