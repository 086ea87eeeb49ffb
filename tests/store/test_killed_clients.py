"""A client killed inside a transaction blocks nobody for longer than an operation may take."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mnemongo import MnemongoError, entries, sessions, state
from mnemongo.attempts import kill, orphans
from mnemongo.commands import Operation
from mnemongo.settings import MARK, metadata
from store.harness import KEY, Client, Opened, Opener, entry, environment, open_transactions, until

SCRIPT = Path(__file__).with_name("killed_client.py")
LIMIT = 2.0
OPERATIONS: Mapping[str, Callable[[], Operation[Any]]] = {
    "append": lambda: entries.append(KEY, entry("n1")),
    "append_many": lambda: entries.append_many(KEY, [entry("n1"), entry("n2")]),
    "merge": lambda: state.merge(KEY, {"n": 1}),
    "merge of all": lambda: state.merge(KEY, {"n": 1, "app:n": 1, "user:n": 1}),
}
# After which of its commands the client was killed, in which operation; what another client then does.
DEATHS = [
    ("insert", "append_many", "append"),
    ("update", "append_many", "append_many"),
    ("update", "append_many", "merge"),
    ("update", "merge", "merge"),
    ("update", "merge", "merge of all"),
]


def killed(uri: str, database: str, command: str, operation: str, limit: float = LIMIT) -> None:
    """Run a client until it kills itself."""
    arguments = [sys.executable, str(SCRIPT), uri, database, str(limit), command, operation]
    done = subprocess.run(arguments, env=environment(), capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


async def with_session(opener: Opener, **options: Any) -> Opened:
    opened = await opener.ready(**options)
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(state.merge(KEY, {"a": 1, "app:a": 1, "user:a": 1}))
    return opened


def left_open(client: Client) -> list[dict[str, Any]]:
    """The open transactions without a running command."""
    return [op for op in open_transactions(client) if not op["active"]]


@pytest.mark.parametrize(("command", "killed_in", "name"), DEATHS)
async def test_another_client_succeeds_in_its_own_time(
    opener: Opener, server_client: Client, command: str, killed_in: str, name: str
) -> None:
    opened = await with_session(opener, timeout=LIMIT)
    await asyncio.to_thread(killed, opener.uri, opener.database, command, killed_in)
    assert left_open(server_client)
    before = time.monotonic()
    _ = await opened.run(OPERATIONS[name]())
    assert time.monotonic() - before < LIMIT + 0.5
    seen = [one.entry.key for one in await opened.run(entries.page(KEY))]
    wanted = {"append": ["n1"], "append_many": ["n1", "n2"]}
    assert seen == wanted.get(name, [])
    assert "killed" not in (await opened.run(state.get(KEY))).merged


async def test_nothing_of_an_abandoned_batch_is_ever_seen(opener: Opener, server_client: Client) -> None:
    opened = await with_session(opener, timeout=LIMIT)
    await asyncio.to_thread(killed, opener.uri, opener.database, "update", "append_many")
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == []
    assert "killed" not in (await opened.run(state.get(KEY))).session
    before = time.monotonic()
    while True:  # the batch itself, run again by another worker
        try:
            batch = [entry("k1"), entry("k2")]
            stored = await opened.run(entries.append_many(KEY, batch))
            break
        except MnemongoError:
            assert time.monotonic() - before < 3 * LIMIT
    assert [one.replayed for one in stored] == [False, False]
    await until(lambda: left_open(server_client) == [])


async def test_transactions_of_strangers_are_left_alone(opener: Opener, server_client: Client) -> None:
    """One without our metadata stands in the way for longer than the limit: it is not killed."""
    opened = await with_session(opener, timeout=0.8)
    heads = server_client[opener.database]["sessions"]
    with server_client.start_session() as session:
        session.start_transaction()
        _ = heads.update_one({"_id": KEY.document_id}, {"$set": {"stranger": 1}}, session=session)
        for _ in range(2):
            with pytest.raises(MnemongoError):
                _ = await opened.run(OPERATIONS["merge"]())
        await asyncio.to_thread(session.commit_transaction)
    assert heads.find_one({"stranger": 1}) is not None


async def test_young_transactions_of_ours_are_left_alone(opener: Opener) -> None:
    """One of a client of ours that is at work, younger than the limit."""
    opened = await with_session(opener, timeout=4)
    ours: Client = MongoClient(opener.uri, driver=metadata())
    with ours, ours.start_session() as session:
        session.start_transaction()
        heads = ours[opener.database]["sessions"]
        _ = heads.update_one({"_id": KEY.document_id}, {"$set": {"ours": 1}}, session=session)
        running = asyncio.ensure_future(opened.run(OPERATIONS["merge"]()))
        opened.recorder.clear()
        await until(lambda: "aggregate" in opened.recorder.names)  # what stands in the way was listed
        await asyncio.to_thread(session.commit_transaction)
        await running
    assert (await opened.run(state.get(KEY))).session == {"a": 1, "n": 1}


def test_what_counts_as_an_orphan() -> None:
    """Idle, older than the limit, of a client with our mark that has no connection left."""

    def listed(kind: str, *marks: str, seconds: float = 0.0) -> dict[str, Any]:
        platform = "|".join(("CPython", *marks))
        opened = {"transaction": {"timeOpenMicros": seconds * 1e6}, "lsid": {"id": f"{marks}"}}
        return {"type": kind, "clientMetadata": {"platform": platform}, **opened}

    gone = listed("idleSession", f"{MARK}gone", seconds=6)
    young = listed("idleSession", f"{MARK}gone too", seconds=4)
    living = listed("idleSession", f"{MARK}a", f"{MARK}b", seconds=60)
    stranger = listed("idleSession", seconds=60)
    connections = [listed("op", f"{MARK}b"), listed("op"), {"type": "op"}]
    assert orphans([gone, young, living, stranger, *connections], 20) == [gone["lsid"]]
    assert kill([gone["lsid"]]) == {"killSessions": [{"id": gone["lsid"]["id"]}]}
