"""The model's own promises: what it refuses, transactions, time, threads, asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from mnemongo.commands import (
    Command,
    Document,
    DuplicateError,
    FindEach,
    Pause,
    Plan,
    RefusedError,
    RequireTransaction,
    UpdateReply,
    delete_many,
    delete_one,
    find,
    find_each,
    find_one,
    find_one_and_update,
    finding,
    insert_many,
    insert_one,
    operation,
    pause,
    update_one,
)
from mnemongo.errors import (
    ConfigurationError,
    DocumentError,
    DocumentTooLargeError,
    TransactionRequiredError,
    UnavailableError,
)
from mnemongo.schema import EVENTS, INDEXES
from mnemongo.testing import AsyncModelStore, ModelStore, ServerError, UnsupportedError

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store() -> ModelStore:
    return ModelStore(clock=lambda: NOON)


@operation()
def put(*documents: Document) -> Plan[None]:
    yield from insert_many("notes", documents)


@operation(atomic=True)
def put_all(*documents: Document) -> Plan[None]:
    yield from insert_many("notes", documents)


@operation()
def notes() -> Plan[list[Document]]:
    return (yield from find(finding("notes", {}, sort=(("_id", 1),))))


def update(**arguments: Any) -> Command:
    return Command("notes", "find_one_and_update", {"filter": {"_id": 1}, **arguments})


# Values


def test_documents_are_copies(store: ModelStore) -> None:
    given = {"_id": 1, "list": [{"a": 1}]}
    store.run(put(given))
    given["list"][0]["a"] = 2
    store.run(notes())[0]["list"][0]["a"] = 3
    assert store.run(notes()) == [{"_id": 1, "list": [{"a": 1}]}]


def test_the_updated_document_is_a_copy(store: ModelStore) -> None:
    value = {"a": 1}
    returned = store.execute(update(update={"$set": {"v": value}}, upsert=True))
    returned["v"]["a"] = value["a"] = 2
    assert store.run(notes()) == [{"_id": 1, "v": {"a": 1}}]


def test_times_are_utc_in_milliseconds(store: ModelStore) -> None:
    east = timezone(timedelta(hours=2))
    naive, aware = NOON.replace(tzinfo=None, microsecond=1999), datetime(2030, 1, 1, 14, tzinfo=east)
    store.run(put({"_id": 1, "naive": naive, "aware": aware}))
    stored = store.run(notes())[0]
    assert stored == {"_id": 1, "naive": NOON + timedelta(milliseconds=1), "aware": NOON}
    assert stored["aware"].tzinfo is UTC


@pytest.mark.parametrize("value", [1 << 63, "\ud800", {"a\0": 1}, {1: 2}])
def test_what_bson_cannot_hold(store: ModelStore, value: object) -> None:
    with pytest.raises(DocumentError):
        store.run(put({"_id": 1, "value": value}))


def test_a_document_over_16_mib(store: ModelStore) -> None:
    # _id 1+4+4, text 1+5+4+1, the document 5: 25 bytes that are not text
    full = 16 * 1024 * 1024 - 25
    store.run(put({"_id": 1, "text": "a" * full}))
    with pytest.raises(DocumentTooLargeError):
        store.run(put({"_id": 2, "text": "a" * (full + 1)}))
    with pytest.raises(DocumentTooLargeError):
        store.execute(update(update={"$set": {"more": 1}}))
    assert [len(note) for note in store.run(notes())] == [2]


# Commands


def test_one_round_trip_finds_several(store: ModelStore) -> None:
    @operation()
    def several() -> Plan[list[list[Document]]]:
        return (yield from find_each(finding("notes", {}, limit=1), finding("others", {})))

    store.run(put({"_id": 1}, {"_id": 2}))
    assert store.run(several()) == [[{"_id": 1}], []]


def test_replies(store: ModelStore) -> None:
    @operation()
    def every() -> Plan[list[Any]]:
        yield from insert_one("notes", {"_id": 1, "n": 1})
        return [
            (yield from find_one("notes", {"n": 1})),
            (yield from find_one("notes", {"n": 2})),
            (yield from update_one("notes", {"_id": 1}, {"$inc": {"n": 1}})),
            (yield from update_one("notes", {"_id": 2}, {"$inc": {"n": 1}})),
            (yield from update_one("notes", {"_id": 2}, {"$inc": {"n": 1}}, upsert=True)),
            (yield from find_one_and_update("notes", {"_id": 3}, {"$inc": {"n": 1}})),
            (yield from delete_one("notes", {})),
            (yield from delete_many("notes", {})),
        ]

    assert store.run(every()) == [
        {"_id": 1, "n": 1},
        None,
        UpdateReply(1, upserted=False),
        UpdateReply(0, upserted=False),
        UpdateReply(0, upserted=True),
        None,
        1,
        1,
    ]


def test_a_duplicate_is_thrown_into_the_plan(store: ModelStore) -> None:
    @operation()
    def tried(document: Document) -> Plan[tuple[str, ...]]:
        try:
            yield from insert_one(EVENTS, document)
        except DuplicateError as duplicate:
            return duplicate.index
        return ()

    place = {"app_name": "a", "user_id": "u", "session_id": "s", "revision": 1}
    assert store.run(tried({"_id": 1, **place})) == ()
    assert store.run(tried({"_id": 1, **place})) == ("_id",)
    assert store.run(tried({"_id": 2, **place})) == tuple(place)
    assert store.run(tried({"_id": 2, **place, "revision": 2})) == ()


def test_insert_many_keeps_what_came_before_a_duplicate(store: ModelStore) -> None:
    duplicate = [{"_id": 1}, {"_id": 1}, {"_id": 2}]
    with pytest.raises(DuplicateError):
        store.execute(Command("notes", "insert_many", {"documents": duplicate}))
    assert store.run(notes()) == [{"_id": 1}]


def test_a_guard_that_does_not_hold_is_thrown_into_the_plan(store: ModelStore) -> None:
    @operation()
    def guarded(until: datetime) -> Plan[bool]:
        in_time = {"$cond": [{"$lt": ["$$NOW", until]}, "$_id", None]}
        update = [{"$replaceWith": {"_id": in_time, "text": "x"}}]
        try:
            _ = yield from update_one("notes", {"_id": 1, "never": 1}, update, upsert=True)
        except RefusedError:
            return False
        return True

    assert store.run(guarded(NOON)) is False
    assert store.run(notes()) == []
    assert store.run(guarded(NOON + timedelta(seconds=1))) is True
    assert store.run(notes()) == [{"_id": 1, "text": "x"}]


def test_setup_repeats_and_an_index_of_the_same_name_differs(store: ModelStore) -> None:
    store.setup()
    index = INDEXES[0]
    with pytest.raises(ConfigurationError):
        store.execute(Command(index.collection, "create_index", index.arguments | {"keys": [("x", 1)]}))


UNKNOWN: list[Command] = [
    Command("notes", "aggregate", {"pipeline": []}),
    Command("notes", "find", {"filter": {}, "hint": "x"}),
    Command("notes", "find", {"filter": {"a": {"$regex": "x"}}}),
    Command("notes", "find", {"filter": {"a": [1]}}),
    Command("notes", "find", {"filter": {"list": 1}}),
    Command("notes", "find", {"filter": {"list.a": 1}}),
    Command("notes", "find", {"filter": {"$where": "1"}}),
    Command("notes", "find", {"filter": {"$expr": {"$sin": 1}}}),
    Command("notes", "find", {"filter": {"$expr": "$$nobody"}}),
    Command("notes", "find", {"filter": {"$expr": {"$eq": [{"$type": "$a"}, "long"]}}}),
    Command("notes", "find", {"filter": {}, "projection": {"a.b": 1}}),
    Command("notes", "find", {"filter": {}, "projection": {"a": 0}}),
    Command("notes", "find", {"filter": {}, "projection": {"a": "$b"}}),
    Command("notes", "find", {"filter": {}, "sort": (("list", 1),)}),
    Command("notes", "insert_one", {"document": {"a": 1}}),
    Command("notes", "insert_one", {"document": {"_id": 1, "a": {1}}}),
    update(update={"$push": {"a": 1}}),
    update(update={"a": 1}),
    update(update={"$set": {"list.0": 1}}),
    update(update=[{"$lookup": {}}]),
    update(update=[{"$set": {"list": {"a": 1}}}]),
]


@pytest.mark.parametrize("command", UNKNOWN, ids=lambda command: repr(command.arguments)[:60])
def test_the_rest_is_refused(store: ModelStore, command: Command) -> None:
    store.run(put({"_id": 1, "list": [1]}, {"_id": 2, "list": []}))
    with pytest.raises(UnsupportedError) as refused:
        store.execute(command)
    assert isinstance(refused.value, NotImplementedError)


def test_an_expression_in_the_filter_of_an_upsert(store: ModelStore) -> None:
    filter_ = {"$or": [{"a": 1}, {"$expr": True}]}
    with pytest.raises(ServerError) as refused:
        store.execute(update(filter=filter_, update={"$set": {"a": 1}}, upsert=True))
    assert refused.value.code == 224


# Transactions


def test_an_atomic_operation_is_whole_or_nothing(store: ModelStore) -> None:
    store.run(put_all({"_id": 1}, {"_id": 2}))
    with pytest.raises(UnavailableError):
        store.run(put_all({"_id": 3}, {"_id": 2}))
    assert store.run(notes()) == [{"_id": 1}, {"_id": 2}]
    store.run(put_all({"_id": 3}))  # its place is free again


def test_a_plan_that_goes_on_after_an_error_in_a_transaction(store: ModelStore) -> None:
    @operation(atomic=True)
    def stubborn(*, again: bool) -> Plan[None]:
        yield from insert_one("notes", {"_id": 2})
        try:
            yield from insert_one("notes", {"_id": 1})
        except DuplicateError:
            if again:
                yield from insert_one("notes", {"_id": 3})

    store.run(put({"_id": 1}))
    for again in (True, False):
        with pytest.raises(ServerError) as failed:
            store.run(stubborn(again=again))
        assert failed.value.code == 251
    assert store.run(notes()) == [{"_id": 1}]


def test_an_atomic_operation_composed(store: ModelStore) -> None:
    @operation()
    def outer() -> Plan[None]:
        yield from put_all({"_id": 1})

    @operation(atomic=True)
    def atomic() -> Plan[None]:
        yield from put_all({"_id": 1})

    with pytest.raises(TransactionRequiredError):
        store.run(outer())
    with pytest.raises(TransactionRequiredError):
        store.execute(RequireTransaction("x"))
    store.run(atomic())
    assert store.run(notes()) == [{"_id": 1}]


def test_a_transaction_step_by_step(store: ModelStore) -> None:
    insert = Command("notes", "insert_one", {"document": {"_id": 1}})

    def given_up() -> None:
        with store.transaction():
            store.execute(insert)
            assert store.execute(FindEach((finding("notes", {}),))) == [[{"_id": 1}]]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        given_up()
    assert store.run(notes()) == []
    with store.transaction(), pytest.raises(ServerError, match="in progress"), store.transaction():
        pass
    with store.transaction():
        store.execute(insert)
    assert store.run(notes()) == [{"_id": 1}]


# Driving


def test_a_duplicate_that_leaves_the_plan_makes_it_run_again(store: ModelStore) -> None:
    attempts = iter([1, 1, 2])

    @operation()
    def racing() -> Plan[None]:
        yield from insert_one("notes", {"_id": next(attempts)})

    store.run(put({"_id": 1}))
    store.run(racing())
    assert store.run(notes()) == [{"_id": 1}, {"_id": 2}]


def test_pausing_for_ever(store: ModelStore) -> None:
    @operation()
    def waiting(times: int) -> Plan[None]:
        for attempt in range(1, times + 1):
            yield from pause(attempt)

    assert store.execute(Pause(1)) is None
    store.run(waiting(1000))
    with pytest.raises(UnavailableError):
        store.run(waiting(1001))


def test_other_errors_are_not_thrown_into_the_plan(store: ModelStore) -> None:
    seen: list[BaseException] = []

    @operation()
    def careless() -> Plan[None]:
        try:
            yield from update_one("notes", {}, {"$push": {"a": 1}}).__iter__()
        except Exception as error:
            seen.append(error)
            raise

    with pytest.raises(UnsupportedError):
        store.run(careless())
    assert seen == []


# Time


def test_the_servers_time_can_be_moved(store: ModelStore) -> None:
    now = [{"$set": {"now": "$$NOW", "same": {"$eq": ["$$NOW", "$$NOW"]}}}]
    assert store.execute(update(update=now, upsert=True))["now"] == NOON
    store.advance(90.5)
    later = store.execute(update(update=now))
    assert later["now"] == store.now() == NOON + timedelta(seconds=90.5)
    assert later["same"] is True


def test_the_default_clock_is_the_real_one() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert before <= ModelStore().now() <= datetime.now(UTC)


# Threads and tasks


@operation()
def counted() -> Plan[None]:
    """Read, then write on the condition that nobody has written: retried until it holds."""
    for attempt in range(1, 1000):
        found = yield from find_one("notes", {"_id": 1})
        n = found["n"] if found else 0
        reply = yield from update_one("notes", {"_id": 1, "n": n}, {"$set": {"n": n + 1}})
        if reply.matched:
            return
        yield from pause(attempt)


@operation(atomic=True)
def counted_atomically() -> Plan[None]:
    found = yield from find_one("notes", {"_id": 1})
    n = found["n"] if found else 0
    _ = yield from update_one("notes", {"_id": 1}, {"$set": {"n": n + 1}})


@pytest.mark.parametrize("count", [counted, counted_atomically])
def test_threads_lose_nothing(store: ModelStore, count: Callable[[], Any]) -> None:
    def work() -> None:
        for _ in range(50):
            store.run(count())

    store.run(put({"_id": 1, "n": 0}))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.run(notes()) == [{"_id": 1, "n": 200}]


def test_a_transaction_keeps_other_threads_out(store: ModelStore) -> None:
    seen: list[Any] = []
    with store.transaction():
        reader = threading.Thread(target=lambda: seen.extend(store.run(notes())))
        reader.start()
        store.execute(Command("notes", "insert_one", {"document": {"_id": 1}}))
        reader.join(0.05)
        assert reader.is_alive()
    reader.join()
    assert seen == [{"_id": 1}]


def test_asyncio_shares_the_data(store: ModelStore) -> None:
    async def main() -> None:
        async with AsyncModelStore(store) as shared:
            await shared.setup()
            await shared.run(put({"_id": 1, "n": 0}))
            await asyncio.gather(*(shared.run(counted()) for _ in range(20)))
            await asyncio.gather(*(shared.run(counted_atomically()) for _ in range(20)))

    asyncio.run(main())
    assert store.run(notes()) == [{"_id": 1, "n": 40}]


def test_tasks_take_turns_between_commands() -> None:
    """Twenty tasks read before one of them writes: the retry in the plan is really needed."""
    pauses: list[int] = []

    @operation()
    def noted() -> Plan[None]:
        for attempt in range(1, 1000):
            found = yield from find_one("notes", {"_id": 1})
            n = found["n"] if found else 0
            if (yield from update_one("notes", {"_id": 1, "n": n}, {"$set": {"n": n + 1}})).matched:
                return
            pauses.append(attempt)

    async def main() -> None:
        shared = AsyncModelStore()
        await shared.run(put({"_id": 1, "n": 0}))
        await asyncio.gather(*(shared.run(noted()) for _ in range(5)))

    asyncio.run(main())
    assert pauses
