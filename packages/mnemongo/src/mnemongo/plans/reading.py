"""Reading a session's entries: by key, by page, the last n, the last n turns, one turn.

What a reader sees is the run of entries of the session's present life without a gap. Below the head's
revision there is never one, so a gap there means that the session is being deleted or cleared: the
reader looks again. Above the head only what follows it place by place counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from mnemongo import documents, keys
from mnemongo.commands import Command, Document, Operation, Plan, find, finding, operation, pause
from mnemongo.documents import FENCE, Head, Page, Stored
from mnemongo.keys import SessionKey, check_entry_key
from mnemongo.plans import heads, payloads
from mnemongo.plans.arguments import check_count
from mnemongo.schema import EVENTS

_DOWN = (("revision", -1),)
_UP = (("revision", 1),)
_LOOKS = 3
_PINNED = 100


@dataclass(frozen=True, slots=True)
class Window:
    """The newest part of a session.

    Attributes:
        entries: oldest first.
        pinned: pinned entries from before them (the last 100), oldest first.
        truncated: whether there are unpinned entries before them.
    """

    entries: tuple[Stored, ...]
    pinned: tuple[Stored, ...] = ()
    truncated: bool = False


def get(key: SessionKey, entry_key: str) -> Operation[Stored | None]:
    """One entry by its key, or ``None``. One round trip.

    Raises:
        NotFoundError: there is no such session.
    """
    return _get(key, check_entry_key(entry_key))


@operation()
def _get(key: SessionKey, entry_key: str) -> Plan[Stored | None]:
    find = finding(EVENTS, {**key.fields, "_id": key.entry_id(entry_key)}, limit=1)
    for look in count(1):
        head, (found,) = yield from heads.read_with(key, find)
        if found and keys.life(documents.revision(found[0])) == keys.life(head.revision):
            (stored,) = yield from payloads.joined(key, found)
            return stored
        if (yield from heads.required(key)).revision == head.revision or look == _LOOKS:
            return None  # the session is what it was, so it was not being deleted
    raise AssertionError("unreachable")


def turn(key: SessionKey, turn: str) -> Operation[tuple[Stored, ...]]:
    """All entries of one turn, in order: those whose keys are made by ``keys.turn_key``.

    Raises:
        NotFoundError: there is no such session.
    """
    return _turn(key, keys.turn_key(turn, ""))


@operation()
def _turn(key: SessionKey, prefix: str) -> Plan[tuple[Stored, ...]]:
    after_colon = prefix.removesuffix(":") + ";"
    ids = {"$gte": key.entry_id(prefix), "$lt": key.entry_id(after_colon)}
    find = finding(EVENTS, {**key.fields, "_id": ids})
    head, (found,) = yield from heads.read_with(key, find)
    living = [d for d in found if keys.life(d["revision"]) == keys.life(head.revision)]
    return tuple((yield from payloads.joined(key, sorted(living, key=documents.revision))))


def page(key: SessionKey, *, after: int | None = None, limit: int = 100) -> Operation[Page[Stored]]:
    """A page of entries, oldest first.

    Args:
        key: the session.
        after: the ``next`` of the page before; ``None``: from the beginning.
        limit: how many at most, 1 to 1,000. A page may hold fewer: fences are left out.

    Raises:
        StaleRevisionError: the session was cleared or deleted since ``after``.
        NotFoundError: there is no such session.
    """
    return _page(key, _revision(after, "after"), check_count(limit))


@operation()
def _page(key: SessionKey, after: int | None, limit: int) -> Plan[Page[Stored]]:
    head, run = yield from _run(key, after, limit)
    if after is not None and keys.life(after) != keys.life(head.revision):
        raise heads.stale(key, after, head.revision)
    shown = yield from payloads.joined(key, _shown(run))
    return Page(tuple(shown), documents.revision(run[-1]) if len(run) == limit else None)


def _run(key: SessionKey, after: int | None, limit: int) -> Plan[tuple[Head, Sequence[Document]]]:
    """The places that follow ``after`` without a gap, at most ``limit``."""
    selection = key.fields if after is None else heads.following(key, after)
    for look in count(1):
        seen = yield from _look(key, finding(EVENTS, selection, sort=_UP, limit=limit))
        first = (keys.life(seen.head.revision) if after is None else after) + 1
        run = [d for place, d in enumerate(seen.found, start=first) if d["revision"] == place]
        if look == _LOOKS or len(run) == limit or first + len(run) > seen.head.revision:
            return seen.head, run
        yield from pause(look)
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Seen:
    head: Head
    found: Sequence[Document]
    pinned: Sequence[Document]
    fences: Sequence[Document]


def _look(key: SessionKey, command: Command, before: int | None = None) -> Plan[_Seen]:
    """One round trip: the head, a find of entries, the pinned ones; all of the present life.

    Entries of an earlier life (what a crashed delete left) are rare, so the find does not name the life,
    which would cost a round trip to learn; when some are among the found, it is asked again.
    """
    selection: Document = command.arguments["filter"]
    earlier = _before(key, before)
    while True:
        head, (found, *marked) = yield from heads.read_with(
            key,
            Command(EVENTS, "find", {**command.arguments, "filter": selection}),
            _marked({**earlier, "pinned": True}),
            _marked({**earlier, "pinned": False}),
        )
        living = heads.of_life(key, head.revision)
        if all(
            keys.life(d["revision"]) == keys.life(head.revision) for d in (*found, *marked[0], *marked[1])
        ):
            return _Seen(head, found, marked[0][::-1], marked[1])
        selection = {"$and": [command.arguments["filter"], living]}
        earlier = {"$and": [_before(key, before), living]}


def _marked(selection: Document) -> Command:
    return finding(EVENTS, selection, sort=_DOWN, limit=_PINNED)


def last(key: SessionKey, limit: int, *, before: int | None = None) -> Operation[Window]:
    """The last ``limit`` entries, oldest first, with the pinned ones before them. One round trip.

    Args:
        key: the session.
        limit: how many, 1 to 10,000.
        before: only entries before this revision.

    Raises:
        NotFoundError: there is no such session.
    """
    return _last(key, check_count(limit, most=10_000), _revision(before, "before"))


@operation()
def _last(key: SessionKey, limit: int, before: int | None) -> Plan[Window]:
    seen = yield from _newest(key, limit, before)
    newest = list(seen.found)
    while newest and keys.place(newest[-1]["revision"]) > 1 and len(_shown(newest)) < limit:
        more = yield from _newest(key, limit - len(_shown(newest)), newest[-1]["revision"])
        newest += more.found
        if not more.found:
            break
    return (yield from _window(key, newest, seen))


def _newest(key: SessionKey, limit: int, before: int | None) -> Plan[_Seen]:
    """The last places without a gap, newest first."""
    command = finding(EVENTS, _before(key, before), sort=_DOWN, limit=limit)
    for attempt in count(1):
        seen = yield from _look(key, command, before)
        run = yield from _connected(key, seen)
        full = len(seen.found) == limit
        top = seen.head.revision if before is None else min(seen.head.revision, before - 1)
        if attempt == _LOOKS or _is_whole(run, top, full=full):
            return replace(seen, found=run)
        yield from pause(attempt)
    raise AssertionError("unreachable")


def _before(key: SessionKey, before: int | None) -> Document:
    return key.fields if before is None else heads.preceding(key, before)


def _connected(key: SessionKey, seen: _Seen) -> Plan[Sequence[Document]]:
    """Drop what stands above a gap above the head: its writer is about to withdraw it."""
    head, found = seen.head, seen.found
    if not found or found[0]["revision"] <= head.revision:
        return found
    if found[-1]["revision"] > head.revision + 1:  # the head lags behind by more than was asked for
        head = yield from heads.caught_up(key, head)
        return [document for document in found if document["revision"] <= head.revision]
    beyond = [document for document in found if document["revision"] > head.revision]
    counted = sum(d["revision"] == place for place, d in enumerate(beyond[::-1], start=head.revision + 1))
    return found[len(beyond) - counted :]


def _is_whole(run: Sequence[Document], top: int, *, full: bool) -> bool:
    """Whether ``run`` reaches without a gap from ``top`` or beyond to the first place, or is ``full``."""
    if not run:
        return keys.place(top) == 0
    down = full or keys.place(run[-1]["revision"]) == 1
    return down and run[0]["revision"] >= top and _is_dense(run)


def _is_dense(run: Sequence[Document]) -> bool:
    revisions = [document["revision"] for document in run]
    return all(upper == lower + 1 for upper, lower in itertools.pairwise(revisions))


def turns(key: SessionKey, limit: int, *, before: int | None = None) -> Operation[Window]:
    """The last ``limit`` turns, whole. One round trip when turns have two entries, else three.

    A turn begins at an entry marked so and ends before the next one. Entries before the first turn are
    in the window only when all turns are. Where no entry is marked, each counts as a turn.

    Args:
        key: the session.
        limit: how many turns, 1 to 1,000.
        before: only entries before this revision.

    Raises:
        NotFoundError: there is no such session.
    """
    return _turns(key, check_count(limit), _revision(before, "before"))


@operation()
def _turns(key: SessionKey, limit: int, before: int | None) -> Plan[Window]:
    seen = yield from _newest(key, 2 * limit, before)
    run = seen.found
    starts = [index for index, document in enumerate(run) if document.get("starts_turn")]
    if len(starts) >= limit:
        run = run[: starts[limit - 1] + 1]
    elif run:
        run = yield from _longer(key, run, limit, limit - len(starts))
    return (yield from _window(key, run, seen))


def _longer(key: SessionKey, run: Sequence[Document], limit: int, missing: int) -> Plan[Sequence[Document]]:
    """``run`` (newest first), and what comes before it down to the start of the last turn ``missing``."""
    lowest = documents.revision(run[-1])
    starts: list[Document] = []
    is_all = keys.place(lowest) == 1
    if not is_all:
        starting = {**heads.preceding(key, lowest), "starts_turn": True}
        starts = yield from find(
            finding(EVENTS, starting, sort=_DOWN, limit=missing, projection={"revision": 1})
        )
    if missing == limit and not starts:  # nothing says where turns begin
        return run[:limit]
    if is_all:
        return run
    first = documents.revision(starts[-1]) if len(starts) == missing else keys.life(lowest) + 1
    between = heads.between(key, after=first - 1, to=lowest - 1)
    return [*run, *(yield from find(finding(EVENTS, between, sort=_DOWN)))]


def _revision(value: int | None, name: str) -> int | None:
    return None if value is None else keys.check_revision(value, name)


def _window(key: SessionKey, run: Sequence[Document], seen: _Seen) -> Plan[Window]:
    pinned = [d for d in seen.pinned if not run or d["revision"] < run[-1]["revision"]]
    fences = [d for d in seen.fences if run and d["revision"] < run[-1]["revision"]]
    shown = yield from payloads.joined(key, _shown(run[::-1]))
    pins = yield from payloads.joined(key, pinned)
    hidden = keys.place(run[-1]["revision"]) - 1 - len(pinned) - len(fences) if run else 0
    truncated = hidden > 0
    if truncated and len(fences) == _PINNED:  # there may be more, which hide nothing
        others = {**heads.preceding(key, documents.revision(run[-1])), "pinned": None}
        truncated = bool((yield from find(finding(EVENTS, others, limit=1))))
    return Window(tuple(shown), tuple(pins), truncated=truncated)


def _shown(run: Sequence[Document]) -> Sequence[Document]:
    return [document for document in run if not _is_fence(document)]


def _is_fence(document: Document) -> bool:
    return document.get("kind") == FENCE
