"""Two operations at once, in all orders of their commands: what comes out is what one after the other gives.

The judge is the sequential runs: some order of the two must explain both results and what is left, or one
of them was refused, with an error its documentation names, and left nothing. The same schedule on a real
server gives the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from faults.conftest import NewKey
from faults.looking import Outcome, View, check_no_litter, outcome, view
from faults.scenes import PART_BYTES, conversation, entry, expire, held, ran_out, unfinished_clear
from faults.stepping import Backend, Model, Process, Schedule, Server, crashed, explored, race, run
from mnemongo.commands import Operation, Plan, operation
from mnemongo.documents import Lease, Stored
from mnemongo.keys import SessionKey
from mnemongo.plans import entries, leases, retention, sessions, state

Pair = tuple[Operation[Any], Operation[Any]]
Scene = Callable[[Backend, SessionKey], Pair]
LARGE = 2 * PART_BYTES + 10
MOST, SAMPLE, ON_SERVER = 924, 150, 5
STALE, GONE, LOST = "StaleRevisionError", "NotFoundError", "LeaseLostError"


@dataclass(frozen=True, slots=True)
class Duel:
    """A scene with two operations; ``refusals``: what either may also be told, having done nothing."""

    name: str
    scene: Scene
    refusals: frozenset[Any]


DUELS: list[Duel] = []


def duel(*refusals: Any) -> Callable[[Scene], Scene]:
    def add(scene: Scene) -> Scene:
        DUELS.append(Duel(scene.__name__.strip("_"), scene, frozenset(refusals)))
        return scene

    return add


def append(key: SessionKey, name: str, text: str = "", **more: Any) -> Operation[Any]:
    return entries.append(key, entry(name, text), **more)


@duel()
def _append_append_same_expected(backend: Backend, key: SessionKey) -> Pair:
    at = conversation(backend, key).revision
    return append(key, "x", expected=at), append(key, "y", expected=at)


@duel()
def _append_append(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x"), append(key, "y")


@duel()
def _append_append_head_left_behind(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    _ = crashed(backend, append(key, "c"), 2)
    return append(key, "x"), append(key, "y")


@duel()
def _append_append_same_key(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x"), append(key, "x")


@duel()
def _append_append_same_key_other_content(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x", "one"), append(key, "x", "another")


@duel(STALE, GONE)
def _append_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x"), sessions.delete(key)


@duel(STALE)
def _append_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x"), sessions.clear(key)


@duel(STALE)
def _append_in_parts_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key, "a")
    return entries.append(key, entry("x", size=LARGE)), sessions.clear(key)


@duel(STALE, GONE)
def _append_in_parts_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key, "a")
    return entries.append(key, entry("x", size=LARGE)), sessions.delete(key)


@duel(STALE, GONE)
def _append_create_after_delete(backend: Backend, key: SessionKey) -> Pair:
    at = conversation(backend, key).revision
    _ = run(backend, sessions.delete(key))
    return append(key, "x", after=at), sessions.create(key)


@duel(STALE, GONE)
def _append_create_over_a_crashed_delete(backend: Backend, key: SessionKey) -> Pair:
    at = conversation(backend, key).revision
    _ = crashed(backend, sessions.delete(key), 1)
    return append(key, "x", after=at), sessions.create(key)


@duel()
def _append_under_lease_that_runs_out_takeover(backend: Backend, key: SessionKey) -> Pair:
    """The holder's clock is behind: the guard lets it pass, the fence alone must decide."""
    _ = conversation(backend, key)
    lease = held(backend, key)
    _ = ran_out(backend, lease)
    return append(key, "x", lease=lease), leases.acquire(key, owner="second", ttl=600)


@duel()
def _append_under_lost_lease_takeover(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    lease = ran_out(backend, held(backend, key))
    return append(key, "x", lease=lease), leases.acquire(key, owner="second", ttl=600)


@operation()
def turn(key: SessionKey, lease: Lease) -> Plan[Stored]:
    """What a turn does: entries that leave the head as it is, then the release, which moves it."""
    one = yield from append(key, "x", lease=lease, settle=False)
    two = yield from append(key, "y", lease=lease, settle=False, after=one.revision)
    _ = yield from leases.release(lease, revision=two.revision)
    return two


@duel(STALE, LOST)
def _append_under_lease_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x", lease=held(backend, key)), sessions.clear(key)


@duel(STALE, GONE)
def _append_under_lease_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return append(key, "x", lease=held(backend, key)), sessions.delete(key)


@duel(STALE, LOST)
def _turn_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return turn(key, held(backend, key)), sessions.clear(key)


@duel(STALE, GONE, LOST)
def _turn_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return turn(key, held(backend, key)), sessions.delete(key)


@duel()
def _turn_acquire(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return turn(key, held(backend, key)), leases.acquire(key, owner="second", ttl=600)


@duel()
def _append_takeover(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    _ = ran_out(backend, held(backend, key))
    return append(key, "x"), leases.acquire(key, owner="second", ttl=600)


@duel()
def _acquire_acquire_missing(_backend: Backend, key: SessionKey) -> Pair:
    one, two = (leases.acquire(key, owner=name, ttl=600, create=True) for name in "xy")
    return one, two


@duel()
def _acquire_acquire_expired(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    _ = ran_out(backend, held(backend, key))
    one, two = (leases.acquire(key, owner=name, ttl=600) for name in "xy")
    return one, two


@duel()
def _acquire_acquire_expired_session(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key, ttl=600)
    expire(backend, key)
    one, two = (leases.acquire(key, owner=name, ttl=600, create=True) for name in "xy")
    return one, two


@duel()
def _release_append(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    lease = held(backend, key)
    mine = run(backend, append(key, "c", lease=lease))
    return leases.release(lease, revision=mine.revision), append(key, "x")


@duel()
def _release_acquire(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    lease = held(backend, key)
    mine = run(backend, append(key, "c", lease=lease))
    return leases.release(lease, revision=mine.revision), leases.acquire(key, owner="second", ttl=600)


@duel()
def _renew_takeover(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    lease = held(backend, key)
    _ = ran_out(backend, lease)
    return leases.renew(lease, ttl=600), leases.acquire(key, owner="second", ttl=600)


@duel(STALE)
def _release_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    lease = held(backend, key)
    mine = run(backend, append(key, "c", lease=lease))
    return leases.release(lease, revision=mine.revision), sessions.clear(key)


@duel()
def _clear_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return sessions.clear(key), sessions.clear(key)


@duel()
def _clear_clear_over_a_crashed_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    unfinished_clear(backend, key)
    return sessions.clear(key), sessions.clear(key)


@duel(GONE)
def _clear_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return sessions.clear(key), sessions.delete(key)


@duel()
def _delete_create(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return sessions.delete(key), sessions.create(key)


@duel(True)  # the second may find the first at work, and help
def _delete_delete(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return sessions.delete(key), sessions.delete(key)


@duel()
def _create_create(_backend: Backend, key: SessionKey) -> Pair:
    return sessions.create(key), sessions.create(key)


@duel()
def _merge_merge_own(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return state.merge(key, {"cart": 1}), state.merge(key, {"name": "Ann"})


@duel()
def _merge_merge_shared(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return state.merge(key, {"user:cart": 1}), state.merge(key, {"user:name": "Ann"})


@duel()
def _merge_append_with_state(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    with_state = entries.append(key, entry("x", delta={"name": "Ann", "user:name": "Ann"}))
    return with_state, state.merge(key, {"cart": 1})


@duel()
def _merge_several_merge_several(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return (
        state.merge(key, {"cart": 1, "user:cart": 1}),
        state.merge(key, {"name": "Ann", "user:name": "Ann"}),
    )


@duel()
def _append_many_append(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return entries.append_many(key, [entry("x1"), entry("x2")]), append(key, "y")


@duel()
def _append_many_append_many(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    one, two = (entries.append_many(key, [entry(f"{n}1"), entry(f"{n}2")]) for n in "xy")
    return one, two


@duel(STALE, GONE)
def _append_many_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    return entries.append_many(key, [entry("x1"), entry("x2")]), sessions.clear(key)


@duel()
def _sweep_acquire(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key, ttl=600)
    expire(backend, key)
    return retention.sweep(), leases.acquire(key, owner="me", ttl=600, create=True)


@duel()
def _sweep_acquire_repeated(backend: Backend, key: SessionKey) -> Pair:
    """The session ran out between two attempts of one acquire."""
    acquire = leases.acquire(key, owner="me", ttl=600, create=True, session_ttl=600)
    _ = run(backend, acquire)
    for name in ("a", "b"):
        _ = run(backend, append(key, name))
    expire(backend, key)
    return retention.sweep(), acquire


@duel()
def _delete_acquire_repeated(backend: Backend, key: SessionKey) -> Pair:
    acquire = leases.acquire(key, owner="me", ttl=600, create=True)
    _ = run(backend, acquire)
    _ = run(backend, append(key, "a"))
    return sessions.delete(key), acquire


@duel()
def _sweep_append(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key, ttl=600)
    expire(backend, key)
    return retention.sweep(), append(key, "x")


@duel(STALE)
def _sweep_of_a_clear_append(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    unfinished_clear(backend, key)
    return retention.sweep(), append(key, "x")


@duel()
def _sweep_of_a_clear_clear(backend: Backend, key: SessionKey) -> Pair:
    _ = conversation(backend, key)
    unfinished_clear(backend, key)
    return retention.sweep(), sessions.clear(key)


@duel()
def _orphans_create(backend: Backend, key: SessionKey) -> Pair:
    at = conversation(backend, key).revision
    late = append(key, "x", after=at)
    _ = run(backend, sessions.delete(key))
    _ = crashed(backend, late, 1)
    return retention.orphans(), sessions.create(key)


READS: dict[str, Callable[[SessionKey], Operation[Any]]] = {
    "page": entries.page,
    "last": lambda key: entries.last(key, 2),
    "turns": lambda key: entries.turns(key, 2),
    "get": lambda key: entries.get(key, "x"),
}
WRITES: dict[str, Callable[[SessionKey], Operation[Any]]] = {
    "append": lambda key: append(key, "x"),
    "append_in_parts": lambda key: entries.append(key, entry("x", size=LARGE)),
    "append_many": lambda key: entries.append_many(key, [entry("x"), entry("y"), entry("z")]),
    "delete": sessions.delete,
    "clear": sessions.clear,
}


def _reading(read: str, write: str) -> Scene:
    def scene(backend: Backend, key: SessionKey) -> Pair:
        _ = conversation(backend, key, "a", "b", "x" if write in {"delete", "clear"} else "c")
        return READS[read](key), WRITES[write](key)

    return scene


DUELS.extend(
    Duel(f"{read}_{write}", _reading(read, write), frozenset()) for read in READS for write in WRITES
)


# What must hold


@dataclass(frozen=True, slots=True)
class End:
    """What both were told, and the session afterwards."""

    told: tuple[Outcome, Outcome]
    seen: View


@dataclass(frozen=True, slots=True)
class Explanations:
    """The ends that one order of the two, or a refusal of one of them, gives."""

    orders: Sequence[End]
    alone: Sequence[tuple[int, Outcome, View]]
    refusals: frozenset[Any]

    def explain(self, end: End) -> bool:
        return end in self.orders or any(
            end.told[1 - loser].value in self.refusals and end.told[loser] == told and end.seen == seen
            for loser, told, seen in self.alone
        )


def explanations(duel: Duel, pair: Pair, model: Model, key: SessionKey) -> Explanations:
    scene = model.snapshot()
    orders, alone = [], []
    for first in (0, 1):
        model.restore(scene)
        told: dict[int, Outcome] = {first: outcome(Process(model, pair[first]).finish())}
        alone.append((first, told[first], view(model, key)))
        told[1 - first] = outcome(Process(model, pair[1 - first]).finish())
        orders.append(End((told[0], told[1]), view(model, key)))
    model.restore(scene)
    return Explanations(orders, alone, duel.refusals)


def fought(backend: Backend, pair: Pair, key: SessionKey, schedule: Schedule) -> End:
    processes = [Process(backend, op) for op in pair]
    race(processes, schedule)
    return End((outcome(processes[0]), outcome(processes[1])), view(backend, key))


def fingerprint(model: Model) -> str:
    """All that is stored, but for the times: what was looked at once need not be again."""
    now = model.store.now()

    def shown(field: str, value: Any) -> Any:
        if field == "expires_at":
            return value < now
        if field == "lease":
            return [value.get(name) for name in ("owner", "token", "nonce")]
        return None if field in {"create_time", "update_time"} else value

    return repr(
        [
            (name, [(field, shown(field, value)) for field, value in document.items()])
            for name, held in model.store._collections.items()
            for document in held.documents.values()
        ]
    )


def seen_by_all(model: Model, views: dict[str, View]) -> View:
    left = fingerprint(model)
    if left not in views:
        views[left] = view(model, KEY)
        check_no_litter(model, KEY)
    return views[left]


def check(duel: Duel, end: End, known: Explanations, schedule: Schedule) -> None:
    assert known.explain(end), f"{duel.name}: no order explains {schedule.choices}: {end}\n{known}"


TRIPLES: dict[str, Callable[[Backend, SessionKey], tuple[Operation[Any], ...]]] = {
    "clear_clear_append": lambda _b, k: (sessions.clear(k), sessions.clear(k), append(k, "x")),
    "append_append_clear": lambda _b, k: (append(k, "x"), append(k, "y"), sessions.clear(k)),
    "append_append_append": lambda _b, k: (append(k, "x"), append(k, "y"), append(k, "z")),
    "append_delete_create": lambda _b, k: (append(k, "x"), sessions.delete(k), sessions.create(k)),
    "append_same_key_thrice": lambda _b, k: (append(k, "x"), append(k, "x"), append(k, "x")),
    "merge_thrice": lambda _b, k: tuple(state.merge(k, {f"user:{name}": 1}) for name in "xyz"),
    "clear_append_page": lambda _b, k: (sessions.clear(k), append(k, "x"), entries.page(k)),
    "sweep_clear_append": lambda b, k: (
        unfinished_clear(b, k),
        (retention.sweep(), sessions.clear(k), append(k, "x")),
    )[1],
}


@pytest.mark.parametrize("name", TRIPLES)
def test_three_at_once(name: str) -> None:
    """Some order of the three gives the same session.

    (Who was refused left nothing, or what it left was seen by a reader before the clear that took it.)
    """
    model = Model()
    _ = conversation(model, KEY)
    ops = TRIPLES[name](model, KEY)
    scene = model.snapshot()
    ends = set()
    for count in range(len(ops) + 1):  # the others were refused
        for order in itertools.permutations(range(len(ops)), count):
            model.restore(scene)
            told = {at: outcome(Process(model, ops[at]).finish()) for at in order}
            ends.add((frozenset(told.items()), view(model, KEY)))
    views: dict[str, View] = {}
    for seed in range(2 * SAMPLE):
        model.restore(scene)
        schedule = Schedule(rng=random.Random(seed))
        processes = [Process(model, op) for op in ops]
        race(processes, schedule)
        told = {at: outcome(process) for at, process in enumerate(processes)}
        known = {(at, end) for at, end in told.items() if end.value not in {STALE, GONE}}
        seen = seen_by_all(model, views)
        assert any(known <= some and seen == then for some, then in ends), (
            f"no order explains {schedule.choices}: {told} {seen}"
        )


duels = pytest.mark.parametrize("duel", DUELS, ids=lambda duel: duel.name)
KEY = SessionKey("duel", "ann", "s")


@pytest.mark.parametrize("fine", [False, True], ids=["by_command", "by_single_step"])
@duels
def test_some_order_explains_every_schedule(duel: Duel, fine: bool) -> None:
    model = Model()
    pair = duel.scene(model, KEY)
    known = explanations(duel, pair, model, KEY)
    scene = model.snapshot()
    model.fine = fine
    views: dict[str, View] = {}
    for schedule in explored(SAMPLE if fine else MOST, SAMPLE, seed=7):
        model.restore(scene)
        processes = [Process(model, op) for op in pair]
        race(processes, schedule)
        end = End((outcome(processes[0]), outcome(processes[1])), seen_by_all(model, views))
        check(duel, end, known, schedule)


@duels
def test_a_server_does_the_same(duel: Duel, replica_set: Server, new_key: NewKey) -> None:
    """A seeded sample of schedules: the end is explained, and is the model's where no transaction waits."""
    rng = random.Random(11)
    for number in range(ON_SERVER):
        key, model = new_key(), Model()
        scenes = [duel.scene(backend, key) for backend in (model, replica_set)]
        known = explanations(duel, scenes[0], model, key)
        choices = [number % 2 if number < 2 else rng.randrange(2) for _ in range(20)]
        on_server = Schedule(choices)
        end = fought(replica_set, scenes[1], key, on_server)
        check(duel, end, known, on_server)
        check_no_litter(replica_set, key)
        if not any(op.atomic for op in scenes[0]):
            assert fought(model, scenes[0], key, Schedule(choices)) == end, choices
        _ = run(replica_set, sessions.delete(key))
        _ = run(replica_set, retention.sweep())
