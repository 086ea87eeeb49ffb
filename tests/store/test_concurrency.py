"""Threads on one store, transactions that conflict, processes that fork."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient

from mnemongo import (
    ConfigurationError,
    DocumentError,
    KeyConflictError,
    SessionKey,
    Store,
    TransactionRequiredError,
    entries,
    sessions,
    state,
)
from mnemongo.commands import DuplicateError, Plan, find_one, insert_one, operation, update_one
from mnemongo.documents import Stored
from mnemongo.schema import APP_STATES
from store.harness import KEY, Client, Opened, Opener, entry, environment, failing, stateful

THREADS = 16


async def test_sixteen_on_one_session(opener: Opener) -> None:
    """Each appends singly, in batches with state, and merges state: all of it is there, once."""
    opened = await opener.ready(timeout=60)
    _ = await opened.run(sessions.create(KEY))

    def work(number: int) -> list[Any]:
        pair = [entry(f"b{number}"), stateful(f"c{number}", **{f"own{number}": number})]
        return [
            entries.append(KEY, entry(f"a{number}")),
            entries.append_many(KEY, pair),
            state.merge(KEY, {f"app:m{number}": number}),
        ]

    async def asynchronous(number: int) -> None:
        for op in work(number):
            _ = await opened.store.run(op)

    def blocking(number: int) -> None:
        for op in work(number):
            _ = opened.store.run(op)

    if opened.colour == "Store":
        with ThreadPoolExecutor(THREADS) as pool:
            _ = await asyncio.gather(
                *(asyncio.get_running_loop().run_in_executor(pool, blocking, n) for n in range(THREADS))
            )
    else:
        _ = await asyncio.gather(*(asynchronous(n) for n in range(THREADS)))
    seen = [one.entry.key for one in await opened.run(entries.page(KEY))]
    assert sorted(seen) == sorted(f"{kind}{number}" for kind in "abc" for number in range(THREADS))
    for number in range(THREADS):  # a batch stands together
        assert seen.index(f"c{number}") == seen.index(f"b{number}") + 1
    merged = (await opened.run(state.get(KEY))).merged
    assert merged == {f"own{n}": n for n in range(THREADS)} | {f"app:m{n}": n for n in range(THREADS)}


async def test_a_conflict_runs_the_transaction_again(opener: Opener, server_client: Client) -> None:
    """The head is changed between a transaction's read and its write."""
    opened = await opener.ready()
    _ = await opened.run(sessions.create(KEY))
    heads = server_client[opener.database]["sessions"]
    interfered: list[object] = []

    def interfere(event: Any) -> None:
        if event.command_name == "insert" and not interfered:
            interfered.append(heads.update_one({"_id": KEY.document_id}, {"$set": {"update_time": 5.0}}))

    opened.recorder.on_start = interfere
    stored, names = await opened.counted(entries.append_many(KEY, [entry("e1"), stateful("e2", a=1)]))
    opened.recorder.on_start = None
    assert interfered
    assert names.count("insert") == 2
    assert names.count("commitTransaction") == 1
    assert [one.replayed for one in stored] == [False, False]
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["e1", "e2"]


@pytest.mark.parametrize("label", ["TransientTransactionError", "UnknownTransactionCommitResult"])
async def test_labels_are_obeyed(opener: Opener, label: str) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app)
    _ = await opened.run(sessions.create(KEY))
    opened.recorder.clear()
    with failing(opener.uri, "commitTransaction", times=2, errorCode=51, errorLabels=[label], appName=app):
        _ = await opened.run(entries.append_many(KEY, [entry("e1"), entry("e2")]))
    again = 3 if label.startswith("Transient") else 1
    assert opened.recorder.names.count("insert") == again
    assert opened.recorder.names.count("commitTransaction") == 3
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["e1", "e2"]


# Composition


@operation()
def outer(key: SessionKey) -> Plan[None]:
    """Not atomic, and composes an operation that is, after a write of its own."""
    yield from entries.append_many(key, [entry("x1"), entry("x2")])
    yield from insert_one(APP_STATES, {"_id": "after", "state": "{}"})


@operation(atomic=True)
def outer_atomic(key: SessionKey) -> Plan[tuple[Stored, ...]]:
    stored = yield from entries.append_many(key, [entry("x1"), entry("x2")])
    yield from insert_one(APP_STATES, {"_id": "after", "state": "{}"})
    return stored


async def test_an_atomic_one_inside_one_that_is_not(opener: Opener, server_client: Client) -> None:
    opened = await opener.ready()
    _ = await opened.run(sessions.create(KEY))
    opened.recorder.clear()
    with pytest.raises(TransactionRequiredError, match="append_many"):
        await opened.run(outer(KEY))
    assert opened.recorder.names == []
    assert server_client[opener.database][APP_STATES].find_one() is None


async def test_an_atomic_one_inside_an_atomic_one(opener: Opener, server_client: Client) -> None:
    opened = await opener.ready()
    _ = await opened.run(sessions.create(KEY))
    _ = await opened.run(outer_atomic(KEY))
    assert server_client[opener.database][APP_STATES].find_one() is not None
    assert [one.entry.key for one in await opened.run(entries.page(KEY))] == ["x1", "x2"]


@operation(atomic=True)
def swallowing() -> Plan[str]:
    """Catches a duplicate inside a transaction and goes on, against the rules."""
    yield from insert_one(APP_STATES, {"_id": "one", "state": "{}"})
    try:
        yield from insert_one(APP_STATES, {"_id": "taken", "state": "{}"})
    except DuplicateError:
        _ = yield from update_one(APP_STATES, {"_id": "one"}, {"$set": {"state": "swallowed"}})
    return "done"


@operation(atomic=True)
def swallowing_at_the_end() -> Plan[str]:
    """Catches a duplicate inside a transaction and returns."""
    yield from insert_one(APP_STATES, {"_id": "one", "state": "{}"})
    try:
        yield from insert_one(APP_STATES, {"_id": "taken", "state": "{}"})
    except DuplicateError:
        return "swallowed"
    return "done"


@pytest.mark.parametrize("op", [swallowing, swallowing_at_the_end])
async def test_a_swallowed_duplicate_does_not_loop(opener: Opener, server_client: Client, op: Any) -> None:
    """It fails in bounded time and attempts, and nothing of it is written."""
    opened = await opener.ready(timeout=2)
    states = server_client[opener.database][APP_STATES]
    _ = states.insert_one({"_id": "taken"})
    opened.recorder.clear()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the next line's
        _ = await opened.run(op())
    assert type(caught.value).__module__ == "mnemongo.errors"
    assert opened.recorder.names.count("insert") <= 20
    assert states.find_one({"_id": "one"}) is None


@operation(atomic=True)
def refusing(key: SessionKey) -> Plan[None]:
    yield from insert_one(APP_STATES, {"_id": "one", "state": "{}"})
    found = yield from find_one(APP_STATES, {"_id": "one"})
    assert found is not None
    raise KeyConflictError("made up", key=key)


async def test_an_error_of_the_plan_s_own_undoes_all_and_is_not_retried(
    opener: Opener, server_client: Client
) -> None:
    opened = await opener.ready()
    _ = server_client[opener.database].create_collection(APP_STATES)
    opened.recorder.clear()
    with pytest.raises(KeyConflictError) as caught:
        await opened.run(refusing(KEY))
    assert caught.value.key == KEY
    names = [name for name in opened.recorder.names if name not in {"hello", "listIndexes"}]
    assert names == ["insert", "find", "abortTransaction"]
    assert server_client[opener.database][APP_STATES].find_one() is None


# Forks


FORK = """
import multiprocessing, os, sys, warnings
from pymongo import MongoClient
from mnemongo import ConfigurationError, SessionKey, Store, sessions

warnings.simplefilter("error")
uri, database, case = sys.argv[1:]
key = SessionKey("shop", "ann", "s1")
context = multiprocessing.get_context("fork")

def child(store, answers):
    try:
        answers.put(("ok", store.run(sessions.create(key)).key == key))
        store.close()
    except ConfigurationError as error:
        answers.put(("refused", str(error)))
    except BaseException as error:
        answers.put(("error", repr(error)))

answers = context.SimpleQueue()
if case == "used":
    client = MongoClient(uri)
    store = Store(client, database)
    assert store.run(sessions.get(key)) is None
    with warnings.catch_warnings():  # PyMongo's own, about a client that is open
        warnings.filterwarnings("ignore", message="MongoClient opened before fork")
        process = context.Process(target=child, args=(store, answers))
        process.start()
else:
    store = Store.from_uri(uri, database)
    process = context.Process(target=child, args=(store, answers))
    process.start()
kind, text = answers.get()
process.join(20)
print(kind, text)
assert process.exitcode == 0
if case == "used":
    assert store.run(sessions.get(key)) is None
    client.close()
else:
    assert store.run(sessions.get(key)).key == key
    store.close()
"""


def forked(opener: Opener, case: str) -> tuple[str, str]:
    arguments = [sys.executable, "-X", "dev", "-c", FORK, opener.uri, opener.database, case]
    done = subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("colour", ["Store"])
def test_a_store_used_before_the_fork_is_refused_in_the_child(opener: Opener) -> None:
    answer, complaints = forked(opener, "used")
    assert answer.startswith("refused the store was used before this process was forked")
    assert "make a client and a store after it" in answer
    assert "Warning" not in complaints


@pytest.mark.parametrize("colour", ["Store"])
def test_a_store_never_used_before_the_fork_works_in_both(opener: Opener) -> None:
    answer, complaints = forked(opener, "unused")
    assert answer == "ok True"
    assert "Warning" not in complaints


async def test_the_fork_guard_without_a_fork(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for both colours: the process id has changed since the first use."""
    opened = await opener.ready()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(ConfigurationError, match="forked") as caught:
        _ = await opened.run(sessions.get(KEY))
    monkeypatch.undo()
    assert (caught.value.expected, caught.value.found) == (parent, parent + 1)
    _ = await opened.run(sessions.get(KEY))


def test_the_context_of_the_fork_tests_is_there() -> None:
    assert "fork" in multiprocessing.get_all_start_methods()


@pytest.mark.parametrize("colour", ["Store"])
def test_threads_that_share_a_new_store(opener: Opener) -> None:
    """The first use, where the server is asked what it is, is raced, too."""
    client: MongoClient[dict[str, Any]] = MongoClient(opener.uri)
    with client:
        store = Store(client, opener.database)
        barrier = threading.Barrier(THREADS)

        def first_use(number: int) -> str:
            _ = barrier.wait(10)
            return store.run(sessions.create(SessionKey("shop", "ann", f"s{number}"))).key.session_id

        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(first_use, range(THREADS))) == [f"s{n}" for n in range(THREADS)]


async def test_an_unstorable_value_is_told_before_anything_is_written(opener: Opener) -> None:
    opened: Opened = await opener.ready()
    _ = await opened.run(sessions.create(KEY))

    @operation(atomic=True)
    def unstorable() -> Plan[None]:
        yield from insert_one(APP_STATES, {"_id": "one", "state": 1 << 70})

    opened.recorder.clear()
    with pytest.raises(DocumentError):
        await opened.run(unstorable())
    assert "insert" not in opened.recorder.names
