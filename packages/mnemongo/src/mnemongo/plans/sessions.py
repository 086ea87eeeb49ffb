"""Sessions: create, get, list, clear, delete.

A delete is committed by marking the head as expired, which hides the whole session in one write; its
entries and payloads are removed in bounded batches, the head last. Clearing gives the head a new life,
which hides the old one in one write, notes the old one in the head, and removes its entries. What was
interrupted is finished by ``retention.sweep``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemongo import documents, keys
from mnemongo.commands import (
    Document,
    Operation,
    Plan,
    find,
    find_one_and_update,
    finding,
    operation,
    update_one,
)
from mnemongo.documents import Head, Page
from mnemongo.errors import AlreadyExistsError, DocumentError, InvalidKeyError
from mnemongo.keys import SessionKey, check_identifier
from mnemongo.plans import buckets, heads, removal
from mnemongo.plans.arguments import check_count, optional_milliseconds
from mnemongo.schema import SESSIONS

__all__ = ["clear", "create", "delete", "get", "list"]


def create(
    key: SessionKey, *, state: Mapping[str, Any] | None = None, ttl: float | None = None
) -> Operation[Head]:
    """Create a session.

    Args:
        key: its name.
        state: its own state to begin with (JSON values).
        ttl: seconds after its last write at which the whole session disappears; ``None``: never.

    Returns:
        Its head. Repeating the same operation value returns the same session.

    Raises:
        AlreadyExistsError: the session is there (one that has expired is not).
        DocumentError: the state is not JSON.

    >>> from mnemongo.testing import ModelStore
    >>> ModelStore().run(create(SessionKey("shop", "ann", "s1"), state={"cart": 2})).state
    {'cart': 2}
    """
    text = buckets.encoded({} if state is None else state)
    ttl_ms = optional_milliseconds(ttl)
    if shared := buckets.shared(state or {}):
        prefix = next(iter(shared))
        raise DocumentError(f"a session's own state has no {prefix!r} keys: use state.merge", key=key)
    return _create(key, text, ttl_ms, keys.new_nonce())


@operation()
def _create(key: SessionKey, state: str, ttl_ms: int | None, nonce: str) -> Plan[Head]:
    pipeline = fresh_head(key, state, ttl_ms, nonce)
    while True:
        found = yield from find_one_and_update(SESSIONS, {"_id": key.document_id}, pipeline, upsert=True)
        head = documents.head(found or {})
        if head.expires_at is not None and (yield from removal.was_over(key)):
            continue
        if found and found.get("created_by") == nonce:
            return head
        raise AlreadyExistsError(f"the session {key} exists already: get it, or choose another id", key=key)


def fresh_head(key: SessionKey, state: str, ttl_ms: int | None, nonce: str) -> Sequence[Document]:
    """The pipeline that writes a new head where none is, and leaves one that is there as it is."""
    given: Document = {
        "_id": key.document_id,
        **key.fields,
        "id": key.session_id,
        "state": state,
        "lease": {"token": 0},
        "created_by": nonce,
        "format": documents.FORMAT,
    }
    computed: Document = {
        "revision": heads.NEW_LIFE,
        "create_time": heads.NOW_SECONDS,
        "update_time": heads.NOW_SECONDS,
    }
    if ttl_ms is not None:
        given["ttl_ms"] = ttl_ms
        computed["expires_at"] = {"$add": ["$$NOW", ttl_ms]}
    begun = {"$mergeObjects": [{"$literal": given}, computed]}
    absent = {"$eq": [{"$type": "$create_time"}, "missing"]}
    return [{"$replaceWith": {"$cond": [absent, begun, "$$ROOT"]}}]


@operation()
def get(key: SessionKey) -> Plan[Head | None]:
    """The session's head, or ``None`` when there is no such session. One round trip.

    >>> from mnemongo.testing import ModelStore
    >>> ModelStore().run(get(SessionKey("shop", "ann", "s1"))) is None
    True
    """
    return (yield from heads.current_or_none(key))


def list(  # noqa: A001 - the name a user looks for: sessions.list
    app_name: str, user_id: str | None = None, *, limit: int = 100, after: Any = None
) -> Operation[Page[Head]]:
    """A page of an application's sessions, the one written to last at the end.

    Args:
        app_name: the application.
        user_id: only this user's sessions; ``None``: all users'.
        limit: how many at most, 1 to 1,000.
        after: the ``next`` of the page before; ``None`` for the first.

    Returns:
        The page. A session that is written to meanwhile moves to the end, and may be seen twice.
    """
    _ = check_identifier(app_name, "app_name")
    if user_id is not None:
        _ = check_identifier(user_id, "user_id")
    _ = check_count(limit)
    if after is not None:
        _check_resume_key(after)
    return _list(app_name, user_id, limit, after)


@operation()
def _list(app_name: str, user_id: str | None, limit: int, after: Any) -> Plan[Page[Head]]:
    scope: Document = {"app_name": app_name}
    if user_id is not None:
        scope["user_id"] = user_id
    clauses = [scope, dict(heads.ALIVE)]
    if after is not None:
        clauses.append(_beyond(*after))
    found = yield from find(
        finding(
            SESSIONS,
            {"$and": clauses},
            sort=(("update_time", 1), ("user_id", 1), ("id", 1)),
            limit=limit,
        )
    )
    items = tuple(documents.head(document) for document in found)
    return Page(items, _resume_key(items[-1]) if len(items) == limit else None)


def _check_resume_key(after: object) -> None:
    parts = after if isinstance(after, Sequence) else ()  # a list, when it has been through JSON
    kinds = tuple(type(part) for part in parts)
    if kinds not in {(float, str, str), (int, str, str)}:
        raise InvalidKeyError("after must be the next of a page before", key="after")


def _resume_key(head: Head) -> tuple[float, str, str]:
    return head.update_time, head.key.user_id, head.key.session_id


def _beyond(update_time: float, user_id: str, session_id: str) -> Document:
    return {
        "$or": [
            {"update_time": {"$gt": update_time}},
            {"update_time": update_time, "user_id": {"$gt": user_id}},
            {"update_time": update_time, "user_id": user_id, "id": {"$gt": session_id}},
        ]
    }


@operation(repeats=False)
def clear(key: SessionKey) -> Plan[Head]:
    """Remove all entries of a session; its state and lease stay.

    The session begins a new life: a handle from before is stale, and an append that races with this
    fails with ``StaleRevisionError`` or was removed with the others.

    Raises:
        NotFoundError: there is no such session.
    """
    cleared = False
    while True:
        found = yield from heads.document(key)
        if "clearing" in found:
            _ = yield from removal.finish_clearing(key, found)
        if cleared:
            return documents.head(found)
        begun = heads.moved_to(heads.NEW_LIFE)
        begun[0]["$set"]["clearing"] = "$revision"
        same_life = heads.in_life(documents.revision(found))
        reply = yield from update_one(SESSIONS, heads.alive(key, clearing=None, **same_life), begun)
        cleared = reply.matched == 1


@operation(repeats=False)
def delete(key: SessionKey) -> Plan[bool]:
    """Delete a session with its entries and payloads; returns whether there was one.

    Shared state (app and user) stays. Handles of the session are stale from the first write on.

    >>> from mnemongo.testing import ModelStore
    >>> store, key = ModelStore(), SessionKey("shop", "ann", "s1")
    >>> _ = store.run(create(key))
    >>> store.run(delete(key)), store.run(delete(key))
    (True, False)
    """
    found = yield from find_one_and_update(
        SESSIONS, heads.alive(key), {"$set": {"expires_at": removal.LONG_AGO}}
    )
    removed = yield from removal.remove_expired(key)
    return found is not None or removed is not None
