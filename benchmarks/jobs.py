"""What is measured: each job prepares ours and the limit, two calls that take the number of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import ReturnDocument, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from mnemongo import ChatHistory, Entry, Message, SessionKey, Store, entries, leases, sessions

Call = Callable[[int], Any]
TEXT = "x" * 1000
LONG = 20_000


@dataclass(frozen=True, slots=True)
class Bench:
    """The store, and raw collections of the same indexes and concerns in the same database."""

    store: Store
    database: Database[dict[str, Any]]

    def raw(self, name: str) -> Collection[dict[str, Any]]:
        return self.database.get_collection(
            name, write_concern=WriteConcern("majority"), read_concern=ReadConcern("majority")
        )

    def raw_events(self, name: str) -> Collection[dict[str, Any]]:
        collection = self.raw(f"raw_{name}")
        collection.create_index([("session", 1), ("revision", 1)], unique=True)
        return collection


@dataclass(frozen=True, slots=True)
class Job:
    """One job and what its limit does."""

    name: str
    limit: str
    prepare: Callable[[Bench], tuple[Call, Call]]


def entry(number: int) -> Entry:
    return Message.user(TEXT).entry(f"t{number}:user", timestamp=1.0, turn=f"t{number}")


def document(number: int, session: str = "s") -> dict[str, Any]:
    return {"_id": f"{session}:{number}", "session": session, "revision": number, "text": TEXT}


def append(bench: Bench) -> tuple[Call, Call]:
    key = SessionKey("bench", "u", "append")
    at = [bench.store.run(sessions.create(key)).revision]
    raw, heads = bench.raw_events("append"), bench.raw("raw_heads")
    heads.insert_one({"_id": "append", "revision": -1})

    def ours(number: int) -> None:
        at[0] = bench.store.run(entries.append(key, entry(number), expected=at[0])).revision

    def limit(number: int) -> None:
        raw.insert_one(document(number))
        heads.update_one({"_id": "append", "revision": number - 1}, {"$set": {"revision": number}})

    return ours, limit


def append_held(bench: Bench) -> tuple[Call, Call]:
    key = SessionKey("bench", "u", "held")
    lease = bench.store.run(leases.acquire(key, owner="bench", ttl=3600, create=True))
    at = [lease.revision]
    raw = bench.raw_events("held")

    def ours(number: int) -> None:
        at[0] = bench.store.run(
            entries.append(key, entry(number), after=at[0], lease=lease, settle=False)
        ).revision

    return ours, lambda number: raw.insert_one(document(number))


def batch(bench: Bench) -> tuple[Call, Call]:
    key = SessionKey("bench", "u", "batch")
    bench.store.run(sessions.create(key))
    raw, heads = bench.raw_events("batch"), bench.raw("raw_heads")
    heads.insert_one({"_id": "batch", "revision": 0})
    client = bench.database.client

    def ours(number: int) -> None:
        bench.store.run(entries.append_many(key, [entry(4 * number + i) for i in range(4)]))

    def limit(number: int) -> None:
        with client.start_session() as session, session.start_transaction():
            heads.find_one({"_id": "batch"}, session=session)
            raw.insert_many([document(4 * number + i) for i in range(4)], session=session)
            heads.update_one({"_id": "batch"}, {"$inc": {"revision": 4}}, session=session)

    return ours, limit


def turn(bench: Bench) -> tuple[Call, Call]:
    history = ChatHistory(bench.store, SessionKey("bench", "u", "turn"))
    raw, heads = bench.raw_events("turn"), bench.raw("raw_heads")

    def ours(number: int) -> None:
        with history.turn(f"t{number}") as this:
            this.user(TEXT)
            this.context(last_turns=20)
            this.assistant(TEXT)

    def limit(number: int) -> None:
        until = datetime.now(UTC) + timedelta(seconds=60)
        heads.find_one_and_update(
            {"_id": "turn"}, {"$set": {"until": until}}, upsert=True, return_document=ReturnDocument.AFTER
        )
        raw.insert_one(document(2 * number))
        list(raw.find({"session": "s", "revision": {"$lt": 2 * number}}).sort("revision", -1).limit(40))
        raw.insert_one(document(2 * number + 1))
        heads.update_one({"_id": "turn"}, {"$set": {"until": None, "revision": 2 * number + 1}})

    return ours, limit


def window(length: int) -> Callable[[Bench], tuple[Call, Call]]:
    def prepare(bench: Bench) -> tuple[Call, Call]:
        key = SessionKey("bench", "u", f"window{length}")
        bench.store.run(sessions.create(key))
        raw = bench.raw_events("window")
        for start in range(0, length, 500):
            numbers = range(start, min(length, start + 500))
            bench.store.run(entries.append_many(key, [entry(number) for number in numbers]))
            raw.insert_many([document(number, f"s{length}") for number in numbers])
        newest = raw.find({"session": f"s{length}"}).sort("revision", -1).limit(20)

        return (
            lambda _: bench.store.run(entries.last(key, 20)),
            lambda _: list(newest.clone()),
        )

    return prepare


JOBS = (
    Job("append one, 1 kB", "insert, update", append),
    Job("append one under a lease", "insert", append_held),
    Job("append 4 at once", "transaction: find, insert 4, update", batch),
    Job("turn: question, 20 turns, answer", "the same 5 commands", turn),
    Job("last 20 of 100", "find", window(100)),
    Job(f"last 20 of {LONG:,}", "find", window(LONG)),
)
