"""The public API as a type checker sees it: this file is checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any, assert_type

from pymongo import AsyncMongoClient, MongoClient

from mnemongo import (
    AsyncChatHistory,
    AsyncStore,
    ChatHistory,
    Context,
    Entry,
    Message,
    SessionKey,
    Store,
    entries,
    leases,
    local,
    retention,
    sessions,
    state,
)
from mnemongo.documents import Head, Lease, Page, Stored
from mnemongo.plans.reading import Window
from mnemongo.plans.retention import Swept
from mnemongo.plans.state import State
from mnemongo.testing import AsyncModelStore, ModelStore

KEY = SessionKey("shop", "ann", "s1")
ENTRY: Entry = Message.user("Hello").entry("t1:user", timestamp=0.0)


def blocking(client: MongoClient[dict[str, Any]]) -> None:
    store = Store(client, "agents", timeout=5.0)
    head = assert_type(store.run(sessions.create(KEY, state={"a": 1}, ttl=60)), Head)
    _ = assert_type(store.run(sessions.get(KEY)), Head | None)
    _ = assert_type(store.run(sessions.list("shop", "ann", limit=10)), Page[Head])
    stored = assert_type(store.run(entries.append(KEY, ENTRY, expected=head.revision)), Stored)
    _ = assert_type(store.run(entries.append_many(KEY, [ENTRY])), tuple[Stored, ...])
    _ = assert_type(store.run(entries.page(KEY, after=stored.revision)), Page[Stored])
    _ = assert_type(store.run(entries.last(KEY, 20)), Window)
    _ = assert_type(store.run(entries.turns(KEY, 20)), Window)
    _ = assert_type(store.run(entries.get(KEY, "t1:user")), Stored | None)
    _ = assert_type(store.run(state.get(KEY)), State)
    store.run(state.merge(KEY, {"user:name": "Ann"}))
    lease = assert_type(store.run(leases.acquire(KEY, owner="w1", ttl=60)), Lease)
    lease = assert_type(store.run(leases.renew(lease, ttl=60)), Lease)
    _ = assert_type(store.run(leases.release(lease)), bool)
    _ = assert_type(store.run(retention.sweep()), Swept)


def history(store: Store, model_store: ModelStore) -> None:
    talk = ChatHistory(store, KEY)
    with talk.turn("t-42", lease=120) as turn:
        _ = turn.user("Where is my order?")
        if turn.answer is None:
            context = assert_type(turn.context(last_turns=20), Context)
            first = assert_type(context[0], Message)
            _ = turn.assistant(first.text)
    _ = assert_type(talk.messages(last_turns=1), Context)
    _ = ChatHistory(model_store, KEY)


async def asynchronous(client: AsyncMongoClient[dict[str, Any]], model_store: AsyncModelStore) -> None:
    store = AsyncStore(client, "agents")
    await store.setup()
    head = await store.run(sessions.create(KEY))
    _ = assert_type(head, Head)
    talk = AsyncChatHistory(store, KEY)
    async with talk.turn("t-42", wait=5) as turn:
        _ = await turn.user("Where is my order?")
        _ = assert_type(await turn.context(last_turns=20), Context)
    _ = AsyncChatHistory(model_store, KEY)


def server() -> str:
    with local() as development:
        return assert_type(development.uri, str)
