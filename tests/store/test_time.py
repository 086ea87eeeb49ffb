"""Every operation ends within its time, says whether it may have written, and can be repeated."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from fix_mongod import Factory
from mnemongo import OutcomeUnknownError, SessionKey, UnavailableError, entries, leases, sessions, state
from mnemongo.commands import Operation
from mnemongo.documents import Stored
from store.harness import KEY, MARGIN, Client, Opened, Opener, Proxy, entry, failing, stateful

LIMIT = 0.4
EVERY_COMMAND = (
    *("aggregate", "find", "insert", "update", "delete", "findAndModify", "createIndexes"),
    *("commitTransaction", "abortTransaction"),
)
READS: Mapping[str, Callable[[], Operation[Any]]] = {
    "sessions.get": lambda: sessions.get(KEY),
    "entries.last": lambda: entries.last(KEY, 5),
}
WRITES: Mapping[str, Callable[[SessionKey], Operation[Any]]] = {
    "append": lambda key: entries.append(key, entry("e1")),
    "append with state": lambda key: entries.append(key, stateful("e1", a=1)),
    "append_many": lambda key: entries.append_many(key, [entry("e1"), stateful("e2", a=1, app_a=1)]),
    "state.merge": lambda key: state.merge(key, {"a": 1}),
    "state.merge of all": lambda key: state.merge(key, {"a": 1, "user:a": 1, "app:a": 1}),
    "acquire": lambda key: leases.acquire(key, owner="w", ttl=30),
    "clear": sessions.clear,
    "delete": sessions.delete,
}
ENTRIES = {"append": ["e1"], "append with state": ["e1"], "append_many": ["e1", "e2"]}


async def with_session(opener: Opener, uri: str | None = None, **options: Any) -> Opened:
    """A store that knows its server, and a session."""
    opened = await opener.ready(uri, **options)
    _ = await opened.run(sessions.create(KEY))
    return opened


async def failure(opened: Opened, op: Operation[Any], limit: float = LIMIT) -> Exception:
    """The error that an operation ends with, in time."""
    before = time.monotonic()
    with pytest.raises((UnavailableError, OutcomeUnknownError)) as caught:
        _ = await opened.run(op)
    assert time.monotonic() - before < limit + MARGIN
    assert caught.value.__cause__ is not None
    return caught.value


async def stored(opened: Opened, key: SessionKey = KEY) -> list[str]:
    return [one.entry.key for one in await opened.run(entries.page(key))]


# A server that does not answer


@pytest.mark.parametrize("name", READS)
async def test_a_read_of_a_silent_server(opener: Opener, name: str) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, timeout=LIMIT, appname=app)
    with failing(opener.uri, *EVERY_COMMAND, blockConnection=True, blockTimeMS=250, appName=app):
        assert type(await failure(opened, READS[name]())) is UnavailableError
    _ = await opened.run(READS[name]())


@pytest.mark.parametrize("name", ["append", "append_many", "state.merge", "acquire"])
async def test_a_write_to_a_silent_server(opener: Opener, name: str) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, timeout=LIMIT, appname=app)
    op = WRITES[name](KEY)
    with failing(opener.uri, *EVERY_COMMAND, blockConnection=True, blockTimeMS=250, appName=app):
        _ = await failure(opened, op)
    patient = await opener.ready()
    _ = await patient.run(op)
    if name in ENTRIES:
        assert await stored(patient) == ENTRIES[name]


async def test_a_commit_that_is_not_answered(opener: Opener) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, timeout=LIMIT, appname=app)
    op = WRITES["append_many"](KEY)
    with failing(opener.uri, "commitTransaction", blockConnection=True, blockTimeMS=250, appName=app):
        assert type(await failure(opened, op)) is OutcomeUnknownError
    patient = await opener.ready(timeout=2)  # what is left open is ended after half of that
    _ = await patient.run(op)
    assert await stored(patient) == ENTRIES["append_many"]


async def test_an_append_whose_head_cannot_follow_is_stored(opener: Opener) -> None:
    """The insert is the commit: the second attempt finds it, and readers do not need the head."""
    app = uuid.uuid4().hex
    opened = await with_session(opener, timeout=LIMIT, appname=app)
    with failing(opener.uri, "update", blockConnection=True, blockTimeMS=250, appName=app):
        made = await opened.run(WRITES["append"](KEY))
    assert made.replayed
    assert await stored(await opener.ready()) == ["e1"]


async def test_a_frozen_server(colour: str, mongod_factory: Factory) -> None:
    server = mongod_factory()
    opener = Opener(colour, server.uri, "frozen")
    try:
        opened = await with_session(opener, timeout=LIMIT)
        write, batch = WRITES["append"](KEY), WRITES["append_many"](KEY)
        server.kill(signal.SIGSTOP)
        try:
            assert type(await failure(opened, sessions.get(KEY))) is UnavailableError
            _ = await failure(opened, write)
            _ = await failure(opened, batch)
        finally:
            server.kill(signal.SIGCONT)
        patient = opener(timeout=20)
        first = await patient.run(write)
        _ = await patient.run(batch)
        assert first.entry.key == "e1"
        assert await stored(patient) == ["e1", "e2"]
    finally:
        await opener.close()


@pytest.mark.parametrize("write", [False, True])
async def test_an_unreachable_server(opener: Opener, write: bool) -> None:
    opened = opener("mongodb://127.0.0.1:1/", timeout=LIMIT)
    op = WRITES["append"](KEY) if write else sessions.get(KEY)
    error = await failure(opened, op)
    assert type(error) is UnavailableError
    assert isinstance(error.__cause__, ServerSelectionTimeoutError)
    assert "try again" in str(error)


async def test_a_server_that_comes_back(opener: Opener) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, heartbeatFrequencyMS=500, appname=app)
    with failing(opener.uri, "insert", times=3, closeConnection=True, appName=app):
        made = await opened.run(WRITES["append"](KEY))
    assert made.entry.key == "e1"
    assert await stored(opened) == ["e1"]


# Replies that are lost


@pytest.mark.parametrize("retry_writes", [True, False])
@pytest.mark.parametrize("name", WRITES)
async def test_one_lost_reply_is_made_good(
    opener: Opener, proxy: Proxy, name: str, retry_writes: bool
) -> None:
    opened = await with_session(opener, proxy.uri, retryWrites=retry_writes)
    lost = 0
    for command in ("aggregate", "find", "insert", "update", "delete", "findAndModify", "commitTransaction"):
        key = SessionKey("shop", "ann", command)
        _ = await opened.run(sessions.create(key))
        proxy.lose, proxy.lost, proxy.most = {command}, 0, 1
        try:
            _ = await opened.run(WRITES[name](key))
        except OutcomeUnknownError:  # without a key, the caller decides whether to do it twice
            assert (name, retry_writes) in {("delete", False), ("clear", False)}
            _ = await opened.run(WRITES[name](key))
        lost += proxy.lost
        proxy.lose = set()
        if name in ENTRIES:
            assert await stored(opened, key) == ENTRIES[name]
        elif name.startswith("state"):
            assert (await opened.run(state.get(key))).session == {"a": 1}
        elif name == "delete":
            assert await opened.run(sessions.get(key)) is None
    assert lost >= 1


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("append", "insert"),
        ("append with state", "commitTransaction"),
        ("append_many", "commitTransaction"),
        ("state.merge of all", "commitTransaction"),
    ],
)
async def test_every_reply_is_lost(opener: Opener, proxy: Proxy, name: str, command: str) -> None:
    opened = await with_session(opener, proxy.uri, timeout=LIMIT)
    op = WRITES[name](KEY)
    proxy.lose = {command}
    error = await failure(opened, op)
    assert type(error) is OutcomeUnknownError
    assert proxy.lost >= 1
    proxy.lose = set()
    patient = await opener.ready()
    again = await patient.run(op)
    if name in ENTRIES:
        assert await stored(patient) == ENTRIES[name]
        one = again[0] if isinstance(again, tuple) else again
        assert isinstance(one, Stored)
        assert one.replayed
    else:
        assert (await patient.run(state.get(KEY))).merged == {"a": 1, "user:a": 1, "app:a": 1}


async def test_a_lost_reply_to_a_read_writes_nothing(opener: Opener, proxy: Proxy) -> None:
    opened = await with_session(opener, proxy.uri, timeout=LIMIT)
    proxy.lose = {"aggregate"}
    assert type(await failure(opened, sessions.get(KEY))) is UnavailableError


@pytest.mark.parametrize("name", ["append_many"])
@pytest.mark.parametrize(
    "data",
    [
        {"closeConnection": True},
        {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
        {"writeConcernError": {"code": 91, "errmsg": "shutdown in progress"}},
        {"errorCode": 91},
    ],
    ids=["link", "write-concern-timeout", "shutdown-after", "shutdown"],
)
async def test_a_commit_that_is_never_confirmed(opener: Opener, name: str, data: Mapping[str, Any]) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, timeout=LIMIT, appname=app)
    op = WRITES[name](KEY)
    with failing(opener.uri, "commitTransaction", appName=app, **data):
        error = await failure(opened, op)
    assert type(error) is OutcomeUnknownError
    patient = await opener.ready(timeout=4)  # what is left open is ended after half of that
    again = await patient.run(op)
    one = again[0] if isinstance(again, tuple) else again
    assert one.replayed is ("writeConcernError" in data)
    assert await stored(patient) == ENTRIES[name]
    assert (await patient.run(state.get(KEY))).session == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [{"closeConnection": True}, {"errorCode": 91}, {"writeConcernError": {"code": 91, "errmsg": "x"}}],
    ids=["link", "shutdown", "shutdown-after"],
)
async def test_a_commit_that_is_confirmed_at_the_second_try(opener: Opener, data: Mapping[str, Any]) -> None:
    app = uuid.uuid4().hex
    opened = await with_session(opener, heartbeatFrequencyMS=500, appname=app)
    with failing(opener.uri, "commitTransaction", times=1, appName=app, **data):
        _ = await opened.run(WRITES["append_many"](KEY))
    assert await stored(opened) == ["e1", "e2"]
    assert opened.recorder.names.count("commitTransaction") == 2


# Other people's transactions


@pytest.mark.parametrize("name", ["append_many", "state.merge"])
async def test_a_stranger_in_the_way(opener: Opener, server_client: Client, name: str) -> None:
    """Another client holds the head: the operation gives up in time; the stranger goes on."""
    opened = await with_session(opener, timeout=LIMIT)
    heads = server_client[opener.database]["sessions"]
    with server_client.start_session() as session:
        session.start_transaction()
        _ = heads.update_one({"_id": KEY.document_id}, {"$set": {"stranger": 1}}, session=session)
        error = await failure(opened, WRITES[name](KEY))
        assert isinstance(error, UnavailableError | OutcomeUnknownError)
        await asyncio.to_thread(session.commit_transaction)
    assert heads.find_one({"_id": KEY.document_id, "stranger": 1}) is not None
    _ = await opened.run(WRITES[name](KEY))
