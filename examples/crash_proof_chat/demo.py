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
from judge import Verdict, judge
from pymongo import MongoClient
from report import Screen, follow
from service import Service
from stand_in import CallLog
from workload import SESSIONS, KillSchedule, Load

from mnemongo import TopologyError, local


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


def run_design(name: str, options: argparse.Namespace, uri: str, folder: Path, screen: Screen) -> Verdict:
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
    verdict = judge(load, stored, service.deliveries, log.read())
    screen.verdict(design.title, verdict)
    return verdict


def run(options: argparse.Namespace, screen: Screen) -> int:
    """Run the demo; returns the exit code."""
    screen.say(
        f"{options.questions * len(SESSIONS)} questions in {len(SESSIONS)} sessions, each submitted twice; "
        f"{options.workers} workers, {options.kills} kills, seed {options.seed}"
    )
    with temporary_folder() as folder, local(options.uri, directory=folder / "server") as server:
        verdict = run_design("durable", options, server.uri, folder, screen)
        if not options.no_comparison:
            screen.say("The same questions, copies and schedule of kills, on one document per session:")
            run_design("naive", options, server.uri, folder, screen)
    if not verdict.figures.kept:
        screen.say("A promise of mnemongo was broken.", "bold red")
        return 1
    screen.say("mnemongo kept its promises.", "bold green")
    return 0


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
