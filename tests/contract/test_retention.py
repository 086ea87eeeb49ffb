"""Retention: a session expires whole, and a sweep removes what remains of it, and only that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from contract.subjects import Subject, entry, gone, outcomes
from mnemongo import (
    InvalidKeyError,
    LeaseHeldError,
    NotFoundError,
    SessionKey,
    StaleRevisionError,
    entries,
    leases,
    retention,
    sessions,
    state,
)
from mnemongo.keys import life, place

MIB = 1 << 20


async def expired(subject: Subject, *keys: SessionKey) -> None:
    """Let the time come at which the last of the sessions expires."""
    heads = [await subject.run(sessions.get(key)) for key in keys]
    times = [head.expires_at for head in heads if head is not None]
    if times:
        await subject.reach(max(times))


class ExpiryContract:
    async def test_an_expired_session_disappears_whole(self, subject: Subject) -> None:
        key, kept = subject.key(), await subject.session("kept")
        await subject.run(sessions.create(key, state={"own": 1}, ttl=subject.brief))
        stored = await subject.append(key, "a")
        await subject.run(entries.append_many(key, [entry("b"), entry("c")]))
        await subject.run(state.merge(key, {"user:name": "Ann"}))
        await expired(subject, key)
        assert await subject.run(sessions.get(key)) is None
        for operation in (
            entries.page(key),
            entries.page(key, after=stored.revision),
            entries.last(key, 5),
            entries.turns(key, 5),
            entries.append(key, entry("late")),
            entries.append(key, entry("a")),
            entries.append_many(key, [entry("x"), entry("y")]),
            state.merge(key, {"own": 2}),
            leases.acquire(key, owner="w", ttl=5),
            sessions.clear(key),
        ):
            with gone():
                await subject.run(operation)
        with pytest.raises((NotFoundError, StaleRevisionError)):
            await subject.append(key, "late", expected=stored.revision + 2)
        assert (await subject.run(state.get(key))).merged == {"user:name": "Ann"}
        listed = await subject.run(sessions.list(subject.app))
        assert [head.key for head in listed.items] == [kept]
        assert await subject.run(sessions.get(key)) is None

    async def test_it_can_be_created_again_and_is_another(self, subject: Subject) -> None:
        key = subject.key()
        await subject.run(sessions.create(key, state={"own": 1}, ttl=subject.brief))
        old = await subject.append(key, "a")
        await expired(subject, key)
        made = await subject.run(sessions.create(key))
        assert (made.state, made.expires_at, place(made.revision)) == ({}, None, 0)
        assert life(made.revision) != life(old.revision)
        assert await subject.all(key) == []
        with pytest.raises(StaleRevisionError):
            await subject.append(key, "late", expected=old.revision)
        with pytest.raises(StaleRevisionError):
            await subject.run(entries.page(key, after=old.revision))
        again = await subject.run(entries.append(key, entry("a", "other")))
        assert (again.replayed, place(again.revision)) == (False, 1)
        assert await subject.names(key) == ["a"]

    async def test_a_lease_creates_it_again(self, subject: Subject) -> None:
        key = subject.key()
        await subject.run(sessions.create(key, ttl=subject.brief))
        await subject.append(key, "old")
        await expired(subject, key)
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60, create=True))
        await subject.append(key, "new", lease=lease)
        assert await subject.run(leases.release(lease)) is True
        assert await subject.names(key) == ["new"]

    async def test_of_racing_creates_after_expiry_one_wins(self, subject: Subject) -> None:
        key = subject.key()
        await subject.run(sessions.create(key, ttl=subject.brief / 4))
        await expired(subject, key)
        results = await outcomes(*(subject.run(sessions.create(key, state={"n": n})) for n in range(8)))
        won = [one for one in results if not isinstance(one, BaseException)]
        assert len(won) == 1, results
        assert (await subject.run(sessions.get(key))).state == won[0].state

    @pytest.mark.parametrize("write", ["append", "append_many", "merge"])
    async def test_each_write_renews_it(self, subject: Subject, write: str) -> None:
        key = subject.key()
        made = await subject.run(sessions.create(key, ttl=600))
        await subject.tick()
        writes = {
            "append": entries.append(key, entry("a")),
            "append_many": entries.append_many(key, [entry("a"), entry("b")]),
            "merge": state.merge(key, {"n": 1}),
        }
        await subject.run(writes[write])
        head = await subject.run(sessions.get(key))
        assert head.expires_at > made.expires_at
        assert (head.expires_at.timestamp() - head.update_time) == pytest.approx(600, abs=0.1)

    async def test_work_under_a_lease_renews_it(self, subject: Subject) -> None:
        key = subject.key()
        made = await subject.run(sessions.create(key, ttl=600))
        await subject.tick()
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        stored = await subject.append(key, "a", lease=lease)
        assert await subject.run(leases.release(lease, revision=stored.revision)) is True
        assert (await subject.run(sessions.get(key))).expires_at > made.expires_at

    async def test_written_to_it_outlives_its_first_expiry_with_all_entries(self, subject: Subject) -> None:
        key = subject.key()
        first = await subject.run(sessions.create(key, ttl=subject.brief))
        await subject.append(key, "a")
        names = ["a"]
        if subject.raw is None:  # a model's time goes on only when told
            await subject.reach(first.expires_at - timedelta(seconds=subject.brief / 2))
        while len(names) < 3 or await asyncio.to_thread(subject.clock.now) <= first.expires_at:
            names.append(f"e{len(names)}")
            await subject.append(key, names[-1])
            if subject.raw is None and len(names) == 3:
                await subject.reach(first.expires_at)
        assert await subject.run(sessions.get(key)) is not None
        assert await subject.names(key) == names

    async def test_reading_does_not_renew_it(self, subject: Subject) -> None:
        key = subject.key()
        made = await subject.run(sessions.create(key, ttl=600))
        await subject.tick()
        for read in (entries.page(key), entries.last(key, 5), state.get(key), sessions.list(subject.app)):
            await subject.run(read)
        assert (await subject.run(sessions.get(key))).expires_at == made.expires_at

    async def test_without_ttl_it_never_expires(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.append(key, "a")
        assert (await subject.run(sessions.get(key))).expires_at is None

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "5", True, {"$gt": 1}], ids=repr)
    async def test_a_bad_ttl_is_refused_before_any_io(self, deaf: Subject, ttl: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await deaf.run(sessions.create(SessionKey("a", "b", "c"), ttl=ttl))


class TestExpiry(ExpiryContract):
    pass


class SweepContract:
    async def test_a_sweep_removes_what_expired_and_only_that(self, alone: Subject) -> None:
        gone_ones = [alone.key(f"gone{n}") for n in range(5)]
        kept = [alone.key("kept"), alone.key("ttl")]
        await alone.run(sessions.create(kept[0]))
        await alone.run(sessions.create(kept[1], ttl=600_000))
        for key in gone_ones:
            await alone.run(sessions.create(key, ttl=alone.brief))
        for key in (*kept, *gone_ones):
            await alone.run(entries.append_many(key, [entry("a"), entry("b"), entry("c")]))
        await alone.run(state.merge(kept[0], {"own": 1, "user:u": 2, "app:a": 3}))
        await expired(alone, *gone_ones)
        swept = [await alone.run(retention.sweep(limit=2))]
        assert (swept[0].sessions, swept[0].entries) == (2, 6), "not in a bounded batch"
        assert not swept[0].finished
        while not swept[-1].finished:
            assert len(swept) < 6
            swept.append(await alone.run(retention.sweep(limit=2)))
            assert swept[-1].sessions <= 2
        assert sum(one.sessions for one in swept) == 5
        assert sum(one.entries for one in swept) == 15
        again = await alone.run(retention.sweep())
        assert (again.sessions, again.entries, again.finished) == (0, 0, True)
        for key in kept:
            assert await alone.names(key) == ["a", "b", "c"]
        assert (await alone.run(state.get(kept[0]))).merged == {"own": 1, "user:u": 2, "app:a": 3}
        if alone.raw is not None:
            assert alone.raw["sessions"].count_documents({}) == 2
            assert alone.raw["events"].count_documents({}) == 6

    async def test_a_sweep_removes_parts_and_many_entries(self, alone: Subject) -> None:
        key, kept = alone.key("gone"), alone.key("kept")
        large = "x" * (9 * MIB)
        await alone.run(sessions.create(kept))
        await alone.run(entries.append(kept, entry("large", large)))
        await alone.run(sessions.create(key, ttl=60))
        await alone.run(entries.append(key, entry("large", large)))
        for number in range(2):
            await alone.run(entries.append_many(key, [entry(f"{number}-{n}") for n in range(600)]))
        if alone.raw is not None:
            past = {"$set": {"expires_at": alone.clock.now()}}
            assert alone.raw["sessions"].update_one({"_id": key.document_id}, past).modified_count == 1
        await expired(alone, key)
        before = alone.raw["payloads"].count_documents({}) if alone.raw is not None else 0
        swept = await alone.run(retention.sweep())
        assert (swept.sessions, swept.entries, swept.finished) == (1, 1201, True)
        assert (await alone.run(entries.get(kept, "large"))).entry == entry("large", large)
        if alone.raw is not None:
            assert alone.raw["payloads"].count_documents({}) * 2 == before
            assert alone.raw["events"].count_documents({}) == 1

    async def test_a_sweep_leaves_the_successor_of_an_expired_session(self, alone: Subject) -> None:
        key = alone.key()
        await alone.run(sessions.create(key, ttl=alone.brief))
        await alone.append(key, "old")
        await expired(alone, key)
        await alone.run(sessions.create(key))
        await alone.append(key, "new")
        swept = await alone.run(retention.sweep())
        assert (swept.sessions, swept.finished) == (0, True)
        assert await alone.names(key) == ["new"]
        if alone.raw is not None:
            assert alone.raw["events"].count_documents({}) == 1, "what expired was never removed"

    async def test_sweeps_that_race_with_each_other_and_with_creation(self, alone: Subject) -> None:
        keys = [alone.key(f"s{n}") for n in range(6)]
        for key in keys:
            await alone.run(sessions.create(key, ttl=alone.brief))
            await alone.append(key, "old")
        await expired(alone, *keys)

        async def renew(key: SessionKey) -> None:
            made = await alone.run(sessions.create(key))
            await alone.append(key, "new", expected=made.revision)

        results = await outcomes(
            *(alone.run(retention.sweep()) for _ in range(3)), *(renew(key) for key in keys[:3])
        )
        assert [one for one in results if isinstance(one, BaseException)] == []
        _ = await alone.run(retention.sweep())
        for key in keys[:3]:
            assert await alone.names(key) == ["new"]
        for key in keys[3:]:
            assert await alone.run(sessions.get(key)) is None
        if alone.raw is not None:
            assert alone.raw["events"].count_documents({}) == 3
            assert alone.raw["sessions"].count_documents({}) == 3

    async def test_a_sweep_leaves_a_session_whose_lease_alone_expired(self, alone: Subject) -> None:
        key = await alone.session()
        await alone.append(key, "a")
        lease = await alone.run(leases.acquire(key, owner="w", ttl=alone.brief / 4))
        await alone.reach(lease.until)
        assert (await alone.run(retention.sweep())).sessions == 0
        held = await alone.run(leases.acquire(key, owner="x", ttl=60))
        with pytest.raises(LeaseHeldError):
            await alone.run(leases.acquire(key, owner="y", ttl=60))
        assert held.token > lease.token
        assert await alone.names(key) == ["a"]

    @pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True, {"$gt": 0}], ids=repr)
    async def test_a_bad_limit_is_refused_before_any_io(self, deaf: Subject, limit: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await deaf.run(retention.sweep(limit=limit))


class TestSweep(SweepContract):
    pass
