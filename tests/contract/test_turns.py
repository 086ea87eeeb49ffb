"""What a turn promises when it is run again, interrupted, mixed with others, or fed with what is wrong."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contract.subjects import Subject, entry, with_state
from mnemongo import (
    AsyncChatHistory,
    ChatHistory,
    ConfigurationError,
    DocumentError,
    Entry,
    InvalidKeyError,
    KeyConflictError,
    Message,
    MnemongoError,
    NotFoundError,
    OutcomeUnknownError,
    SessionKey,
    StaleRevisionError,
    ToolCall,
    entries,
    leases,
    retention,
    sessions,
    state,
)
from mnemongo.commands import Operation, finding
from mnemongo.history._window import paired
from mnemongo.keys import life, place
from mnemongo.schema import EVENTS
from mnemongo.testing import ModelStore

KEY = SessionKey("shop", "ann", "s1")
Script = Callable[[Any], Awaitable[None]]


class CrashError(Exception):
    """The worker dies."""


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


async def crashed(history: Any, script: Script, turn_id: str = "t") -> None:
    """One attempt at a turn that does not come to its end."""
    with pytest.raises(CrashError):  # noqa: PT012
        async with history.turn(turn_id) as turn:
            await script(turn)
            raise CrashError


def step(turn: Any, call_id: str, number: int, *, calls: int = 1) -> Awaitable[Any]:
    return turn.assistant(calls=[ToolCall(call_id, "look", {"page": number})] * calls)


async def two_steps(turn: Any, call_id: str) -> list[bool]:
    """A question and two steps with their results; whether each was a replay."""
    done = [await turn.user("q")]
    for number in range(2):
        done.append(await step(turn, call_id, number))
        done.append(await turn.tool(call_id, f"r{number}"))
    return [one.replayed for one in done]


IDS = pytest.mark.parametrize("call_id", ["", "call_0", "c#1"], ids=["none", "repeated", "hash"])


class StepsContract:
    @IDS
    async def test_the_same_steps_run_again_store_nothing_twice(self, subject: Subject, call_id: str) -> None:
        key = subject.key()
        seen: list[list[bool]] = []

        async def attempt(turn: Any) -> None:
            seen.append(await two_steps(turn, call_id))

        for _ in range(3):
            await crashed(subject.history(key), attempt)
        async with subject.history(key).turn("t") as turn:
            seen.append(await two_steps(turn, call_id))
            await turn.assistant("a")
        assert seen == [[False] * 5, *[[True] * 5] * 3]
        assert len(await subject.names(key)) == 6
        outputs = [m.output for m in await subject.history(key).messages() if m.role == "tool"]
        assert outputs == ["r0", "r1"]

    @IDS
    async def test_an_attempt_cut_anywhere_is_completed_by_the_same_steps(
        self, subject: Subject, call_id: str
    ) -> None:
        for cut in range(1, 5):
            key = subject.key(f"cut{cut}")

            async def some(turn: Any, most: int = cut) -> None:
                actions = [
                    lambda: turn.user("q"),
                    lambda: step(turn, call_id, 0),
                    lambda: turn.tool(call_id, "r0"),
                    lambda: step(turn, call_id, 1),
                ]
                for action in actions[:most]:
                    await action()

            await crashed(subject.history(key), some)
            async with subject.history(key).turn("t") as turn:
                seen = await two_steps(turn, call_id)
                await turn.assistant("a")
            assert seen == [True] * cut + [False] * (5 - cut)
            assert len(await subject.names(key)) == 6

    @IDS
    async def test_going_on_from_stored_steps_stores_new_ones(self, subject: Subject, call_id: str) -> None:
        key = subject.key()

        async def first(turn: Any) -> None:
            await turn.user("q")
            await step(turn, call_id, 0)
            await turn.tool(call_id, "r0")

        await crashed(subject.history(key), first)
        async with subject.history(key).turn("t") as turn:
            assert await turn.resume()
            assert len(turn.messages) == 3
            assert not (await step(turn, call_id, 1)).replayed
            assert not (await turn.tool(call_id, "r1")).replayed
            await turn.assistant("a")
        shown = await subject.history(key).messages()
        assert [m.role for m in shown] == ["user", *["assistant", "tool"] * 2, "assistant"]
        assert [m.output for m in shown if m.role == "tool"] == ["r0", "r1"]

    @IDS
    async def test_the_result_of_a_stored_step_goes_to_that_step(
        self, subject: Subject, call_id: str
    ) -> None:
        key = subject.key()

        async def until_second_call(turn: Any) -> None:
            await turn.user("q")
            await step(turn, call_id, 0)
            await turn.tool(call_id, "r0")
            await step(turn, call_id, 1)

        await crashed(subject.history(key), until_second_call)
        async with subject.history(key).turn("t") as turn:
            assert await turn.resume()
            assert not (await turn.tool(call_id, "r1")).replayed
            await turn.assistant("a")
        shown = await subject.history(key).messages()
        assert [m.output for m in shown if m.role == "tool"] == ["r0", "r1"]
        assert shown.unanswered == ()

    @IDS
    async def test_equal_steps_of_one_attempt_are_all_stored(self, subject: Subject, call_id: str) -> None:
        key = subject.key()
        for _ in range(2):

            async def polling(turn: Any) -> None:
                await turn.user("q")
                for _ in range(3):
                    await step(turn, call_id, 0)
                    await turn.tool(call_id, "not yet")

            await crashed(subject.history(key), polling)
            assert len(await subject.names(key)) == 7

    async def test_results_of_calls_without_ids_in_one_step(self, subject: Subject) -> None:
        key = subject.key()
        for _ in range(2):

            async def parallel(turn: Any) -> None:
                await turn.user("q")
                await step(turn, "", 0, calls=3)
                for output in ("r0", "r1", "r0"):
                    await turn.tool("", output)

            await crashed(subject.history(key), parallel)
            assert len(await subject.names(key)) == 5

    @pytest.mark.parametrize("at", [0, 1])
    async def test_another_result_of_the_same_call_is_a_conflict(self, subject: Subject, at: int) -> None:
        key = subject.key()

        async def whole(turn: Any) -> None:
            _ = await two_steps(turn, "call_0")

        await crashed(subject.history(key), whole)
        async with subject.history(key).turn("t") as turn:
            await turn.user("q")
            for number in range(2):
                await step(turn, "call_0", number)
                if number == at:
                    with pytest.raises(KeyConflictError):
                        await turn.tool("call_0", "other")
                    break
                await turn.tool("call_0", f"r{number}")
        assert len(await subject.names(key)) == 5


class TestSteps(StepsContract):
    pass


# Interrupted while the lease is taken


class Cut:
    """A store whose first operation is carried out and then interrupted."""

    def __init__(self, store: Any, error: BaseException) -> None:
        self.store = store
        self.error: BaseException | None = error

    def run(self, op: Operation[Any]) -> Any:
        result = self.store.run(op)
        self._raise()
        return result

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


class AsyncCut(Cut):
    async def run(self, op: Operation[Any]) -> Any:
        result = await self.store.run(op)
        self._raise()
        return result


async def entered(subject: Subject, key: SessionKey, error: BaseException) -> BaseException | None:
    """Begin a turn whose lease is taken, but whose caller is interrupted; what comes out."""
    if not subject.blocking:
        try:
            async with AsyncChatHistory(AsyncCut(subject.store, error), key).turn("t"):
                return None
        except BaseException as raised:  # noqa: BLE001
            return raised

    def enter() -> BaseException | None:
        try:
            with ChatHistory(Cut(subject.store, error), key).turn("t"):
                return None
        except BaseException as raised:  # noqa: BLE001
            return raised

    return await asyncio.to_thread(enter)


async def assert_free(subject: Subject, key: SessionKey) -> None:
    head = await subject.run(sessions.get(key))
    assert head is None or (head.lease_owner, head.lease_until) == (None, None)
    async with subject.history(key).turn("next", wait=0) as turn:
        await turn.user("q")


class InterruptedContract:
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, OutcomeUnknownError, asyncio.CancelledError])
    @pytest.mark.parametrize("known", [True, False])
    async def test_a_turn_that_was_not_entered_leaves_no_lease(
        self, subject: Subject, kind: type[BaseException], known: bool
    ) -> None:
        key = await subject.session() if known else subject.key()
        error = kind("cut")
        assert await entered(subject, key, error) is error
        await assert_free(subject, key)

    async def test_a_thread_or_task_that_cannot_be_started_leaves_no_lease(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = await subject.session()

        start = threading.Thread if subject.blocking else asyncio.create_task

        def refuse(*arguments: Any, **options: Any) -> Any:
            if options.get("name") != "mnemongo-lease":
                return start(*arguments, **options)
            if arguments:
                arguments[0].close()
            raise RuntimeError("cannot start mnemongo-lease")

        with monkeypatch.context() as patch:
            if subject.blocking:
                patch.setattr("mnemongo.history._sync.threading.Thread", refuse)
                error = await asyncio.to_thread(self._entering, subject, key)
            else:
                patch.setattr("mnemongo.history._async.asyncio.create_task", refuse)
                with pytest.raises(RuntimeError) as caught:
                    await subject.history(key).turn("t").__aenter__()
                error = caught.value
        assert "mnemongo-lease" in str(error)
        await assert_free(subject, key)

    def _entering(self, subject: Subject, key: SessionKey) -> BaseException:
        with pytest.raises(RuntimeError) as caught:
            _ = ChatHistory(subject.store, key).turn("t").__enter__()
        return caught.value

    @pytest.mark.parametrize("subject", ["async_store", "async_model"], indirect=True)
    @pytest.mark.parametrize("takeover", [False, True], ids=["free", "takeover"])
    async def test_a_task_cancelled_at_any_moment_leaves_no_lease(
        self, subject: Subject, takeover: bool
    ) -> None:
        entered = left = 0
        for number in range(40):
            key = await subject.session(f"s{number}")
            if takeover:
                dead = await subject.run(leases.acquire(key, owner="dead", ttl=60))
                await subject.clock.expire_lease(key, dead.until)
            inside = asyncio.Event()

            async def work(key: SessionKey = key, inside: asyncio.Event = inside) -> None:
                async with subject.history(key).turn("t", lease=60):
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await self._a_while(subject, number)
            entered += inside.is_set()
            _ = task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            head = await subject.run(sessions.get(key))
            left += head.lease_until is not None and head.lease_owner != "dead"
        assert left == 0
        assert entered < 40, "no task was cancelled before it had entered"

    async def _a_while(self, subject: Subject, number: int) -> None:
        if subject.raw is not None:
            await asyncio.sleep(number * 0.0002)
            return
        for _ in range(number):
            await asyncio.sleep(0)


class TestInterrupted(InterruptedContract):
    pass


# The same on a retry


class AgainContract:
    async def test_a_later_system_message_does_not_change_the_context_of_a_retry(
        self, subject: Subject
    ) -> None:
        key = subject.key()
        seen: list[list[str]] = []

        async def ask(turn: Any) -> None:
            await turn.user("q")
            seen.append(texts(await turn.context()))
            seen.append(texts(await turn.context(last_turns=2)))

        await crashed(subject.history(key), ask)
        await subject.history(key).append(Message.system("LATER RULE"))
        await crashed(subject.history(key), ask)
        assert seen == [["q"]] * 4

    async def test_earlier_system_messages_stay_in_the_context_of_a_retry(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key)
        await history.append(Message.system("RULE"))
        for number in range(3):
            await history.append(f"old{number}")
        seen: list[list[str]] = []

        async def ask(turn: Any) -> None:
            await turn.user("q")
            seen.append(texts(await turn.context(last_turns=1)))

        await crashed(subject.history(key), ask)
        await subject.history(key).append(Message.system("LATER RULE"))
        await crashed(subject.history(key), ask)
        assert seen == [["RULE", "old2", "q"]] * 2

    async def test_a_context_read_before_the_question_is_the_same_on_a_retry(self, subject: Subject) -> None:
        key = subject.key()
        await subject.history(key).append("old")
        async with subject.history(key).turn("t") as turn:
            first = texts(await turn.context())
            await turn.user("q")
            await turn.assistant("a")
        await subject.history(key).append("later")
        async with subject.history(key).turn("t") as turn:
            again = texts(await turn.context())
        assert first == ["old"]
        assert "later" not in again
        assert again == ["old", "q", "a"]

    async def test_the_answer_is_known_whatever_a_retry_writes_first(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t") as turn:
            await turn.user("q")
            await turn.assistant("a")
        async with subject.history(key).turn("t") as turn:
            assert not (await turn.append(Message.system("new rule"), "sys")).replayed
            assert turn.answer == Message.assistant("a")
            assert (await turn.user("q")).replayed
            assert turn.answer == Message.assistant("a")
        assert len(await subject.names(key)) == 3

    async def test_a_turn_begins_once_whatever_a_retry_writes_first(self, subject: Subject) -> None:
        key = subject.key()
        async with subject.history(key).turn("t") as turn:
            await turn.user("q")
            await turn.assistant("a")
        async with subject.history(key).turn("t") as turn:
            await turn.append(Message.assistant("note"), "note")
        assert [one.entry.starts_turn for one in await subject.all(key)] == [True, False, False]


class TestAgain(AgainContract):
    pass


# Names


class NamesContract:
    @pytest.mark.parametrize("name", ["message", "mnemongo"])
    async def test_a_turn_may_have_any_id(self, subject: Subject, name: str) -> None:
        key = subject.key()
        await subject.history(key).append("outside")
        held = await subject.run(leases.acquire(key, owner="dead", ttl=60))
        await subject.clock.expire_lease(key, held.until)
        async with subject.history(key).turn(name) as turn:
            assert not await turn.resume()
            assert turn.messages == ()
            await turn.user("q")
            assert texts(await turn.context()) == ["outside", "q"]
            await turn.assistant("a")
        assert texts(await subject.history(key).messages()) == ["outside", "q", "a"]

    @pytest.mark.parametrize("name", [":", ":fence:1:a"])
    async def test_keys_that_begin_with_a_colon_are_refused(self, subject: Subject, name: str) -> None:
        key = await subject.session()
        with pytest.raises(InvalidKeyError):
            await subject.append(key, name)
        with pytest.raises(InvalidKeyError):
            await subject.run(entries.append_many(key, [entry("a"), entry(name)]))
        with pytest.raises(InvalidKeyError):
            await subject.history(key).append("m", key=name)
        assert await subject.names(key) == []


class TestNames(NamesContract):
    pass


class OnceContract:
    async def test_a_turn_used_twice_is_refused(self, subject: Subject) -> None:
        key = subject.key()
        turn = subject.history(key).turn("t")
        async with turn:
            await turn.user("q")
        with pytest.raises(ConfigurationError):
            await turn.__aenter__()
        await assert_free(subject, key)

    async def test_a_second_use_does_not_disturb_the_first(self, subject: Subject) -> None:
        key = subject.key()
        turn = subject.history(key).turn("t")
        async with turn:
            await turn.user("q")
            with pytest.raises(ConfigurationError):
                await turn.__aenter__()
            assert (await subject.run(sessions.get(key))).lease_until is not None
            await turn.assistant("a")
        assert texts(await subject.history(key).messages()) == ["q", "a"]


class TestOnce(OnceContract):
    pass


class OutliveContract:
    async def test_a_session_lives_as_long_as_a_turn_in_it_and_then_expires(self, subject: Subject) -> None:
        key = subject.key()
        history = subject.history(key, ttl=subject.brief)
        async with history.turn("t", lease=3600) as turn:
            begun = await asyncio.to_thread(subject.clock.now)
            await turn.user("q")
            await subject.reach(begun + timedelta(seconds=1.25 * subject.brief))
            await turn.assistant("a")
        head = await subject.run(sessions.get(key))
        assert texts(await history.messages()) == ["q", "a"]
        left = head.expires_at - await asyncio.to_thread(subject.clock.now)
        assert left <= timedelta(seconds=subject.brief)
        await subject.reach(head.expires_at)
        assert await subject.run(sessions.get(key)) is None

    async def test_a_session_known_before_lives_as_long_as_a_turn_in_it(self, subject: Subject) -> None:
        key = await subject.session(ttl=subject.brief)
        created = (await subject.run(sessions.get(key))).expires_at
        async with subject.history(key).turn("t", lease=3600) as turn:
            await subject.reach(created + timedelta(seconds=0.1))
            await turn.user("q")
            await turn.assistant("a")
        assert texts(await subject.history(key).messages()) == ["q", "a"]

    async def test_other_writers_do_not_shorten_it(self, subject: Subject) -> None:
        key = await subject.session(ttl=subject.brief)
        async with subject.history(key).turn("t", lease=3600) as turn:
            await turn.user("q")
            await subject.run(state.merge(key, {"a": 1}))
            changed = (await subject.run(sessions.get(key))).update_time
            until = datetime.fromtimestamp(changed, UTC) + timedelta(seconds=1.25 * subject.brief)
            await subject.reach(until)
            await turn.assistant("a")
        assert texts(await subject.history(key).messages()) == ["q", "a"]


class TestOutlive(OutliveContract):
    pass


class CrowdContract:
    async def test_many_takeovers_do_not_hide_the_system_messages(self, subject: Subject) -> None:
        key = await subject.session()
        history = subject.history(key)
        await history.append(Message.system("FIRST"))
        for number in range(102):
            held = await subject.run(leases.acquire(key, owner=f"w{number}", ttl=60))
            await subject.clock.expire_lease(key, held.until)
        await history.append(Message.system("SECOND"))
        for number in range(3):
            await history.append(f"q{number}")
        rules = ["FIRST", "SECOND"]
        for turns in (1, 2):
            shown = await history.messages(last_turns=turns)
            assert texts(shown) == [*rules, *("q0", "q1", "q2")[-turns:]]
            assert shown.truncated
        for limits in ({"last_turns": 3}, {}, {"last_messages": 3}):
            shown = await history.messages(**limits)
            assert texts(shown) == [*rules, "q0", "q1", "q2"]
            assert not shown.truncated, limits

    async def test_a_history_stays_usable_after_an_append_that_raced_with_its_clear(
        self, subject: Subject
    ) -> None:
        for number in range(12):  # lives are random: which is greater decides
            key = subject.key(f"r{number}")
            history = subject.history(key)
            await history.append("before")
            chat = (history._history if subject.blocking else history)._chat
            talk = chat.append(Message.user("racing"), None)
            stored = await subject.run(next(talk))
            await history.clear()
            with suppress(StopIteration):
                _ = talk.send(stored)
            await history.append("after")
            async with history.turn("t") as turn:
                await turn.user("q")
            assert texts(await history.messages()) == ["after", "q"]


class TestCrowd(CrowdContract):
    pass


# What is wrong is refused before it is stored


GOOD: Mapping[str, Any] = {"key": "k", "event_data": "{}", "timestamp": 1.0}
WRONG: list[dict[str, Any]] = [
    {"key": None},
    {"key": 1},
    {"key": ""},
    {"event_data": None},
    {"event_data": b"{}"},
    {"event_data": {}},
    {"timestamp": "now"},
    {"timestamp": None},
    {"timestamp": True},
    {"timestamp": math.nan},
    {"timestamp": -math.inf},
    {"timestamp": 10**400},
    {"kind": None},
    {"kind": 1},
    {"turn": 5},
    {"turn": ""},
    {"starts_turn": 1},
    {"starts_turn": None},
    {"pinned": "yes"},
    {"native": b"x"},
    {"digest": 5},
    {"digest": None},
]
NOT_OBJECTS = ["", "{garbage", "[]", "null", '"x"', "1", "{} {}", "[" * 100_000]
NOT_JSON: list[tuple[Any, str]] = [
    ({"a": math.nan}, "'a'"),
    ({"b": {"c": [1, math.inf]}}, "'b'"),
    ({"t": (1,)}, "'t'"),
    ({"d": {1: 2}}, "'d'"),
    ({"s": {1, 2}}, "'s'"),
    ({"user:o": object()}, "'user:o'"),
    ({"app:y": b"x"}, "'app:y'"),
    ({1: 2}, "state"),
    ([("a", 1)], "mapping"),
    (None, "mapping"),
    ("a", "mapping"),
]


def named(value: object) -> str:
    return repr(value)[:30]


class TestRefused:
    @pytest.mark.parametrize("wrong", WRONG, ids=named)
    def test_an_entry_with_a_wrong_field(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(DocumentError):
            _ = entries.append(KEY, Entry(**{**GOOD, **wrong}))

    @pytest.mark.parametrize("event_data", NOT_OBJECTS, ids=named)
    def test_an_event_that_is_no_json_object(self, event_data: str) -> None:
        with pytest.raises(DocumentError):
            _ = entries.append(KEY, Entry(**{**GOOD, "event_data": event_data}))
        with pytest.raises(DocumentError):
            _ = entries.append_many(KEY, [Entry(**GOOD), Entry("k2", event_data, 1.0)])

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
    def test_an_event_with_a_number_that_json_has_not(self, number: str) -> None:
        with pytest.raises(DocumentError):
            _ = entries.append(KEY, Entry(**{**GOOD, "event_data": f'{{"a": {number}}}'}))

    @pytest.mark.parametrize(("delta", "told"), NOT_JSON, ids=named)
    def test_state_that_is_not_exactly_json(self, delta: Any, told: str) -> None:
        with pytest.raises(DocumentError, match=told):
            _ = state.merge(KEY, delta)

    @pytest.mark.parametrize(("given", "told"), [one for one in NOT_JSON if one[0] is not None], ids=named)
    def test_a_session_created_with_state_that_is_not_exactly_json(self, given: Any, told: str) -> None:
        with pytest.raises(DocumentError, match=told):
            _ = sessions.create(KEY, state=given)

    @pytest.mark.parametrize("name", ["app:x", "user:x"])
    def test_a_session_created_with_shared_state(self, name: str) -> None:
        with pytest.raises(DocumentError, match=name.partition(":")[0]):
            _ = sessions.create(KEY, state={"a": 1, name: 1})

    @pytest.mark.parametrize(
        "after", [5, "abc", (), (1.0, "a"), ({"$gt": 0}, "a", "b"), (1.0, "a", None), (True, "a", "b"), {}]
    )
    def test_a_place_in_a_list_that_no_list_gave(self, after: Any) -> None:
        with pytest.raises(DocumentError):
            _ = sessions.list("shop", after=after)

    def test_a_turn_that_is_read_before_anything_is_known(self) -> None:
        with ChatHistory(ModelStore(), KEY).turn("t") as turn, pytest.raises(ConfigurationError):
            _ = turn.answer


class StoredContract:
    async def test_a_list_goes_on_where_a_client_that_speaks_json_says(self, subject: Subject) -> None:
        for number in range(3):
            _ = await subject.session(f"s{number}")
        first = await subject.run(sessions.list(subject.app, limit=2))
        rest = await subject.run(sessions.list(subject.app, after=list(first.next)))
        assert {h.key.session_id for h in (*first, *rest)} == {"s0", "s1", "s2"}

    async def test_what_was_refused_is_not_stored(self, subject: Subject) -> None:
        key = await subject.session()
        await subject.run(state.merge(key, {"a": 1}))
        for delta, _ in NOT_JSON:
            with pytest.raises(DocumentError):
                await subject.run(state.merge(key, {"z": 2, **delta} if isinstance(delta, dict) else delta))
        for event_data in NOT_OBJECTS:
            with pytest.raises(DocumentError):
                await subject.run(entries.append(key, Entry("k", event_data, 1.0)))
        await subject.append(key, "good")
        assert await subject.names(key) == ["good"]
        assert (await subject.run(state.get(key))).merged == {"a": 1}

    async def test_state_of_events_is_exactly_json_too(self, subject: Subject) -> None:
        key = await subject.session()
        with pytest.raises(DocumentError):
            await subject.run(entries.append(key, with_state("k", {"a": 1, "b": math.inf})))
        assert (await subject.run(state.get(key))).merged == {}


class TestStored(StoredContract):
    pass


# Stepped in the model


class Clock:
    """A server's time that can be set back: a command that waited has an old one."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment


LATE: Mapping[str, Callable[[Any], Operation[Any]]] = {
    "merge": lambda _lease: state.merge(KEY, {"a": 1}),
    "append": lambda _lease: entries.append(KEY, entry("late")),
    "batch": lambda _lease: entries.append_many(KEY, [entry("late"), entry("later")]),
    "acquire": lambda _lease: leases.acquire(KEY, owner="late", ttl=60),
    "release": leases.release,
}
REMOVERS: Mapping[str, Callable[[], Operation[Any]]] = {
    "sweep": retention.sweep,
    "create": lambda: sessions.create(KEY, ttl=100),
    "acquire": lambda: leases.acquire(KEY, owner="new", ttl=60, create=True, session_ttl=100),
    "delete": lambda: sessions.delete(KEY),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("remover", REMOVERS)
def test_a_write_that_waited_past_the_expiry_does_not_bring_a_session_back_without_its_entries(
    remover: str, late: str
) -> None:
    before, after = datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 11, tzinfo=UTC)
    for steps in range(40):
        clock = Clock()
        store = ModelStore(clock=clock)
        first = store.run(sessions.create(KEY, ttl=10))
        lease = store.run(leases.acquire(KEY, owner="w", ttl=1))
        for number in range(3):
            _ = store.run(entries.append(KEY, entry(f"e{number}")))
        clock.moment = after
        removing = store.steps(REMOVERS[remover]())
        ended = False
        acknowledged = False
        try:
            for _ in range(steps + 1):
                _ = next(removing)
        except StopIteration:
            ended = True
        except MnemongoError:
            ended = True
        clock.moment = before
        with suppress(MnemongoError):
            _ = store.run(LATE[late](lease))
            acknowledged = True
        clock.moment = after
        with suppress(MnemongoError):
            for _ in removing:
                pass
        removing.close()
        head = store.run(sessions.get(KEY))
        if head is None:
            assert store.run(sessions.create(KEY)).key == KEY
        else:
            stored = store.run(entries.page(KEY)).items
            everything = store.execute(finding(EVENTS, KEY.fields, sort=(("revision", 1),)))
            assert [place(one["revision"]) for one in everything] == [*range(1, len(everything) + 1)]
            assert place(head.revision) == len(everything)
            if life(head.revision) == life(first.revision):
                assert acknowledged
                assert [one.entry.key for one in stored][:3] == ["e0", "e1", "e2"]
        if ended:
            return
    pytest.fail("the removal did not end")


@pytest.mark.parametrize("gap", [1, 2])
def test_an_entry_withdrawn_past_a_gap_leaves_no_hole(gap: int) -> None:
    for steps in range(1, 40):
        store = ModelStore()
        _ = store.run(sessions.create(KEY))
        _ = store.run(entries.append(KEY, entry("e1")))
        top = store.run(sessions.get(KEY)).revision
        far = store.steps(entries.append(KEY, entry("far"), expected=top + gap))
        ended = False
        try:
            for _ in range(steps):
                _ = next(far)
        except (StopIteration, StaleRevisionError):
            ended = True
        names = ["fill", "more", "and more"]
        for name in names:
            _ = store.run(entries.append(KEY, entry(name)))
        with suppress(StaleRevisionError):
            for _ in far:
                pass
        head = store.run(sessions.get(KEY))
        seen = [one.entry.key for one in store.run(entries.page(KEY))]
        assert [name for name in seen if name != "far"] == ["e1", *names]
        newest = [one.entry.key for one in store.run(entries.last(KEY, 2)).entries]
        assert newest == seen[-2:]
        last = store.run(entries.append(KEY, entry("last"), expected=head.revision))
        assert store.run(entries.page(KEY)).items[-1].revision == last.revision
        if ended:
            return
    pytest.fail("the append did not end")


def test_pairing_calls_and_results_takes_time_in_proportion() -> None:
    def seconds(messages: int) -> float:
        said = [
            message
            for number in range(messages // 2)
            for message in (
                Message.assistant(calls=[ToolCall(f"c{number}", "f")]),
                Message.tool(f"c{number}", "r"),
            )
        ]
        best = math.inf
        for _ in range(5):
            before = time.perf_counter()
            shown = paired(said, truncated=False, repair=False)
            best = min(best, time.perf_counter() - before)
            assert shown.unanswered == ()
            assert best < 0.8
        return best

    assert seconds(8000) / seconds(2000) < 8


def test_a_session_that_is_gone_is_told_of_to_a_turn() -> None:
    store = ModelStore()
    history = ChatHistory(store, KEY)
    _ = history.append("a")
    _ = store.run(sessions.delete(KEY))
    with pytest.raises((NotFoundError, StaleRevisionError)), history.turn("t"):
        pass
