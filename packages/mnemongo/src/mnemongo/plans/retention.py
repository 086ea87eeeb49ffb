"""Retention: giving back the space of what nobody can see any more, in bounded batches.

``sweep`` removes expired sessions and finishes interrupted deletes and clears; run it often. ``orphans``
walks through all sessions and removes what a writer that was killed left behind in one that was over;
run it seldom. Nothing living is touched by either.
"""

from __future__ import annotations

from dataclasses import dataclass

from mnemongo import documents, keys
from mnemongo.commands import Document, Operation, Plan, find, find_each, find_one, finding, operation
from mnemongo.keys import SessionKey, check_session_key
from mnemongo.plans import removal
from mnemongo.plans.arguments import check_count
from mnemongo.schema import EVENTS, PAYLOADS, SESSIONS

__all__ = ["Orphans", "Swept", "orphans", "sweep"]


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep removed: sessions, entries. ``finished``: nothing was left over."""

    sessions: int
    entries: int
    finished: bool


def sweep(*, limit: int = 100) -> Operation[Swept]:
    """Remove up to ``limit`` expired sessions, the longest expired first. Safe to repeat and to race.

    >>> from mnemongo.testing import ModelStore
    >>> ModelStore().run(sweep())
    Swept(sessions=0, entries=0, finished=True)
    """
    return _sweep(check_count(limit))


@operation()
def _sweep(limit: int) -> Plan[Swept]:
    expired = yield from find(
        finding(
            SESSIONS,
            {"expires_at": {"$exists": True}, "$expr": removal.EXPIRED},
            sort=(("expires_at", 1),),
            limit=limit,
            projection={"_id": 1},
        )
    )
    clearing = yield from find(finding(SESSIONS, {"clearing": {"$exists": True}}, limit=limit))
    removed = 0
    for document in filter(_is_ours, expired):
        removed += (yield from removal.remove_expired(SessionKey.of(document["_id"]))) or 0
    for document in filter(_is_ours, clearing):
        removed += yield from removal.finish_clearing(SessionKey.of(document["_id"]), document)
    return Swept(len(expired), removed, finished=max(len(expired), len(clearing)) < limit)


def _is_ours(document: Document) -> bool:
    """Whether it is a session's: a foreign document in the collection is left alone."""
    return isinstance(document["_id"], dict) and "session_id" in document["_id"]


@dataclass(frozen=True, slots=True)
class Orphans:
    """What one walk removed. ``next`` goes into ``after=`` for what follows; ``None``: the end."""

    entries: int
    next: SessionKey | None


def orphans(*, after: SessionKey | None = None, limit: int = 100) -> Operation[Orphans]:
    """Look through up to ``limit`` sessions for entries and payloads of lives that are over.

    Args:
        after: the ``next`` of the walk before; ``None``: from the beginning.
        limit: how many sessions, 1 to 1,000; each costs three round trips.

    >>> from mnemongo.testing import ModelStore
    >>> ModelStore().run(orphans())
    Orphans(entries=0, next=None)
    """
    if after is not None:
        check_session_key(after)
    return _orphans(after, check_count(limit))


@operation()
def _orphans(after: SessionKey | None, limit: int) -> Plan[Orphans]:
    removed = 0
    for _ in range(limit):
        key = yield from _session_after(after)
        if key is None:
            return Orphans(removed, None)
        removed += yield from _remove_orphans(key)
        after = key
    return Orphans(removed, after)


def _session_after(after: SessionKey | None) -> Plan[SessionKey | None]:
    """The next session that has an entry or a payload, by its key."""
    selection = {} if after is None else {"_id": {"$gt": after.beyond_id}}
    entries, parts = yield from find_each(
        *(
            finding(collection, selection, sort=(("_id", 1),), limit=1, projection={"_id": 1})
            for collection in (EVENTS, PAYLOADS)
        )
    )
    found = [SessionKey.of(document["_id"]) for document in (*entries, *parts)]
    return min(found, default=None)


def _remove_orphans(key: SessionKey) -> Plan[int]:
    removed = 0
    while (over := (yield from _a_life_that_is_over(key))) is not None:
        removed += yield from removal.remove_life(key, over)
    return removed


def _a_life_that_is_over(key: SessionKey) -> Plan[int | None]:
    """A life with entries or payloads that the head does not name.

    The head is read again after them: a life begins with its head, so one whose entries were seen before
    a head without it is over, and not merely too young for the first look.
    """
    head = yield from find_one(SESSIONS, {"_id": key.document_id})
    while True:
        living = None if head is None else keys.life(documents.revision(head))
        strays, parts = yield from find_each(
            finding(EVENTS, {**key.fields, **_beside("revision", living)}, limit=1),
            finding(PAYLOADS, {**key.fields, **_beside("life", living)}, limit=1),
        )
        lives = [keys.life(documents.revision(d)) for d in strays] + [int(d["life"]) for d in parts]
        if not lives:
            return None
        head = yield from find_one(SESSIONS, {"_id": key.document_id})
        if head is None or keys.life(documents.revision(head)) != lives[0]:
            return lives[0]


def _beside(field: str, life: int | None) -> Document:
    if life is None:
        return {}
    return {"$or": [{field: {"$lt": life}}, {field: {"$gt": keys.end_of_life(life)}}]}
