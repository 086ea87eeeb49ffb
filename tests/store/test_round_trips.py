"""How many commands each operation sends, once the store knows its server."""

from __future__ import annotations

import asyncio

from mnemongo import AsyncChatHistory, ChatHistory, entries, leases, sessions, state
from store.harness import KEY, Opened, Opener, entry, stateful


async def talked(opener: Opener, turns: int = 4) -> Opened:
    """A store with a session of two-entry turns, warmed up."""
    opened = await opener.ready()
    await opened.run(sessions.create(KEY))
    for number in range(turns):
        await opened.run(entries.append(KEY, entry(f"q{number}", starts_turn=True)))
        await opened.run(entries.append(KEY, entry(f"a{number}")))
    return opened


async def test_create(opener: Opener) -> None:
    opened = await opener.ready()
    _ = await opened.run(sessions.get(KEY))
    _, names = await opened.counted(sessions.create(KEY))
    assert names == ["findAndModify"]


async def test_get(opener: Opener) -> None:
    opened = await talked(opener)
    _, names = await opened.counted(sessions.get(KEY))
    assert names == ["aggregate"]


async def test_append_with_expected(opener: Opener) -> None:
    opened = await talked(opener)
    head = await opened.run(sessions.get(KEY))
    assert head is not None
    _, names = await opened.counted(entries.append(KEY, entry("x"), expected=head.revision))
    assert names == ["insert", "update"]


async def test_append_with_after(opener: Opener) -> None:
    opened = await talked(opener)
    head = await opened.run(sessions.get(KEY))
    assert head is not None
    _, names = await opened.counted(entries.append(KEY, entry("x"), after=head.revision))
    assert names == ["insert", "update"]


async def test_append_that_has_to_find_its_place(opener: Opener) -> None:
    opened = await talked(opener)
    _, names = await opened.counted(entries.append(KEY, entry("x")))
    assert names == ["aggregate", "insert", "update"]


async def test_append_under_a_lease(opener: Opener) -> None:
    opened = await talked(opener)
    lease = await opened.run(leases.acquire(KEY, owner="w", ttl=30))
    first, names = await opened.counted(entries.append(KEY, entry("x"), lease=lease))
    assert names == ["update", "update"]  # settled: the head follows at once
    for step in (1, 2):
        held = entries.append(
            KEY, entry(f"y{step}"), lease=lease, after=first.revision + step - 1, settle=False
        )
        assert (await opened.counted(held))[1] == ["update"]


async def test_the_replay_of_an_append(opener: Opener) -> None:
    opened = await talked(opener)
    head = await opened.run(sessions.get(KEY))
    assert head is not None
    replay, names = await opened.counted(
        entries.append(KEY, entry("q1", starts_turn=True), after=head.revision)
    )
    assert replay.replayed
    assert names == ["insert", "aggregate"]


async def test_append_many(opener: Opener) -> None:
    opened = await talked(opener)
    _, names = await opened.counted(entries.append_many(KEY, [entry("x"), entry("y")]))
    assert names == ["aggregate", "insert", "update", "commitTransaction"]


async def test_append_many_with_session_state(opener: Opener) -> None:
    opened = await talked(opener)
    _, names = await opened.counted(entries.append_many(KEY, [stateful("x", a=1), entry("y")]))
    assert names == ["aggregate", "insert", "update", "commitTransaction"]
    _, names = await opened.counted(entries.append(KEY, stateful("z", a=2)))
    assert names == ["aggregate", "insert", "update", "commitTransaction"]


async def test_append_many_with_all_three_scopes(opener: Opener) -> None:
    opened = await talked(opener)
    for name in ("new", "again"):  # the shared buckets are inserted, then updated
        _, names = await opened.counted(entries.append_many(KEY, [stateful(name, a=1, app_a=1, user_a=1)]))
        assert len(names) <= 6
        assert names[-1] == "commitTransaction"
    assert (await opened.run(state.get(KEY))).merged == {"a": 1, "app:a": 1, "user:a": 1}


async def test_leases(opener: Opener) -> None:
    opened = await talked(opener)
    lease, names = await opened.counted(leases.acquire(KEY, owner="w", ttl=30))
    assert names == ["findAndModify"]
    lease, names = await opened.counted(leases.renew(lease, ttl=30))
    assert names == ["findAndModify"]
    _, names = await opened.counted(leases.release(lease))
    assert names == ["update"]


async def test_reads_of_entries(opener: Opener) -> None:
    opened = await talked(opener)
    got, names = await opened.counted(entries.get(KEY, "q0"))
    assert (got is not None, names) == (True, ["aggregate"])
    window, names = await opened.counted(entries.last(KEY, 5))
    assert ([s.entry.key for s in window.entries], names) == (["a1", "q2", "a2", "q3", "a3"], ["aggregate"])
    window, names = await opened.counted(entries.turns(KEY, 2))
    assert ([s.entry.key for s in window.entries], names) == (["q2", "a2", "q3", "a3"], ["aggregate"])
    window, names = await opened.counted(entries.turns(KEY, 20))
    assert (len(window.entries), names) == (8, ["aggregate"])
    page, names = await opened.counted(entries.page(KEY, limit=3))
    assert (len(page), names) == (3, ["aggregate"])
    page, names = await opened.counted(entries.page(KEY, after=page.next, limit=100))
    assert (len(page), names) == (5, ["aggregate"])


async def test_turns_that_are_longer_than_two(opener: Opener) -> None:
    opened = await talked(opener)
    for number in range(3):
        many = [entry(f"l{number}", starts_turn=True), *(entry(f"l{number}:{n}") for n in range(4))]
        _ = await opened.run(entries.append_many(KEY, many))
    window, names = await opened.counted(entries.turns(KEY, 2))
    assert len(window.entries) == 10
    assert len(names) <= 3


async def test_state(opener: Opener) -> None:
    opened = await talked(opener)
    _ = await opened.run(state.merge(KEY, {"a": 1, "app:b": 2, "user:c": 3}))
    got, names = await opened.counted(state.get(KEY))
    assert (got.merged, names) == ({"a": 1, "app:b": 2, "user:c": 3}, ["aggregate"])
    _, names = await opened.counted(state.merge(KEY, {"a": 2}))
    assert names == ["aggregate", "update"]


async def test_a_turn_of_question_and_answer(opener: Opener) -> None:
    opened = await talked(opener, turns=25)
    for turn in ("warm", "t-42"):
        opened.recorder.clear()
        if opened.colour == "Store":
            context = await asyncio.to_thread(blocking_turn, opened, turn)
        else:
            context = await async_turn(opened, turn)
        assert len(context) == 41
    assert opened.recorder.names == ["findAndModify", "update", "aggregate", "update", "update"]


def blocking_turn(opened: Opened, name: str) -> list[str]:
    with ChatHistory(opened.store, KEY).turn(name) as turn:
        _ = turn.user("Where is my order?")
        assert turn.answer is None
        context = turn.context(last_turns=20)
        _ = turn.assistant("On its way.")
    return [message.text for message in context]


async def async_turn(opened: Opened, name: str) -> list[str]:
    async with AsyncChatHistory(opened.store, KEY).turn(name) as turn:
        _ = await turn.user("Where is my order?")
        assert turn.answer is None
        context = await turn.context(last_turns=20)
        _ = await turn.assistant("On its way.")
    return [message.text for message in context]
