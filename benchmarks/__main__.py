"""Measure the core against raw PyMongo that sends the least commands which could do the job.

    python benchmarks [--rounds N] [--json FILE]

Both sides of a job alternate call by call in one process on one throw-away server, so a ratio holds what the
machine was doing at the time. Times are medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from jobs import JOBS, Bench, Job
from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from mnemongo import Store
from mnemongo.local import start_mongod

WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One job: medians in ms of ours and of the limit, and ours at the 99th percentile."""

    job: str
    limit: str
    ours_ms: float
    limit_ms: float
    ours_p99_ms: float

    @property
    def ratio(self) -> float:
        return self.ours_ms / self.limit_ms


def timed(call: Callable[[int], Any], number: int) -> float:
    begun = time.perf_counter()
    call(number)
    return (time.perf_counter() - begun) * 1000


def measure(job: Job, bench: Bench, rounds: int) -> Measured:
    """Alternate ours and the limit; who goes first alternates too."""
    ours, limit = job.prepare(bench)
    times: dict[str, list[float]] = {"ours": [], "limit": []}
    for number in range(WARM_UP + rounds):
        pair = [("ours", ours), ("limit", limit)]
        for side, call in pair if number % 2 else reversed(pair):
            took = timed(call, number)
            if number >= WARM_UP:
                times[side].append(took)
    p99 = quantiles(times["ours"], n=100)[98]
    return Measured(job.name, job.limit, median(times["ours"]), median(times["limit"]), p99)


def table(results: list[Measured], environment: dict[str, str]) -> Table:
    shown = Table(title="core against raw PyMongo, p50", caption=" · ".join(environment.values()))
    for name in ("job", "the limit", "ours ms", "limit ms", "ratio", "ours p99 ms"):
        shown.add_column(name, justify="left" if name in {"job", "the limit"} else "right")
    for one in results:
        figures = (one.ours_ms, one.limit_ms, one.ratio, one.ours_p99_ms)
        shown.add_row(one.job, one.limit, *(f"{figure:.2f}" for figure in figures))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="calls of each side")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        server = start_mongod(Path(directory))
        try:
            client: MongoClient[dict[str, Any]] = MongoClient(server.uri)
            with client:
                environment = {
                    "server": f"MongoDB {client.server_info()['version']}, one node, majority",
                    "pymongo": f"PyMongo {version('pymongo')}",
                    "python": f"Python {platform.python_version()}",
                    "rounds": f"{arguments.rounds} rounds",
                }
                store = Store(client, "bench")
                store.setup()
                bench = Bench(store, client["bench"])
                results = []
                for job in JOBS:
                    console.print(f"{job.name} …")
                    results.append(measure(job, bench, arguments.rounds))
        finally:
            server.stop()
    console.print(table(results, environment))
    if arguments.json:
        figures = [{**vars_of(one), "ratio": one.ratio} for one in results]
        arguments.json.write_text(json.dumps({"environment": environment, "jobs": figures}, indent=2))


def vars_of(one: Measured) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Measured.__slots__}


if __name__ == "__main__":
    main()
