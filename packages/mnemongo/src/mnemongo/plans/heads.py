"""The head of a session: reading it, moving it forward, rolling it forward after a crash.

The head is derived from the entries: an append inserts its entry first and moves the head afterwards.
When a crash came between, the head lags behind, and whoever needs it next rolls it forward over the
entries that follow it without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mnemongo import documents, keys
from mnemongo.commands import Command, Document, Plan, find, find_each, finding, pause, update_one
from mnemongo.documents import Head
from mnemongo.errors import NotFoundError, StaleRevisionError
from mnemongo.keys import SessionKey
from mnemongo.plans import buckets, payloads
from mnemongo.schema import EVENTS, SESSIONS

NEW_LIFE = {
    "$multiply": [
        {"$toLong": {"$floor": {"$add": [1, {"$multiply": [{"$rand": {}}, 2**keys.LIFE_BITS - 2]}]}}},
        2**keys.PLACE_BITS,
    ]
}
"""The first revision of a new life, drawn by the server each time: no life is ever given twice."""
NOW_SECONDS = {"$divide": [{"$toLong": "$$NOW"}, 1000]}
ALIVE: Mapping[str, Any] = {"$or": [{"expires_at": None}, {"$expr": {"$gt": ["$expires_at", "$$NOW"]}}]}
RENEWED_EXPIRY = {
    "$cond": [
        {"$gt": ["$ttl_ms", 0]},
        {"$max": [{"$add": ["$$NOW", "$ttl_ms"]}, "$lease.until"]},
        "$$REMOVE",
    ]
}
"""The time to live from now, and never before the lease runs out: a turn does not lose its session."""
_ROLL_FORWARD_PAGE = 1000


def alive(key: SessionKey, **more: object) -> dict[str, Any]:
    """The filter of a session that has not expired, by the server's clock."""
    return {"_id": key.document_id, **more, **ALIVE}


def unchanged(key: SessionKey, head: Head) -> dict[str, Any]:
    """The filter of the session while neither its revision nor its state has changed since ``head``."""
    return alive(key, revision=head.revision, state=head.stored_state)


def moved_to(
    revision: int | Document, *, state: str | None = None, time: float | None = None
) -> list[Document]:
    """The update that moves a head to ``revision`` and renews its session's expiry."""
    changes: Document = {
        "revision": revision,
        "update_time": NOW_SECONDS if time is None else time,
        "expires_at": RENEWED_EXPIRY,
    }
    if state is not None:
        changes["state"] = {"$literal": state}
    return [{"$set": changes}]


def of_life(key: SessionKey, revision: int) -> dict[str, Any]:
    """The filter of all entries of the life that ``revision`` belongs to."""
    return between(key, after=keys.life(revision), to=keys.end_of_life(revision))


def in_life(revision: int) -> dict[str, Any]:
    """The condition that a head is still in the life that ``revision`` belongs to."""
    return {"revision": {"$gte": keys.life(revision), "$lte": keys.end_of_life(revision)}}


def between(key: SessionKey, *, after: int, to: int) -> dict[str, Any]:
    """The filter of the entries with ``after < revision <= to``."""
    return {**key.fields, "revision": {"$gt": after, "$lte": to}}


def following(key: SessionKey, revision: int) -> dict[str, Any]:
    """The filter of the entries after ``revision``, of its life."""
    return between(key, after=revision, to=keys.end_of_life(revision))


def preceding(key: SessionKey, revision: int) -> dict[str, Any]:
    """The filter of the entries before ``revision``, of its life."""
    return between(key, after=keys.life(revision), to=revision - 1)


def missing(key: SessionKey) -> NotFoundError:
    """The error for a session that is not there."""
    return NotFoundError(
        f"there is no session {key}: it was never created, was deleted, or has expired; create it",
        key=key,
    )


def stale(key: SessionKey, expected: int, found: int) -> StaleRevisionError:
    """The error for a handle that the session has left behind."""
    if keys.life(expected) == keys.life(found):
        text = f"the session {key} is at revision {found}, not at {expected}: read it again and decide"
    else:
        text = f"the session {key} was deleted or cleared since revision {expected}: read it again"
    return StaleRevisionError(text, key=key, expected=expected, found=found)


def read(key: SessionKey) -> Plan[Head | None]:
    """The head as it is stored, or ``None``."""
    found = yield from find(finding(SESSIONS, alive(key), limit=1))
    return documents.head(found[0]) if found else None


def document(key: SessionKey) -> Plan[Document]:
    """The head's document, or ``NotFoundError``."""
    found = yield from find(finding(SESSIONS, alive(key), limit=1))
    if not found:
        raise missing(key)
    return found[0]


def required(key: SessionKey) -> Plan[Head]:
    """The head as it is stored, or ``NotFoundError``."""
    return documents.head((yield from document(key)))


def read_with(key: SessionKey, *finds: Command) -> Plan[tuple[Head, list[list[Document]]]]:
    """The head and the results of ``finds``, in one round trip."""
    found, *others = yield from find_each(finding(SESSIONS, alive(key), limit=1), *finds)
    if not found:
        raise missing(key)
    return documents.head(found[0]), others


def current(key: SessionKey) -> Plan[Head]:
    """The head, counting the entries that stand beyond it; one round trip when none do."""
    head = yield from current_or_none(key)
    if head is None:
        raise missing(key)
    return head


def current_or_none(key: SessionKey) -> Plan[Head | None]:
    """As ``current``; ``None`` when there is no such session."""
    found, tops = yield from find_each(finding(SESSIONS, alive(key), limit=1), newest(key))
    if not found:
        return None
    return (yield from caught_up_to(key, documents.head(found[0]), tops))


def newest(key: SessionKey) -> Command:
    """The find of a session's entry with the highest revision, its revision only."""
    return finding(EVENTS, key.fields, sort=(("revision", -1),), limit=1, projection={"revision": 1})


def caught_up_to(key: SessionKey, head: Head, tops: Sequence[Document]) -> Plan[Head]:
    """``head``, caught up unless ``tops`` (of ``newest``) shows that nothing stands beyond it."""
    if tops and tops[0]["revision"] != head.revision:
        return (yield from caught_up(key, head))
    return head


def caught_up(key: SessionKey, head: Head) -> Plan[Head]:
    """The head as it would be rolled forward; it is written only when state was left unapplied."""
    while run := (yield from _run_after(key, head.revision)):
        if any(document.get("has_delta") for document in run):
            return (yield from rolled_forward(key, head))
        head = replace(head, revision=documents.revision(run[-1]))
        if len(run) < _ROLL_FORWARD_PAGE:
            break
    return head


def rolled_forward(key: SessionKey, head: Head) -> Plan[Head]:
    """Move the head over the entries that follow it without a gap; returns where it came to."""
    attempt = 0
    while run := (yield from _run_after(key, head.revision)):
        deltas = yield from _deltas(key, run)
        shared = buckets.shared(deltas)
        yield from buckets.merge_shared(key, shared)
        last = documents.revision(run[-1])
        text = buckets.merged(head.state, buckets.own(deltas)) if deltas else None
        moved = yield from update_one(SESSIONS, unchanged(key, head), moved_to(last, state=text))
        if not moved.matched:
            attempt += 1
            yield from pause(attempt)
        head = yield from required(key)
    return head


def _run_after(key: SessionKey, revision: int) -> Plan[list[Document]]:
    tail = yield from find(
        finding(
            EVENTS,
            following(key, revision),
            sort=(("revision", 1),),
            limit=_ROLL_FORWARD_PAGE,
            projection={"revision": 1, "has_delta": 1},
        )
    )
    return [
        document for place, document in enumerate(tail, start=revision + 1) if document["revision"] == place
    ]


def _deltas(key: SessionKey, run: Iterable[Document]) -> Plan[dict[str, Any]]:
    ids = [document["_id"] for document in run if document.get("has_delta")]
    if not ids:
        return {}
    found = yield from find(finding(EVENTS, {**key.fields, "_id": {"$in": ids}}, sort=(("revision", 1),)))
    merged: dict[str, Any] = {}
    for stored in (yield from payloads.joined(key, found)):
        merged |= stored.entry.state_delta
    return merged
