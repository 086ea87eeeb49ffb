"""A cancelled ``AsyncStore.run`` leaves no transaction open and no half of anything, wherever it was hit."""

from __future__ import annotations

import asyncio
import gc
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mnemongo import SessionKey, UnavailableError, entries, sessions, state
from mnemongo.commands import Operation
from store.harness import (
    Client,
    Opened,
    Opener,
    entry,
    environment,
    failing,
    open_transactions,
    stateful,
    until,
)

MOST_COMMANDS = 8


def three(key: SessionKey) -> Operation[Any]:
    return entries.append_many(key, [entry("e1"), stateful("e2", a=1, app_a=1, user_a=1), entry("e3")])


OPERATIONS: Mapping[str, Callable[[SessionKey], Operation[Any]]] = {
    "append": lambda key: entries.append(key, entry("e1")),
    "append_many": three,
    "state.merge": lambda key: state.merge(key, {"a": 1, "app:a": 1, "user:a": 1}),
}
WHOLE = {"append": ["e1"], "append_many": ["e1", "e2", "e3"], "state.merge": []}


@pytest.fixture
def colour() -> str:
    """Only a task can be cancelled."""
    return "AsyncStore"


async def check(opened: Opened, key: SessionKey, name: str, client: Client) -> bool:
    """Nothing open, nothing half; returns whether it was done. Then it is repeated."""
    assert [
        t for t in open_transactions(client) if t["appName"] == opened.client.options.pool_options.appname
    ] == []
    before = [one.entry.key for one in await opened.run(entries.page(key))]
    assert before in ([], WHOLE[name])
    seen = (await opened.run(state.get(key))).merged
    if name != "append":
        assert seen in ({}, {"a": 1, "app:a": 1, "user:a": 1})
        assert not before or seen
    done = bool(before or seen)
    _ = await opened.run(OPERATIONS[name](key))
    assert [one.entry.key for one in await opened.run(entries.page(key))] == WHOLE[name]
    if name != "append":
        assert (await opened.run(state.get(key))).merged == {"a": 1, "app:a": 1, "user:a": 1}
    return done


@pytest.mark.parametrize("moment", ["sent", "answered"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_cancelled_at_each_command(
    opener: Opener, server_client: Client, name: str, moment: str
) -> None:
    opened = await opener.ready(appname=uuid.uuid4().hex)
    reached = 0
    for number in range(MOST_COMMANDS):
        key = SessionKey(f"app{number}", "ann", "s1")
        _ = await opened.run(sessions.create(key))
        task = asyncio.create_task(opened.run(OPERATIONS[name](key)))
        hits = cancel_at(opened, task, number, moment)
        try:
            with pytest.raises(asyncio.CancelledError):
                _ = await task
        except pytest.fail.Exception:
            assert not hits  # it has fewer commands: it ended undisturbed
        opened.recorder.on_start = opened.recorder.on_success = None
        reached += bool(hits)
        _ = await check(opened, key, name, server_client)
    assert 2 < reached < MOST_COMMANDS


def cancel_at(opened: Opened, task: asyncio.Task[Any], number: int, moment: str) -> list[str]:
    """Cancel the task when its command ``number`` is sent, or was answered."""
    hits: list[str] = []
    seen: list[str] = []

    def hear(event: Any) -> None:
        seen.append(event.command_name)
        if len(seen) == number + 1:
            hits.append(event.command_name)
            task.cancel()

    if moment == "sent":
        opened.recorder.on_start = hear
    else:
        opened.recorder.on_success = hear
    return hits


async def test_cancelled_while_a_command_is_under_way(opener: Opener, server_client: Client) -> None:
    """The caller is told once the operation has ended, not before."""
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app)
    commands = ("aggregate", "insert", "update", "commitTransaction")
    for command in commands:
        key = SessionKey("shop", "ann", command)
        _ = await opened.run(sessions.create(key))
        with failing(opener.uri, command, times=1, blockConnection=True, blockTimeMS=150, appName=app):
            opened.recorder.clear()
            batch = entries.append_many(key, [entry("e1"), entry("e2")])
            task = asyncio.create_task(opened.run(batch))
            await until(lambda wanted=command: wanted in opened.recorder.names)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                _ = await task
        assert opened.recorder.names.count("commitTransaction") == 1
        assert [t for t in open_transactions(server_client) if t["appName"] == app] == []
        assert [one.entry.key for one in await opened.run(entries.page(key))] == ["e1", "e2"]


async def test_an_operation_that_fails_after_its_caller_was_cancelled(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is nobody's: no "exception was never retrieved"."""
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app, timeout=0.5)
    key = SessionKey("shop", "ann", "s1")
    with failing(opener.uri, "aggregate", closeConnection=True, appName=app):
        opened.recorder.clear()
        task = asyncio.create_task(opened.run(sessions.get(key)))
        await until(lambda: opened.recorder.names)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            _ = await task
    del task
    _ = gc.collect()
    await asyncio.sleep(0)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_second_cancellation_does_not_wait(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app, timeout=0.6)
    key = SessionKey("shop", "ann", "s1")
    with failing(opener.uri, "aggregate", blockConnection=True, blockTimeMS=300, appName=app):
        opened.recorder.clear()
        task = asyncio.create_task(opened.run(sessions.get(key)))
        await until(lambda: opened.recorder.names)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert done == {task}
        assert task.cancelled()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        inner = [t for t in others if "AsyncStore._run" in repr(t)]
        _ = await asyncio.wait(inner, timeout=5) if inner else None
    del task, done, others, inner
    _ = gc.collect()
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_time_limits_of_the_caller(opener: Opener) -> None:
    """``asyncio.timeout`` around a run is a cancellation, too."""
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app)
    key = SessionKey("shop", "ann", "s1")
    _ = await opened.run(sessions.create(key))
    slow = failing(opener.uri, "insert", times=1, blockConnection=True, blockTimeMS=300, appName=app)
    with slow, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            _ = await opened.run(three(key))
    assert [one.entry.key for one in await opened.run(entries.page(key))] == ["e1", "e2", "e3"]


async def test_many_cancelled_at_once(opener: Opener, server_client: Client) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app)
    made = [SessionKey("shop", "ann", f"s{number}") for number in range(12)]
    for key in made:
        _ = await opened.run(sessions.create(key))
    tasks = [
        asyncio.create_task(opened.run(entries.append_many(k, [entry("e1"), entry("e2")]))) for k in made
    ]
    for number, task in enumerate(tasks):
        for _ in range(number % 4):
            await asyncio.sleep(0.001)
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError | tuple) for end in ended)
    assert [t for t in open_transactions(server_client) if t["appName"] == app] == []
    for key in made:
        seen = [one.entry.key for one in await opened.run(entries.page(key))]
        assert seen in ([], ["e1", "e2"])


PROGRAM = """
import asyncio, sys
from pymongo import AsyncMongoClient
from pymongo.monitoring import CommandListener
from mnemongo import AsyncStore, Entry, SessionKey, entries, sessions

uri, database, app, how = sys.argv[1:]

class At(CommandListener):
    number, heard, seen = 0, None, 0
    def started(self, event):
        self.seen += 1
        if self.heard and self.seen == self.number:
            self.heard.set()
    def succeeded(self, event): pass
    def failed(self, event): pass

async def main(number):
    at = At()
    client = AsyncMongoClient(uri, appname=app, event_listeners=[at])
    store = AsyncStore(client, database)
    key = SessionKey("shop", "ann", f"s{number}")
    await store.run(sessions.create(key))
    at.number, at.heard, at.seen = number, asyncio.Event(), 0
    batch = [Entry("e1", "{}", 1.0), Entry("e2", "{}", 1.0)]
    task = asyncio.create_task(store.run(entries.append_many(key, batch)))
    await at.heard.wait()
    if how == "cancel":
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled", number)
        await client.close()

for number in range(1, 5):
    asyncio.run(main(number))
print("alive", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["cancel", "abandon"])
async def test_a_loop_that_ends_right_after(opener: Opener, server_client: Client, how: str) -> None:
    """``asyncio.run`` cancels what is left, at each command of a batch: nothing open, not a word."""
    app = uuid.uuid4().hex
    reader = await opener.ready()
    arguments = [sys.executable, "-X", "dev", "-W", "default", "-c", PROGRAM, opener.uri, opener.database]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *arguments, app, how, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(15):
            while (line := await process.stdout.readline()) not in (b"alive\n", b""):
                assert line.startswith(b"cancelled")
        left = [
            t for t in open_transactions(server_client) if t["appName"] == app
        ]  # its client is there still
    finally:
        _, complaints = await process.communicate(b"")
    assert process.returncode == 0, complaints.decode()
    for word in ("Task was destroyed", "never retrieved", "never awaited", "Traceback"):
        assert word not in complaints.decode()
    if how == "cancel":
        assert complaints == b""
    assert left == []
    for number in range(1, 5):
        key = SessionKey("shop", "ann", f"s{number}")
        seen = [one.entry.key for one in await reader.run(entries.page(key))]
        assert seen in ([], ["e1", "e2"])


async def test_a_run_outside_its_time_is_not_a_cancellation(opener: Opener) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app, timeout=0.4)
    slow = failing(opener.uri, "aggregate", blockConnection=True, blockTimeMS=300, appName=app)
    with slow, pytest.raises(UnavailableError):
        _ = await opened.run(sessions.get(SessionKey("shop", "ann", "s1")))
