"""Removing what is over: the entries and payloads of a life that a session has left behind.

A life is drawn anew for each session created or cleared, so one that its head no longer names never comes
back: removing it, in bounded batches, can race with anything.
"""

from __future__ import annotations

from datetime import UTC, datetime

from mnemongo import documents, keys
from mnemongo.commands import (
    Command,
    Document,
    Plan,
    delete_many,
    delete_one,
    find,
    find_one,
    find_one_and_update,
    finding,
    update_one,
)
from mnemongo.keys import SessionKey
from mnemongo.plans import heads
from mnemongo.schema import EVENTS, PAYLOADS, SESSIONS

EXPIRED: Document = {"$and": [{"$gt": ["$expires_at", None]}, {"$lte": ["$expires_at", "$$NOW"]}]}
"""Whether a head's session is over, by the server's clock."""
LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
_DELETE_PAGE = 1000


def remove_expired(key: SessionKey) -> Plan[int | None]:
    """Remove what an expired session left behind, the head last.

    First its expiry is moved to long ago, which commits its end: a write that began before the expiry and
    waited since has an old ``$$NOW``, and could otherwise still find it alive and renew it.

    Returns the number of entries removed, or ``None`` when the session is not an expired one.
    """
    expired = {"_id": key.document_id, "$expr": EXPIRED}
    found = yield from find_one_and_update(SESSIONS, expired, {"$set": {"expires_at": LONG_AGO}})
    if found is None:
        return None
    revision = documents.revision(found)
    removed = yield from remove_life(key, revision)
    if "clearing" in found:
        removed += yield from finish_clearing(key, found)
    _ = yield from delete_one(
        SESSIONS,
        {"_id": key.document_id, **heads.in_life(revision), "$expr": EXPIRED},
    )
    return removed


def was_over(key: SessionKey) -> Plan[bool]:
    """Whether an expired session is, or by now was, in the way; it is not any more."""
    if (yield from remove_expired(key)) is not None:
        return True
    return (yield from heads.read(key)) is None


def remove_left(key: SessionKey, revision: int) -> Plan[None]:
    """Remove the life of ``revision``, after its session was not found alive, if it is over indeed."""
    _ = yield from remove_expired(key)
    head = yield from find_one(SESSIONS, {"_id": key.document_id})
    if head is None or keys.life(documents.revision(head)) != keys.life(revision):
        _ = yield from remove_life(key, revision)


def finish_clearing(key: SessionKey, found: Document) -> Plan[int]:
    """Remove the life that a head notes as cleared, then the note; returns the entries removed."""
    removed = yield from remove_life(key, found["clearing"])
    _ = yield from update_one(
        SESSIONS,
        {"_id": key.document_id, "clearing": found["clearing"]},
        {"$unset": {"clearing": ""}},
    )
    return removed


def remove_life(key: SessionKey, revision: int) -> Plan[int]:
    """Remove the entries and payloads of one life, a bounded number in each command."""
    removed = 0
    while places := (yield from _oldest_places(key, revision)):
        chunk = heads.between(key, after=keys.life(revision), to=places[-1])
        removed += yield from delete_many(EVENTS, chunk)
    payloads_of_life = {**key.fields, "life": keys.life(revision)}
    while parts := (yield from find(_some_ids(payloads_of_life))):
        ids = [part["_id"] for part in parts]
        _ = yield from delete_many(PAYLOADS, {**key.fields, "_id": {"$in": ids}})
    return removed


def _oldest_places(key: SessionKey, revision: int) -> Plan[list[int]]:
    found = yield from find(
        finding(
            EVENTS,
            heads.of_life(key, revision),
            sort=(("revision", 1),),
            limit=_DELETE_PAGE,
            projection={"revision": 1},
        )
    )
    return [documents.revision(document) for document in found]


def _some_ids(selection: Document) -> Command:
    return finding(PAYLOADS, selection, limit=_DELETE_PAGE, projection={"_id": 1})
