"""Every write operation, its client killed after each of its commands: all or nothing, and a retry heals.

The judge is the operation run whole: after a crash a session looks as before it or as after it, and a retry
tells what one of a client that was never killed would have been told.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import AutoReconnect

from faults.conftest import NewKey
from faults.looking import Outcome, View, check_no_litter, events, outcome, stored, told_by, view
from faults.scenes import (
    PART_BYTES,
    PAST,
    changed,
    conversation,
    entry,
    expire,
    held,
    ran_out,
    stray,
    unfinished_clear,
)
from faults.stepping import Backend, Model, Process, Server, crashed, log_of, run
from mnemongo import attempts
from mnemongo.attempts import Attempts
from mnemongo.commands import Command, FindEach, Operation, Pause
from mnemongo.errors import MnemongoError, NotFoundError, OutcomeUnknownError
from mnemongo.history import ChatHistory
from mnemongo.keys import SessionKey
from mnemongo.messages import ToolCall
from mnemongo.plans import entries, leases, retention, sessions, setup, state
from mnemongo.store import Store

Build = Callable[[], Operation[Any]]
LARGE = 3 * PART_BYTES
MODULES = (sessions, entries, leases, retention, state, setup)
READS = {"sessions.get", "sessions.list", "state.get"} | {
    f"entries.{name}" for name in ("get", "last", "page", "turn", "turns")
}


# What is crashed


@dataclass(frozen=True, slots=True)
class Case:
    """One write: ``prepare`` makes the scene and returns how to build the operation.

    ``writer``: whether another's append may come between the crash and the retry.
    """

    name: str
    covers: str
    prepare: Callable[[Backend, SessionKey], Build]
    writer: bool = True


CASES: list[Case] = []


def case(covers: str, *, writer: bool = True) -> Callable[[Callable[[Backend, SessionKey], Build]], Any]:
    def add(prepare: Callable[[Backend, SessionKey], Build]) -> Any:
        CASES.append(Case(prepare.__name__.strip("_"), covers, prepare, writer))
        return prepare

    return add


@case("setup.indexes")
def _indexes(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return setup.indexes


@case("sessions.create")
def _create(_backend: Backend, key: SessionKey) -> Build:
    return lambda: sessions.create(key, state={"mood": "calm"})


@case("sessions.create")
def _create_over_expired(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key, "a", "b", ttl=600)
    expire(backend, key)
    return lambda: sessions.create(key, state={"mood": "new"})


@case("sessions.clear")
def _clear(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    _ = run(backend, entries.append(key, entry("large", size=LARGE)))
    return lambda: sessions.clear(key)


@case("sessions.clear")
def _clear_after_a_crashed_clear(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    unfinished_clear(backend, key)
    _ = run(backend, entries.append(key, entry("c")))
    return lambda: sessions.clear(key)


@case("sessions.delete")
def _delete(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    _ = run(backend, entries.append(key, entry("large", size=LARGE)))
    return lambda: sessions.delete(key)


@case("entries.append")
def _append(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: entries.append(key, entry("new"))


@case("entries.append")
def _append_expected(backend: Backend, key: SessionKey) -> Build:
    revision = conversation(backend, key).revision
    return lambda: entries.append(key, entry("new"), expected=revision)


@case("entries.append")
def _append_stale(backend: Backend, key: SessionKey) -> Build:
    revision = conversation(backend, key).revision
    return lambda: entries.append(key, entry("new"), expected=revision - 1)


@case("entries.append")
def _append_after_an_old_revision(backend: Backend, key: SessionKey) -> Build:
    revision = conversation(backend, key).revision
    return lambda: entries.append(key, entry("new"), after=revision - 1)


@case("entries.append")
def _append_under_lease(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: entries.append(key, entry("new"), lease=lease)


@case("entries.append")
def _append_under_lease_unsettled(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: entries.append(key, entry("new"), lease=lease, settle=False)


@case("entries.append")
def _append_in_parts(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: entries.append(key, entry("new", size=LARGE))


@case("entries.append")
def _append_in_parts_under_lease(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: entries.append(key, entry("new", size=LARGE), lease=lease)


@case("entries.append")
def _append_with_state(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    delta = {"mood": "glad", "user:name": "Ann", "app:open": True}
    return lambda: entries.append(key, entry("new", delta=delta))


@case("entries.append")
def _append_with_state_in_parts(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: entries.append(key, entry("new", delta={"mood": "glad"}, size=LARGE))


@case("entries.append")
def _append_with_state_under_lease(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: entries.append(key, entry("new", delta={"mood": "glad"}), lease=lease)


@case("entries.append_many")
def _append_many(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: entries.append_many(key, [entry("n1"), entry("n2"), entry("n3")])


@case("entries.append_many")
def _append_many_expected_with_state(backend: Backend, key: SessionKey) -> Build:
    revision = conversation(backend, key).revision
    batch = [entry("n1", delta={"mood": "glad"}), entry("n2", delta={"mood": "sad", "user:name": "Ann"})]
    return lambda: entries.append_many(key, batch, expected=revision)


@case("state.merge")
def _merge_own(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: state.merge(key, {"cart": 2})


@case("state.merge")
def _merge_shared(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: state.merge(key, {"user:name": "Ann"})


@case("state.merge")
def _merge_several(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    run(backend, state.merge(key, {"app:open": False}))
    return lambda: state.merge(key, {"cart": 2, "user:name": "Ann", "app:open": True})


@case("leases.acquire")
def _acquire_missing(_backend: Backend, key: SessionKey) -> Build:
    return lambda: leases.acquire(key, owner="me", ttl=600)


@case("leases.acquire")
def _acquire_create(_backend: Backend, key: SessionKey) -> Build:
    return lambda: leases.acquire(key, owner="me", ttl=600, create=True)


@case("leases.acquire")
def _acquire_create_over_expired_session(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key, ttl=600)
    expire(backend, key)
    return lambda: leases.acquire(key, owner="me", ttl=600, create=True)


@case("leases.acquire")
def _acquire_free(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    return lambda: leases.acquire(key, owner="me", ttl=600)


@case("leases.acquire")
def _acquire_released(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    _ = run(backend, leases.release(held(backend, key)))
    return lambda: leases.acquire(key, owner="me", ttl=600)


@case("leases.acquire")
def _acquire_expired(backend: Backend, key: SessionKey) -> Build:
    """A takeover, of a session whose head the lost holder has left behind its entries."""
    _ = conversation(backend, key)
    lease = held(backend, key)
    _ = run(backend, entries.append(key, entry("c"), lease=lease))
    _ = ran_out(backend, lease)
    return lambda: leases.acquire(key, owner="me", ttl=600)


@case("leases.renew")
def _renew(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: leases.renew(lease, ttl=900)


@case("leases.release")
def _release(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    mine = run(backend, entries.append(key, entry("c"), lease=lease))
    return lambda: leases.release(lease, revision=mine.revision)


@case("leases.abandon")
def _abandon(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    lease = held(backend, key)
    return lambda: leases.abandon(key, nonce=lease.nonce)


@case("retention.sweep")
def _sweep_expired(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key, "a", "b", "c", ttl=600)
    _ = run(backend, entries.append(key, entry("large", size=LARGE)))
    expire(backend, key)
    return retention.sweep


@case("retention.sweep")
def _sweep_expired_half_cleared(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key, ttl=600)
    unfinished_clear(backend, key)
    _ = run(backend, entries.append(key, entry("c")))
    expire(backend, key)
    return retention.sweep


@case("retention.sweep")
def _sweep_cleared(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    unfinished_clear(backend, key)
    _ = run(backend, entries.append(key, entry("c")))
    return retention.sweep


@case("retention.orphans")
def _orphans(backend: Backend, key: SessionKey) -> Build:
    _ = conversation(backend, key)
    stray(backend, key, "stray")
    _ = run(backend, entries.append(key, entry("c")))
    return retention.orphans


def test_every_write_operation_is_crashed() -> None:
    """A function that returns an operation is either one of the reads or one of the cases."""
    found = set()
    for module in MODULES:
        for name, value in inspect.getmembers(module, inspect.isfunction):
            home = value.__module__.rpartition(".")[2]
            own = home == module.__name__.rpartition(".")[2] or name in getattr(module, "__all__", ())
            returns = str(inspect.signature(value).return_annotation)
            builds = hasattr(value, "__wrapped__") or returns.startswith("Operation")
            if own and builds and not name.startswith("_"):
                found.add(f"{module.__name__.rpartition('.')[2]}.{name}")
    assert found == READS | {case.covers for case in CASES}


# What must hold


@dataclass(frozen=True, slots=True)
class Judge:
    """What a run without a crash makes of the same scene: computed on the model."""

    before: View
    after: View
    told: Sequence[tuple[Outcome, View]]
    late: Sequence[tuple[Outcome, View]]


@functools.cache
def judge(case: Case, *, fresh: bool) -> Judge:
    """What the retry may be told, and leave: that of one run, or of a run and its repeat."""
    model, key = Model(), SessionKey("judge", "ann", "s")
    build = case.prepare(model, key)
    op = build()
    again = build() if fresh else op
    scene = model.snapshot()
    before = view(model, key)
    once = Process(model, op).finish()
    after = view(model, key)
    twice = Process(model, again).finish()
    told = [(outcome(once), after), (outcome(twice), view(model, key))]
    late = []
    for steps in (["op", "other", "again"], ["other", "again"]):
        model.restore(scene)
        if case.writer:
            late.append((_in_turn(model, key, op, again, steps), view(model, key)))
    return Judge(before, after, told, late)


def _in_turn(
    model: Model, key: SessionKey, op: Operation[Any], again: Operation[Any], steps: list[str]
) -> Outcome:
    last = outcome(Process(model, again))
    for step in steps:
        ops = {"op": op, "again": again, "other": other_append(key)}
        last = outcome(Process(model, ops[step]).finish())
    return last


def other_append(key: SessionKey) -> Operation[Any]:
    return entries.append(key, entry("other"))


def check_whole(case: Case, seen: View, expected: Judge) -> None:
    """All or nothing; but a lease that is taken over holds before its fence, which no one sees, is there."""
    allowed = [expected.before, expected.after]
    if case.covers == "leases.acquire" and seen not in allowed:
        seen, allowed = without_fence(seen), [without_fence(expected.after)]
    assert seen in allowed


def without_fence(seen: View) -> View:
    return dataclasses.replace(seen, place=0)


def check_told(case: Case, told: Outcome, seen: View, allowed: Sequence[tuple[Outcome, View]]) -> None:
    if case.covers == "leases.acquire" and told.refused:
        seen, allowed = without_fence(seen), [(known, without_fence(then)) for known, then in allowed]
    assert (told, seen) in allowed


def partial_allowed(backend: Backend, op: Operation[Any]) -> bool:
    """A standalone server cannot promise that a batch, or several buckets, change at once."""
    return op.atomic and not backend.transactions


def check_partial(seen: View, expected: Judge) -> None:
    """The entries of before, and the first of the batch; state of an entry with the entry."""
    before, after = expected.before.entries or (), expected.after.entries or ()
    assert seen.entries is not None
    assert seen.entries[: len(before)] == before
    assert seen.entries == after[: len(seen.entries)]


@dataclass
class Points:
    """One case on one backend: every crash point, made anew for everything that may follow it."""

    backend: Backend
    case: Case
    new_key: NewKey

    def each(self, follow: Callable[[SessionKey, Operation[Any], Build], None]) -> int:
        key = self.new_key()
        log = log_of(self.backend, self.case.prepare(self.backend, key)())
        self.clean(key)
        count = len(log)
        points = [0, *(at for at, step in enumerate(log, start=1) if self._differs(step))]
        for steps in points:
            key = self.new_key()
            build = self.case.prepare(self.backend, key)
            op = build()
            dead = crashed(self.backend, op, steps)
            try:
                follow(key, op, build)
            except AssertionError as error:
                error.add_note(f"{self.case.name}: crash after {steps} of {count}: {dead.log[:steps]}")
                raise
            self.clean(key)
        return len(points)

    def _differs(self, step: object) -> bool:
        """On a server only the points after a write: what was read has left nothing that could differ."""
        reading = isinstance(step, Pause | FindEach) or (isinstance(step, Command) and step.method == "find")
        return isinstance(self.backend, Model) or not reading

    def clean(self, key: SessionKey) -> None:
        _ = run(self.backend, sessions.delete(key))
        if self.case.covers == "retention.orphans":
            _ = run(self.backend, retention.orphans(limit=1000))


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def points(request: pytest.FixtureRequest, backend: Backend, new_key: NewKey) -> Points:
    return Points(backend, request.param, new_key)


@pytest.mark.parametrize("fresh", [False, True], ids=["same_value", "built_anew"])
def test_a_reader_sees_all_or_nothing_and_a_retry_heals(points: Points, fresh: bool) -> None:
    if fresh and isinstance(points.backend, Server):
        points.backend = Model(transactions=points.backend.transactions)  # the server has shown the other
    expected = judge(points.case, fresh=fresh)

    def follow(key: SessionKey, op: Operation[Any], build: Build) -> None:
        seen = view(points.backend, key)
        if partial_allowed(points.backend, op):
            check_partial(seen, expected)
        else:
            check_whole(points.case, seen, expected)
        retry = Process(points.backend, build() if fresh else op).finish()
        check_told(points.case, outcome(retry), view(points.backend, key), expected.told)
        if points.case.covers not in {"retention.orphans", "retention.sweep"} and not outcome(retry).refused:
            check_no_litter_of_payloads(points, key)

    assert points.each(follow) >= 1


def check_no_litter_of_payloads(points: Points, key: SessionKey) -> None:
    """A retry that succeeded has finished what the crash interrupted."""
    if points.case.covers != "sessions.delete":
        check_no_litter(points.backend, key)


def test_another_writer_goes_on_before_the_retry(points: Points) -> None:
    expected = judge(points.case, fresh=False)

    def follow(key: SessionKey, op: Operation[Any], _build: Build) -> None:
        partial = partial_allowed(points.backend, op)
        seen = view(points.backend, key)
        other = Process(points.backend, other_append(key)).finish()
        if seen.entries is None:
            assert isinstance(other.error, NotFoundError)
        else:
            assert other.error is None
            assert view(points.backend, key).entries == (*seen.entries, "other")
        retry = Process(points.backend, op).finish()
        after = view(points.backend, key)
        if not partial or outcome(retry).refused:
            assert outcome(retry) in [told for told, _seen in expected.late]
        if not partial:
            check_told(points.case, outcome(retry), after, expected.late)
        elif outcome(retry).refused:  # by the other's append
            assert after.entries == (*(seen.entries or ()), "other")
        else:
            assert sorted(after.entries or ()) == sorted({*(expected.after.entries or ()), "other"})

    assert points.each(follow) >= 1


def test_sweep_and_delete_leave_nothing(points: Points) -> None:
    def follow(key: SessionKey, _op: Operation[Any], _build: Build) -> None:
        _ = run(points.backend, retention.sweep())
        _ = run(points.backend, sessions.delete(key))
        if points.case.covers == "retention.orphans":
            _ = run(points.backend, retention.orphans())
        assert stored(points.backend, key) == {}

    assert points.each(follow) >= 1


# A reply that is lost, and a store that starts again by itself


class Lossy(Store):
    """Loses the reply of one command, or (``carried_out=False``) the command."""

    def lose(self, number: int, *, carried_out: bool) -> None:
        self._numbers = itertools.count(1)
        self._lost = (number, carried_out)

    def _send(self, tries: Attempts, session: ClientSession | None, step: Command | FindEach) -> Any:
        number, carried_out = self._lost
        lost = next(self._numbers) == number
        if not lost or carried_out:
            reply = super()._send(tries, session, step)
        if lost:
            error = AutoReconnect("lost by the test")
            if session is not None and session.in_transaction:  # as the driver does
                error._add_error_label("TransientTransactionError")
            raise error
        return reply


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_store_repeats_what_was_lost(
    case: Case, replica_set: Server, new_key: NewKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is killed: the caller is told what became of it, and it became so once."""
    store = Lossy(replica_set.store._client, "test_faults")
    expected = judge(case, fresh=False)
    monkeypatch.setattr(attempts, "pause_seconds", lambda _attempt: 0.0)
    for number in itertools.count(1):
        key = new_key()
        op = case.prepare(replica_set, key)()
        store.lose(number, carried_out=number > 1)  # later ones that were not are as the reply before lost
        try:
            told = Outcome(told_by(op, store.run(op)))
        except OutcomeUnknownError:  # without a key, only the caller may decide to do it twice
            assert not op.repeats
            told = Outcome(told_by(op, store.run(op)))
        except MnemongoError as error:
            told = Outcome(type(error).__name__)
        check_told(case, told, view(replica_set, key), expected.told)
        _ = run(replica_set, sessions.delete(key))
        if next(store._numbers) <= number:
            break
    assert number > 1


# A turn


class Dead(BaseException):
    """The worker was killed."""


class Mortal:
    """Runs operations until its commands are used up; from then on it is dead."""

    def __init__(self, backend: Backend, commands: int) -> None:
        self.backend = backend
        self.left = commands

    def run(self, op: Operation[Any]) -> Any:
        process = Process(self.backend, op)
        while not process.done:
            if self.left == 0:
                process.abandon()
                raise Dead
            self.left -= 1
            _ = process.step(within=True)
        if process.error is not None:
            raise process.error
        return process.result


def answered(runner: Mortal, key: SessionKey, asked: list[tuple[str, ...]]) -> None:
    """One turn with a tool; ``asked`` notes what each call of the model was given."""
    with ChatHistory(runner, key).turn("t", lease=600) as turn:
        _ = turn.user("Where is it?")
        if turn.answer is None:
            if len(turn.messages) == 1:
                _ = turn.assistant(calls=[ToolCall("c1", "find", {"what": "it"})])
            if len(turn.messages) == 2:
                _ = turn.tool("c1", "here")
            asked.append(tuple(message.text for message in turn.context()))
            _ = turn.assistant("There.")


def test_a_turn_crashed_at_any_command_gives_one_answer(backend: Backend, new_key: NewKey) -> None:
    whole = Mortal(backend, 1000)
    asked: list[tuple[str, ...]] = []
    answered(whole, new_key(), asked)
    count = 1000 - whole.left
    (context,) = asked
    for commands in range(count):
        key = new_key()
        _ = conversation(backend, key)
        asked = []
        with pytest.raises(Dead):
            answered(Mortal(backend, commands), key, asked)
        seen = view(backend, key)
        if seen.held:
            changed(backend, key, {"lease.until": PAST})
        answered(Mortal(backend, 1000), key, asked)
        turn = ("t:user", "t:assistant:c1", "t:tool:c1", "t:assistant")
        assert view(backend, key).entries == ("a", "b", *turn), commands
        assert not view(backend, key).held
        assert {given[-len(context) :] for given in asked} <= {context}
        assert len(asked) <= 2
        answered(Mortal(backend, 1000), key, asked)
        assert view(backend, key).entries == ("a", "b", *turn)
        check_no_litter(backend, key)
        _ = run(backend, sessions.delete(key))


# State on a server without transactions


def crashed_before_its_state(key: SessionKey) -> Model:
    model = Model(transactions=False)
    _ = conversation(model, key)
    op = entries.append(key, entry("new", delta={"mood": "glad", "user:name": "Ann"}))
    steps = 0
    while "new" not in {document["_id"]["event_id"] for document in events(model, key)}:
        steps += 1
        _ = crashed(model, op, steps)
    return model


STATE_KEY = SessionKey("state", "ann", "s")


def test_state_of_a_crashed_append_is_read_with_its_entry() -> None:
    model = crashed_before_its_state(STATE_KEY)
    merged = run(model, state.get(STATE_KEY)).merged
    assert merged == {"mood": "glad", "user:name": "Ann"}


@pytest.mark.parametrize("names", [["mood"], ["user:name"], ["mood", "user:name"]], ids="-".join)
def test_state_of_a_crashed_append_does_not_overwrite_a_newer_merge(names: list[str]) -> None:
    delta = dict.fromkeys(names, "newer")
    model = crashed_before_its_state(STATE_KEY)
    run(model, state.merge(STATE_KEY, delta))
    _ = run(model, sessions.get(STATE_KEY))
    merged = run(model, state.get(STATE_KEY)).merged
    assert merged == {"mood": "glad", "user:name": "Ann"} | delta


def test_a_batch_gets_past_what_a_crash_left_above_a_gap() -> None:
    model, key = Model(), STATE_KEY
    head = conversation(model, key)
    _ = crashed(model, entries.append(key, entry("stray"), after=head.revision + 1), 1)
    _ = run(model, entries.append_many(key, [entry("n1"), entry("n2")]))
    assert [name for name in view(model, key).entries or () if name != "stray"] == ["a", "b", "n1", "n2"]


def test_readers_see_what_a_turn_has_written_so_far(backend: Backend, new_key: NewKey) -> None:
    """The head is moved when the turn ends: a window may lie wholly beyond it."""
    key = new_key()
    _ = conversation(backend, key)
    lease = held(backend, key)
    for name in "cdef":
        _ = run(backend, entries.append(key, entry(name), lease=lease, settle=False))
    for read in (entries.last, entries.turns):
        for limit in range(1, 7):
            window = run(backend, read(key, limit))
            assert [stored.entry.key for stored in window.entries] == [*"abcdef"][-limit:], limit


# What the sequential runs, which judge the others, must themselves give


def late_after_the_lease_ran_out(backend: Backend, key: SessionKey) -> Operation[Any]:
    _ = conversation(backend, key)
    return entries.append(key, entry("late"), lease=ran_out(backend, held(backend, key)))


def late_after_a_takeover(backend: Backend, key: SessionKey) -> Operation[Any]:
    """Its clock is behind: only the fence is in its way."""
    _ = conversation(backend, key)
    lease = held(backend, key)
    _ = ran_out(backend, lease)
    _ = run(backend, leases.acquire(key, owner="second", ttl=600))
    return entries.append(key, entry("late"), lease=lease, settle=False)


def late_after_a_delete(backend: Backend, key: SessionKey) -> Operation[Any]:
    at = conversation(backend, key).revision
    _ = run(backend, sessions.delete(key))
    return entries.append(key, entry("late"), expected=at)


def late_after_a_successor(backend: Backend, key: SessionKey) -> Operation[Any]:
    op = late_after_a_delete(backend, key)
    _ = conversation(backend, key)
    return op


def late_after_a_clear(backend: Backend, key: SessionKey) -> Operation[Any]:
    at = conversation(backend, key).revision
    _ = run(backend, sessions.clear(key))
    for name in ("a", "b"):
        _ = run(backend, entries.append(key, entry(name)))
    return entries.append(key, entry("late"), expected=at)


LATE: dict[Callable[[Backend, SessionKey], Operation[Any]], str] = {
    late_after_the_lease_ran_out: "LeaseLostError",
    late_after_a_takeover: "LeaseLostError",
    late_after_a_delete: "NotFoundError",
    late_after_a_successor: "StaleRevisionError",
    late_after_a_clear: "StaleRevisionError",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_repeat_is_told_the_same(case: Case) -> None:
    if case.covers not in {"sessions.delete", "leases.release"}:  # they tell whether there was anything
        (once, after), (twice, later) = judge(case, fresh=False).told
        assert once == twice
        assert after == later


@pytest.mark.parametrize("late", LATE, ids=lambda late: late.__name__)
def test_a_late_writer_is_refused(
    late: Callable[[Backend, SessionKey], Operation[Any]], backend: Backend, new_key: NewKey
) -> None:
    key = new_key()
    op = late(backend, key)
    before = view(backend, key)
    assert outcome(Process(backend, op).finish()).value == LATE[late]
    assert view(backend, key) == before
    check_no_litter(backend, key)
