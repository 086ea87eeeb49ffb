"""What a store does with its client, with its arguments, and on a standalone server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import InvalidOperation

import mnemongo
from mnemongo import (
    AsyncStore,
    ConfigurationError,
    Store,
    TopologyError,
    entries,
    leases,
    sessions,
    state,
)
from mnemongo.attempts import STANDALONE
from mnemongo.drive import translated
from store.harness import KEY, Client, Opened, Opener, entry, environment, open_transactions, stateful

UNREACHABLE = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=60000"


async def test_the_driver_s_metadata_names_us(opener: Opener, server_client: Client) -> None:
    opened = await opener.ready(appname=opener.database)
    _ = await opened.run(sessions.create(KEY))
    listing = [
        {"$currentOp": {"allUsers": True, "idleConnections": True}},
        {"$match": {"appName": opener.database}},
    ]
    names = [op["clientMetadata"]["driver"] for op in server_client.admin.aggregate(listing)]
    assert names
    assert any("mnemongo" in driver["name"].split("|") for driver in names)
    assert any(mnemongo.__version__ in driver["version"].split("|") for driver in names)


async def test_two_stores_on_one_client(opener: Opener) -> None:
    """The second appends the same metadata; both work, and neither closes the client."""
    opened = await opener.ready()
    _ = await opened.run(sessions.create(KEY))
    second = type(opened.store)(opened.client, opener.database)
    closing = second.close()
    if opened.colour == "AsyncStore":
        await closing
    assert await opened.run(sessions.get(KEY)) is not None


async def test_a_given_client_is_never_closed(opener: Opener) -> None:
    opened = await opener.ready()
    if opened.colour == "Store":
        with opened.store as same:
            assert same is opened.store
        opened.store.close()
    else:
        async with opened.store as same:
            assert same is opened.store
        await opened.store.close()
    assert await opened.run(sessions.get(KEY)) is None


async def test_from_uri_closes_its_own(colour: str, mongodb_uri: str, database_name: str) -> None:
    if colour == "Store":
        with Store.from_uri(mongodb_uri, database_name, timeout=5) as store:
            assert store.run(sessions.get(KEY)) is None
        with pytest.raises((InvalidOperation, mnemongo.MnemongoError)):
            _ = store.run(sessions.get(KEY))
    else:
        async with AsyncStore.from_uri(mongodb_uri, database_name, timeout=5) as other:
            assert await other.run(sessions.get(KEY)) is None
        with pytest.raises((InvalidOperation, mnemongo.MnemongoError)):
            _ = await other.run(sessions.get(KEY))


async def test_constructors_do_nothing(opener: Opener) -> None:
    before = time.monotonic()
    opened = opener(UNREACHABLE, connect=False)
    if opened.colour == "Store":
        Store.from_uri(UNREACHABLE, "x").close()
        _ = mnemongo.ChatHistory(opened.store, KEY).turn("t")
    else:
        await AsyncStore.from_uri(UNREACHABLE, "x").close()
        _ = mnemongo.AsyncChatHistory(opened.store, KEY).turn("t")
    assert time.monotonic() - before < 1
    assert opened.recorder.names == []
    assert opened.client._topology.description.topology_type_name == "Unknown"
    assert not opened.client._opened


async def test_operations_are_made_without_io(opener: Opener) -> None:
    opened = await opener.ready()
    for op in (sessions.create(KEY), entries.append(KEY, entry("e")), state.merge(KEY, {"a": 1})):
        assert op.plan() is not op.plan()
    assert opened.recorder.names == []


@pytest.mark.parametrize(
    ("database", "settings", "named"),
    [
        ("", {}, "database"),
        (None, {}, "database"),
        (b"x", {}, "database"),
        ("a/b", {}, "."),
        ("a.b", {}, "."),
        ("a$b", {}, "."),
        ("a b", {}, "."),
        ("a\0b", {}, "."),
        ("x" * 64, {}, "."),
        ("x", {"timeout": 0}, "timeout"),
        ("x", {"timeout": -1}, "timeout"),
        ("x", {"timeout": None}, "timeout"),
        ("x", {"timeout": "20"}, "timeout"),
        ("x", {"timeout": True}, "timeout"),
        ("x", {"timeout": float("nan")}, "timeout"),
        ("x", {"timeout": float("inf")}, "timeout"),
        ("x", {"collections": {"evnts": "a"}}, "evnts"),
        ("x", {"collections": {"events": ""}}, "."),
        ("x", {"collections": {"events": 3}}, "."),
        ("x", {"collections": {"events": "a$b"}}, "."),
        ("x", {"collections": {"events": "a\0b"}}, "."),
        ("x", {"collections": {"events": "system.x"}}, "."),
        ("x", {"collections": {"events": "sessions"}}, "."),
        ("x", {"collections": {"events": "same", "sessions": "same"}}, "."),
        ("x", {"collections": 5}, "."),
    ],
)
async def test_bad_settings(opener: Opener, database: Any, settings: dict[str, Any], named: str) -> None:
    opened = opener(UNREACHABLE, connect=False)
    with pytest.raises(ConfigurationError, match=named):
        _ = type(opened.store)(opened.client, database, **settings)
    assert opened.recorder.names == []


@pytest.mark.bare
async def test_collections_of_other_names(opener: Opener, server_client: Client) -> None:
    opened = opener()
    names = {"events": "agent_events", "sessions": "agent_sessions"}
    opened.store = type(opened.store)(opened.client, opener.database, collections=names)
    await opened.setup()
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(entries.append_many(KEY, [entry("e1"), stateful("e2", a=1, user_a=1)]))
    assert len((await opened.run(entries.last(KEY, 5))).entries) == 2
    found = set(server_client[opener.database].list_collection_names())
    assert found == {"agent_events", "agent_sessions", "user_states", "payloads"}


# Nothing is left


PROGRAM = """
import asyncio, sys
from pymongo import AsyncMongoClient, MongoClient
from mnemongo import AsyncStore, SessionKey, Store, sessions

uri, database = sys.argv[1:]
key = SessionKey("shop", "ann", "s1")
with Store.from_uri(uri, database) as store:
    store.setup()
    store.run(sessions.create(key))
with MongoClient(uri) as client:
    Store(client, database).run(sessions.get(key))

async def main():
    async with AsyncStore.from_uri(uri, database) as store:
        await store.run(sessions.get(key))
    async with AsyncMongoClient(uri) as client:
        await AsyncStore(client, database).run(sessions.get(key))

asyncio.run(main())
"""


def test_no_warning_is_left(mongodb_uri: str, database_name: str) -> None:
    arguments = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, mongodb_uri, database_name]
    done = subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_no_server_session_is_left_in_a_transaction(opener: Opener, server_client: Client) -> None:
    opened = await opener.ready(appname=opener.database)
    _ = await opened.run(sessions.create(KEY))
    for number in range(3):
        _ = await opened.run(entries.append_many(KEY, [entry(f"a{number}"), entry(f"b{number}")]))
    with pytest.raises(mnemongo.StaleRevisionError):
        _ = await opened.run(entries.append_many(KEY, [entry("x"), entry("y")], expected=1 << 28))
    assert [t for t in open_transactions(server_client) if t["appName"] == opener.database] == []


# A standalone server


@pytest.fixture
async def alone(colour: str, standalone_uri: str, database_name: str) -> AsyncIterator[Opened]:
    made = Opener(colour, standalone_uri, database_name)
    yield made()
    await made.close()
    client: Client = MongoClient(standalone_uri)
    with client:
        client.drop_database(database_name)


async def use(opened: Opened) -> None:
    await opened.setup()
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(entries.append(KEY, entry("e0")))
    _ = await opened.run(entries.append_many(KEY, [entry("e1"), stateful("e2", a=1, app_a=2, user_a=3)]))
    _ = await opened.run(state.merge(KEY, {"b": 1, "app:b": 2, "user:b": 3}))
    lease = await opened.run(leases.acquire(KEY, owner="w", ttl=30))
    _ = await opened.run(leases.release(lease))


async def test_a_standalone_warns_once_and_works(alone: Opened) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        await use(alone)
    assert [str(one.message) for one in heard] == [STANDALONE]
    assert [one.entry.key for one in await alone.run(entries.page(KEY))] == ["e0", "e1", "e2"]
    wanted = {"a": 1, "b": 1, "app:a": 2, "app:b": 2, "user:a": 3, "user:b": 3}
    assert (await alone.run(state.get(KEY))).merged == wanted
    again = await alone.run(
        entries.append_many(KEY, [entry("e1"), stateful("e2", a=1, app_a=2, user_a=3), entry("e3")])
    )
    assert [one.replayed for one in again] == [True, True, False]
    assert {"commitTransaction", "startTransaction"} & set(alone.recorder.names) == set()


async def test_a_standalone_warns_once_for_many_at_once(alone: Opened) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _ = await asyncio.gather(*(alone.run(sessions.get(KEY)) for _ in range(8)))
    assert len(heard) == 1


async def test_each_store_warns(alone: Opened) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _ = await alone.run(sessions.get(KEY))
        alone.store = type(alone.store)(alone.client, alone.store._settings.database)
        _ = await alone.run(sessions.get(KEY))
    assert len(heard) == 2


async def test_the_warning_as_an_error_does_no_harm(alone: Opened) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="standalone"):
            _ = await alone.run(sessions.create(KEY))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _ = await alone.run(sessions.create(KEY))


async def test_a_replica_set_does_not_warn(opener: Opener) -> None:
    opened = await opener.ready()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await use(opened)


def test_a_transaction_on_a_standalone_is_a_topology_error(standalone_uri: str) -> None:
    """What the server says where there are none, translated."""
    client: Client = MongoClient(standalone_uri, retryWrites=False)
    with client, client.start_session() as session:
        session.start_transaction()
        with pytest.raises(Exception, match="replica set") as caught:
            _ = client.x.y.insert_one({}, session=session)
    error = translated(caught.value, "op", may_be_written=False)
    assert type(error) is TopologyError
