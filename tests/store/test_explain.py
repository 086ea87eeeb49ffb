"""What each operation reads comes from an index, and no more is examined than is returned.

The commands are those the stores really sent, explained part by part: an aggregation's ``$unionWith``
and ``$lookup`` are queries of their own. The session has 5,000 entries and stands among others.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mnemongo import Store, documents, entries, keys, leases, retention, schema, sessions, state
from mnemongo.commands import Operation
from store.harness import KEY, Client, Opener, admin, entry, stateful

LIFE = 7 << keys.PLACE_BITS
SIZE = 5000
TURN = 5
PINNED = (1, 2)
LAST = LIFE + SIZE
FILTERED = {"update": "updates", "delete": "deletes"}
SMALL = keys.SessionKey("shop", "ann", "small")


def head(key: keys.SessionKey, number: int, revision: int = LIFE, **more: object) -> dict[str, Any]:
    moment = 1_700_000_000.0 + number
    fixed = {"state": '{"a": 1}', "revision": revision, "lease": {"token": 0}, "format": 1}
    times = {"create_time": moment, "update_time": moment}
    return {"_id": key.document_id, **key.fields, "id": key.session_id, **fixed, **times, **more}


def stored(key: keys.SessionKey, place: int) -> dict[str, Any]:
    number, part = divmod(place - 1, TURN)
    turn = f"t{number}"
    name = keys.turn_key(turn, str(part))
    made = entry(name, turn=turn, starts_turn=part == 0, pinned=place in PINNED)
    return documents.entry_document(key, made, LIFE + place)


@pytest.fixture(scope="module")
def crowded(mongodb_uri: str) -> Iterator[str]:
    """A database with the session, its neighbours, and sessions that have expired."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    with admin(mongodb_uri) as client:
        Store(client, name).setup()
        database = client[name]
        others = [
            keys.SessionKey("shop", user, f"o{n}") for user in ("abe", "ann", "zoe") for n in range(100)
        ]
        heads = [head(KEY, 50, LAST), head(SMALL, 60, LIFE + 20)]
        heads += [head(other, n, LIFE + 10 * (n % 20 == 0)) for n, other in enumerate(others)]
        past = datetime.now(UTC) - timedelta(days=1)
        gone = [keys.SessionKey("old", "ann", f"g{n}") for n in range(5)]
        heads += [head(key, n, expires_at=past, ttl_ms=1) for n, key in enumerate(gone)]
        _ = database[schema.SESSIONS].insert_many(heads)
        _ = database[schema.EVENTS].insert_many([stored(KEY, place + 1) for place in range(SIZE)])
        crowd = [stored(other, place + 1) for other in others[::20] for place in range(10)]
        crowd += [stored(SMALL, place + 1) for place in range(20)]
        _ = database[schema.EVENTS].insert_many(crowd)
        for collection in (schema.APP_STATES, schema.USER_STATES):
            _ = database[collection].insert_many([{"_id": f"x{n}", "state": "{}"} for n in range(50)])
        yield name
        client.drop_database(name)


@pytest.fixture
async def beside(colour: str, mongodb_uri: str, crowded: str) -> AsyncIterator[Opener]:
    made = Opener(colour, mongodb_uri, crowded)
    yield made
    await made.close()


READS: Mapping[str, Callable[[], Operation[Any]]] = {
    "sessions.get": lambda: sessions.get(KEY),
    "sessions.list": lambda: sessions.list("shop", limit=20),
    "sessions.list of a user": lambda: sessions.list("shop", "ann", limit=20),
    "sessions.list, a later page": lambda: sessions.list(
        "shop", limit=20, after=(1_700_000_150.0, "ann", "o50")
    ),
    "sessions.list of a user, a later page": lambda: sessions.list(
        "shop", "ann", limit=20, after=(1_700_000_150.0, "ann", "o50")
    ),
    "entries.get": lambda: entries.get(KEY, "t500:1"),
    "entries.get of nothing": lambda: entries.get(KEY, "nothing"),
    "entries.turn": lambda: entries.turn(KEY, "t500"),
    "entries.page, the first": lambda: entries.page(KEY, limit=50),
    "entries.page, a later one": lambda: entries.page(KEY, after=LIFE + 2500, limit=50),
    "entries.page, the last": lambda: entries.page(KEY, after=LAST - 10, limit=50),
    "entries.last": lambda: entries.last(KEY, 20),
    "entries.last before": lambda: entries.last(KEY, 20, before=LIFE + 2500),
    "entries.turns": lambda: entries.turns(KEY, 20),
    "entries.turns before": lambda: entries.turns(KEY, 20, before=LIFE + 2500),
    "state.get": lambda: state.get(KEY),
}
WRITES: Mapping[str, Callable[[], Operation[Any]]] = {
    "append": lambda: entries.append(SMALL, entry(f"n{uuid.uuid4().hex}")),
    "append, replayed": lambda: entries.append(KEY, documents.stored_entry(stored(KEY, 2500)).entry),
    "append_many": lambda: entries.append_many(
        SMALL, [entry(f"n{uuid.uuid4().hex}"), stateful(f"n{uuid.uuid4().hex}", a=1, app_a=1, user_a=1)]
    ),
    "state.merge": lambda: state.merge(SMALL, {"b": 1}),
    "state.merge of all": lambda: state.merge(SMALL, {"b": 1, "app:b": 1, "user:b": 1}),
    "leases.acquire": lambda: leases.acquire(
        keys.SessionKey("shop", "zoe", f"l{uuid.uuid4().hex}"), owner="w", ttl=30, create=True
    ),
    "sessions.delete": lambda: sessions.delete(keys.SessionKey("shop", "ann", "o20")),
    "sessions.clear": lambda: sessions.clear(keys.SessionKey("shop", "ann", "o40")),
    "retention.sweep": lambda: retention.sweep(limit=2),
}


@pytest.mark.parametrize("name", READS)
async def test_a_read(beside: Opener, server_client: Client, name: str) -> None:
    opened = beside()
    _ = await opened.run(sessions.get(KEY))
    _, names = await opened.counted(READS[name]())
    assert set(names) <= {"aggregate", "find"}
    check(server_client, beside.database, opened.recorder.commands)


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_finds_by_index(beside: Opener, server_client: Client, name: str) -> None:
    opened = beside()
    _ = await opened.run(sessions.get(KEY))
    explained: list[str] = []
    database = beside.database

    def explain(event: Any) -> None:  # before it is carried out: afterwards a guard would match nothing
        if "autocommit" not in event.command:
            explained.extend(faults(server_client, database, event.command))

    opened.recorder.on_start = explain
    _ = await opened.counted(WRITES[name]())
    opened.recorder.on_start = None
    transactional = [c for c in opened.recorder.commands if "autocommit" in c]
    for command in transactional:
        explained.extend(faults(server_client, database, command))
    assert explained == []


async def test_a_fault_would_be_found(server_client: Client, crowded: str) -> None:
    by_time = {"find": "sessions", "filter": {"update_time": 3}}
    assert any("COLLSCAN" in fault for fault in faults(server_client, crowded, by_time))
    by_text = {
        "aggregate": "events",
        "pipeline": [{"$limit": 1}, {"$unionWith": {"coll": "events", "pipeline": [{"$sort": {"hash": 1}}]}}],
    }
    assert any("SORT" in fault for fault in faults(server_client, crowded, by_text))
    much = {"find": "events", "filter": {**KEY.fields, "turn": "t3"}, "sort": {"revision": 1}}
    assert any("examined" in fault for fault in faults(server_client, crowded, much))


def check(client: Client, database: str, commands: list[Mapping[str, Any]]) -> None:
    found = [fault for command in commands for fault in faults(client, database, command)]
    assert found == []


def faults(client: Client, database: str, command: Mapping[str, Any]) -> list[str]:
    """What is wrong with how a command finds its documents."""
    found: list[str] = []
    for part in parts(command):
        plan = client[database].command({"explain": part, "verbosity": "executionStats"})
        stages = list(all_values(plan, "stage"))
        found += [f"{bad} in {part}" for bad in ("COLLSCAN", "SORT", "SORT_KEY_GENERATOR") if bad in stages]
        found += ["$sort in memory" for _ in all_values(plan, "$sort")]
        returned, documents_seen, keys_seen = examined(plan)
        allowed = returned + skipped(part) + 1
        if documents_seen > allowed or keys_seen > allowed + branches(part):
            found.append(f"examined {documents_seen}, {keys_seen} keys for {returned}: {part}")
    return found


def parts(command: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The queries of a command, each to be explained on its own."""
    name, collection = next(iter(command.items()))
    if name == "aggregate":
        own = [
            stage for stage in command["pipeline"] if not {"$unionWith", "$lookup", "$documents"} & set(stage)
        ]
        if collection != 1:
            yield {"aggregate": collection, "pipeline": own, "cursor": {}}
        for stage in command["pipeline"]:
            other = stage.get("$unionWith") or stage.get("$lookup")
            if other:
                source = other.get("coll") or other["from"]
                yield {"aggregate": source, "pipeline": other["pipeline"], "cursor": {}}
    elif name == "find":
        wanted = {"find", "filter", "sort", "limit", "skip", "projection"}
        yield {key: value for key, value in command.items() if key in wanted}
    elif name in FILTERED:
        for one in command[FILTERED[name]]:
            yield {"find": collection, "filter": one["q"]}
    elif name == "findAndModify":
        yield {"find": collection, "filter": command["query"]}


def examined(plan: Mapping[str, Any]) -> tuple[int, int, int]:
    """Documents returned, documents examined, keys examined."""
    (stats,) = list(all_values(plan, "executionStats"))
    return stats["nReturned"], stats["totalDocsExamined"], stats["totalKeysExamined"]


def skipped(part: Mapping[str, Any]) -> int:
    stages = part.get("pipeline", [])
    return part.get("skip", 0) + sum(stage.get("$skip", 0) for stage in stages)


def branches(part: Mapping[str, Any]) -> int:
    """Several ids, or several ranges, cost a seek each."""
    match = str(part)
    return max((len(ids) for ids in all_values(part, "$in")), default=0) + 3 * match.count("'update_time': {")


def all_values(value: Any, name: str) -> Iterator[Any]:
    """Each value under ``name``, however deep, outside of rejected plans."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == name:
                yield inner
            if key not in {"rejectedPlans", "allPlansExecution", "command"}:
                yield from all_values(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from all_values(inner, name)
