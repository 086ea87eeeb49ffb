"""What stands under an entry's key already: the same work, other work, or what a dead writer left."""

from __future__ import annotations

from mnemongo import keys
from mnemongo.commands import DuplicateError, Plan, delete_one, insert_one
from mnemongo.documents import Entry, Head, Stored
from mnemongo.errors import KeyConflictError
from mnemongo.keys import SessionKey
from mnemongo.plans import heads, leases
from mnemongo.schema import EVENTS


def is_stray(stored: Stored, head: Head) -> bool:
    """Left behind by a writer that died before it could withdraw it: of another life, or past a gap."""
    same_life = keys.life(stored.revision) == keys.life(head.revision)
    return not same_life or stored.revision > head.revision


def check_same(key: SessionKey, entry: Entry, stored: Stored) -> None:
    """Refuse a key that holds other content."""
    if stored.entry.digest != entry.digest:
        raise KeyConflictError(
            f"the key {entry.key!r} of {key} holds other content: a key names one piece of work",
            key=entry.key,
            expected=entry.digest,
            found=stored.entry.digest,
        )


def withdraw(key: SessionKey, entry_key: str, revision: int) -> Plan[None]:
    """Remove an entry that does not count, if it still stands where it was seen.

    Should others have closed the gap below it meanwhile, its place is filled: a hole below the head would
    hide what follows.
    """
    mine = {**key.fields, "_id": key.entry_id(entry_key), "revision": revision}
    if not (yield from delete_one(EVENTS, mine)):
        return
    head = yield from heads.read(key)
    if head is None or keys.life(head.revision) != keys.life(revision) or head.revision < revision:
        return
    try:
        yield from insert_one(EVENTS, leases.gap_fence(key, revision))
    except DuplicateError:  # another has filled it
        return
