"""State: what an application, a user and a session remember beside the conversation.

Three buckets, each one JSON text, as the ADK session service stores them. Keys of a delta go to the
application's bucket with the prefix ``app:``, to the user's with ``user:``, else to the session's.
Merging is shallow; ``None`` is stored as null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mnemongo import documents
from mnemongo.commands import Document, Operation, Plan, find_each, finding, operation, pause, update_one
from mnemongo.documents import Head
from mnemongo.keys import SessionKey
from mnemongo.plans import buckets, heads
from mnemongo.schema import APP_STATES, SESSIONS, USER_STATES

__all__ = ["State", "get", "merge"]


@dataclass(frozen=True, slots=True)
class State:
    """The three buckets, their keys without prefix."""

    session: Mapping[str, Any]
    user: Mapping[str, Any]
    app: Mapping[str, Any]

    @property
    def merged(self) -> dict[str, Any]:
        """One mapping, shared keys with their prefixes."""
        app = {buckets.APP_PREFIX + name: value for name, value in self.app.items()}
        user = {buckets.USER_PREFIX + name: value for name, value in self.user.items()}
        return {**self.session, **user, **app}


@operation()
def get(key: SessionKey) -> Plan[State]:
    """The state that a session sees. One round trip; empty where nothing is stored.

    A session that does not exist has an empty bucket of its own and sees the shared ones.
    """
    while True:
        found = yield from find_each(
            finding(SESSIONS, heads.alive(key), limit=1),
            finding(USER_STATES, {"_id": key.user_state_id}, limit=1),
            finding(APP_STATES, {"_id": key.app_name}, limit=1),
            heads.newest(key),
        )
        *buckets_found, tops = found
        if not (yield from _healed(key, buckets_found[0], tops)):
            return State(
                *(documents.decode_state(d[0].get("state"), d[0]["_id"]) if d else {} for d in buckets_found)
            )


def _healed(key: SessionKey, found: Sequence[Document], tops: Sequence[Document]) -> Plan[bool]:
    """Apply state that a crash (on a standalone server) left with its entry; whether there was any."""
    if not found:
        return False
    before = documents.head(found[0])
    after = yield from heads.caught_up_to(key, before, tops)
    return after.stored_state != before.stored_state


def merge(key: SessionKey, delta: Mapping[str, Any]) -> Operation[None]:
    """Merge keys into the buckets. Concurrent merges of different keys all stay.

    Args:
        key: the session; it must exist only when the delta has keys of its own.
        delta: JSON values by key, with the prefixes ``app:`` and ``user:`` for the shared buckets;
            ``temp:`` keys are dropped. All buckets change in one transaction.

    Raises:
        NotFoundError: there is no such session.
        DocumentError: a value is not JSON.

    >>> from mnemongo.plans import sessions
    >>> from mnemongo.testing import ModelStore
    >>> store, key = ModelStore(), SessionKey("shop", "ann", "s1")
    >>> _ = store.run(sessions.create(key))
    >>> store.run(merge(key, {"cart": 2, "user:name": "Ann"}))
    >>> store.run(get(key)).merged
    {'cart': 2, 'user:name': 'Ann'}
    """
    _ = buckets.encoded(delta)
    kept = {k: value for k, value in delta.items() if not k.startswith(buckets.TEMP_PREFIX)}
    shared, own = buckets.shared(kept), buckets.own(kept)
    if len(shared) + bool(own) > 1:
        return _merge_all(key, shared, own)
    return _merge_one(key, shared, own)


@operation()
def _merge_one(key: SessionKey, shared: Mapping[str, dict[str, Any]], own: Mapping[str, Any]) -> Plan[None]:
    head = yield from heads.current_or_none(key)  # what was left unapplied is older than this
    yield from buckets.merge_shared(key, shared)
    if own:
        yield from _merge_own(key, own, head)


@operation(atomic=True)
def _merge_all(key: SessionKey, shared: Mapping[str, dict[str, Any]], own: Mapping[str, Any]) -> Plan[None]:
    head = yield from heads.current_or_none(key)
    if own:
        yield from _merge_own(key, own, head)
    targets = buckets.shared_buckets(key, shared)
    finds = (finding(target.collection, {"_id": target.id}, limit=1) for target in targets)
    found = yield from find_each(*finds)
    for target, before in zip(targets, found, strict=True):
        if not (yield from buckets.merge_into(target, before[0] if before else None)):
            yield from buckets.merge_shared(key, {target.prefix: dict(target.delta)})


def _merge_own(key: SessionKey, delta: Mapping[str, Any], head: Head | None) -> Plan[None]:
    for attempt in count(1):
        if head is None:
            raise heads.missing(key)
        changes = {
            "state": {"$literal": buckets.merged(head.state, delta)},
            "update_time": heads.NOW_SECONDS,
            "expires_at": heads.RENEWED_EXPIRY,
        }
        unchanged = heads.alive(key, state=head.stored_state)
        reply = yield from update_one(SESSIONS, unchanged, [{"$set": changes}])
        if reply.matched:
            return
        yield from pause(attempt)
        head = yield from heads.read(key)
