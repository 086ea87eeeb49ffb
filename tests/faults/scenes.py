"""Sessions as tests find them, and time that passes without waiting for it."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

from faults.stepping import Backend, crashed, run
from mnemongo import schema
from mnemongo.commands import Command
from mnemongo.documents import Entry, Head, Lease
from mnemongo.keys import SessionKey
from mnemongo.plans import entries, leases, sessions

PAST = datetime(2001, 2, 3, tzinfo=UTC)
PART_BYTES = 400


def entry(name: str, text: str = "", *, delta: dict[str, Any] | None = None, size: int = 0) -> Entry:
    """A turn of one entry; ``size`` over ``PART_BYTES``: stored in parts."""
    event: dict[str, Any] = {"id": name, "author": "user", "text": text or name}
    if size:
        event["text"] = f"{name}{text}".ljust(size, ".")
    if delta:
        event["actions"] = {"state_delta": delta}
    return Entry(name, json.dumps(event), 1.0, starts_turn=True)


def conversation(backend: Backend, key: SessionKey, *names: str, ttl: float | None = None) -> Head:
    """A session with entries (by default two) and state; returns its head."""
    _ = run(backend, sessions.create(key, state={"mood": "calm"}, ttl=ttl))
    for name in names or ("a", "b"):
        _ = run(backend, entries.append(key, entry(name)))
    head: Head = run(backend, sessions.get(key))
    return head


def changed(backend: Backend, key: SessionKey, changes: dict[str, Any]) -> None:
    selection = {"_id": key.document_id}
    arguments = {"filter": selection, "update": {"$set": changes}, "upsert": False}
    reply = backend.execute(Command(schema.SESSIONS, "update_one", arguments))
    assert reply.matched == 1


def expire(backend: Backend, key: SessionKey) -> None:
    """The session's time runs out."""
    changed(backend, key, {"expires_at": PAST})


def held(backend: Backend, key: SessionKey, owner: str = "first") -> Lease:
    lease: Lease = run(backend, leases.acquire(key, owner=owner, ttl=600))
    return lease


def ran_out(backend: Backend, lease: Lease) -> Lease:
    """The lease's time runs out, on the server and as its holder's commands carry it."""
    changed(backend, lease.key, {"lease.until": PAST})
    return dataclasses.replace(lease, until=PAST)


def unfinished_clear(backend: Backend, key: SessionKey) -> None:
    """A clear whose client died after the write that commits it."""
    _ = crashed(backend, sessions.clear(key), 2)


def stray(backend: Backend, key: SessionKey, name: str) -> None:
    """What an append in parts leaves whose client died when its session had just been cleared."""
    at = run(backend, sessions.get(key)).revision
    large = entries.append(key, entry(name, size=3 * PART_BYTES), after=at)
    _ = run(backend, sessions.clear(key))
    _ = crashed(backend, large, 3)
