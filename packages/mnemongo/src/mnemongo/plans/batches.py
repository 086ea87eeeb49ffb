"""Several entries, and the state that their events carry, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mnemongo import documents, keys
from mnemongo.commands import (
    Document,
    Operation,
    Plan,
    RefusedError,
    find,
    find_each,
    finding,
    insert_many,
    operation,
    update_one,
)
from mnemongo.documents import Entry, Head, Lease, Stored
from mnemongo.errors import DocumentTooLargeError, InvalidKeyError
from mnemongo.keys import SessionKey
from mnemongo.plans import buckets, heads, leases, payloads, replays
from mnemongo.schema import BATCH_BYTES, EVENTS, SESSIONS


def append_many(
    key: SessionKey,
    batch: Sequence[Entry],
    *,
    expected: int | None = None,
    lease: Lease | None = None,
) -> Operation[tuple[Stored, ...]]:
    """Append several entries, and the state their events carry, in one transaction.

    Readers see all of them or none. On a standalone server, which has no transactions, the entries go
    first, one by one, and state that a crash left unapplied is applied at the next access.

    Args:
        key: the session, which must exist.
        batch: the entries in order; their keys differ. Together at most 64 MiB of payload.
        expected: the session's last revision; ``None``: wherever it is.
        lease: the lease they are written under.

    Returns:
        What is stored, in the order given. Entries stored before are returned as they are.

    Raises:
        StaleRevisionError, KeyConflictError, LeaseLostError, NotFoundError: as for ``append``.
        DocumentTooLargeError: the batch is over the limit: append its large entries one by one.
        InvalidKeyError: a key occurs twice.
    """
    if expected is not None:
        _ = keys.check_revision(expected)
    leases.check_session(key, lease)
    if len({entry.key for entry in batch}) != len(batch):
        raise InvalidKeyError("a key occurs twice in one batch", key=key)
    for entry in batch:
        payloads.check_entry(entry)
    size = sum(entry.size for entry in batch)
    if size > BATCH_BYTES:
        raise DocumentTooLargeError(
            f"the batch has {size} bytes, one transaction carries {BATCH_BYTES}: append singly",
            key=key,
            expected=BATCH_BYTES,
            found=size,
        )
    return _append_many(key, tuple(batch), expected, lease)


@operation(atomic=True)
def _append_many(
    key: SessionKey, batch: tuple[Entry, ...], expected: int | None, lease: Lease | None
) -> Plan[tuple[Stored, ...]]:
    before = yield from _before(key, batch)
    missing = [entry for entry in batch if entry.key not in before.stored]
    if expected is not None and missing and not before.is_at(expected):
        raise heads.stale(key, expected, before.head.revision)
    if missing:
        yield from _write(key, before, missing, lease)
    places = count(before.head.revision + 1)
    return tuple(before.stored.get(e.key) or Stored(e, next(places)) for e in batch)


def _delta(batch: Sequence[Entry]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for entry in batch:
        merged |= entry.state_delta
    return merged


@dataclass(frozen=True, slots=True)
class _Before:
    """What a batch meets: the head, which of its entries are stored, the shared state by prefix."""

    document: Document
    head: Head
    stored: Mapping[str, Stored]
    shared: Mapping[str, Document | None]

    def is_at(self, expected: int) -> bool:
        """Whether nothing but the batch's own first entries (a standalone's) came after ``expected``."""
        own = sum(stored.revision > expected for stored in self.stored.values())
        return self.head.revision == expected + own

    def lease(self, mine: Lease) -> Lease:
        """The caller's lease with its present expiry; ``LeaseLostError`` when another stands there."""
        now = self.document.get("lease") or {}
        if (now.get("token"), now.get("nonce")) != (mine.token, mine.nonce):
            raise leases.lost(mine)
        return documents.moved(mine, until=now["until"])


def _insert_guarded(document: Document, lease: Lease) -> Plan[None]:
    try:
        yield from leases.insert_held(document, lease)
    except RefusedError as refused:
        raise leases.lost(lease) from refused


def _before(key: SessionKey, batch: tuple[Entry, ...]) -> Plan[_Before]:
    """One round trip, unless something was left behind."""
    targets = buckets.shared_buckets(key, buckets.shared(_delta(batch)))
    ids = [key.entry_id(entry.key) for entry in batch]
    found, tops, mine, *states = yield from find_each(
        finding(SESSIONS, heads.alive(key), limit=1),
        heads.newest(key),
        finding(EVENTS, {**key.fields, "_id": {"$in": ids}}),
        *(finding(target.collection, {"_id": target.id}, limit=1) for target in targets),
    )
    if not found:
        raise heads.missing(key)
    head = documents.head(found[0])
    if tops and tops[0]["revision"] != head.revision:
        head = yield from heads.rolled_forward(key, head)
        head = yield from _past_strays(key, head, len(batch))
    stored = yield from _stored_before(key, head, batch, mine)
    values = {
        target.prefix: state[0] if state else None for target, state in zip(targets, states, strict=True)
    }
    return _Before(found[0], head, stored, values)


def _past_strays(key: SessionKey, head: Head, room: int) -> Plan[Head]:
    """Close the gaps below entries that stand in the next ``room`` places, which then count.

    Such an entry was put past a gap by a writer that died before it could withdraw it. Closing the gap
    races with nothing; removing the entry could remove one that others have just made count.
    """
    while True:
        ahead = heads.between(key, after=head.revision, to=head.revision + room)
        strays = yield from find(finding(EVENTS, ahead, sort=(("revision", 1),), limit=1))
        if not strays:
            return head
        gap = range(head.revision + 1, documents.revision(strays[0]))
        if gap:  # else it came after the head was read, and counts already
            yield from insert_many(EVENTS, [leases.gap_fence(key, revision) for revision in gap])
        head = yield from heads.rolled_forward(key, head)


def _stored_before(
    key: SessionKey, head: Head, batch: tuple[Entry, ...], found: Sequence[Document]
) -> Plan[dict[str, Stored]]:
    by_key = {entry.key: entry for entry in batch}
    stored: dict[str, Stored] = {}
    for before in (yield from payloads.joined(key, found)):
        if replays.is_stray(before, head):
            yield from replays.withdraw(key, before.entry.key, before.revision)
            continue
        replays.check_same(key, by_key[before.entry.key], before)
        stored[before.entry.key] = Stored(before.entry, before.revision, replayed=True)
    return stored


def _write(key: SessionKey, before: _Before, batch: Sequence[Entry], lease: Lease | None) -> Plan[None]:
    """The entries first: on a standalone server what follows is healed from them."""
    head = before.head
    inserted = []
    for revision, entry in enumerate(batch, start=head.revision + 1):
        inserted.append((yield from payloads.written(key, entry, revision)))
    if lease is not None:  # the first one is guarded: a standalone server cannot take the batch back
        yield from _insert_guarded(inserted.pop(0), before.lease(lease))
    if inserted:
        yield from insert_many(EVENTS, inserted)
    delta = _delta(batch)
    for bucket in buckets.shared_buckets(key, buckets.shared(delta)):
        if not (yield from buckets.merge_into(bucket, before.shared[bucket.prefix])):
            yield from buckets.merge_shared(key, {bucket.prefix: dict(bucket.delta)})
    own = buckets.own(delta)
    state = buckets.merged(head.state, own) if own else None
    yield from _move_head(key, head, head.revision + len(batch), state, lease)


def _move_head(key: SessionKey, head: Head, to: int, state: str | None, lease: Lease | None) -> Plan[None]:
    selection = heads.unchanged(key, head)
    if lease is not None:
        selection = {"$and": [selection, leases.by_token(lease), leases.IN_TIME]}
    reply = yield from update_one(SESSIONS, selection, heads.moved_to(to, state=state))
    if reply.matched:
        return
    if lease is not None:
        _ = yield from leases.confirmed(lease)
    now = yield from heads.required(key)  # on a standalone server others may have been in between
    if keys.life(now.revision) == keys.life(to):
        now = yield from heads.rolled_forward(key, now)
    if keys.life(now.revision) != keys.life(to) or now.revision < to:
        raise heads.stale(key, head.revision, now.revision)
