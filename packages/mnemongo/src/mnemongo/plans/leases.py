"""Leases: one writer at a time per session, by the server's clock, with a fencing token.

Three things keep a late holder out. Its append carries its expiry, and the server refuses the append
once that has passed. A takeover writes a fence at the session's next place, so the unique index refuses
whoever still counts from before it. And the token only grows, over releases too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

from mnemongo import documents, keys
from mnemongo.commands import (
    Document,
    DuplicateError,
    Operation,
    Plan,
    RefusedError,
    find,
    find_one_and_update,
    finding,
    operation,
    pause,
    update_one,
)
from mnemongo.documents import FENCE, Entry, Lease
from mnemongo.errors import InvalidKeyError, LeaseHeldError, LeaseLostError
from mnemongo.keys import SessionKey, check_identifier
from mnemongo.plans import heads, removal, sessions
from mnemongo.plans.arguments import milliseconds, optional_milliseconds
from mnemongo.schema import EVENTS, SESSIONS

__all__ = ["abandon", "acquire", "release", "renew"]

IN_TIME: Document = {"$expr": {"$gt": ["$lease.until", "$$NOW"]}}
"""The condition that a head's lease has not run out, by the server's clock."""


def acquire(
    key: SessionKey,
    *,
    owner: str,
    ttl: float,
    create: bool = False,
    session_ttl: float | None = None,
    nonce: str | None = None,
) -> Operation[Lease]:
    """Take the lease of a session. One round trip; one more when it is taken over from a lost holder.

    Args:
        key: the session.
        owner: who takes it, for people to read.
        ttl: seconds until it runs out unless renewed, by the server's clock.
        create: create the session when it is not there.
        session_ttl: the ``ttl`` of a session that is created.
        nonce: names this attempt, for ``abandon``; default: drawn.

    Returns:
        The lease. Repeating the same operation value while it holds returns the same lease.

    Raises:
        LeaseHeldError: another holder has it; ``found`` is its expiry.
        NotFoundError: no such session, and ``create`` is false.
    """
    _ = check_identifier(owner, "owner")
    nonce = check_identifier(nonce or keys.new_nonce(), "nonce")
    until = {"$add": ["$$NOW", milliseconds(ttl)]}
    pipeline = list(_taken(owner, nonce, until))
    if create:
        ttl_ms = optional_milliseconds(session_ttl, "session_ttl")
        fresh = sessions.fresh_head(key, "{}", ttl_ms, nonce)
        pipeline = [*fresh, *pipeline]
    return _acquire(key, nonce, pipeline, create)


@operation()
def _acquire(
    key: SessionKey,
    nonce: str,
    pipeline: Sequence[Document],
    create: bool,  # noqa: FBT001 - internal
) -> Plan[Lease]:
    selection = {"_id": key.document_id} if create else heads.alive(key)
    for attempt in count(1):
        found = yield from find_one_and_update(SESSIONS, selection, pipeline, upsert=create)
        if found is None:
            raise heads.missing(key)
        stored = found["lease"]
        if stored.get("nonce") == nonce:
            lease = _lease(key, found)
            return (yield from _fenced(lease)) if stored["takeover"] else lease
        over = found.get("expires_at") is not None and (yield from removal.was_over(key))
        if not over and stored.get("owner") is not None:
            raise _held(key, found)
        yield from pause(attempt)
    raise AssertionError("unreachable")


def check_session(key: SessionKey, lease: Lease | None) -> None:
    """Refuse a lease of another session."""
    if lease is not None and lease.key != key:
        raise InvalidKeyError(f"the lease is one of {lease.key}, not of {key}", key=key, found=lease.key)


def _taken(owner: str, nonce: str, until: Document) -> Sequence[Document]:
    """Write the lease where it is free, run out, or already this attempt's own.

    In an expired session it is cleared instead: nobody may hold, or hold again, what is over.
    """
    open_ = {"$gt": ["$lease.until", None]}
    mine = {"$eq": ["$lease.nonce", {"$literal": nonce}]}
    free = {"$or": [{"$not": [open_]}, {"$lte": ["$lease.until", "$$NOW"]}]}
    token = {"$ifNull": ["$lease.token", 0]}
    taken = {
        "owner": {"$literal": owner},
        "nonce": {"$literal": nonce},
        "until": until,
        "token": {"$add": [token, 1]},
        "takeover": open_,
    }
    branches = (
        (removal.EXPIRED, {"token": token}),
        (mine, {"$mergeObjects": ["$lease", {"until": until}]}),
        (free, taken),
    )
    cases = [{"case": condition, "then": lease} for condition, lease in branches]
    decided = {"$switch": {"branches": cases, "default": "$lease"}}
    return [
        {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"lease": decided}]}},
        {"$set": {"expires_at": {"$cond": [mine, heads.RENEWED_EXPIRY, "$expires_at"]}}},
    ]


def _lease(key: SessionKey, head: Document) -> Lease:
    stored = head["lease"]
    return Lease(
        key=key,
        owner=stored["owner"],
        token=int(stored["token"]),
        until=stored["until"],
        revision=documents.revision(head),
        nonce=stored["nonce"],
    )


def _held(key: SessionKey, found: Document) -> LeaseHeldError:
    owner, until = found["lease"]["owner"], found["lease"]["until"]
    return LeaseHeldError(
        f"{owner!r} is at work on {key} until {until.isoformat()}: wait for it, or come back later",
        key=key,
        found=until,
    )


def _fenced(lease: Lease) -> Plan[Lease]:
    """Close the next place to earlier holders; returns the lease with the revision it starts from."""
    fence = _fence(keys.fence_key(lease.token, lease.nonce), lease.until.timestamp())
    revision = lease.revision
    for attempt in count(1):
        try:
            yield from insert_held(documents.entry_document(lease.key, fence, revision + 1), lease)
        except DuplicateError as duplicate:
            if duplicate.on_id:  # this very fence, written by an attempt whose reply was lost
                return (yield from _at_top(lease))
            revision = (yield from heads.current(lease.key)).revision
            yield from pause(attempt)
        except RefusedError:
            _ = yield from confirmed(lease)
        else:
            return documents.placed(lease, revision + 1)
    raise AssertionError("unreachable")


def _fence(fence_key: str, timestamp: float) -> Entry:
    event = json.dumps({"id": fence_key, "author": "mnemongo", "timestamp": timestamp})
    return Entry(fence_key, event, timestamp, kind=FENCE)


def gap_fence(key: SessionKey, revision: int) -> Document:
    """An entry that fills the place ``revision`` and is never shown."""
    return documents.entry_document(key, _fence(keys.gap_key(revision), 0.0), revision)


def _at_top(lease: Lease) -> Plan[Lease]:
    head = yield from heads.current(lease.key)
    return documents.placed(lease, head.revision)


def insert_held(document: Document, lease: Lease) -> Plan[None]:
    """Insert an entry on the condition that the lease has not run out, in one command.

    An upsert whose filter matches nothing inserts; its pipeline sees the server's time. Past the expiry
    it sets another ``_id``, which the server refuses (ImmutableField). 5 % dearer than a plain insert.

    Raises:
        RefusedError: the lease has run out, as far as ``lease`` knows.
        DuplicateError: the key or the place is taken.
    """
    never = {**lease.key.fields, "_id": document["_id"], "revision": -1}
    in_time = {"$lt": ["$$NOW", lease.until]}
    guarded = {"$mergeObjects": [{"$literal": document}, {"_id": {"$cond": [in_time, "$_id", None]}}]}
    _ = yield from update_one(EVENTS, never, [{"$replaceWith": guarded}], upsert=True)


def confirmed(lease: Lease) -> Plan[Lease]:
    """The lease with its present expiry, if it still holds.

    Raises:
        LeaseLostError: it ran out, was taken over or released.
        NotFoundError: the session is gone.
    """
    holds = {**by_token(lease), **IN_TIME}
    found = yield from find(finding(SESSIONS, holds, limit=1))
    if found:
        return documents.moved(lease, until=found[0]["lease"]["until"])
    _ = yield from heads.required(lease.key)
    raise lost(lease)


def lost(lease: Lease) -> LeaseLostError:
    """The error for a lease that no longer holds."""
    return LeaseLostError(
        f"the lease {lease.token} of {lease.key} ran out or was taken over: acquire it again",
        key=lease.key,
        expected=lease.token,
    )


def by_token(lease: Lease) -> Document:
    """The filter of the session's head while this very lease stands in it, and it has not expired."""
    return {
        "_id": lease.key.document_id,
        "lease.token": lease.token,
        "lease.nonce": lease.nonce,
        **heads.in_life(lease.revision),
        **heads.ALIVE,
    }


@operation()
def abandon(key: SessionKey, *, nonce: str) -> Plan[None]:
    """Give back the lease that an attempt may have got without learning of it, if it has.

    For a caller that was interrupted while it acquired. One round trip.
    """
    mine = {"_id": key.document_id, "lease.nonce": nonce}
    free = {"lease.owner": None, "lease.nonce": None, "lease.until": None}
    _ = yield from update_one(SESSIONS, mine, {"$set": free})


def renew(lease: Lease, *, ttl: float) -> Operation[Lease]:
    """Move the lease's expiry to ``ttl`` seconds from now. One round trip.

    Raises:
        LeaseLostError: it has run out, was taken over or released, or its session was cleared.
    """
    return _renew(lease, milliseconds(ttl))


@operation()
def _renew(lease: Lease, ttl_ms: int) -> Plan[Lease]:
    holds = {**by_token(lease), **IN_TIME}
    until = {"$set": {"lease.until": {"$add": ["$$NOW", ttl_ms]}}}
    kept_alive = {"$set": {"expires_at": heads.RENEWED_EXPIRY}}
    found = yield from find_one_and_update(SESSIONS, holds, [until, kept_alive])
    if found is None:
        raise lost(lease)
    return documents.moved(lease, until=found["lease"]["until"])


@operation()
def release(lease: Lease, *, revision: int | None = None) -> Plan[bool]:
    """Give the lease back and move the head to ``revision``, the holder's last entry. One round trip.

    Returns:
        Whether it was still held. Entries written under a lease that was lost later stay stored.

    Raises:
        StaleRevisionError: the session was cleared or deleted, with what was written under the lease.
        NotFoundError: the same, and there is no session now.
    """
    to = lease.revision if revision is None else revision
    free = {"token": lease.token, "owner": None, "nonce": None, "until": None}
    pipeline = [{"$set": {"lease": free}}, *heads.moved_to({"$max": ["$revision", to]})]
    for held in (True, False):
        selection = by_token(lease) | (IN_TIME if held else {})
        reply = yield from update_one(SESSIONS, selection, pipeline)
        if reply.matched:
            return held
    return (yield from _given_back(lease, to, free))


def _given_back(lease: Lease, to: int, free: Document) -> Plan[bool]:
    """Release what cannot be released in the usual way: say why, and leave nothing behind."""
    mine = {
        "_id": lease.key.document_id,
        "lease.token": lease.token,
        "lease.nonce": lease.nonce,
    }
    _ = yield from update_one(SESSIONS, mine, {"$set": {"lease": free}})
    head = yield from heads.read(lease.key)
    if head is not None and keys.life(head.revision) == keys.life(to):
        return False
    yield from removal.remove_left(lease.key, to)
    raise heads.stale(lease.key, to, head.revision) if head else heads.missing(lease.key)
