"""State: three buckets that concurrent writers of different keys can all write to."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from contract.subjects import Subject, entry, gone, outcomes, with_state
from mnemongo import (
    DocumentError,
    KeyConflictError,
    NotFoundError,
    StaleRevisionError,
    entries,
    sessions,
    state,
)

WRITERS = 8
ODD = ["$set", "a.b", "", "\0", "$$NOW", "é", "_id", "app:", "x" * 2000, "\\u0000", "user", "__proto__"]


class StateContract:
    async def test_buckets_are_shared_as_their_prefix_says(self, subject: Subject) -> None:
        mine, sibling, other = subject.key("s1"), subject.key("s2"), subject.key("s1", "bob")
        for key in (mine, sibling, other):
            await subject.run(sessions.create(key))
        await subject.run(state.merge(mine, {"own": 1, "user:name": "Ann", "app:open": True}))
        assert (await subject.run(state.get(mine))).merged == {"own": 1, "user:name": "Ann", "app:open": True}
        found = await subject.run(state.get(mine))
        assert (found.session, found.user, found.app) == ({"own": 1}, {"name": "Ann"}, {"open": True})
        assert (await subject.run(state.get(sibling))).merged == {"user:name": "Ann", "app:open": True}
        assert (await subject.run(state.get(other))).merged == {"app:open": True}
        assert (await subject.run(sessions.get(mine))).state == {"own": 1}

    async def test_none_is_stored_as_null(self, subject: Subject) -> None:
        key = await subject.session(state={"a": 1})
        await subject.run(state.merge(key, {"a": None, "user:b": None, "app:c": None}))
        assert (await subject.run(state.get(key))).merged == {"a": None, "user:b": None, "app:c": None}

    async def test_merging_is_shallow(self, subject: Subject) -> None:
        key = await subject.session(state={"a": {"x": 1}, "b": 1})
        await subject.run(state.merge(key, {"a": {"y": 2}}))
        assert (await subject.run(state.get(key))).session == {"a": {"y": 2}, "b": 1}

    async def test_temporary_keys_are_dropped(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.run(state.merge(key, {"temp:a": 1, "b": 2}))
        assert (await subject.run(state.get(key))).merged == {"b": 2}

    async def test_an_empty_delta_changes_nothing(self, subject: Subject) -> None:
        key = await subject.session(state={"a": 1})
        await subject.run(state.merge(key, {}))
        assert (await subject.run(state.get(key))).merged == {"a": 1}

    @pytest.mark.parametrize("prefix", ["", "user:", "app:"])
    async def test_odd_keys_and_values(self, subject: Subject, prefix: str) -> None:
        key = await subject.session()
        values: list[Any] = [
            2**70,
            -1.5,
            [],
            {},
            {"$set": {"a.b": [None]}},
            "$$NOW",
            "\0",
            True,
            "é",
            0,
            "",
            1e300,
        ]
        delta = {prefix + name: value for name, value in zip(ODD, values, strict=True)}
        delta = {name: value for name, value in delta.items() if prefix or not name.startswith("app:")}
        await subject.run(state.merge(key, delta))
        found = (await subject.run(state.get(key))).merged
        assert found == delta
        assert type(found[prefix + "user"]) is type(delta[prefix + "user"])

    @pytest.mark.parametrize("bad", [b"x", {1, 2}, object(), Decimal(1), {"a": [b"x"]}, {"a": object()}])
    async def test_what_is_not_json_is_refused_and_nothing_changes(self, subject: Subject, bad: Any) -> None:
        key = await subject.session(state={"a": 1})
        for name in ("n", "user:n", "app:n"):
            with pytest.raises(DocumentError):
                await subject.run(state.merge(key, {"a": 2, name: bad}))
        assert (await subject.run(state.get(key))).merged == {"a": 1}
        with pytest.raises(DocumentError):
            await subject.run(sessions.create(subject.key("s2"), state={"n": bad}))
        assert await subject.run(sessions.get(subject.key("s2"))) is None

    async def test_without_a_session_only_its_own_bucket_is_missing(self, subject: Subject) -> None:
        key = subject.key()
        await subject.run(state.merge(key, {"user:name": "Ann", "app:open": True}))
        assert (await subject.run(state.get(key))).merged == {"user:name": "Ann", "app:open": True}
        assert await subject.run(sessions.get(key)) is None
        with gone():
            await subject.run(state.merge(key, {"own": 1}))

    async def test_all_buckets_or_none(self, atomic_subject: Subject) -> None:
        subject = atomic_subject
        key = subject.key()
        with pytest.raises(NotFoundError):
            await subject.run(state.merge(key, {"app:a": 1, "own": 1, "user:u": 1}))
        assert (await subject.run(state.get(key))).merged == {}

    async def test_a_merge_keeps_entries_and_revision(self, subject: Subject) -> None:
        key = await subject.session()
        stored = await subject.append(key, "a")
        await subject.run(state.merge(key, {"n": 1}))
        assert (await subject.run(sessions.get(key))).revision == stored.revision
        await subject.append(key, "b", expected=stored.revision)
        assert (await subject.run(state.get(key))).session == {"n": 1}


class TestState(StateContract):
    pass


class ConcurrentStateContract:
    @pytest.mark.parametrize("prefixes", [("",), ("user:",), ("app:",), ("", "user:", "app:")], ids="+".join)
    async def test_writers_of_different_keys_lose_nothing(
        self, subject: Subject, prefixes: tuple[str, ...]
    ) -> None:
        key = await subject.session()

        async def write(number: int) -> None:
            for n in range(3):
                delta = {f"{prefix}w{number}-{n}": n for prefix in prefixes}
                await subject.run(state.merge(key, {**delta, f"{prefixes[0]}last{number}": n}))

        await asyncio.gather(*(write(number) for number in range(WRITERS)))
        expected = {f"{p}w{w}-{n}": n for p in prefixes for w in range(WRITERS) for n in range(3)}
        expected |= {f"{prefixes[0]}last{w}": 2 for w in range(WRITERS)}
        assert (await subject.run(state.get(key))).merged == expected

    async def test_sessions_of_one_user_share_without_loss(self, subject: Subject) -> None:
        keys = [await subject.session(f"s{n}") for n in range(WRITERS)]
        await asyncio.gather(
            *(subject.run(state.merge(key, {f"user:{n}": n, f"app:{n}": n})) for n, key in enumerate(keys))
        )
        found = await subject.run(state.get(keys[0]))
        assert found.user == found.app == {str(n): n for n in range(WRITERS)}

    async def test_appends_with_state_and_merges_lose_nothing(self, subject: Subject) -> None:
        key = await subject.session()
        appends = [subject.run(entries.append(key, with_state(f"e{n}", {f"a{n}": n}))) for n in range(6)]
        merges = [subject.run(state.merge(key, {f"m{n}": n})) for n in range(6)]
        await asyncio.gather(*appends, *merges)
        expected = {f"{kind}{n}": n for kind in "am" for n in range(6)}
        assert (await subject.run(state.get(key))).session == expected
        assert sorted(await subject.names(key)) == [f"e{n}" for n in range(6)]

    async def test_readers_see_both_buckets_of_a_merge_or_none(self, atomic_subject: Subject) -> None:
        subject = atomic_subject
        key = await subject.session()
        await subject.run(state.merge(key, {"n": -1, "user:n": -1, "app:n": -1}))
        done = asyncio.Event()

        async def read() -> int:
            seen = set()
            while not done.is_set():
                found = await subject.run(state.get(key))
                assert found.session == found.user == found.app
                seen.add(found.app["n"])
                await asyncio.sleep(0)
            return len(seen)

        reader = asyncio.create_task(read())
        try:
            for n in range(20):
                await subject.run(state.merge(key, {"n": n, "user:n": n, "app:n": n}))
        finally:
            done.set()
        assert await reader > 1


class TestConcurrentState(ConcurrentStateContract):
    pass


class StateWithEntryContract:
    async def test_state_comes_with_its_entry(self, subject: Subject) -> None:
        key = await subject.session(state={"kept": 1})
        await subject.run(
            entries.append(key, with_state("a", {"n": 1, "user:u": None, "app:a": [2], "temp:x": 1}))
        )
        found = await subject.run(state.get(key))
        assert (found.session, found.user, found.app) == ({"kept": 1, "n": 1}, {"u": None}, {"a": [2]})

    async def test_an_append_refused_changes_no_state(self, subject: Subject) -> None:
        key = subject.key()
        head = await subject.run(sessions.create(key))
        await subject.append(key, "a")
        with pytest.raises(StaleRevisionError):
            await subject.run(entries.append(key, with_state("b", {"n": 1}), expected=head.revision))
        with pytest.raises(KeyConflictError):
            await subject.run(entries.append(key, with_state("a", {"app:n": 1})))
        with pytest.raises(StaleRevisionError):
            await subject.run(
                entries.append_many(key, [entry("b"), with_state("c", {"n": 1})], expected=head.revision)
            )
        assert (await subject.run(state.get(key))).merged == {}
        assert await subject.names(key) == ["a"]

    async def test_of_racing_appends_only_the_winners_state_stays(self, subject: Subject) -> None:
        for number in range(4):
            key = subject.key(f"r{number}")
            head = await subject.run(sessions.create(key))
            results = await outcomes(
                *(
                    subject.run(
                        entries.append(key, with_state(f"e{n}", {f"k{n}": n}), expected=head.revision)
                    )
                    for n in range(6)
                )
            )
            won = [n for n, one in enumerate(results) if not isinstance(one, BaseException)]
            assert len(won) == 1, results
            assert all(isinstance(r, StaleRevisionError) for n, r in enumerate(results) if n not in won), (
                results
            )
            assert await subject.names(key) == [f"e{won[0]}"]
            assert (await subject.run(state.get(key))).session == {f"k{won[0]}": won[0]}

    async def test_a_reader_who_sees_the_entry_sees_its_state(self, atomic_subject: Subject) -> None:
        subject = atomic_subject
        key = await subject.session(state={"n": -1})
        done = asyncio.Event()

        async def read() -> int:
            seen = set()
            while not done.is_set():
                count = len((await subject.run(entries.last(key, 100))).entries)
                assert (await subject.run(state.get(key))).session["n"] >= count - 1
                seen.add(count)
                await asyncio.sleep(0)
            return len(seen)

        reader = asyncio.create_task(read())
        try:
            for n in range(20):
                await subject.run(entries.append(key, with_state(f"e{n}", {"n": n})))
        finally:
            done.set()
        assert await reader > 1


class TestStateWithEntry(StateWithEntryContract):
    pass
