"""Reading: by page, by the last entries, by the last turns; pinned entries stay, fences never show."""

from __future__ import annotations

from typing import Any

import pytest

from contract.subjects import Subject, assert_dense, entry
from mnemongo import Message, SessionKey, entries, leases
from mnemongo.keys import place, turn_key


def keys(stored: Any) -> list[str]:
    return [one.entry.key for one in stored]


async def fence(subject: Subject, key: SessionKey) -> None:
    """Let a lost holder's lease be taken over, which writes a fence."""
    lost = await subject.run(leases.acquire(key, owner="lost", ttl=30))
    await subject.clock.expire_lease(key, lost.until)
    lease = await subject.run(leases.acquire(key, owner="next", ttl=30))
    assert await subject.run(leases.release(lease)) is True


async def conversation(subject: Subject, turns: int, *, size: int = 2) -> SessionKey:
    """A session of ``turns`` turns of ``size`` entries: ``t1:0`` begins the first."""
    key = await subject.session()
    made = [
        Message.user(f"{turn}-{part}").entry(
            f"t{turn}:{part}", timestamp=1.0, turn=f"t{turn}", starts_turn=part == 0
        )
        for turn in range(1, turns + 1)
        for part in range(size)
    ]
    await subject.run(entries.append_many(key, made))
    return key


def of(turns: range, size: int = 2) -> list[str]:
    return [f"t{turn}:{part}" for turn in turns for part in range(size)]


class PageContract:
    @pytest.mark.parametrize("limit", [1, 2, 3, 10, 11, 1000])
    async def test_pages_hold_every_entry_once(self, subject: Subject, limit: int) -> None:
        key = await conversation(subject, 5)
        found: list[Any] = []
        after = None
        for _ in range(12):
            page = await subject.run(entries.page(key, after=after, limit=limit))
            assert len(page.items) <= limit
            found += page.items
            if (after := page.next) is None:
                break
        assert after is None
        assert keys(found) == of(range(1, 6))
        assert_dense(found)

    async def test_an_empty_session(self, subject: Subject) -> None:
        key = await subject.session()
        page = await subject.run(entries.page(key))
        assert (page.items, page.next) == ((), None)

    async def test_what_is_appended_between_two_pages_is_read(self, subject: Subject) -> None:
        key = await conversation(subject, 2)
        first = await subject.run(entries.page(key, limit=3))
        await subject.append(key, "new")
        second = await subject.run(entries.page(key, after=first.next, limit=3))
        assert keys([*first.items, *second.items]) == [*of(range(1, 3)), "new"]

    @pytest.mark.parametrize("limit", [1, 2, 100])
    async def test_fences_are_left_out(self, subject: Subject, limit: int) -> None:
        key = await subject.session()
        await fence(subject, key)
        await subject.append(key, "a")
        await fence(subject, key)
        await subject.append(key, "b")
        found: list[Any] = []
        after = None
        for _ in range(9):
            page = await subject.run(entries.page(key, after=after, limit=limit))
            found += page.items
            if (after := page.next) is None:
                break
        assert keys(found) == ["a", "b"]
        assert [place(one.revision) for one in found] == [2, 4]

    async def test_sessions_whose_names_begin_alike_are_apart(self, subject: Subject) -> None:
        made = [await subject.session(name) for name in ("s", "s1", "s\x01", "s:1", "S")]
        for key in made:
            await subject.append(key, f"in {key.session_id!r}")
        for key in made:
            assert await subject.names(key) == [f"in {key.session_id!r}"]
            assert keys((await subject.run(entries.last(key, 9))).entries) == [f"in {key.session_id!r}"]


class TestPage(PageContract):
    pass


class LastContract:
    @pytest.mark.parametrize("limit", [1, 2, 5, 9, 10, 11, 10_000])
    async def test_the_last_entries(self, subject: Subject, limit: int) -> None:
        key = await conversation(subject, 5)
        window = await subject.run(entries.last(key, limit))
        assert keys(window.entries) == of(range(1, 6))[-limit:]
        assert window.truncated == (limit < 10)
        assert window.pinned == ()

    async def test_an_empty_session(self, subject: Subject) -> None:
        key = await subject.session()
        window = await subject.run(entries.last(key, 1))
        assert (window.entries, window.pinned, window.truncated) == ((), (), False)

    async def test_before(self, subject: Subject) -> None:
        key = await conversation(subject, 5)
        stored = await subject.all(key)
        window = await subject.run(entries.last(key, 3, before=stored[6].revision))
        assert keys(window.entries) == keys(stored[3:6])
        assert window.truncated
        window = await subject.run(entries.last(key, 3, before=stored[0].revision))
        assert (window.entries, window.truncated) == ((), False)

    async def test_fences_are_not_counted(self, subject: Subject) -> None:
        key = await subject.session()
        for name in "abc":
            await subject.append(key, name)
            await fence(subject, key)
        for limit in (1, 2, 3, 4):
            window = await subject.run(entries.last(key, limit))
            assert keys(window.entries) == list("abc")[-limit:]
            assert window.truncated == (limit < 3)

    async def test_pinned_entries_stay(self, subject: Subject) -> None:
        key = await _pinned(subject)
        window = await subject.run(entries.last(key, 1))
        assert keys(window.pinned) == ["sys1", "sys2"]
        assert keys(window.entries) == ["t2:1"]
        assert window.truncated
        whole = await subject.run(entries.last(key, 100))
        assert (keys(whole.pinned), whole.truncated) == ([], False)
        assert keys(whole.entries) == ["sys1", "t1:0", "t1:1", "sys2", "t2:0", "t2:1"]

    async def test_only_pinned_entries_left_out_is_not_truncated(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.run(entries.append(key, Message.system("be kind").entry("sys", timestamp=1.0)))
        await subject.append(key, "a")
        window = await subject.run(entries.last(key, 1))
        assert (keys(window.pinned), keys(window.entries), window.truncated) == (["sys"], ["a"], False)


async def _pinned(subject: Subject) -> SessionKey:
    key = await subject.session()
    made = [
        Message.system("one").entry("sys1", timestamp=1.0),
        entry("t1:0", starts=True),
        entry("t1:1"),
        Message.system("two").entry("sys2", timestamp=1.0),
        entry("t2:0", starts=True),
        entry("t2:1"),
    ]
    assert [one.pinned for one in made] == [True, False, False, True, False, False]
    await subject.run(entries.append_many(key, made))
    return key


class TestLast(LastContract):
    pass


class TurnsContract:
    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    @pytest.mark.parametrize("limit", [1, 2, 4, 5, 6, 1000])
    async def test_the_last_turns_whole(self, subject: Subject, limit: int, size: int) -> None:
        key = await conversation(subject, 5, size=size)
        window = await subject.run(entries.turns(key, limit))
        assert keys(window.entries) == of(range(max(1, 6 - limit), 6), size)
        assert window.truncated == (limit < 5)

    async def test_entries_before_the_first_turn(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.append(key, "early")
        for turn in (1, 2):
            await subject.run(entries.append(key, entry(f"t{turn}:0", starts=True)))
            await subject.append(key, f"t{turn}:1")
        for limit, whole in ((1, False), (2, None), (3, True)):
            window = await subject.run(entries.turns(key, limit))
            expected = of(range(3 - min(limit, 2), 3))
            if whole is None:
                assert keys(window.entries)[-4:] == expected
                assert window.truncated == (len(window.entries) == 4)
            else:
                assert keys(window.entries) == (["early"] if whole else []) + expected
                assert window.truncated == (not whole)

    async def test_no_turns_at_all(self, subject: Subject) -> None:
        key = await subject.session()
        assert (await subject.run(entries.turns(key, 3))).entries == ()
        await subject.append(key, "a")
        await subject.append(key, "b")
        window = await subject.run(entries.turns(key, 1))
        assert (keys(window.entries), window.truncated) == (["b"], True)  # each counts as one
        for number in range(10):
            await subject.append(key, f"c{number}")
        window = await subject.run(entries.turns(key, 2))
        assert (keys(window.entries), window.truncated) == (["c8", "c9"], True)

    @pytest.mark.parametrize("limit", [1, 2, 3, 9])
    async def test_before(self, subject: Subject, limit: int) -> None:
        key = await conversation(subject, 4)
        stored = await subject.all(key)
        window = await subject.run(entries.turns(key, limit, before=stored[6].revision))
        assert keys(window.entries) == of(range(max(1, 4 - limit), 4))
        assert window.truncated == (limit < 3)
        window = await subject.run(entries.turns(key, limit, before=stored[0].revision))
        assert window.entries == ()

    async def test_fences_end_no_turn_and_are_not_shown(self, subject: Subject) -> None:
        key = await subject.session()
        for turn in (1, 2, 3):
            await fence(subject, key)
            await subject.run(entries.append(key, entry(f"t{turn}:0", starts=True)))
            await fence(subject, key)
            await subject.append(key, f"t{turn}:1")
        for limit in (1, 2, 3, 4):
            window = await subject.run(entries.turns(key, limit))
            assert keys(window.entries) == of(range(max(1, 4 - limit), 4))
            assert window.truncated == (limit < 3)

    async def test_pinned_entries_stay(self, subject: Subject) -> None:
        key = await _pinned(subject)
        window = await subject.run(entries.turns(key, 1))
        assert (keys(window.pinned), keys(window.entries)) == (["sys1", "sys2"], ["t2:0", "t2:1"])
        assert window.truncated
        whole = await subject.run(entries.turns(key, 9))
        assert keys([*whole.pinned, *whole.entries]) == ["sys1", "t1:0", "t1:1", "sys2", "t2:0", "t2:1"]
        assert not whole.truncated

    async def test_a_long_turn_is_never_cut(self, subject: Subject) -> None:
        key = await subject.session()
        names = [f"t2:{n}" for n in range(250)]
        await subject.run(entries.append(key, entry("t1:0", starts=True)))
        await subject.run(
            entries.append_many(key, [entry(name, starts=n == 0) for n, name in enumerate(names)])
        )
        window = await subject.run(entries.turns(key, 1))
        assert (keys(window.entries), window.truncated) == (names, True)


class TestTurns(TurnsContract):
    pass


class OneTurnContract:
    async def test_all_entries_of_one_turn_in_order(self, subject: Subject) -> None:
        key = await subject.session()
        mine = [turn_key("t1", *names) for names in (("user",), ("tool", "z"), ("tool", "a"), ("assistant",))]
        others = [
            turn_key("t", "user"),
            turn_key("t10", "user"),
            turn_key("t1:x", "user"),
            "t1",
            "t1;",
            "T1:user",
        ]
        for name in (*others[:3], *mine[:2], *others[3:], *mine[2:]):
            await subject.append(key, name)
        assert keys(await subject.run(entries.turn(key, "t1"))) == mine
        assert keys(await subject.run(entries.turn(key, "t1:x"))) == [others[2]]
        assert tuple(await subject.run(entries.turn(key, "none"))) == ()

    async def test_of_another_session_none(self, subject: Subject) -> None:
        key, other = await subject.session("s1"), await subject.session("s2")
        await subject.append(key, "t1:user")
        assert tuple(await subject.run(entries.turn(other, "t1"))) == ()


class TestOneTurn(OneTurnContract):
    pass
