"""Chat histories: turns that can crash anywhere and be run again, with one answer and one context."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from contract.subjects import Subject, assert_dense, eventually, outcomes
from mnemongo import (
    ConfigurationError,
    ConflictError,
    DocumentError,
    InvalidKeyError,
    KeyConflictError,
    LeaseHeldError,
    LeaseLostError,
    Message,
    NotFoundError,
    SessionKey,
    StaleRevisionError,
    ToolCall,
    entries,
    leases,
    sessions,
    state,
)

MIB = 1 << 20
WEATHER = ToolCall("c1", "weather", {"city": "Bern"})


class CrashError(Exception):
    """The worker dies."""


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def letters(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)


async def talk(history: Any, *numbers: int) -> None:
    """Whole turns: ``t1`` asks ``q1`` and is answered ``a1``."""
    for number in numbers:
        async with history.turn(f"t{number}") as turn:
            await turn.user(f"q{number}")
            await turn.assistant(f"a{number}")


def said(*numbers: int) -> list[str]:
    return [f"{kind}{number}" for number in numbers for kind in "qa"]


class TurnContract:
    async def test_a_turn_is_stored_under_its_keys(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t:42") as turn:
            stored = await turn.user("Where is my order?")
            assert (stored.entry.key, stored.replayed) == ("t%3A42:user", False)
            assert turn.answer is None
            answer = await turn.assistant("On its way.")
            assert (answer.entry.key, answer.replayed) == ("t%3A42:assistant", False)
            assert turn.answer == Message.assistant("On its way.")
            assert texts(turn.messages) == ["Where is my order?", "On its way."]
        found = await history.messages()
        assert list(found) == [Message.user("Where is my order?"), Message.assistant("On its way.")]
        assert (found.truncated, found.unanswered) == (False, ())
        stored = await subject.all(history.key)
        assert_dense(stored)
        assert [one.entry.starts_turn for one in stored] == [True, False]
        head = await subject.run(sessions.get(history.key))
        assert (head.lease_until, head.revision) == (None, stored[-1].revision)

    async def test_writes_are_durable_when_they_return(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        other = subject.history(history.key)
        async with history.turn("t1") as turn:
            await turn.user("q1")
            assert texts(await other.messages()) == ["q1"]
            await turn.assistant("a1")
            assert texts(await other.messages()) == ["q1", "a1"]

    async def test_an_answer_is_replayed(self, subject: Subject) -> None:
        key = subject.key()
        await talk(subject.history(key), 1, 2)
        before = await subject.all(key)
        for history in (subject.history(key), subject.history(key)):
            async with history.turn("t1") as turn:
                assert (await turn.user("q1")).replayed
                assert turn.answer == Message.assistant("a1")
                assert texts(turn.messages) == ["q1", "a1"]
                assert (await turn.assistant("a1")).replayed
        assert await subject.all(key) == before

    async def test_other_content_on_a_retry_is_a_conflict(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key)
        await talk(history, 1)
        async with history.turn("t1") as turn:
            with pytest.raises(KeyConflictError):
                await turn.user("other question")
        async with history.turn("t1") as turn:
            await turn.user("q1")
            with pytest.raises(KeyConflictError):
                await turn.assistant("other answer")
        assert texts(await history.messages()) == said(1)
        assert (await subject.run(sessions.get(key))).lease_until is None

    async def test_a_second_answer_in_one_turn_is_a_conflict(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t1") as turn:
            await turn.user("q1")
            await turn.assistant("a1")
            assert (await turn.assistant("a1")).replayed
            with pytest.raises(KeyConflictError):
                await turn.assistant("a2")
        assert texts(await history.messages()) == said(1)

    async def test_the_answer_is_known_once_the_turn_was_read(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t1") as turn:
            with pytest.raises(ConfigurationError):
                _ = turn.answer
            assert await turn.resume() is False
            assert turn.answer is None
        await talk(history, 1)
        async with history.turn("t1") as turn:
            assert await turn.resume() is True
            assert turn.answer == Message.assistant("a1")

    async def test_an_empty_history(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        found = await history.messages()
        assert (list(found), found.truncated, found.unanswered) == ([], False, ())
        assert await subject.run(sessions.get(history.key)) is None, "reading created it"

    async def test_a_turn_of_many_entries(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        for attempt in range(2):
            async with history.turn("t1") as turn:
                await turn.user("q")
                await turn.append(Message.system("note"), "note")
                await turn.assistant("let me see", calls=[WEATHER, ToolCall("c2", "time")])
                assert turn.answer is None or attempt
                await turn.tool("c1", {"degrees": 21}, name="weather")
                await turn.tool("c2", "noon")
                last = await turn.assistant("21 degrees at noon")
                assert last.replayed == bool(attempt)
                assert turn.answer == Message.assistant("21 degrees at noon")
        found = await history.messages()
        assert [one.role for one in found] == ["user", "system", "assistant", "tool", "tool", "assistant"]
        assert found[2].calls == (WEATHER, ToolCall("c2", "time"))
        assert [one.output for one in found[3:5]] == [{"degrees": 21}, "noon"]
        assert [one.call_id for one in found[3:5]] == ["c1", "c2"]
        names = await subject.names(history.key)
        assert len(set(names)) == 6
        assert {"t1:user", "t1:note", "t1:tool:c1", "t1:tool:c2", "t1:assistant"} < set(names)

    @pytest.mark.parametrize("crash_after", [0, 1, 2, 3, 4])
    async def test_a_turn_crashed_anywhere_and_run_again(self, subject: Subject, crash_after: int) -> None:
        history = subject.history(subject.key())
        calls = 0

        async def attempt(steps: int) -> None:
            nonlocal calls
            async with history.turn("t1") as turn:
                for number in range(steps):
                    if number == 0:
                        await turn.user("q")
                    elif number == 1:
                        await turn.assistant(calls=[WEATHER])
                    elif number == 2:
                        await turn.tool("c1", {"degrees": 21})
                    elif turn.answer is None:
                        calls += 1
                        await turn.assistant("21")
                if steps == crash_after:
                    raise CrashError

        with pytest.raises(CrashError):
            await attempt(crash_after)
        await attempt(4) if crash_after != 4 else await _again(history)
        assert [one.role for one in await history.messages()] == ["user", "assistant", "tool", "assistant"]
        assert calls == 1

    async def test_many_workers_with_one_turn_ask_the_model_once(self, subject: Subject) -> None:
        key = subject.key()
        calls: list[int] = []

        async def work(number: int) -> str:
            async with subject.history(key).turn("t1", wait=60) as turn:
                await turn.user("q1")
                if turn.answer is None:
                    calls.append(number)
                    await turn.assistant(f"by {number}")
                return turn.answer.text

        answers = await asyncio.gather(*(work(number) for number in range(6)))
        assert len(calls) == 1
        assert set(answers) == {f"by {calls[0]}"}
        assert texts(await subject.history(key).messages()) == ["q1", answers[0]]

    async def test_concurrent_turns_do_not_interleave(self, subject: Subject) -> None:
        key = subject.key()

        async def work(number: int) -> None:
            async with subject.history(key).turn(f"t{number}", wait=60) as turn:
                await turn.user(f"q{number}")
                await turn.assistant(f"a{number}")

        await asyncio.gather(*(work(number) for number in range(6)))
        found = texts(await subject.history(key).messages())
        order = [int(text[1:]) for text in found[::2]]
        assert found == said(*order)
        assert sorted(order) == list(range(6))

    @pytest.mark.parametrize("bad", ["", {"$gt": ""}, b"t", "a\0", "\ud800", None, "t" * 513], ids=ascii)
    async def test_a_bad_turn_is_refused_before_any_io(self, deaf: Subject, bad: Any) -> None:
        with pytest.raises(InvalidKeyError):
            async with deaf.history(SessionKey("a", "b", "c")).turn(bad):
                pass


async def _again(history: Any) -> None:
    async with history.turn("t1") as turn:
        await turn.user("q")
        assert turn.answer == Message.assistant("21")


class TestTurn(TurnContract):
    pass


class AppendContract:
    async def test_append_without_a_turn(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await history.append("hello")
        await history.append(Message.assistant("hi", name="bot"), key="greeting")
        again = await history.append(Message.assistant("hi", name="bot"), key="greeting")
        assert again.replayed
        with pytest.raises(KeyConflictError):
            await history.append("other", key="greeting")
        assert list(await history.messages()) == [Message.user("hello"), Message.assistant("hi", name="bot")]
        await history.append("hello")
        assert texts(await history.messages()) == ["hello", "hi", "hello"]

    async def test_concurrent_appends_are_all_stored(self, subject: Subject) -> None:
        key = subject.key()
        await asyncio.gather(*(subject.history(key).append(f"m{n}") for n in range(8)))
        assert sorted(texts(await subject.history(key).messages())) == sorted(f"m{n}" for n in range(8))
        assert_dense(await subject.all(key))

    async def test_any_value_comes_back(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        value = {
            1: b"\0\xff",
            "when": datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            "n": [Decimal("1.10"), 2**90, float("inf"), {1, 2}, (3, None)],
            "$a.b": "\ud800\0",
        }
        async with history.turn("t1") as turn:
            await turn.user("q\ud800\0")
            await turn.assistant(calls=[ToolCall("c\ud7ff", "f", {"args": value})])
            await turn.tool("c\ud7ff", value)
            await turn.assistant(Message.assistant("a", metadata={"more": value}))
        question, call, output, answer = await history.messages()
        assert question.text == "q\ud800\0"
        assert call.calls[0].args == {"args": value}
        assert output.output == value
        assert answer.metadata == {"more": value}

    async def test_what_cannot_be_kept_is_refused_and_nothing_written(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t1") as turn:
            await turn.user("q1")
            with pytest.raises(DocumentError, match="deep"):
                await turn.tool("c1", {"deep": object()})
            assert texts(await history.messages()) == ["q1"]
            await turn.assistant("a1")
        assert texts(await history.messages()) == said(1)

    async def test_a_large_tool_output(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        output = "x" * (9 * MIB)
        async with history.turn("t1") as turn:
            await turn.user("q1")
            await turn.assistant(calls=[WEATHER])
            await turn.tool("c1", output)
            assert [one.output for one in await turn.context() if one.role == "tool"] == [output]
            await turn.assistant("a1")
        assert [one.output for one in await history.messages() if one.role == "tool"] == [output]


class TestAppend(AppendContract):
    pass


class ContextContract:
    async def test_the_turns_before_and_this_one(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t0") as turn:
            await turn.user("q0")
            assert texts(await turn.context()) == ["q0"]
            await turn.assistant("a0")
        async with history.turn("t1") as turn:
            await turn.user("q1")
            assert texts(await turn.context()) == [*said(0), "q1"]
            await turn.assistant(calls=[WEATHER])
            await turn.tool("c1", "sunny")
            assert texts(await turn.context()) == [*said(0), "q1", "", "sunny"]

    async def test_it_is_the_same_on_a_retry_whatever_was_added_since(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key)
        await history.append(Message.system("be kind"))
        await talk(history, 1, 2, 3)
        with pytest.raises(CrashError):  # noqa: PT012
            async with history.turn("t4") as turn:
                await turn.user("q4")
                limits = [{}, {"last_turns": 2}, {"last_messages": 3}]
                limits += [{"max_tokens": 20, "token_counter": letters}]
                first = [await turn.context(**limit) for limit in limits]
                raise CrashError
        await talk(history, 5, 6)
        await history.append(Message.system("be brief"))
        await history.append("between")
        for retry in (history, subject.history(key)):
            async with retry.turn("t4") as turn:
                assert (await turn.user("q4")).replayed
                assert [await turn.context(**limit) for limit in limits] == first
        async with history.turn("t4") as turn:
            await turn.user("q4")
            await turn.assistant("a4")
        async with history.turn("t4") as turn:
            await turn.user("q4")
            assert turn.answer == Message.assistant("a4")
        assert texts(first[0]) == ["be kind", *said(1, 2, 3), "q4"]

    async def test_an_answered_turn_run_again_shows_its_own_entries(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await talk(history, 1, 2, 3)
        async with history.turn("t2") as turn:
            await turn.user("q2")
            assert texts(await turn.context()) == said(1, 2)


class TestContext(ContextContract):
    pass


class LimitsContract:
    async def _five(self, subject: Subject) -> Any:
        history = subject.history(subject.key())
        await history.append(Message.system("sys"))
        await talk(history, 1, 2, 3, 4)
        return history

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 1000])
    async def test_turns(self, subject: Subject, limit: int) -> None:
        history = await self._five(subject)
        turns = range(max(1, 5 - limit), 5)
        found = await history.messages(last_turns=limit)
        assert (texts(found), found.truncated) == (["sys", *said(*turns)], limit < 4)
        async with history.turn("t5") as turn:
            await turn.user("q5")
            found = await turn.context(last_turns=limit)
            assert (texts(found), found.truncated) == (["sys", *said(*turns), "q5"], limit < 4)

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 9, 10_000])
    async def test_messages(self, subject: Subject, limit: int) -> None:
        history = await self._five(subject)
        whole = min(4, limit // 2)
        found = await history.messages(last_messages=limit)
        assert (texts(found), found.truncated) == (["sys", *said(*range(5 - whole, 5))], whole < 4)
        async with history.turn("t5") as turn:
            await turn.user("q5")
            found = await turn.context(last_messages=limit)
            assert texts(found)[0] == "sys"
            assert texts(found)[-1] == "q5"
            before = texts(found)[1:-1]
            assert len(before) <= limit
            assert before == said(*range(5 - len(before) // 2, 5))
            assert found.truncated == (len(before) < 8)

    async def test_tokens(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await talk(history, 1, 2, 3, 4)
        for limit in (1, 3, 4, 7, 8, 15, 16, 1000):
            whole = min(4, limit // 4)
            found = await history.messages(max_tokens=limit, token_counter=letters)
            assert (texts(found), found.truncated) == (said(*range(5 - whole, 5)), whole < 4)

    async def test_tokens_of_a_context(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await talk(history, 1, 2, 3, 4)
        async with history.turn("t5") as turn:
            await turn.user("q5")
            for limit in (1, 2, 5, 6, 9, 10, 17, 18, 1000):
                whole = max(0, min(4, (limit - 2) // 4))
                found = await turn.context(max_tokens=limit, token_counter=letters)
                assert (texts(found), found.truncated) == ([*said(*range(5 - whole, 5)), "q5"], whole < 4)

    async def test_tokens_of_pinned_messages_count(self, subject: Subject) -> None:
        history = await self._five(subject)
        for limit in (3, 6, 7, 10, 11, 18, 19):
            whole = (limit - 3) // 4
            found = await history.messages(max_tokens=limit, token_counter=letters)
            assert (texts(found), found.truncated) == (["sys", *said(*range(5 - whole, 5))], whole < 4)

    async def test_the_narrowest_limit_decides(self, subject: Subject) -> None:
        history = await self._five(subject)
        for limits, turns in (
            ({"last_turns": 1, "last_messages": 100}, [4]),
            ({"last_turns": 3, "last_messages": 5}, [3, 4]),
            ({"last_turns": 3, "max_tokens": 8, "token_counter": letters}, [4]),
        ):
            assert texts(await history.messages(**limits)) == ["sys", *said(*turns)]

    async def test_the_current_turn_is_never_cut(self, subject: Subject) -> None:
        history = await self._five(subject)
        async with history.turn("t5") as turn:
            await turn.user("q5")
            for number in range(5):
                await turn.append(Message.assistant(f"step {number}"), f"step{number}")
            own = ["q5", *(f"step {number}" for number in range(5))]
            for limits in (
                {"last_turns": 1},
                {"last_messages": 1},
                {"max_tokens": 1, "token_counter": letters},
            ):
                found = await turn.context(**limits)
                assert texts(found)[-6:] == own
                assert texts(found)[0] == "sys"
                assert found.truncated

    async def test_a_turn_is_never_cut(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await talk(history, 1)
        async with history.turn("t2") as turn:
            await turn.user("q2")
            await turn.assistant(calls=[WEATHER])
            await turn.tool("c1", "sunny")
            await turn.assistant("a2")
        for limit in (1, 2, 3):
            found = await history.messages(last_messages=limit)
            assert (list(found), found.truncated) == ([], True)
        for limit in (4, 5):
            assert texts(await history.messages(last_messages=limit)) == ["q2", "", "sunny", "a2"]

    async def test_system_messages_are_pinned_once_and_in_order(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await history.append(Message.system("first"))
        await talk(history, 1)
        await history.append(Message.system("second"))
        await talk(history, 2, 3)
        assert texts(await history.messages(last_turns=1)) == ["first", "second", *said(3)]
        assert texts(await history.messages(last_turns=9)) == ["first", *said(1), "second", *said(2, 3)]
        assert texts(await history.messages()) == ["first", *said(1), "second", *said(2, 3)]

    async def test_takeovers_do_not_show_and_do_not_count(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        for number in (1, 2, 3):
            lost = await subject.run(leases.acquire(history.key, owner="lost", ttl=60, create=True))
            await subject.clock.expire_lease(history.key, lost.until)
            await talk(history, number)
        assert texts(await history.messages()) == said(1, 2, 3)
        assert texts(await history.messages(last_turns=2)) == said(2, 3)
        assert texts(await history.messages(last_messages=4)) == said(2, 3)

    async def test_a_long_history_is_read_whole(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await history.append("m0")
        stored = [Message.user(f"m{n}").entry(f"m{n}", timestamp=1.0) for n in range(1, 1203)]
        await subject.run(entries.append_many(history.key, stored))
        assert texts(await history.messages()) == [f"m{n}" for n in range(1203)]

    @pytest.mark.parametrize(
        "limits",
        [
            {"last_turns": 0},
            {"last_messages": -1},
            {"last_turns": "1"},
            {"max_tokens": 5},
            {"token_counter": letters},
            {"max_tokens": 0, "token_counter": letters},
        ],
        ids="-".join,
    )
    async def test_bad_limits_are_refused(self, deaf: Subject, limits: dict[str, Any]) -> None:
        with pytest.raises(DocumentError):
            await deaf.history(SessionKey("a", "b", "c")).messages(**limits)


class TestLimits(LimitsContract):
    pass


class ToolCallsContract:
    async def _crashed(self, history: Any, name: str) -> None:
        with pytest.raises(CrashError):  # noqa: PT012
            async with history.turn(name) as turn:
                await turn.user(name)
                await turn.assistant(calls=[WEATHER, ToolCall("c2", "time")])
                await turn.tool("c2", "noon")
                raise CrashError

    async def test_unanswered_calls_are_reported(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await self._crashed(history, "t1")
        found = await history.messages()
        assert found.unanswered == ("c1",)
        assert [one.role for one in found] == ["user", "assistant", "tool"]
        async with history.turn("t2") as turn:
            await turn.user("q2")
            assert (await turn.context()).unanswered == ("c1",)
            await turn.assistant("a2")
        assert (await history.messages(last_turns=1)).unanswered == ()

    async def test_they_are_repaired_in_what_is_read_only(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await self._crashed(history, "t1")
        await talk(history, 2)
        before = await subject.all(history.key)
        async with history.turn("t3") as turn:
            await turn.user("q3")
            contexts = [await history.messages(repair=True), await turn.context(repair=True)]
        for found in contexts:
            assert found.unanswered == ()
            at = [one.role for one in found].index("assistant")
            answers = [one for one in found[at + 1 : at + 3] if one.role == "tool"]
            assert sorted(one.call_id for one in answers) == ["c1", "c2"]
            assert [one.text for one in answers if one.call_id == "c2"] == ["noon"]
            assert texts(found)[at + 3 : at + 5] == said(2)
        assert await subject.all(history.key) == [*before, *(await subject.all(history.key))[-1:]]
        plain = await history.messages()
        assert plain.unanswered == ("c1",)
        assert sum(one.role == "tool" for one in plain) == 1

    async def test_ids_may_repeat_between_turns(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        async with history.turn("t1") as turn:
            await turn.user("q1")
            await turn.assistant(calls=[WEATHER])
            await turn.tool("c1", "sunny")
            await turn.assistant("a1")
        assert (await history.messages()).unanswered == ()
        with pytest.raises(CrashError):  # noqa: PT012
            async with history.turn("t2") as turn:
                await turn.user("q2")
                await turn.assistant(calls=[WEATHER])
                raise CrashError
        assert (await history.messages()).unanswered == ("c1",)
        repaired = await history.messages(repair=True)
        assert [one.role for one in repaired][-3:] == ["user", "assistant", "tool"]
        assert sum(one.role == "tool" for one in repaired) == 2


class TestToolCalls(ToolCallsContract):
    pass


class BusyContract:
    async def test_a_busy_session_is_refused(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t1", owner="me") as turn:
            await turn.user("q1")
            head = await subject.run(sessions.get(key))
            assert head.lease_owner == "me"
            with pytest.raises(LeaseHeldError) as caught:
                async with subject.history(key).turn("t2"):
                    pytest.fail("two turns at once")
            assert caught.value.found == head.lease_until
            await turn.assistant("a1")
        async with subject.history(key).turn("t2") as turn:
            await turn.user("q2")
        assert texts(await subject.history(key).messages()) == [*said(1), "q2"]

    async def test_wait_queues_for_it(self, subject: Subject) -> None:
        key = subject.key()
        order: list[str] = []

        async def second() -> None:
            async with subject.history(key).turn("t2", wait=60) as turn:
                order.append("second")
                await turn.user("q2")
                assert texts(await turn.context()) == [*said(1), "q2"]

        async with subject.history(key).turn("t1") as turn:
            task = asyncio.create_task(second())
            await turn.user("q1")
            await turn.assistant("a1")
            order.append("first")
        await asyncio.wait_for(task, 30)
        assert order == ["first", "second"]

    async def test_wait_comes_to_an_end(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t1"):
            began = time.monotonic()
            with pytest.raises(LeaseHeldError):
                async with subject.history(key).turn("t2", wait=0.2):
                    pytest.fail("two turns at once")
            assert 0.15 < time.monotonic() - began < 10

    async def test_it_is_released_on_an_exception(self, subject: Subject) -> None:
        key = subject.key()
        with pytest.raises(CrashError):  # noqa: PT012
            async with subject.history(key).turn("t1") as turn:
                await turn.user("q1")
                raise CrashError
        assert (await subject.run(sessions.get(key))).lease_until is None
        await talk(subject.history(key), 2)
        assert texts(await subject.history(key).messages()) == ["q1", *said(2)]

    async def test_it_is_renewed_while_the_block_runs(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t1", lease=0.5) as turn:
            await turn.user("q1")
            first = (await subject.run(sessions.get(key))).lease_until
            await subject.real_time(first + timedelta(seconds=0.3))
            with pytest.raises(LeaseHeldError):
                async with subject.history(key).turn("t2"):
                    pytest.fail("the lease was not renewed")
            await turn.assistant("a1")
        assert texts(await subject.history(key).messages()) == said(1)
        assert (await subject.run(sessions.get(key))).lease_until is None

    async def test_it_is_no_longer_renewed_once_the_block_has_ended(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t1", lease=0.3) as turn:
            await turn.user("q1")
            first = (await subject.run(sessions.get(key))).lease_until
        await subject.real_time(first)
        assert (await subject.run(sessions.get(key))).lease_until is None


class TestBusy(BusyContract):
    pass


class LostContract:
    async def test_after_a_takeover_the_next_write_fails_and_stores_nothing(self, subject: Subject) -> None:
        key = subject.key()
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with subject.history(key).turn("t1") as turn:
                await turn.user("q1")
                held = await subject.run(sessions.get(key))
                await subject.clock.expire_lease(key, held.lease_until)
                async with subject.history(key).turn("t2") as other:
                    await other.user("q2")
                    for write in (
                        lambda: turn.assistant("late"),
                        lambda: turn.tool("c1", "late"),
                        lambda: turn.append(Message.assistant("late"), "late"),
                    ):
                        with pytest.raises(LeaseLostError):
                            await write()
                    await other.assistant("a2")
                assert texts(await subject.history(key).messages()) == ["q1", *said(2)]
                await turn.assistant("late")
        assert texts(await subject.history(key).messages()) == ["q1", *said(2)]
        await talk(subject.history(key), 1)
        assert texts(await subject.history(key).messages()) == ["q1", *said(2), "a1"]

    async def test_the_lost_turn_does_not_release_the_others_lease(self, subject: Subject) -> None:
        key = subject.key()
        first = subject.history(key).turn("t1")
        await first.__aenter__()
        await first.user("q1")
        held = await subject.run(sessions.get(key))
        await subject.clock.expire_lease(key, held.lease_until)
        async with subject.history(key).turn("t2", owner="other") as other:
            await other.user("q2")
            _ = await outcomes(first.__aexit__(None, None, None))
            assert (await subject.run(sessions.get(key))).lease_owner == "other"
            await other.assistant("a2")
        assert texts(await subject.history(key).messages()) == ["q1", *said(2)]

    async def test_two_workers_of_one_turn_after_a_takeover_give_one_answer(self, subject: Subject) -> None:
        key = subject.key()
        slow = subject.history(key).turn("t1")
        await slow.__aenter__()
        await slow.user("q1")
        held = await subject.run(sessions.get(key))
        await subject.clock.expire_lease(key, held.lease_until)
        async with subject.history(key).turn("t1") as fast:
            assert (await fast.user("q1")).replayed
            assert fast.answer is None
            await fast.assistant("fast")
        with pytest.raises((LeaseLostError, KeyConflictError)):
            await slow.assistant("slow")
        _ = await outcomes(slow.__aexit__(None, None, None))
        assert texts(await subject.history(key).messages()) == ["q1", "fast"]


class TestLost(LostContract):
    pass


class ClearContract:
    async def test_clear_removes_the_messages_and_keeps_the_state(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key)
        await history.append(Message.system("sys"))
        await talk(history, 1, 2)
        await subject.run(state.merge(key, {"cart": 2}))
        await history.clear()
        assert list(await history.messages()) == []
        assert (await subject.run(state.get(key))).session == {"cart": 2}
        async with history.turn("t1") as turn:
            assert not (await turn.user("other")).replayed
            assert texts(await turn.context()) == ["other"]
            await turn.assistant("answer")
        assert texts(await history.messages()) == ["other", "answer"]

    async def test_another_handle_from_before_a_clear(self, subject: Subject) -> None:
        key = subject.key()
        history, old = subject.history(key), subject.history(key)
        await history.append("a")
        await old.append("b")
        await history.clear()
        with pytest.raises(StaleRevisionError):
            await old.append("late")
        assert list(await history.messages()) == []

    async def test_a_turn_cleared_meanwhile_fails(self, subject: Subject) -> None:
        key = subject.key()
        with pytest.raises((StaleRevisionError, LeaseLostError)):  # noqa: PT012
            async with subject.history(key).turn("t1") as turn:
                await turn.user("q1")
                await subject.history(key).clear()
                await turn.assistant("a1")
        assert list(await subject.history(key).messages()) == []

    async def test_a_turn_cleared_meanwhile_gives_its_lease_back(self, subject: Subject) -> None:
        key = subject.key()
        with pytest.raises((StaleRevisionError, LeaseLostError)):  # noqa: PT012
            async with subject.history(key).turn("t1") as turn:
                await turn.user("q1")
                await subject.history(key).clear()
                await turn.assistant("a1")
        await talk(subject.history(key), 2)
        assert texts(await subject.history(key).messages()) == said(2)

    async def test_appends_that_race_with_a_clear(self, subject: Subject) -> None:
        for number in range(8):
            key = subject.key(f"r{number}")
            history = subject.history(key)
            writers = [subject.history(key) for _ in range(4)]
            for n, writer in enumerate(writers):
                await writer.append(f"before{n}")
            *results, cleared = await outcomes(
                *(writer.append(f"m{n}") for n, writer in enumerate(writers)), history.clear()
            )
            assert cleared is None, repr(cleared)
            for one in results:
                assert not isinstance(one, BaseException) or isinstance(one, StaleRevisionError), repr(one)
            kept = texts(await subject.history(key).messages())
            assert not [text for text in kept if text.startswith("before")]
            for n, one in enumerate(results):
                assert not (isinstance(one, BaseException) and f"m{n}" in kept)
            assert_dense(await subject.all(key))


class TestClear(ClearContract):
    pass


class StaleContract:
    @pytest.mark.parametrize("anew", [False, True])
    async def test_a_handle_of_a_deleted_session_is_stale(self, subject: Subject, anew: bool) -> None:
        key = subject.key()
        old, turned = subject.history(key), subject.history(key)
        await old.append("a")
        await talk(turned, 1)
        await subject.run(sessions.delete(key))
        if anew:
            await subject.history(key).append("new")
        for _ in range(2):
            for history in (old, turned):
                with pytest.raises((NotFoundError, StaleRevisionError)):
                    await history.append("late")
                with pytest.raises((NotFoundError, StaleRevisionError)):
                    async with history.turn("t2") as turn:
                        await turn.user("late")
        assert (await subject.run(sessions.get(key)) is not None) == anew
        if anew:
            assert (await subject.run(sessions.get(key))).lease_until is None
        fresh = subject.history(key)
        await fresh.append("b")
        assert texts(await fresh.messages()) == [*(["new"] if anew else []), "b"]

    async def test_a_turn_whose_session_is_deleted_fails(self, subject: Subject) -> None:
        key = subject.key()
        with pytest.raises((NotFoundError, ConflictError)):  # noqa: PT012
            async with subject.history(key).turn("t1") as turn:
                await turn.user("q1")
                await subject.run(sessions.delete(key))
                await turn.assistant("a1")
        assert await subject.run(sessions.get(key)) is None
        await talk(subject.history(key), 2)
        assert texts(await subject.history(key).messages()) == said(2)

    async def test_the_session_expires_whole(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key, ttl=subject.brief)
        await history.append(Message.system("sys"))
        await history.append("a")
        head = await subject.run(sessions.get(key))
        await subject.reach(head.expires_at)
        assert list(await subject.history(key).messages()) == []
        assert await subject.run(sessions.get(key)) is None
        await talk(subject.history(key, ttl=600), 1)
        assert texts(await subject.history(key).messages()) == said(1)

    async def test_each_turn_renews_the_ttl(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key, ttl=600)
        await talk(history, 1)
        first = (await subject.run(sessions.get(key))).expires_at
        await subject.tick()
        await talk(history, 2)
        assert (await subject.run(sessions.get(key))).expires_at > first

    async def test_no_io_until_a_method_is_called(self, deaf: Subject) -> None:
        history = deaf.history(SessionKey("a", "b", "c"))
        assert history.key == SessionKey("a", "b", "c")
        _ = history.turn("t1")


class TestStale(StaleContract):
    pass


class SharedLoopContract:
    async def test_a_turn_leaves_no_task_or_thread_behind(self, subject: Subject) -> None:
        history = subject.history(subject.key())
        await talk(history, 0)
        tasks = len(asyncio.all_tasks())
        threads = {thread for thread in threading.enumerate() if "asyncio" not in thread.name}
        for number in range(3):
            async with history.turn(f"x{number}", lease=0.3) as turn:
                await turn.user("q")

        async def settled() -> bool:
            left = {thread for thread in threading.enumerate() if "asyncio" not in thread.name} - threads
            left = {t for t in left if not t.name.startswith(("pymongo", "ThreadPoolExecutor"))}
            return len(asyncio.all_tasks()) <= tasks and not left

        await eventually(settled)


class TestSharedLoop(SharedLoopContract):
    pass
