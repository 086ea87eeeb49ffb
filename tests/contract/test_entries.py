"""Entries: stored once, in order, without holes, whole or not at all, whatever their size."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from contract.subjects import Subject, assert_dense, entry, eventually, outcomes, with_state
from mnemongo import (
    DocumentError,
    DocumentTooLargeError,
    Entry,
    InvalidKeyError,
    KeyConflictError,
    Message,
    StaleRevisionError,
    ToolCall,
    entries,
    sessions,
    state,
)
from mnemongo.keys import life, place

MIB = 1 << 20
APPENDERS = 16


class AppendContract:
    async def test_append_takes_the_next_place(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        first = await subject.run(entries.append(key, entry("a"), expected=head.revision))
        second = await subject.run(entries.append(key, entry("b"), expected=first.revision))
        assert [first.revision, second.revision] == [head.revision + 1, head.revision + 2]
        assert [place(first.revision), place(second.revision)] == [1, 2]
        assert (first.entry, first.replayed) == (entry("a"), False)
        assert await subject.all(key) == [first, second]
        assert (await subject.run(sessions.get(key))).revision == second.revision

    async def test_append_without_expected_finds_its_place(self, subject: Subject) -> None:
        key = await subject.session()
        stored = [await subject.append(key, f"e{n}") for n in range(5)]
        assert_dense(stored)
        assert await subject.all(key) == stored

    @pytest.mark.parametrize("back", [0, 1, 3])
    async def test_after_decides_nothing(self, subject: Subject, back: int) -> None:
        key = await subject.session()
        stored = [await subject.append(key, f"e{n}") for n in range(4)]
        last = await subject.append(key, "last", after=stored[-1].revision - back)
        assert_dense([*stored, last])

    async def test_every_field_is_kept(self, subject: Subject) -> None:
        key = await subject.session()
        given = Entry("k", '{"a": 1}', 12.25, "event", "t", True, True, "native \0 form", "digest")
        await subject.run(entries.append(key, given))
        assert (await subject.run(entries.get(key, "k"))).entry == given
        assert [one.entry for one in await subject.all(key)] == [given]

    async def test_order_is_by_revision_never_by_time_or_key(self, subject: Subject) -> None:
        key = await subject.session()
        for name, when in (("z", 300.0), ("a", 100.0), ("m", 200.0)):
            await subject.run(entries.append(key, Message.user(name).entry(name, timestamp=when)))
        assert await subject.names(key) == ["z", "a", "m"]

    async def test_get_by_key(self, subject: Subject) -> None:
        key = await subject.session()
        stored = await subject.append(key, "a")
        assert await subject.run(entries.get(key, "a")) == stored
        assert await subject.run(entries.get(key, "b")) is None

    async def test_an_append_is_activity(self, subject: Subject) -> None:
        key = await subject.session()
        before = await subject.run(sessions.get(key))
        await subject.tick()
        await subject.append(key, "a")
        after = await subject.run(sessions.get(key))
        assert (after.update_time > before.update_time, after.create_time) == (True, before.create_time)

    @pytest.mark.parametrize("bad", ["", {"$gt": ""}, b"k", None, 1, "a\0", "\udfff", "k" * 2049], ids=ascii)
    def test_an_entrys_key_is_checked_when_it_is_made(self, bad: Any) -> None:
        with pytest.raises(InvalidKeyError):
            Entry(bad, "{}", 1.0)

    @pytest.mark.parametrize("name", ["$set", "a.b", "t:tool:c", "😀", "k" * 2048, " ", "_id"], ids=ascii)
    async def test_any_other_key_names_an_entry(self, subject: Subject, name: str) -> None:
        key = await subject.session()
        stored = await subject.append(key, name)
        assert await subject.run(entries.get(key, name)) == stored
        assert (await subject.append(key, name)).replayed


class TestAppend(AppendContract):
    pass


class StaleContract:
    async def test_expected_behind_is_stale(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        first = await subject.append(key, "a", expected=head.revision)
        with pytest.raises(StaleRevisionError) as caught:
            await subject.append(key, "b", expected=head.revision)
        assert caught.value.expected == head.revision
        assert caught.value.found == first.revision
        with pytest.raises(StaleRevisionError):
            await subject.run(entries.append_many(key, [entry("b"), entry("c")], expected=head.revision))
        assert await subject.names(key) == ["a"]

    @pytest.mark.parametrize("ahead", [1, 2, 1000])
    async def test_expected_ahead_is_stale_and_leaves_no_hole(self, subject: Subject, ahead: int) -> None:
        key = await subject.session()
        first = await subject.append(key, "a")
        with pytest.raises(StaleRevisionError):
            await subject.append(key, "b", expected=first.revision + ahead)
        with pytest.raises(StaleRevisionError):
            await subject.run(
                entries.append_many(key, [entry("b"), entry("c")], expected=first.revision + ahead)
            )
        assert await subject.all(key) == [first]
        assert place((await subject.append(key, "b")).revision) == 2

    async def test_expected_of_another_session_is_stale(self, subject: Subject) -> None:
        key, other = await subject.session("s1"), await subject.session("s2")
        theirs = await subject.append(other, "a")
        with pytest.raises(StaleRevisionError):
            await subject.append(key, "b", expected=theirs.revision)
        assert await subject.names(key) == []


class TestStale(StaleContract):
    pass


class ReplayContract:
    async def test_a_replay_returns_what_is_stored_and_writes_nothing(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        first = await subject.append(key, "a", expected=head.revision)
        await subject.append(key, "b")
        before = await subject.run(sessions.get(key))
        await subject.tick()
        for options in ({}, {"expected": head.revision}, {"after": head.revision}):
            again = await subject.append(key, "a", **options)
            assert (again.entry, again.revision, again.replayed) == (first.entry, first.revision, True)
        assert await subject.names(key) == ["a", "b"]
        assert await subject.run(sessions.get(key)) == before

    async def test_the_time_is_no_part_of_the_content(self, subject: Subject) -> None:
        key = await subject.session()
        first = await subject.run(entries.append(key, Message.user("x").entry("a", timestamp=1.0)))
        again = await subject.run(entries.append(key, Message.user("x").entry("a", timestamp=2.0)))
        assert (again.replayed, again.entry) == (True, first.entry)

    async def test_other_content_is_a_conflict(self, subject: Subject) -> None:
        key = await subject.session()
        first = await subject.append(key, "a")
        for options in ({}, {"expected": first.revision}):
            with pytest.raises(KeyConflictError) as caught:
                await subject.run(entries.append(key, entry("a", "other"), **options))
            assert caught.value.key is not None
        assert await subject.all(key) == [first]

    async def test_the_same_key_in_another_session_is_another_entry(self, subject: Subject) -> None:
        key, other = await subject.session("s1"), await subject.session("s2")
        await subject.append(key, "a")
        stored = await subject.run(entries.append(other, entry("a", "other")))
        assert (stored.replayed, place(stored.revision)) == (False, 1)

    async def test_racing_replays_store_one(self, subject: Subject) -> None:
        key = await subject.session()
        results = await outcomes(*(subject.append(key, "a") for _ in range(8)))
        assert {one.revision for one in results} == {results[0].revision}
        assert sum(not one.replayed for one in results) == 1
        assert await subject.names(key) == ["a"]

    async def test_racing_conflicts_store_one(self, subject: Subject) -> None:
        key = await subject.session()
        results = await outcomes(*(subject.run(entries.append(key, entry("a", str(n)))) for n in range(8)))
        stored = [one for one in results if not isinstance(one, BaseException)]
        assert len(stored) == 1
        assert all(isinstance(one, KeyConflictError) for one in results if one not in stored)
        assert await subject.all(key) == stored

    async def test_an_entry_with_state_is_replayed_without_its_state(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.run(entries.append(key, with_state("a", {"n": 1, "app:n": 1})))
        await subject.run(state.merge(key, {"n": 2, "app:n": 2}))
        again = await subject.run(entries.append(key, with_state("a", {"n": 1, "app:n": 1})))
        assert again.replayed
        assert (await subject.run(state.get(key))).merged == {"n": 2, "app:n": 2}


class TestReplay(ReplayContract):
    pass


def batch(*names: str) -> list[Entry]:
    return [entry(name) for name in names]


class BatchContract:
    async def test_a_batch_is_stored_in_order(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        operation = entries.append_many(key, batch("z", "a", "m"), expected=head.revision)
        stored = await subject.run(operation)
        assert_dense(stored)
        assert [one.replayed for one in stored] == [False] * 3
        assert await subject.all(key) == list(stored)
        assert (await subject.run(sessions.get(key))).revision == stored[-1].revision
        assert place((await subject.append(key, "next")).revision) == 4

    @pytest.mark.parametrize("expected", [True, False])
    async def test_a_replayed_batch(self, subject: Subject, expected: bool) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        options = {"expected": head.revision} if expected else {}
        first = await subject.run(entries.append_many(key, batch("a", "b"), **options))
        await subject.append(key, "c")
        again = await subject.run(entries.append_many(key, batch("a", "b"), **options))
        assert [one.revision for one in again] == [one.revision for one in first]
        assert all(one.replayed for one in again)
        assert await subject.names(key) == ["a", "b", "c"]

    async def test_a_mixed_batch_adds_what_is_missing(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.run(entries.append_many(key, batch("a", "b")))
        mixed = await subject.run(entries.append_many(key, batch("b", "c", "a", "d")))
        assert [one.entry.key for one in mixed] == ["b", "c", "a", "d"]
        assert [one.replayed for one in mixed] == [True, False, True, False]
        assert [place(one.revision) for one in mixed] == [2, 3, 1, 4]
        assert await subject.names(key) == ["a", "b", "c", "d"]

    async def test_a_batch_with_a_conflict_stores_nothing(self, atomic_subject: Subject) -> None:
        subject = atomic_subject
        key = await subject.session()
        first = await subject.append(key, "b")
        with pytest.raises(KeyConflictError):
            await subject.run(
                entries.append_many(key, [entry("a"), entry("b", "other"), with_state("c", {"n": 1})])
            )
        assert await subject.all(key) == [first]
        assert (await subject.run(state.get(key))).merged == {}

    async def test_a_key_twice_in_a_batch(self, subject: Subject) -> None:
        key = await subject.session()
        for other in (entry("a"), entry("a", "other")):
            with pytest.raises(InvalidKeyError):
                await subject.run(entries.append_many(key, [entry("a"), entry("b"), other]))
        assert await subject.names(key) == []

    async def test_an_empty_batch(self, subject: Subject) -> None:
        key = await subject.session()
        assert tuple(await subject.run(entries.append_many(key, []))) == ()
        assert await subject.names(key) == []

    async def test_a_batch_of_hundreds(self, subject: Subject) -> None:
        key = await subject.session()
        names = [f"e{n}" for n in range(500)]
        stored = await subject.run(entries.append_many(key, batch(*names)))
        assert_dense(stored)
        assert await subject.names(key) == names

    async def test_the_state_of_a_batch_comes_with_it(self, subject: Subject) -> None:
        key = await subject.session()
        changes = [
            with_state("a", {"n": 1, "user:u": 1}),
            entry("b"),
            with_state("c", {"n": 2, "app:a": [1]}),
        ]
        await subject.run(entries.append_many(key, changes))
        assert (await subject.run(state.get(key))).merged == {"n": 2, "user:u": 1, "app:a": [1]}
        assert (await subject.run(sessions.get(key))).state == {"n": 2}

    async def test_racing_batches_with_one_expected(self, subject: Subject) -> None:
        for number in range(4):
            key = subject.key(f"r{number}")
            head = await subject.run(sessions.create(key))
            results = await outcomes(
                *(
                    subject.run(
                        entries.append_many(key, batch(f"{n}a", f"{n}b", f"{n}c"), expected=head.revision)
                    )
                    for n in range(6)
                )
            )
            won = [one for one in results if not isinstance(one, BaseException)]
            assert len(won) == 1, results
            assert all(isinstance(one, StaleRevisionError) for one in results if one not in won)
            found = await subject.all(key)
            assert_dense(found)
            assert found == list(won[0])


class TestBatch(BatchContract):
    pass


class RaceContract:
    async def test_concurrent_appenders_are_all_stored_once(self, subject: Subject) -> None:
        key = await subject.session()
        each = 1

        async def worker(number: int) -> list[Any]:
            return [await subject.append(key, f"w{number}-{n}") for n in range(each)]

        done = await asyncio.gather(*(worker(n) for n in range(APPENDERS)))
        stored = await subject.all(key)
        assert_dense(stored)
        assert sorted(one.entry.key for one in stored) == sorted(
            f"w{w}-{n}" for w in range(APPENDERS) for n in range(each)
        )
        by_key = {one.entry.key: one.revision for one in stored}
        for worker_stored in done:
            assert [by_key[one.entry.key] for one in worker_stored] == [one.revision for one in worker_stored]
            assert [one.revision for one in worker_stored] == sorted(one.revision for one in worker_stored)
        assert (await subject.run(sessions.get(key))).revision == stored[-1].revision

    async def test_with_one_expected_exactly_one_wins_each_revision(self, subject: Subject) -> None:
        key = subject.key()
        revision = (await subject.run(sessions.create(key))).revision
        winners = []
        for number in range(6):
            results = await outcomes(
                *(subject.append(key, f"r{number}-{n}", expected=revision) for n in range(APPENDERS))
            )
            won = [one for one in results if not isinstance(one, BaseException)]
            assert len(won) == 1, results
            assert all(isinstance(one, StaleRevisionError) for one in results if one not in won), results
            assert won[0].revision == revision + 1
            revision = won[0].revision
            winners.append(won[0].entry.key)
        assert await subject.names(key) == winners

    async def test_readers_never_see_a_hole_or_an_entry_appear_late(self, subject: Subject) -> None:
        key = await subject.session()
        await _watch(subject, key, [f"w{n}" for n in range(APPENDERS)], batches=False)

    async def test_readers_never_see_half_a_batch(self, atomic_subject: Subject) -> None:
        key = await atomic_subject.session()
        await _watch(atomic_subject, key, [f"w{n}" for n in range(8)], batches=True)


BATCH = 4


async def _watch(subject: Subject, key: Any, workers: list[str], *, batches: bool) -> None:
    """Read without a pause while ``workers`` append; every read is dense and begins with the read before."""
    reads = [0, 0]
    done = asyncio.Event()

    async def work(name: str) -> None:
        if batches:
            await subject.run(entries.append_many(key, batch(*(f"{name}/{n}" for n in range(BATCH)))))
        else:
            await subject.append(key, name)

    async def read(number: int) -> list[Any]:
        if number:
            return list((await subject.run(entries.last(key, 1000))).entries)
        return list((await subject.run(entries.page(key, limit=1000))).items)

    async def watch(number: int) -> list[Any]:
        seen: list[Any] = []
        while not done.is_set():
            found = await read(number)
            assert_dense(found)
            assert found[: len(seen)] == seen, "what was read has changed"
            assert not batches or _halves(found) == []
            seen = found
            reads[number] += 1
            await asyncio.sleep(0)
        return await read(number)

    async def read_again(before: list[int]) -> bool:
        ended = [reader for reader in readers if reader.done()]
        return bool(ended) or all(now > then for now, then in zip(reads, before, strict=True))

    readers = [asyncio.create_task(watch(number)) for number in range(2)]
    half = len(workers) // 2
    try:
        for some in (workers[:half], workers[half:]):
            await eventually(partial(read_again, list(reads)))
            await asyncio.gather(*(work(name) for name in some))
    finally:
        done.set()
    for found in await asyncio.gather(*readers):
        assert len(found) == len(workers) * (BATCH if batches else 1)


def _halves(found: list[Any]) -> list[str]:
    counts: dict[str, int] = {}
    for one in found:
        name = one.entry.key.partition("/")[0]
        counts[name] = counts.get(name, 0) + 1
    return [name for name, count in counts.items() if count != BATCH]


class TestRace(RaceContract):
    pass


VALUES: dict[str, object] = {
    "bytes": b"\x00\xff",
    "aware": datetime(2024, 2, 29, 12, 30, 1, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "utc": datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "naive": datetime(2024, 2, 29, 12, 30, 1, 123457),  # noqa: DTZ001
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "set": {1, "a"},
    "tuple": (1, (2, [3])),
    "int keys": {1: "a", "1": "b"},
    "large": 2**200,
    "negative": -(2**63) - 1,
    "inf": float("inf"),
    "nul": "a\0b",
    "surrogate": "\ud800",
    "odd keys": {"$a": 1, "a.b": 2, "": 3, "\0": 4},
    "ref": {"$ref": "x", "$id": 1},
    "none": None,
    "bool": [True, False, 1, 0],
}


class ValuesContract:
    async def test_values_come_back_as_they_went(self, subject: Subject) -> None:
        key = await subject.session()
        message = Message.tool("c1", VALUES, metadata={"more": VALUES})
        await subject.run(entries.append(key, message.entry("a", timestamp=1.0)))
        calls = Message.assistant("x\ud800\0", calls=[ToolCall("c", "f", {"args": VALUES})])
        await subject.run(entries.append(key, calls.entry("b", timestamp=1.0)))
        found = [Message.of(one.entry) for one in await subject.all(key)]
        assert found == [message, calls]
        result = found[0].result
        assert isinstance(result, dict)
        assert {name: type(value) for name, value in result.items()} == {
            name: type(value) for name, value in VALUES.items()
        }
        assert result["aware"].utcoffset() == timedelta(hours=5, minutes=30)
        assert str(result["decimal"]) == "1.10"
        assert [type(one) for one in result["bool"]] == [bool, bool, int, int]

    def test_what_cannot_be_kept_is_named(self) -> None:
        with pytest.raises(DocumentError, match="deep") as caught:
            Message.tool("c1", {"a": [0, {"deep": object()}]}).entry("a", timestamp=1.0)
        assert "1" in str(caught.value)


class TestValues(ValuesContract):
    pass


@pytest.fixture(scope="module")
def large() -> Entry:
    """A tool output of 40 MB."""
    return Message.tool("c1", "é" + "0123456789" * (4 * MIB)).entry("t:tool:c1", timestamp=1.0)


class SizeContract:
    async def test_a_tool_output_of_40_mb(self, subject: Subject, large: Entry) -> None:
        key = await subject.session()
        stored = await subject.run(entries.append(key, large))
        assert place(stored.revision) == 1
        found = await subject.run(entries.get(key, "t:tool:c1"))
        assert found.entry == large
        again = await subject.run(entries.append(key, large))
        assert (again.replayed, again.revision) == (True, stored.revision)
        with pytest.raises(KeyConflictError):
            await subject.run(entries.append(key, entry("t:tool:c1", "other")))

    def test_a_tool_output_of_40_mb_is_read_as_it_was(self, large: Entry) -> None:
        assert Message.of(large).text == "é" + "0123456789" * (4 * MIB)

    async def test_every_way_of_reading_joins_the_parts(self, subject: Subject) -> None:
        key = await subject.session()
        message = Message.tool("c1", bytes(range(256)) * (9 * MIB // 256))
        given = message.entry("t1:tool:c1", timestamp=1.0, turn="t1", starts_turn=True)
        await subject.run(entries.append(key, given))
        await subject.append(key, "after")
        assert [one.entry for one in await subject.all(key)] == [given, entry("after")]
        for read in (entries.last(key, 2), entries.turns(key, 1)):
            assert (await subject.run(read)).entries[0].entry == given
        (found,) = await subject.run(entries.turn(key, "t1"))
        assert Message.of(found.entry) == message

    @pytest.mark.parametrize("size", [8 * MIB, 8 * MIB + 1, 16 * MIB - 500, 16 * MIB])
    async def test_around_the_size_of_a_document(self, subject: Subject, size: int) -> None:
        key = await subject.session()
        given = Entry("a", '{"x":"' + "x" * (size - 8) + '"}', 1.0, native="n")
        await subject.run(entries.append(key, given))
        assert (await subject.run(entries.get(key, "a"))).entry == given

    async def test_a_batch_with_large_entries(self, subject: Subject) -> None:
        key = await subject.session()
        given = [entry("a", "x" * (9 * MIB)), entry("b"), entry("c", "y" * (9 * MIB))]
        stored = await subject.run(entries.append_many(key, given))
        assert_dense(stored)
        assert [one.entry for one in await subject.all(key)] == given

    async def test_an_entry_over_the_limit_is_not_sent(self, deaf: Subject) -> None:
        event = '{"x":"' + "x" * (256 * MIB) + '"}'
        with pytest.raises(DocumentTooLargeError):
            await deaf.run(entries.append(deaf.key(), Entry("a", event, 1.0, digest="d")))

    def test_the_limit_of_a_message_is_256_mb(self) -> None:
        assert inspect.signature(Message.entry).parameters["max_bytes"].default == 256 * MIB

    async def test_over_the_limit_of_a_transaction_nothing_is_sent(self, deaf: Subject) -> None:
        event = '{"x":"' + "x" * (33 * MIB) + '"}'
        halves = [Entry(name, event, 1.0, digest=name) for name in "ab"]
        with pytest.raises(DocumentTooLargeError):
            await deaf.run(entries.append_many(deaf.key(), [entry("s"), *halves]))
        event = '{"actions":{"state_delta":{"n":1}},"x":"' + "x" * (65 * MIB) + '"}'
        with pytest.raises(DocumentTooLargeError):
            await deaf.run(entries.append(deaf.key(), Entry("a", event, 1.0, digest="d")))

    def test_a_limit_of_ones_own(self) -> None:
        message = Message.tool("c1", "x" * 1000)
        assert message.entry("a", timestamp=1.0, max_bytes=4000).size >= 1000
        with pytest.raises(DocumentTooLargeError):
            message.entry("a", timestamp=1.0, max_bytes=900)

    async def test_a_stale_large_append_leaves_nothing_to_read(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        first = await subject.append(key, "a")
        with pytest.raises(StaleRevisionError):
            await subject.run(entries.append(key, entry("b", "x" * (9 * MIB)), expected=head.revision))
        assert await subject.all(key) == [first]
        assert life(first.revision) == head.revision


class TestSize(SizeContract):
    pass
