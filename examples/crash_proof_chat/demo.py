"""A chat that survives kill -9, and one that does not.

Worker processes answer questions in several sessions. Every question is submitted twice, and workers are
killed with SIGKILL at random moments and started again. In the end the database is compared with what
happened. The exit code is 1 if mnemongo lost, doubled or tore a turn.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from crew import Settings, Worker
from designs import DESIGNS
from judge import Figures, Verdict, judge
from pymongo import MongoClient
from report import Screen, follow, last_line
from service import Service
from stand_in import CallLog
from workload import SESSIONS, KillSchedule, Load

from mnemongo import TopologyError, local

COMPARISON = """\
The same load on one document per session, the usual design, as in the article this project began with: \
read the array of messages, call the model, $set the whole array. To it a question that comes again is new."""
PUSH = """\
With $push no turn would be lost in a race, but a job delivered again would still be answered twice, and the \
document grows until the limit of 16 MB."""


def arguments(given: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="decides the load and the kills (default: 1)")
    add("--workers", type=_count, default=4, help="processes at work at once (default: 4)")
    add("--kills", type=int, default=30, help="workers to kill while they answer (default: 30)")
    add("--questions", type=_count, default=10, help="in each of the 4 sessions (default: 10)")
    add("--uri", help="a MongoDB of yours (default: MONGODB_URI, else one is started for the demo)")
    add("--no-comparison", action="store_true", help="leave out the one-document design")
    add("--verbose", action="store_true", help="show every turn of both designs, and every figure")
    return parser.parse_args(given)


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the server and the logs, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mnemongo-demo-") as name:
        yield Path(name)


@contextmanager
def fresh_database(uri: str) -> Iterator[tuple[MongoClient[dict[str, Any]], str]]:
    """A database of a new name, dropped at the end."""
    name = f"mnemongo_demo_{uuid.uuid4().hex[:12]}"
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    with client:
        try:
            yield client, name
        finally:
            client.drop_database(name)


def run_design(
    name: str, options: argparse.Namespace, uri: str, folder: Path, screen: Screen
) -> tuple[str, Verdict]:
    """Put the load on one design, and judge what is in the database afterwards."""
    path = folder / f"{name}.log"
    log, load = CallLog(path), Load(options.seed, options.questions)
    with fresh_database(uri) as (client, database):
        design = DESIGNS[name](client, database)
        design.setup()
        settings = Settings(uri, database, name, str(path))
        service = Service(
            load,
            KillSchedule(options.seed),
            kills=options.kills,
            start_worker=partial(Worker, settings),
            called=partial(log.deliveries, "begin"),
        )
        with screen.progress(design.title, load, options.kills) as shown:
            service.run(options.workers, lambda state: follow(shown, state, load, options.kills))
        stored = {session: design.stored(session) for session in load.sessions}
    return design.title, judge(load, stored, service.deliveries, log.read())


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Run the demo; returns the exit code."""
    screen.say(
        f"{options.questions * len(SESSIONS)} questions in {len(SESSIONS)} sessions, each submitted twice; "
        f"{options.workers} workers. {options.kills} times one is killed while it answers, and now and then "
        f"one that only waits. Seed {options.seed}."
    )
    results: dict[str, Figures] = {}
    with temporary_folder() as folder, local(options.uri, directory=folder / "server") as server:
        title, verdict = run_design("durable", options, server.uri, folder, screen)
        results[title] = verdict.figures
        show(title, verdict, options, screen, every_turn=True)
        if not options.no_comparison:
            screen.say(COMPARISON)
            screen.say(PUSH)
            other, compared = run_design("naive", options, server.uri, folder, screen)
            results[other] = compared.figures
            show(other, compared, options, screen, every_turn=options.verbose)
    screen.summary(results)
    kept = verdict.figures.kept
    screen.say(last_line(title, verdict.figures), "bold green" if kept else "bold red")
    return 0 if kept else 1


def show(
    title: str, verdict: Verdict, options: argparse.Namespace, screen: Screen, *, every_turn: bool
) -> None:
    """Show what became of the turns of one design."""
    screen.say()
    if every_turn:
        screen.sessions(title, verdict)
        screen.say()
    screen.wrong_turns(verdict, every=options.verbose)
    if options.verbose:
        screen.details(verdict.figures)
        screen.say()


def main(given: list[str] | None = None) -> int:
    """Run the demo from the command line; Ctrl-C and SIGTERM clean up first."""
    options = arguments(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    screen = Screen()
    try:
        return run(options, screen)
    except KeyboardInterrupt:
        screen.say("Interrupted. Nothing is left running, and no data is kept.")
        return 130
    except TopologyError as error:
        screen.say(f"No MongoDB for the demo: {error}", "bold red")
        return 2


if __name__ == "__main__":
    sys.exit(main())
