"""Sessions: names, creation, listing; deletes and clears that nothing survives and nothing resurrects."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient

from contract.subjects import Subject, assert_dense, entry, gone, outcomes
from mnemongo import (
    AlreadyExistsError,
    ConflictError,
    InvalidKeyError,
    LeaseLostError,
    NotFoundError,
    SessionKey,
    StaleRevisionError,
    Store,
    UnavailableError,
    entries,
    leases,
    sessions,
    state,
)
from mnemongo.keys import life, place

ROUNDS = 10


class Name(str):
    """Could compare as something else."""

    __slots__ = ()


NOT_NAMES = {
    "empty": "",
    "dict": {"$gt": ""},
    "operator": {"$ne": None},
    "list": ["ann"],
    "bytes": b"ann",
    "number": 1,
    "none": None,
    "subclass": Name("ann"),
    "nul": "an\0n",
    "surrogate": "ann\ud800",
    "513 bytes": "a" * 513,
    "513 bytes of UTF-8": "é" * 256 + "a",
}
not_names = pytest.mark.parametrize("bad", list(NOT_NAMES.values()), ids=list(NOT_NAMES))
NAMES = ["$evil", "a.b", "$$NOW", " ", "a\nb", "é" * 256, "x" * 512, "😀", "\x01", "{}", "\ue000", "null"]


@not_names
def test_session_key_refuses(bad: Any) -> None:
    for parts in ((bad, "ann", "s1"), ("shop", bad, "s1"), ("shop", "ann", bad)):
        with pytest.raises(InvalidKeyError):
            SessionKey(*parts)


def test_session_key_compares_by_its_exact_text() -> None:
    assert SessionKey("shop", "\u00e9", "s1") != SessionKey("shop", "e\u0301", "s1")
    assert SessionKey("a", "b", "c") == SessionKey("a", "b", "c")
    assert SessionKey("a", "b", "c").document_id == {"app_name": "a", "user_id": "b", "session_id": "c"}


KEY = SessionKey("shop", "ann", "s1")
TAKES_A_NAME: dict[str, Callable[[Any], Any]] = {
    "sessions.list app": sessions.list,
    "sessions.list user": lambda bad: sessions.list("shop", bad),
    "entries.get": lambda bad: entries.get(KEY, bad),
    "entries.turn": lambda bad: entries.turn(KEY, bad),
    "entries.append": lambda bad: entries.append(KEY, entry(bad, "text")),
    "leases.acquire": lambda bad: leases.acquire(KEY, owner=bad, ttl=1),
}

TAKES_A_LIMIT: dict[str, Callable[[Any], Any]] = {
    "entries.page": lambda bad: entries.page(KEY, limit=bad),
    "entries.last": lambda bad: entries.last(KEY, bad),
    "entries.turns": lambda bad: entries.turns(KEY, bad),
    "sessions.list": lambda bad: sessions.list("shop", limit=bad),
}


class NamesContract:
    @pytest.mark.parametrize("bad", [{"$gt": ""}, b"ann", "", "a\0", "\ud800"], ids=repr)
    @pytest.mark.parametrize("name", TAKES_A_NAME)
    async def test_a_bad_name_is_refused_before_any_io(self, deaf: Subject, name: str, bad: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await deaf.run(TAKES_A_NAME[name](bad))

    @pytest.mark.parametrize("bad", [-1, 2**63, 1.0, "1", True, {"$gt": 0}], ids=repr)
    async def test_a_bad_revision_is_refused_before_any_io(self, deaf: Subject, bad: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await deaf.run(entries.append(KEY, entry("a"), expected=bad))

    @pytest.mark.parametrize("name", TAKES_A_LIMIT)
    @pytest.mark.parametrize("bad", [0, -1, 1.5, "3", True, 10**6, {"$gt": 0}], ids=repr)
    async def test_a_bad_limit_is_refused_before_any_io(self, deaf: Subject, name: str, bad: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await deaf.run(TAKES_A_LIMIT[name](bad))

    async def test_the_deaf_store_does_send(self, deaf: Subject) -> None:
        with pytest.raises(UnavailableError):
            await deaf.run(sessions.get(KEY))


class TestNames(NamesContract):
    pass


class SessionsContract:
    async def test_create_and_get(self, subject: Subject) -> None:
        key = subject.key()
        made = await subject.run(sessions.create(key, state={"cart": 2, "none": None}))
        assert (made.key, made.state, place(made.revision)) == (key, {"cart": 2, "none": None}, 0)
        assert made.expires_at is None
        assert made.lease_until is None
        assert await subject.run(sessions.get(key)) == made

    async def test_a_session_that_is_not_there(self, subject: Subject) -> None:
        key = subject.key()
        assert await subject.run(sessions.get(key)) is None
        assert await subject.run(sessions.delete(key)) is False
        for operation in (
            sessions.clear(key),
            entries.append(key, entry("a")),
            entries.append_many(key, [entry("a"), entry("b")]),
            entries.page(key),
            entries.last(key, 1),
            entries.turns(key, 1),
            state.merge(key, {"a": 1}),
            leases.acquire(key, owner="w", ttl=5),
        ):
            with gone():
                await subject.run(operation)
        assert await subject.run(sessions.get(key)) is None

    async def test_create_twice(self, subject: Subject) -> None:
        key = await subject.session(state={"a": 1})
        with pytest.raises(AlreadyExistsError) as caught:
            await subject.run(sessions.create(key, state={"a": 2}))
        assert caught.value.key == key
        assert (await subject.run(sessions.get(key))).state == {"a": 1}

    async def test_the_same_operation_again_returns_the_same_session(self, subject: Subject) -> None:
        operation = sessions.create(subject.key(), state={"a": 1})
        first = await subject.run(operation)
        assert (await subject.run(operation)).revision == first.revision

    async def test_of_racing_creates_one_wins(self, subject: Subject) -> None:
        key = subject.key()
        results = await outcomes(*(subject.run(sessions.create(key, state={"n": n})) for n in range(8)))
        made = [one for one in results if not isinstance(one, BaseException)]
        assert len(made) == 1
        assert all(isinstance(one, AlreadyExistsError) for one in results if one not in made)
        assert (await subject.run(sessions.get(key))).state == made[0].state

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    async def test_any_name_is_kept_apart(self, subject: Subject, name: str) -> None:
        key = SessionKey(subject.app, name, name)
        other = SessionKey(subject.app, name, "other")
        for one in (key, other):
            await subject.run(sessions.create(one))
        await subject.run(entries.append(key, entry(name, "text")))
        await subject.run(state.merge(key, {name: 1, f"user:{name}": 2}))
        lease = await subject.run(leases.acquire(key, owner=name, ttl=30))
        assert (await subject.run(sessions.get(key))).lease_owner == name
        assert await subject.run(leases.release(lease)) is True
        assert await subject.names(key) == [name]
        assert await subject.names(other) == []
        assert (await subject.run(state.get(key))).merged == {name: 1, f"user:{name}": 2}
        assert (await subject.run(state.get(other))).merged == {f"user:{name}": 2}
        listed = await subject.run(sessions.list(subject.app, name))
        assert {one.key for one in listed.items} == {key, other}

    async def test_names_are_not_normalised(self, subject: Subject) -> None:
        composed, decomposed = subject.key("\u00e9"), subject.key("e\u0301")
        for key in (composed, decomposed):
            await subject.run(sessions.create(key))
        await subject.append(composed, "a")
        assert await subject.names(decomposed) == []


class ListContract:
    async def _make(self, subject: Subject, *keys: SessionKey) -> None:
        for key in keys:
            await subject.run(sessions.create(key))
            await subject.tick()

    async def test_newest_activity_last(self, subject: Subject) -> None:
        keys = [subject.key(f"s{n}") for n in range(3)]
        await self._make(subject, *keys)
        await subject.append(keys[0], "a")
        await subject.tick()
        listed = await subject.run(sessions.list(subject.app))
        assert [head.key.session_id for head in listed.items] == ["s1", "s2", "s0"]
        assert listed.next is None
        await subject.run(state.merge(keys[1], {"a": 1}))
        listed = await subject.run(sessions.list(subject.app))
        assert [head.key.session_id for head in listed.items] == ["s2", "s0", "s1"]
        assert [head.state for head in listed.items] == [{}, {}, {"a": 1}]

    async def test_filters_by_application_and_user(self, subject: Subject) -> None:
        mine, yours = subject.key("s1", "ann"), subject.key("s1", "bob")
        other = SessionKey(subject.app + "x", "ann", "s1")
        await self._make(subject, mine, yours, other)

        async def listed(*arguments: str) -> list[SessionKey]:
            return [head.key for head in (await subject.run(sessions.list(*arguments))).items]

        assert await listed(subject.app) == [mine, yours]
        assert await listed(subject.app, "bob") == [yours]
        assert await listed(subject.app, "nobody") == []
        assert await listed(subject.app[:-1]) == []

    @pytest.mark.parametrize("user", [None, "ann"])
    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_pages_hold_every_session_once(
        self, subject: Subject, limit: int, user: str | None
    ) -> None:
        keys = [subject.key(f"s{n}") for n in range(7)]
        for key in keys:  # without a tick: sessions of the same millisecond, too
            await subject.run(sessions.create(key))
        found: list[SessionKey] = []
        after = None
        for _ in range(10):
            page = await subject.run(sessions.list(subject.app, user, limit=limit, after=after))
            assert len(page.items) <= limit
            found += [head.key for head in page.items]
            if (after := page.next) is None:
                break
        assert sorted(found) == keys
        assert after is None


class TestList(ListContract):
    pass


class DeleteContract:
    async def test_delete_leaves_nothing(self, subject: Subject) -> None:
        key = await subject.session(state={"own": 1})
        await subject.append(key, "a")
        await subject.run(state.merge(key, {"user:name": "Ann", "app:open": True}))
        assert await subject.run(sessions.delete(key)) is True
        assert await subject.run(sessions.delete(key)) is False
        assert await subject.run(sessions.get(key)) is None
        with gone():
            await subject.run(entries.get(key, "a"))
        assert (await subject.run(sessions.list(subject.app))).items == ()
        for read in (entries.page(key), entries.last(key, 5), entries.turns(key, 5)):
            with gone():
                await subject.run(read)
        assert (await subject.run(state.get(key))).merged == {"user:name": "Ann", "app:open": True}
        if subject.raw is not None:
            assert subject.raw["events"].count_documents({"app_name": subject.app}) == 0

    async def test_delete_of_many_entries_and_parts(self, subject: Subject) -> None:
        key, other = await subject.session(), await subject.session("other")
        await subject.append(other, "kept")
        for batch in range(2):
            await subject.run(entries.append_many(key, [entry(f"{batch}-{n}", "x") for n in range(600)]))
        await subject.run(entries.append(key, entry("large", "x" * (9 << 20))))
        assert await subject.run(sessions.delete(key)) is True
        await subject.session()
        assert await subject.all(key) == []
        assert await subject.names(other) == ["kept"]
        if subject.raw is not None:
            found = {"_id.app_name": subject.app}
            assert subject.raw["events"].count_documents(found) == 1
            assert subject.raw["payloads"].count_documents(found) == 0

    async def test_handles_are_stale_for_ever(self, subject: Subject) -> None:
        key = await subject.session()
        old = await subject.append(key, "a")
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        await subject.run(sessions.delete(key))
        with pytest.raises((NotFoundError, StaleRevisionError)):
            await subject.append(key, "late", expected=old.revision)
        with gone():
            await subject.append(key, "later")
        assert await subject.run(sessions.get(key)) is None, "a late append resurrected it"
        for again in range(3):
            made = await subject.run(sessions.create(key))
            assert life(made.revision) != life(old.revision)
            await subject.append(key, f"new{again}", expected=made.revision)
            with pytest.raises(StaleRevisionError):
                await subject.append(key, "late", expected=old.revision)
            with pytest.raises(StaleRevisionError):
                await subject.run(entries.append_many(key, [entry("x"), entry("y")], expected=old.revision))
            with pytest.raises(LeaseLostError):
                await subject.run(leases.renew(lease, ttl=5))
            with pytest.raises(StaleRevisionError):
                await subject.run(entries.page(key, after=old.revision))
            assert await subject.names(key) == [f"new{again}"]
            await subject.run(sessions.delete(key))

    async def test_a_late_append_under_a_lease_fails(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        await subject.append(key, "a", lease=lease)
        await subject.run(sessions.delete(key))
        with pytest.raises((NotFoundError, ConflictError)):
            await subject.append(key, "b", lease=lease)

    @pytest.mark.parametrize("anew", [True, False])
    async def test_what_is_late_under_a_lease_stays_invisible(self, subject: Subject, anew: bool) -> None:
        key = await subject.session()
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        stored = await subject.append(key, "a", lease=lease)
        await subject.run(sessions.delete(key))
        if anew:
            await subject.session()
        _ = await outcomes(subject.append(key, "b", lease=lease))
        with pytest.raises((NotFoundError, StaleRevisionError)):
            await subject.run(leases.release(lease, revision=stored.revision + 1))
        assert (await subject.run(sessions.get(key)) is not None) == anew
        if not anew:
            await subject.session()
        assert await subject.all(key) == []
        assert place((await subject.append(key, "a")).revision) == 1

    async def test_a_deleted_sessions_keys_are_free_again(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.append(key, "a")
        await subject.run(sessions.delete(key))
        await subject.session()
        again = await subject.run(entries.append(key, entry("a", "other")))
        assert (again.replayed, place(again.revision)) == (False, 1)

    async def test_an_append_that_races_with_delete_and_create(self, subject: Subject) -> None:
        for number in range(ROUNDS):
            key = await subject.session(f"r{number}")
            first = await subject.append(key, "a")

            async def begin_anew(key: SessionKey = key) -> Any:
                await subject.run(sessions.delete(key))
                return await subject.run(sessions.create(key))

            *late, new = await outcomes(
                *(subject.append(key, f"late{n}", expected=first.revision) for n in range(3)), begin_anew()
            )
            assert place(new.revision) == 0
            for one in late:
                if isinstance(one, BaseException):
                    assert isinstance(one, NotFoundError | StaleRevisionError), repr(one)
                else:
                    assert life(one.revision) == life(first.revision)
            assert await subject.all(key) == []
            stored = await subject.append(key, "b", expected=new.revision)
            assert place(stored.revision) == 1

    async def test_an_append_without_expected_that_races_with_a_delete(self, subject: Subject) -> None:
        for number in range(ROUNDS):
            key = await subject.session(f"r{number}")
            await subject.append(key, "a")
            *late, _ = await outcomes(
                *(subject.append(key, f"late{n}") for n in range(3)), subject.run(sessions.delete(key))
            )
            for one in late:
                assert not isinstance(one, BaseException) or isinstance(one, ConflictError | NotFoundError)
            assert await subject.run(sessions.get(key)) is None
            await subject.run(sessions.create(key))
            assert await subject.all(key) == []


class TestDelete(DeleteContract):
    pass


class ClearContract:
    async def test_clear_removes_entries_and_keeps_state(self, subject: Subject) -> None:
        key = await subject.session(state={"cart": 2})
        old = await subject.append(key, "a")
        await subject.append(key, "b")
        cleared = await subject.run(sessions.clear(key))
        assert (place(cleared.revision), cleared.state) == (0, {"cart": 2})
        assert cleared.revision == (await subject.run(sessions.get(key))).revision
        assert await subject.all(key) == []
        assert await subject.run(entries.get(key, "a")) is None
        for late in (old.revision, old.revision + 1):
            with pytest.raises(StaleRevisionError):
                await subject.append(key, "late", expected=late)
        again = await subject.run(entries.append(key, entry("a", "other"), expected=cleared.revision))
        assert (again.replayed, place(again.revision)) == (False, 1)

    async def test_a_holder_from_before_a_clear_is_told(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        stored = await subject.append(key, "a", lease=lease)
        await subject.run(sessions.clear(key))
        _ = await outcomes(subject.append(key, "b", lease=lease))
        with pytest.raises(LeaseLostError):
            await subject.run(leases.renew(lease, ttl=60))
        with pytest.raises(StaleRevisionError):
            await subject.run(leases.release(lease, revision=stored.revision))
        assert await subject.all(key) == []

    async def test_a_late_append_under_a_lease_fails(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await subject.run(leases.acquire(key, owner="w", ttl=60))
        await subject.append(key, "a", lease=lease)
        await subject.run(sessions.clear(key))
        with pytest.raises(ConflictError):
            await subject.append(key, "b", lease=lease)

    async def test_appends_that_race_with_a_clear(self, subject: Subject) -> None:
        for number in range(ROUNDS):
            key = await subject.session(f"r{number}")
            await subject.append(key, "a")
            *results, cleared = await outcomes(
                *(subject.append(key, f"r{n}") for n in range(4)), subject.run(sessions.clear(key))
            )
            assert not isinstance(cleared, BaseException), repr(cleared)
            stored = await subject.all(key)
            assert_dense(stored)
            kept = {one.entry.key for one in stored}
            assert "a" not in kept
            for n, one in enumerate(results):
                if isinstance(one, BaseException):
                    assert isinstance(one, StaleRevisionError), repr(one)
                    assert f"r{n}" not in kept
                else:
                    assert (f"r{n}" in kept) == (life(one.revision) == life(cleared.revision))

    async def test_clears_that_race(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.append(key, "a")
        results = await outcomes(*(subject.run(sessions.clear(key)) for _ in range(6)))
        assert [one for one in results if isinstance(one, BaseException)] == []
        assert await subject.all(key) == []
        assert place((await subject.append(key, "b")).revision) == 1


class TestClear(ClearContract):
    pass


class TestSessions(SessionsContract):
    pass


def test_a_standalone_server_warns_once(standalone_uri: str, database_name: str) -> None:
    with MongoClient[Any](standalone_uri) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(client, database_name)
        store.setup()
        _ = store.run(sessions.create(KEY))
        for number in range(3):
            _ = store.run(entries.append(KEY, entry(str(number))))
            _ = store.run(entries.append_many(KEY, [entry(f"a{number}"), entry(f"b{number}")]))
    assert [one.category for one in caught] == [UserWarning]


def test_a_replica_set_does_not_warn(mongodb_uri: str, database_name: str) -> None:
    with MongoClient[Any](mongodb_uri) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(client, database_name)
        store.setup()
        _ = store.run(sessions.create(KEY))
        _ = store.run(entries.append_many(KEY, [entry("a"), entry("b")]))
    assert caught == []
