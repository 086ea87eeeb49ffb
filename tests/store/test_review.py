"""What a review found wanting, on real servers: others' transactions, least privilege, lost replies."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import NetworkTimeout

from fix_mongod import TEST_PARAMETERS
from mnemongo import (
    AsyncChatHistory,
    ChatHistory,
    Entry,
    Message,
    MnemongoError,
    OutcomeUnknownError,
    SessionKey,
    Store,
    entries,
    retention,
    sessions,
    state,
)
from mnemongo.commands import Command, Operation
from mnemongo.local import start_mongod
from mnemongo.schema import PART_BYTES
from store.harness import (
    KEY,
    Client,
    Opened,
    Opener,
    entry,
    failing,
    open_transactions,
    stateful,
    until,
)

COLLECTIONS = ("sessions", "events", "app_states", "user_states", "payloads")
ACTIONS = ["find", "insert", "update", "remove"]
DATABASE = "mem"
PASSWORD = "not-a-secret"
BRIEF = 1.2


async def waited(value: Any) -> Any:
    """What a method of either driver gives."""
    return await value if inspect.isawaitable(value) else value


# The application's own transactions


@pytest.mark.parametrize(
    "blocked",
    [lambda: state.merge(KEY, {"a": 1}), lambda: state.merge(KEY, {"a": 1, "user:a": 1})],
    ids=["single", "transaction"],
)
async def test_the_applications_own_idle_transaction_survives_a_blocked_operation(
    opener: Opener, server_client: Client, blocked: Callable[[], Operation[Any]]
) -> None:
    opened = await opener.ready(timeout=BRIEF)
    _ = await opened.run(sessions.create(KEY))
    orders = opened.client[opener.database]["orders"]
    heads = opened.client[opener.database]["sessions"]
    _ = await waited(orders.insert_one({"_id": 1, "n": 0}))
    async with await _begun(opened.client) as mine, await _begun(opened.client) as young:
        _ = await waited(orders.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=mine))
        await until(lambda: _age(server_client, mine) > 0.75 * BRIEF)
        _ = await waited(heads.update_one({"_id": KEY.document_id}, {"$set": {"z": 1}}, session=young))
        opened.recorder.clear()
        with suppress(MnemongoError):  # it cannot succeed: what is in its way is alive
            await opened.run(blocked())
        listed = [c for c in opened.recorder.commands if "$currentOp" in str(c.get("pipeline"))]
        assert listed, "nobody looked for what stands in the way"
        await waited(mine.commit_transaction())
        await waited(young.commit_transaction())
    assert (await waited(orders.find_one({"_id": 1})))["n"] == 1
    await opened.run(blocked())


async def _begun(client: Any) -> Any:
    session = await waited(client.start_session())
    _ = await waited(session.start_transaction())
    return _Ended(session)


class _Ended:
    """A session of either driver, ended on leaving."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def __aenter__(self) -> Any:
        return self.session

    async def __aexit__(self, *_: object) -> None:
        await waited(self.session.end_session())


def _age(client: Client, session: Any) -> float:
    """Seconds that a transaction has been open, by the server."""
    found = [one for one in open_transactions(client) if one["lsid"]["id"] == session.session_id["id"]]
    assert found
    return float(found[0]["transaction"]["timeOpenMicros"]) / 1e6


# A user with the rights on the five collections, and no others


@pytest.fixture(scope="module")
def guarded_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with authentication, a user ``root``, and a user ``worker`` who may do what is needed."""
    directory: Path = tmp_path_factory.mktemp("a")
    secret = directory / "key"
    _ = secret.write_text("k" * 64)
    secret.chmod(0o600)
    server = start_mongod(
        directory, parameters=TEST_PARAMETERS, arguments=("--auth", "--keyFile", str(secret))
    )
    try:
        first: Client = MongoClient(server.uri)
        with first:  # before there is any user, the first may be made from the same host
            first.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root: Client = MongoClient(server.uri, username="root", password=PASSWORD)
        with root:
            privileges = [
                {"resource": {"db": DATABASE, "collection": name}, "actions": ACTIONS} for name in COLLECTIONS
            ]
            root[DATABASE].command("createRole", "worker", privileges=privileges, roles=[])
            role = {"role": "worker", "db": DATABASE}
            root.admin.command("createUser", "worker", pwd=PASSWORD, roles=[role])
            Store(root, DATABASE).setup()
        yield server.uri
    finally:
        server.stop(force=True)


@pytest.fixture
async def worker(guarded_uri: str, colour: str) -> AsyncIterator[Opened]:
    """A store of the user with the least privilege."""
    opener = Opener(colour, guarded_uri, DATABASE)
    yield opener(username="worker", password=PASSWORD, authSource="admin", timeout=8.0)
    await opener.close()


async def turned(opened: Opened, key: SessionKey) -> Any:
    """One turn; what is shown afterwards."""
    if opened.colour == "Store":

        def blocking() -> Any:
            history = ChatHistory(opened.store, key)
            with history.turn("t") as turn:
                _ = turn.user("q")
                _ = turn.context()
                _ = turn.assistant("a")
            return history.messages(last_turns=3)

        return await asyncio.to_thread(blocking)
    history = AsyncChatHistory(opened.store, key)
    async with history.turn("t") as turn:
        _ = await turn.user("q")
        _ = await turn.context()
        _ = await turn.assistant("a")
    return await history.messages(last_turns=3)


async def test_rights_on_the_collections_are_enough_for_every_operation(worker: Opened) -> None:
    key = SessionKey("shop", "ann", uuid.uuid4().hex)
    _ = await worker.run(sessions.create(key, ttl=600))
    _ = await worker.run(entries.append(key, entry("e1")))
    _ = await worker.run(entries.append_many(key, [entry("e2"), entry("e3")]))
    _ = await worker.run(entries.append(key, stateful("e4", a=1, app_a=1, user_a=1)))
    for _ in range(2):  # where the shared buckets are new, and where they are not
        await worker.run(state.merge(key, {"b": 1, "user:b": 2, "app:b": 3}))
    await worker.run(state.merge(key, {"c": 1}))
    merged = (await worker.run(state.get(key))).merged
    assert merged.items() >= {"a": 1, "b": 1, "user:b": 2, "app:b": 3, "app:a": 1, "c": 1}.items()
    shown = await turned(worker, key)
    assert [message.text for message in shown][-2:] == ["q", "a"]
    assert [one.entry.key for one in await worker.run(entries.page(key))][:4] == ["e1", "e2", "e3", "e4"]
    _ = await worker.run(sessions.list("shop"))
    _ = await worker.run(sessions.clear(key))
    assert await worker.run(sessions.delete(key))
    assert (await worker.run(retention.sweep())).finished
    _ = await worker.run(retention.orphans())


async def test_a_payload_in_parts_needs_no_other_rights(worker: Opened) -> None:
    key = SessionKey("shop", "ann", uuid.uuid4().hex)
    _ = await worker.run(sessions.create(key))
    large = large_entry("large", 2)
    _ = await worker.run(entries.append(key, large))
    (stored,) = await worker.run(entries.page(key))
    assert stored.entry.event_data == large.event_data


# Interrupted while the lease is on its way


@pytest.mark.parametrize("colour", ["AsyncStore"], indirect=True)
@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_turn_cancelled_while_it_waits_for_its_lease_leaves_none(
    opener: Opener, server_client: Client, cancellations: int
) -> None:
    name = appname()
    opened = await opener.ready(appname=name)
    _ = await opened.run(sessions.create(KEY))
    taken: list[str] = []
    opened.recorder.clear()
    opened.recorder.on_success = lambda event: taken.append(event.command_name)
    with failing(opener.uri, "findAndModify", times=1, blockConnection=True, blockTimeMS=200, appName=name):
        entering = asyncio.create_task(AsyncChatHistory(opened.store, KEY).turn("t").__aenter__())
        await until(lambda: "findAndModify" in opened.recorder.names)
        for _ in range(cancellations):
            _ = entering.cancel()
            await asyncio.wait([entering], timeout=0.02)
        with pytest.raises(asyncio.CancelledError):
            await entering
        await until(lambda: "findAndModify" in taken)
    await until(lambda: _is_free(server_client, opener.database), seconds=3)


def _is_free(client: Client, database: str) -> bool:
    head = client[database]["sessions"].find_one({"_id": KEY.document_id})
    assert head is not None
    return head["lease"].get("until") is None


# What the server says of a write that may or may not stay


def appname() -> str:
    return f"review-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("code", [64, 100])
async def test_a_write_concern_error_is_never_told_as_a_refusal(opener: Opener, code: int) -> None:
    name = appname()
    opened = await opener.ready(timeout=4.0, appname=name)
    _ = await opened.run(sessions.create(KEY))
    problem = {"code": code, "errmsg": "waiting for replication timed out"}
    op = entries.append(KEY, entry("e1"))
    failed_once = failing(opener.uri, "insert", times=1, writeConcernError=problem, appName=name)
    with failed_once, suppress(OutcomeUnknownError):
        _ = await opened.run(op)
    assert (await opened.run(op)).replayed
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["e1"]


async def test_a_write_concern_error_of_a_batch_is_never_told_as_a_refusal(opener: Opener) -> None:
    name = appname()
    opened = await opener.ready(timeout=4.0, appname=name)
    _ = await opened.run(sessions.create(KEY))
    op = entries.append_many(KEY, [entry("e1"), entry("e2")])
    problem = {"code": 64, "errmsg": "waiting for replication timed out"}
    failed_once = failing(opener.uri, "commitTransaction", times=1, writeConcernError=problem, appName=name)
    with failed_once, suppress(OutcomeUnknownError):
        _ = await opened.run(op)
    _ = await opened.run(op)
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["e1", "e2"]


@pytest.mark.parametrize("code", [246, 239, 134, 133])
async def test_a_read_that_failed_for_a_moment_is_tried_again(opener: Opener, code: int) -> None:
    name = appname()
    opened = await opener.ready(timeout=4.0, appname=name)
    _ = await opened.run(sessions.create(KEY))
    with failing(opener.uri, "aggregate", "find", times=1, errorCode=code, appName=name):
        assert await opened.run(sessions.get(KEY)) is not None


# A payload in parts


def large_entry(key: str, parts: int) -> Entry:
    """An entry of so many parts."""
    return Message.user("x" * (parts * PART_BYTES - 10_000)).entry(key, timestamp=1.5)


def sent_parts(opened: Opened) -> int:
    """How many parts were sent."""
    inserts = [c for c in opened.recorder.commands if c.get("insert") == "payloads"]
    return sum(len(insert.get("documents", [None])) for insert in inserts)


async def test_parts_that_an_earlier_attempt_has_stored_are_not_sent_again(opener: Opener) -> None:
    name = appname()
    opened = await opener.ready(timeout=10.0, appname=name)
    _ = await opened.run(sessions.create(KEY))
    large = large_entry("large", 3)
    refused = {"errorCode": 8000, "appName": name, "namespace": f"{opener.database}.payloads"}
    with failing(opener.uri, "insert", skip=2, **refused), pytest.raises(MnemongoError):
        _ = await opened.run(entries.append(KEY, large))
    opened.recorder.clear()
    _ = await opened.run(entries.append(KEY, large))
    assert sent_parts(opened) == 1
    (stored,) = await opened.run(entries.page(KEY))
    assert stored.entry.event_data == large.event_data


async def test_one_append_goes_on_where_its_own_first_attempt_stopped(opener: Opener) -> None:
    name = appname()
    opened = await opener.ready(timeout=10.0, appname=name)
    _ = await opened.run(sessions.create(KEY))
    cut = {"errorCode": 112, "appName": name}
    opened.recorder.clear()
    with failing(opener.uri, "update", times=1, **cut):  # after the parts and the entry: the head
        _ = await opened.run(entries.append(KEY, large_entry("large", 2)))
    assert sent_parts(opened) == 2
    assert len(await opened.run(entries.page(KEY))) == 1


# Operations without a key of their own


def lossy(opened: Opened, wanted: Callable[[Command], bool], meanwhile: Callable[[], object]) -> list[str]:
    """Lose the reply of the first command like this, after others have been at work; what was sent."""
    send = opened.store._send
    sent: list[str] = []
    lost: list[bool] = []

    def is_lost(step: object) -> bool:
        sent.append(getattr(step, "method", "find_each"))
        if lost or not isinstance(step, Command) or not wanted(step):
            return False
        lost.append(True)
        sent.append("lost")
        _ = meanwhile()
        return True

    def blocking(tries: Any, session: Any, step: Any) -> Any:
        reply = send(tries, session, step)
        if is_lost(step):
            raise NetworkTimeout("reply lost")
        return reply

    async def awaiting(tries: Any, session: Any, step: Any) -> Any:
        reply = await send(tries, session, step)
        if is_lost(step):
            raise NetworkTimeout("reply lost")
        return reply

    opened.store._send = blocking if opened.colour == "Store" else awaiting
    return sent


LOST: Mapping[str, Callable[[Command], bool]] = {
    "first": lambda step: step.method == "find_one_and_update",
    "entries": lambda step: step.method == "delete_many",
    "last": lambda step: step.method == "delete_one",
}


@pytest.mark.parametrize("lost", LOST)
async def test_a_delete_never_takes_a_session_created_after_it(
    opener: Opener, server_client: Client, lost: str
) -> None:
    opened = await opener.ready(timeout=4.0)
    other = Store(server_client, opener.database)
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(entries.append(KEY, entry("old")))

    def recreate() -> None:
        _ = other.run(sessions.create(KEY))
        _ = other.run(entries.append(KEY, entry("new")))

    sent = lossy(opened, LOST[lost], recreate)
    with suppress(OutcomeUnknownError):
        _ = await opened.run(sessions.delete(KEY))
    assert sent[-1] == "lost"  # it was not tried again
    del opened.store._send
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["new"]


@pytest.mark.parametrize("lost", ["begun", "done"])
async def test_a_clear_never_takes_an_entry_appended_after_it(
    opener: Opener, server_client: Client, lost: str
) -> None:
    opened = await opener.ready(timeout=4.0)
    other = Store(server_client, opener.database)
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(entries.append(KEY, entry("old")))

    def wanted(step: Command) -> bool:
        text = str(step.arguments)
        return step.method == "update_one" and "clearing" in text and ("unset" in text) == (lost == "done")

    sent = lossy(opened, wanted, lambda: other.run(entries.append(KEY, entry("new"))))
    with suppress(OutcomeUnknownError):
        _ = await opened.run(sessions.clear(KEY))
    assert sent[-1] == "lost"  # it was not tried again
    del opened.store._send
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["new"]
