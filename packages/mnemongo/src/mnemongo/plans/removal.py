"""Removing what is over: the entries and payloads of a life that a session has left behind.

A life is drawn anew for each session created or cleared, so one that its head no longer names never comes
back: removing it, in bounded batches, can race with anything.
"""

from __future__ import annotations

from mnemongo import documents, keys
from mnemongo.commands import Command, Document, Plan, delete_many, delete_one, find, finding, update_one
from mnemongo.keys import SessionKey
from mnemongo.plans import heads
from mnemongo.schema import EVENTS, PAYLOADS, SESSIONS

EXPIRED: Document = {"$and": [{"$gt": ["$expires_at", None]}, {"$lte": ["$expires_at", "$$NOW"]}]}
"""Whether a head's session is over, by the server's clock."""
_DELETE_PAGE = 1000


def remove_expired(key: SessionKey) -> Plan[int | None]:
    """Remove what an expired session left behind, the head last.

    Returns the number of entries removed, or ``None`` when the session is not an expired one.
    """
    found = yield from find(finding(SESSIONS, {"_id": key.document_id, "$expr": EXPIRED}, limit=1))
    if not found:
        return None
    revision = documents.revision(found[0])
    removed = yield from remove_life(key, revision)
    if "clearing" in found[0]:
        removed += yield from finish_clearing(key, found[0])
    _ = yield from delete_one(
        SESSIONS,
        {"_id": key.document_id, **heads.in_life(revision), "$expr": EXPIRED},
    )
    return removed


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
