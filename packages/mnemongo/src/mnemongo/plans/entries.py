"""Entries: append one, append several with their state, read them.

Appending one entry is one insert at the next place; the unique index on the place decides who was first.
The head follows in a second command. An append that finds its session deleted or cleared withdraws its
entry and fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from mnemongo import documents, keys
from mnemongo.commands import (
    Document,
    DuplicateError,
    Operation,
    Plan,
    RefusedError,
    delete_one,
    find_each,
    finding,
    insert_many,
    insert_one,
    operation,
    pause,
    update_one,
)
from mnemongo.documents import Entry, Head, Lease, Stored
from mnemongo.errors import DocumentTooLargeError, InvalidKeyError, KeyConflictError
from mnemongo.keys import SessionKey
from mnemongo.plans import buckets, heads, leases, payloads, removal
from mnemongo.plans.reading import get, last, page, turn, turns
from mnemongo.schema import BATCH_BYTES, EVENTS, SESSIONS

__all__ = ["append", "append_many", "get", "last", "page", "turn", "turns"]


def append(
    key: SessionKey,
    entry: Entry,
    *,
    expected: int | None = None,
    after: int | None = None,
    lease: Lease | None = None,
    settle: bool = True,
) -> Operation[Stored]:
    """Append one entry: one insert, then the head. With state in its event, one transaction.

    Args:
        key: the session, which must exist.
        entry: what to append.
        expected: the session's last revision; the append fails when it has moved on.
        after: a revision of the session: where to look for a place first. Saves a read, decides nothing.
        lease: the lease it is written under. The server refuses the entry once the lease has run out.
        settle: move the head, and see in the same command that the session is still there. A holder of
            the lease may leave both to ``leases.release``, and save a round trip for each entry.

    Returns:
        The entry and its revision, the next append's ``expected``. A repeat (same key, same content)
        returns what is stored, with ``replayed``.

    Raises:
        StaleRevisionError: the session is not at ``expected``, or was deleted or cleared since.
        KeyConflictError: the key is stored with other content.
        LeaseLostError: the lease ran out or was taken over.
        NotFoundError: there is no such session.
        DocumentTooLargeError: an entry with state is over the limit of one transaction.
    """
    for name, value in (("expected", expected), ("after", after)):
        if value is not None:
            _ = keys.check_revision(value, name)
    _check_lease(key, lease)
    if entry.state_delta:
        return _with_state(key, entry, expected, lease)
    return _append(key, entry, expected, after, lease, settle=settle)


def _check_lease(key: SessionKey, lease: Lease | None) -> None:
    if lease is not None and lease.key != key:
        raise InvalidKeyError(f"the lease is one of {lease.key}, not of {key}", key=key, found=lease.key)


@operation()
def _append(
    key: SessionKey,
    entry: Entry,
    expected: int | None,
    after: int | None,
    lease: Lease | None,
    *,
    settle: bool,
) -> Plan[Stored]:
    known = expected if expected is not None else after
    if known is None:
        known = lease.revision if lease else (yield from heads.current(key)).revision
    for attempt in count(1):
        try:
            yield from _insert(key, entry, known + 1, lease)
        except RefusedError:
            lease = yield from leases.confirmed(_given(lease))
        except DuplicateError as duplicate:
            if duplicate.on_id:
                stored = yield from _replayed(key, entry, known)
                if stored is not None:
                    return stored
            else:
                known = yield from _next_place(key, known, expected, lease)
            yield from pause(attempt)
        else:
            break
    if settle or lease is None:
        yield from _settle(key, entry, known + 1)
    return Stored(entry, known + 1)


def _given(lease: Lease | None) -> Lease:
    if lease is None:  # only a guarded insert is refused
        raise AssertionError("an insert without a lease has no guard")
    return lease


def _insert(key: SessionKey, entry: Entry, revision: int, lease: Lease | None) -> Plan[None]:
    document = yield from payloads.written(key, entry, revision)
    if lease is None:
        yield from insert_one(EVENTS, document)
    else:
        yield from leases.insert_held(document, lease)


def _next_place(key: SessionKey, known: int, expected: int | None, lease: Lease | None) -> Plan[int]:
    """Where the session ends, after somebody else took the place; or why that must not be asked."""
    head = yield from heads.current(key)
    if lease is not None:
        _ = yield from leases.confirmed(lease)
    if keys.life(head.revision) != keys.life(known):
        raise heads.stale(key, known, head.revision)
    if expected is not None:
        raise heads.stale(key, expected, head.revision)
    return head.revision


def _replayed(key: SessionKey, entry: Entry, known: int) -> Plan[Stored | None]:
    """What is stored under the entry's key; ``None`` when it is (now) free for another attempt."""
    mine = finding(EVENTS, {**key.fields, "_id": key.entry_id(entry.key)}, limit=1)
    head, (found,) = yield from heads.read_with(key, mine)
    if keys.life(head.revision) != keys.life(known):
        raise heads.stale(key, known, head.revision)
    if not found:
        return None
    stored = documents.stored_entry(found[0])
    if stored.revision > head.revision:
        head = yield from heads.caught_up(key, head)
    if _is_stray(stored, head):
        yield from _withdraw(key, stored.entry.key, stored.revision)
        return None
    _check_same(key, entry, stored)
    (whole,) = yield from payloads.joined(key, found)
    return Stored(whole.entry, stored.revision, replayed=True)


def _is_stray(stored: Stored, head: Head) -> bool:
    """Left behind by a writer that died before it could withdraw it: of another life, or past a gap."""
    same_life = keys.life(stored.revision) == keys.life(head.revision)
    return not same_life or stored.revision > head.revision


def _check_same(key: SessionKey, entry: Entry, stored: Stored) -> None:
    if stored.entry.digest != entry.digest:
        raise KeyConflictError(
            f"the key {entry.key!r} of {key} holds other content: a key names one piece of work",
            key=entry.key,
            expected=entry.digest,
            found=stored.entry.digest,
        )


def _withdraw(key: SessionKey, entry_key: str, revision: int) -> Plan[None]:
    _ = yield from delete_one(EVENTS, {**key.fields, "_id": key.entry_id(entry_key), "revision": revision})


def _settle(key: SessionKey, entry: Entry, revision: int) -> Plan[None]:
    """Move the head over the entry; where the session is not what it was, withdraw the entry."""
    reply = yield from update_one(SESSIONS, heads.alive(key, revision=revision - 1), heads.moved_to(revision))
    if reply.matched:
        return
    head = yield from heads.read(key)
    if head is not None and keys.life(head.revision) == keys.life(revision):
        if head.revision < revision:
            head = yield from heads.rolled_forward(key, head)
        if head.revision >= revision:
            return
        yield from _withdraw(key, entry.key, revision)
    else:
        _ = yield from removal.remove_life(key, revision)  # it is over: nothing of it comes back
    if head is None:
        raise heads.missing(key)
    raise heads.stale(key, revision - 1, head.revision)


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
    _check_lease(key, lease)
    if len({entry.key for entry in batch}) != len(batch):
        raise InvalidKeyError("a key occurs twice in one batch", key=key)
    size = sum(entry.size for entry in batch)
    if size > BATCH_BYTES:
        raise DocumentTooLargeError(
            f"the batch has {size} bytes, one transaction carries {BATCH_BYTES}: append singly",
            key=key,
            expected=BATCH_BYTES,
            found=size,
        )
    return _append_many(key, tuple(batch), expected, lease)


def _with_state(
    key: SessionKey, entry: Entry, expected: int | None, lease: Lease | None
) -> Operation[Stored]:
    batch = append_many(key, (entry,), expected=expected, lease=lease)

    @operation(atomic=True)
    def append() -> Plan[Stored]:
        (stored,) = yield from batch
        return stored

    return append()


@operation(atomic=True)
def _append_many(
    key: SessionKey, batch: tuple[Entry, ...], expected: int | None, lease: Lease | None
) -> Plan[tuple[Stored, ...]]:
    parts = buckets.shared(_delta(batch))
    head, stored, shared = yield from _before(key, batch, parts)
    missing = [entry for entry in batch if entry.key not in stored]
    if expected is not None and missing and head.revision != expected:
        raise heads.stale(key, expected, head.revision)
    if missing:
        yield from _write(key, head, missing, lease, shared)
    places = count(head.revision + 1)
    return tuple(stored.get(e.key) or Stored(e, next(places)) for e in batch)


def _delta(batch: Sequence[Entry]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for entry in batch:
        merged |= entry.state_delta
    return merged


def _before(
    key: SessionKey, batch: tuple[Entry, ...], parts: Mapping[str, dict[str, Any]]
) -> Plan[tuple[Head, dict[str, Stored], list[tuple[buckets.Bucket, Document | None]]]]:
    """One round trip: the head, what of the batch is stored already, the buckets to merge into."""
    targets = buckets.shared_buckets(key, parts)
    ids = [key.entry_id(entry.key) for entry in batch]
    newest = finding(EVENTS, key.fields, sort=(("revision", -1),), limit=1, projection={"revision": 1})
    (found, tops, mine, *states) = yield from find_each(
        finding(SESSIONS, heads.alive(key), limit=1),
        newest,
        finding(EVENTS, {**key.fields, "_id": {"$in": ids}}),
        *(finding(target.collection, {"_id": target.id}, limit=1) for target in targets),
    )
    if not found:
        raise heads.missing(key)
    head = documents.head(found[0])
    if tops and tops[0]["revision"] != head.revision:
        head = yield from heads.rolled_forward(key, head)
    stored = yield from _stored_before(key, head, batch, mine)
    values = [state[0] if state else None for state in states]
    return head, stored, list(zip(targets, values, strict=True))


def _stored_before(
    key: SessionKey, head: Head, batch: tuple[Entry, ...], found: Sequence[Document]
) -> Plan[dict[str, Stored]]:
    by_key = {entry.key: entry for entry in batch}
    stored: dict[str, Stored] = {}
    for before in (yield from payloads.joined(key, found)):
        if _is_stray(before, head):
            yield from _withdraw(key, before.entry.key, before.revision)
            continue
        _check_same(key, by_key[before.entry.key], before)
        stored[before.entry.key] = Stored(before.entry, before.revision, replayed=True)
    return stored


def _write(
    key: SessionKey,
    head: Head,
    batch: Sequence[Entry],
    lease: Lease | None,
    shared: Sequence[tuple[buckets.Bucket, Document | None]],
) -> Plan[None]:
    """The entries first: on a standalone server what follows is healed from them."""
    first = head.revision + 1
    inserted = []
    for revision, entry in enumerate(batch, start=first):
        inserted.append((yield from payloads.written(key, entry, revision)))
    yield from insert_many(EVENTS, inserted)
    for bucket, found in shared:
        if not (yield from buckets.merge_into(bucket, found)):
            yield from buckets.merge_shared(key, {bucket.prefix: dict(bucket.delta)})
    delta = buckets.own(_delta(batch))
    state = buckets.merged(head.state, delta) if delta else None
    yield from _move_head(key, head, head.revision + len(batch), state, lease)


def _move_head(key: SessionKey, head: Head, to: int, state: str | None, lease: Lease | None) -> Plan[None]:
    selection = heads.alive(key, revision=head.revision)
    if lease is not None:
        in_time = {"$expr": {"$gt": ["$lease.until", "$$NOW"]}}
        selection = {"$and": [selection, leases.by_token(lease), in_time]}
    reply = yield from update_one(SESSIONS, selection, heads.moved_to(to, state=state))
    if reply.matched:
        return
    if lease is not None:
        _ = yield from leases.confirmed(lease)
    now = yield from heads.required(key)
    if now.revision < to:
        raise heads.stale(key, head.revision, now.revision)
