"""Entries: append one; and the door to appending several and to reading.

Appending one entry is one insert at the next place; the unique index on the place decides who was first.
The head follows in a second command. An append that finds its session deleted or cleared withdraws its
entry and fails.
"""

from __future__ import annotations

from itertools import count

from mnemongo import documents, keys
from mnemongo.commands import (
    DuplicateError,
    Operation,
    Plan,
    RefusedError,
    find_each,
    finding,
    insert_one,
    operation,
    pause,
    update_one,
)
from mnemongo.documents import Entry, Lease, Stored
from mnemongo.keys import SessionKey
from mnemongo.plans import heads, leases, payloads, removal, replays
from mnemongo.plans.batches import append_many
from mnemongo.plans.reading import get, last, page, turn, turns
from mnemongo.schema import EVENTS, SESSIONS

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
        DocumentTooLargeError: over 256 MiB, or with state over the 64 MiB of one transaction.
    """
    for name, value in (("expected", expected), ("after", after)):
        if value is not None:
            _ = keys.check_revision(value, name)
    payloads.check_entry(entry)
    leases.check_session(key, lease)
    if entry.state_delta:
        return _with_state(key, entry, expected, lease)
    return _append(key, entry, expected, after, lease, settle=settle)


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
                if attempt > 1:  # before looking: what is seen after a pause is what is so now
                    yield from pause(attempt)
                known = yield from _next_place(key, known, expected, lease)
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
    if replays.is_stray(stored, head):
        yield from replays.withdraw(key, stored.entry.key, stored.revision)
        return None
    replays.check_same(key, entry, stored)
    (whole,) = yield from payloads.joined(key, found)
    return Stored(whole.entry, stored.revision, replayed=True)


def _settle(key: SessionKey, entry: Entry, revision: int) -> Plan[None]:
    """Move the head over the entry; where the session is not what it was, withdraw the entry."""
    reply = yield from update_one(SESSIONS, heads.alive(key, revision=revision - 1), heads.moved_to(revision))
    if not reply.matched:
        yield from _settle_slowly(key, entry, revision)


def _settle_slowly(key: SessionKey, entry: Entry, revision: int) -> Plan[None]:
    mine = {**key.fields, "_id": key.entry_id(entry.key), "revision": revision}
    found, placed = yield from find_each(
        finding(SESSIONS, heads.alive(key), limit=1), finding(EVENTS, mine, limit=1)
    )
    head = documents.head(found[0]) if found else None
    if head is None or keys.life(head.revision) != keys.life(revision):
        yield from removal.remove_left(key, revision)
        raise heads.stale(key, revision - 1, head.revision) if head else heads.missing(key)
    if placed and head.revision < revision:
        head = yield from heads.rolled_forward(key, head)
    if not placed or head.revision < revision:  # past a gap: the caller's revision never was
        yield from replays.withdraw(key, entry.key, revision)
        raise heads.stale(key, revision - 1, head.revision)


def _with_state(
    key: SessionKey, entry: Entry, expected: int | None, lease: Lease | None
) -> Operation[Stored]:
    batch = append_many(key, (entry,), expected=expected, lease=lease)

    @operation(atomic=True)
    def append() -> Plan[Stored]:
        (stored,) = yield from batch
        return stored

    return append()
