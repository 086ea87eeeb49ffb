"""Leases: one holder at a time by the server's clock; a late holder is refused by its append itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from contract.subjects import Subject, assert_dense, entry, gone, outcomes
from mnemongo import (
    ConflictError,
    InvalidKeyError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    SessionKey,
    entries,
    leases,
    sessions,
)
from mnemongo.keys import place

RACERS = 8
ROUNDS = 12
LONG = 60.0


async def take(subject: Subject, key: SessionKey, ttl: float = LONG, owner: str = "w", **options: Any) -> Any:
    return await subject.run(leases.acquire(key, owner=owner, ttl=ttl, **options))


async def lose(subject: Subject, lease: Any) -> None:
    """Let the lease run out, with nobody taking it over."""
    await subject.clock.expire_lease(lease.key, lease.until)


class LeaseContract:
    async def test_acquire_hold_release(self, subject: Subject) -> None:
        key = await subject.session()
        stored = await subject.append(key, "a")
        lease = await take(subject, key, owner="worker 1")
        assert (lease.key, lease.owner, lease.revision) == (key, "worker 1", stored.revision)
        head = await subject.run(sessions.get(key))
        assert (head.lease_owner, head.lease_until) == ("worker 1", lease.until)
        with pytest.raises(LeaseHeldError) as caught:
            await take(subject, key)
        assert caught.value.found == lease.until
        assert await subject.run(leases.release(lease)) is True
        assert (await subject.run(sessions.get(key))).lease_until is None
        assert await subject.run(leases.release(lease)) is False
        await take(subject, key)

    async def test_expiry_is_the_servers_time_plus_ttl(self, subject: Subject) -> None:
        key = await subject.session()
        before = await asyncio.to_thread(subject.clock.now)
        lease = await take(subject, key, 30)
        after = await asyncio.to_thread(subject.clock.now)
        slack, ttl = timedelta(milliseconds=5), timedelta(seconds=30)
        assert before + ttl - slack <= lease.until <= after + ttl + slack
        assert lease.until.utcoffset() == timedelta(0)

    async def test_the_same_operation_again_returns_the_same_lease(self, subject: Subject) -> None:
        key = await subject.session()
        operation = leases.acquire(key, owner="w", ttl=LONG)
        first = await subject.run(operation)
        again = await subject.run(operation)
        assert (again.token, again.nonce, again.owner) == (first.token, first.nonce, first.owner)
        assert again.until >= first.until
        with pytest.raises(LeaseHeldError):
            await take(subject, key)
        await subject.append(key, "a", lease=again)
        assert await subject.run(leases.release(first)) is True

    async def test_the_same_operation_after_its_lease_was_taken_over(self, subject: Subject) -> None:
        key = await subject.session()
        operation = leases.acquire(key, owner="w", ttl=LONG)
        first = await subject.run(operation)
        await lose(subject, first)
        second = await take(subject, key, owner="x")
        with pytest.raises(LeaseHeldError):
            await subject.run(operation)
        assert await subject.run(leases.release(second)) is True

    async def test_create_makes_the_session(self, subject: Subject) -> None:
        key = subject.key()
        with gone():
            await take(subject, key)
        lease = await take(subject, key, create=True, session_ttl=3600)
        head = await subject.run(sessions.get(key))
        assert (head.expires_at is not None, head.lease_until, place(head.revision)) == (True, lease.until, 0)
        await subject.append(key, "a", lease=lease)
        assert await subject.run(leases.release(lease)) is True
        again = await take(subject, key, create=True)
        assert place(again.revision) == 1
        assert await subject.names(key) == ["a"]

    @pytest.mark.parametrize(
        "ttl", [0, -1, "5", float("nan"), float("inf"), None, True, {"$gt": 1}], ids=repr
    )
    async def test_a_bad_ttl_is_refused_before_any_io(self, deaf: Subject, ttl: Any) -> None:
        with pytest.raises(InvalidKeyError):
            await take(deaf, SessionKey("a", "b", "c"), ttl)

    async def test_leases_of_two_sessions_are_apart(self, subject: Subject) -> None:
        one, two = await subject.session("s1"), await subject.session("s2")
        first, second = await take(subject, one), await take(subject, two)
        assert await subject.run(leases.release(first)) is True
        with pytest.raises(LeaseHeldError):
            await take(subject, two)
        assert await subject.run(leases.release(second)) is True


class TestLease(LeaseContract):
    pass


class RenewContract:
    async def test_renew_moves_the_expiry(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key, 30)
        renewed = await subject.run(leases.renew(lease, ttl=90))
        assert renewed.until > lease.until + timedelta(seconds=50)
        assert renewed.token == lease.token
        assert (await subject.run(sessions.get(key))).lease_until == renewed.until

    async def test_renewed_beyond_its_first_expiry_it_holds(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key, subject.brief)
        renewed = await subject.run(leases.renew(lease, ttl=600))
        await subject.reach(lease.until)
        with pytest.raises(LeaseHeldError):
            await take(subject, key)
        await subject.append(key, "a", lease=renewed)
        assert await subject.run(leases.release(renewed)) is True

    async def test_what_is_lost_cannot_be_renewed(self, subject: Subject) -> None:
        key = await subject.session()
        expired = await take(subject, key, 0.05)
        await subject.reach(expired.until)
        with pytest.raises(LeaseLostError):
            await subject.run(leases.renew(expired, ttl=LONG))
        second = await take(subject, key)
        with pytest.raises(LeaseLostError):
            await subject.run(leases.renew(expired, ttl=LONG))
        assert await subject.run(leases.release(second)) is True
        with pytest.raises(LeaseLostError):
            await subject.run(leases.renew(second, ttl=LONG))
        assert (await subject.run(sessions.get(key))).lease_until is None

    async def test_of_a_deleted_session(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        await subject.run(sessions.delete(key))
        with pytest.raises((LeaseLostError, NotFoundError)):
            await subject.run(leases.renew(lease, ttl=LONG))
        with gone():
            await subject.run(leases.release(lease))
        assert await subject.run(sessions.get(key)) is None


class TestRenew(RenewContract):
    pass


class TokenContract:
    async def test_the_token_only_grows(self, subject: Subject) -> None:
        key = await subject.session()
        tokens = []
        for number in range(9):
            lease = await take(subject, key)
            tokens.append(lease.token)
            if number % 3 == 0:
                assert await subject.run(leases.release(lease)) is True
            else:
                await lose(subject, lease)
                if number % 3 == 1:
                    _ = await subject.run(leases.release(lease))
        assert tokens == sorted(set(tokens))

    async def test_the_token_grows_over_a_clear(self, subject: Subject) -> None:
        key = await subject.session()
        first = await take(subject, key)
        assert await subject.run(leases.release(first)) is True
        await subject.run(sessions.clear(key))
        assert (await take(subject, key)).token > first.token


class TestToken(TokenContract):
    pass


class LeaseRaceContract:
    async def _race(self, subject: Subject, key: SessionKey, **options: Any) -> Any:
        results = await outcomes(*(take(subject, key, owner=f"w{n}", **options) for n in range(RACERS)))
        won = [one for one in results if not isinstance(one, BaseException)]
        assert len(won) == 1, results
        assert all(isinstance(one, LeaseHeldError) for one in results if one not in won), results
        head = await subject.run(sessions.get(key))
        assert (head.lease_owner, head.lease_until) == (won[0].owner, won[0].until)
        return won[0]

    async def test_on_a_missing_lease_one_wins(self, subject: Subject) -> None:
        for number in range(ROUNDS):
            key = await subject.session(f"r{number}")
            await self._race(subject, key)

    async def test_on_a_missing_session_one_wins(self, subject: Subject) -> None:
        for number in range(ROUNDS):
            await self._race(subject, subject.key(f"r{number}"), create=True)

    async def test_on_an_expired_lease_one_wins(self, subject: Subject) -> None:
        key = await subject.session()
        lost = [await take(subject, key)]
        for number in range(ROUNDS):
            await lose(subject, lost[-1])
            won = await self._race(subject, key)
            assert won.token > lost[-1].token
            stored = await subject.append(key, f"r{number}", lease=won)
            lost.append(won)
            for late in lost[:-1]:
                with pytest.raises(LeaseLostError):
                    await subject.append(key, "late", lease=late)
            assert stored == (await subject.all(key))[-1]
        assert await subject.names(key) == [f"r{number}" for number in range(ROUNDS)]

    async def test_on_a_released_lease_one_wins(self, subject: Subject) -> None:
        key = await subject.session()
        for _ in range(ROUNDS):
            won = await self._race(subject, key)
            assert await subject.run(leases.release(won)) is True


class TestLeaseRace(LeaseRaceContract):
    pass


class HolderContract:
    async def test_a_holders_appends(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        first = await subject.append(key, "a", lease=lease)
        second = await subject.append(key, "b", lease=lease, expected=first.revision)
        third, fourth = await subject.run(entries.append_many(key, [entry("c"), entry("d")], lease=lease))
        assert_dense([first, second, third, fourth])
        assert (await subject.append(key, "a", lease=lease)).replayed
        assert await subject.run(leases.release(lease, revision=fourth.revision)) is True
        assert (await subject.run(sessions.get(key))).revision == fourth.revision
        assert await subject.names(key) == ["a", "b", "c", "d"]

    async def test_a_release_that_names_no_revision_hides_nothing(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        stored = await subject.append(key, "a", lease=lease)
        assert await subject.run(leases.release(lease)) is True
        assert await subject.names(key) == ["a"]
        assert (await subject.run(sessions.get(key))).revision == stored.revision
        await subject.append(key, "b", expected=stored.revision)

    @pytest.mark.parametrize("many", [False, True])
    async def test_past_its_expiry_the_append_is_refused_without_a_takeover(
        self, subject: Subject, many: bool
    ) -> None:
        key = await subject.session()
        lease = await take(subject, key, subject.brief)
        stored = await subject.append(key, "a", lease=lease)
        await subject.reach(lease.until)
        late = (
            entries.append_many(key, [entry("b"), entry("c")], lease=lease)
            if many
            else entries.append(key, entry("b"), lease=lease)
        )
        with pytest.raises(LeaseLostError):
            await subject.run(late)
        with pytest.raises(LeaseLostError):
            await subject.append(key, "b", lease=lease, expected=stored.revision)
        assert await subject.names(key) == ["a"]

    async def test_release_of_a_lease_that_ran_out_says_so(self, subject: Subject) -> None:
        lease = await take(subject, await subject.session())
        await lose(subject, lease)
        assert await subject.run(leases.release(lease)) is False

    @pytest.mark.parametrize("many", [False, True])
    async def test_after_a_takeover_the_append_is_refused(self, subject: Subject, many: bool) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        stored = await subject.append(key, "a", lease=lease)
        await lose(subject, lease)
        other = await take(subject, key, owner="x")
        late = (
            entries.append_many(key, [entry("b"), entry("c")], lease=lease)
            if many
            else entries.append(key, entry("b"), lease=lease)
        )
        for _ in range(2):
            with pytest.raises(LeaseLostError):
                await subject.run(late)
        with pytest.raises(ConflictError):
            await subject.append(key, "b", lease=lease, expected=stored.revision)
        await subject.append(key, "x", lease=other)
        with pytest.raises(LeaseLostError):
            await subject.run(late)
        assert await subject.run(leases.release(lease)) is False
        with pytest.raises(LeaseHeldError):
            await take(subject, key)
        assert await subject.run(leases.release(other)) is True
        with pytest.raises(LeaseLostError):
            await subject.run(late)
        assert await subject.names(key) == ["a", "x"]

    async def test_a_released_leases_append_after_another_took_it_is_refused(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        assert await subject.run(leases.release(lease)) is True
        other = await take(subject, key)
        await subject.append(key, "x", lease=other)
        with pytest.raises(LeaseLostError):
            await subject.append(key, "late", lease=lease)
        assert await subject.names(key) == ["x"]

    async def test_a_late_holder_gets_a_replay_of_what_it_stored(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        stored = await subject.append(key, "a", lease=lease)
        await lose(subject, lease)
        other = await take(subject, key)
        again = await subject.append(key, "a", lease=other)
        assert (again.replayed, again.revision) == (True, stored.revision)

    async def test_what_a_lost_holder_wrote_stays(self, subject: Subject) -> None:
        key = await subject.session()
        lease = await take(subject, key)
        stored = await subject.append(key, "a", lease=lease)
        await lose(subject, lease)
        _ = await subject.run(leases.release(lease, revision=stored.revision))
        assert await subject.names(key) == ["a"]
        assert (await subject.run(sessions.get(key))).revision == stored.revision
        assert place((await subject.append(key, "b")).revision) == 2

    async def test_holders_that_race_with_their_expiry(self, subject: Subject) -> None:
        """Each takes the lease from the one before; what is acknowledged is there, and nothing else."""
        key = await subject.session()
        held = [await take(subject, key, owner="w0")]
        acknowledged: set[str] = set()
        for number in range(1, 6):
            await lose(subject, held[-1])
            calls = [subject.append(key, f"{number}-{n}", lease=lease) for n, lease in enumerate(held)]
            *results, lease = await outcomes(*calls, take(subject, key, owner=f"w{number}"))
            held.append(lease)
            for n, one in enumerate(results):
                if isinstance(one, BaseException):
                    assert isinstance(one, LeaseLostError), repr(one)
                else:
                    acknowledged.add(f"{number}-{n}")
            assert set(await subject.names(key)) == acknowledged


class TestHolder(HolderContract):
    pass
