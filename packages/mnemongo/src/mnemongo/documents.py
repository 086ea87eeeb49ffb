"""What is stored, as frozen values: heads, entries, leases; to and from their documents.

The documents are the ADK service's own with fields added (docs/reference/documents.md); a document that
lacks ours was written by it, and reads as format 0. Every document of ours carries ``format``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from mnemongo.errors import DocumentError, SchemaVersionError, UndecodableDocumentError
from mnemongo.keys import SessionKey, check_entry_key, check_identifier

FORMAT = 1
FENCE = "fence"
_END_OF_TIME = 1e15
"""Seconds; beyond it, and for NaN, a timestamp is none."""
MESSAGE = "message"
EVENT = "event"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a session's next entries, until ``until``.

    Attributes:
        key: the session.
        owner: who holds it, for people to read.
        token: the fencing token; it only grows, also over releases.
        until: expiry by the server's clock (aware, UTC, milliseconds).
        revision: the session's last revision when the lease was taken.
        nonce: which attempt of which holder this is.
    """

    key: SessionKey
    owner: str
    token: int
    until: datetime
    revision: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Head:
    """A session without its entries.

    Attributes:
        key: the session.
        revision: its last entry's revision; ``expected=`` for the next append.
        state: the session's own state (JSON values).
        create_time: seconds since the epoch, server time.
        update_time: seconds since the epoch of the last write.
        lease_owner: who is at work on it, as far as this document says.
        lease_until: until when (aware, UTC), or ``None`` when free.
        expires_at: when the session disappears unless it is written to, or ``None``.
        stored_state: the state as it is stored, for a write that must not lose another's.
    """

    key: SessionKey
    revision: int
    state: Mapping[str, Any]
    create_time: float
    update_time: float
    lease_owner: str | None = None
    lease_until: datetime | None = None
    expires_at: datetime | None = None
    stored_state: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of a conversation, encoded: what one insert stores.

    Make one with ``Message.entry``, read one with ``Message.of``; adapters fill it themselves.

    Attributes:
        key: names it within its session, after the work: ``<turn>:user``.
        event_data: an ADK event in JSON: the form every framework can read.
        timestamp: seconds since the epoch, by whoever wrote it; never used for order.
        kind: ``message``, ``event`` (ADK's own) or ``fence`` (never shown).
        turn: the turn it belongs to.
        starts_turn: whether windows may begin here.
        pinned: whether windows keep it wherever they begin (system messages).
        native: the writer's own form as text, where the event cannot give it back.
        digest: SHA-256 of what must be equal for a repeat to be a replay; default: ``event_data``.
    """

    key: str
    event_data: str = field(repr=False)
    timestamp: float
    kind: str = EVENT
    turn: str | None = None
    starts_turn: bool = False
    pinned: bool = False
    native: str | None = field(default=None, repr=False)
    digest: str = ""

    def __post_init__(self) -> None:
        """Check every field, since one wrong entry would spoil its session's pages; fill the digest."""
        self._check_types()
        _ = check_entry_key(self.key)
        if self.turn is not None:
            _ = check_identifier(self.turn, "turn")
        if not self.digest:
            object.__setattr__(self, "digest", sha256(self.event_data))

    def _check_types(self) -> None:
        for name, kind in (("event_data", str), ("kind", str), ("digest", str), ("native", str | None)):
            if not isinstance(getattr(self, name), kind):
                raise DocumentError(f"an entry's {name} must be {kind}", key=self.key)
        if type(self.starts_turn) is not bool or type(self.pinned) is not bool:
            raise DocumentError("an entry's starts_turn and pinned must be bool", key=self.key)
        moment = self.timestamp
        if type(moment) not in {int, float} or not abs(moment) < _END_OF_TIME:
            raise DocumentError("an entry's timestamp must be a finite number of seconds", key=self.key)

    @property
    def size(self) -> int:
        """Bytes of payload, near enough to decide whether it fits a document."""
        return _utf8_size(self.event_data) + _utf8_size(self.native or "")

    @property
    def state_delta(self) -> Mapping[str, Any]:
        """The state changes its event carries (``app:``, ``user:`` and plain keys)."""
        if '"state_delta"' not in self.event_data:
            return {}
        actions = _loads(self.event_data, self.key).get("actions") or {}
        delta = (actions.get("state_delta") or {}) if isinstance(actions, dict) else None
        if not isinstance(delta, dict):
            raise UndecodableDocumentError("an event's state_delta is not an object", key=self.key)
        return delta


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry in its place. ``replayed``: it was there already, and nothing was written."""

    entry: Entry
    revision: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A bounded part of a list. ``next`` goes into ``after=`` for what follows; ``None``: the end."""

    items: tuple[T, ...]
    next: Any = None

    def __iter__(self) -> Any:
        """Iterate over the items."""
        return iter(self.items)

    def __len__(self) -> int:
        """How many items."""
        return len(self.items)


def sha256(text: str) -> str:
    """The digest of a text; lone surrogates count as themselves."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def entry_document(key: SessionKey, entry: Entry, revision: int) -> dict[str, Any]:
    """The document of ``entry`` at ``revision``; absent flags are left out (partial indexes)."""
    document: dict[str, Any] = {
        "_id": key.entry_id(entry.key),
        **key.fields,
        "timestamp": entry.timestamp,
        "revision": revision,
        "event_data": entry.event_data,
        "format": FORMAT,
        "kind": entry.kind,
        "hash": entry.digest,
    }
    optional = {
        "turn": entry.turn,
        "starts_turn": entry.starts_turn or None,
        "pinned": False if entry.kind == FENCE else entry.pinned or None,
        "native": entry.native,
    }
    return document | {name: value for name, value in optional.items() if value is not None}


def stored_entry(document: Mapping[str, Any]) -> Stored:
    """Read an entry's document, whoever wrote it."""
    check_format(document)
    try:
        entry = Entry(
            key=document["_id"]["event_id"],
            event_data=_typed(document, "event_data", str),
            timestamp=_typed(document, "timestamp", int | float),
            kind=_typed(document, "kind", str, EVENT),
            turn=document.get("turn"),
            starts_turn=document.get("starts_turn") is True,
            pinned=document.get("pinned") is True,
            native=_typed(document, "native", str | None, None),
            digest=_typed(document, "hash", str, ""),
        )
        return Stored(entry, int(document["revision"]))
    except _DAMAGE as error:
        raise _damaged("an entry", document) from error


_DAMAGE = (DocumentError, KeyError, TypeError, AttributeError, ValueError)
_NONE_GIVEN = object()


def _typed(document: Mapping[str, Any], name: str, kind: Any, default: object = _NONE_GIVEN) -> Any:
    value = document[name] if default is _NONE_GIVEN else document.get(name, default)
    if not isinstance(value, kind):
        raise TypeError(name)
    return value


def _damaged(what: str, document: Mapping[str, Any]) -> UndecodableDocumentError:
    return UndecodableDocumentError(
        f"{what} lacks its fields or has them of another type: it is damaged or foreign",
        key=document.get("_id"),
    )


def revision(document: Mapping[str, Any]) -> int:
    """The revision a document carries, as a plain int (the driver returns 64-bit ones as its own)."""
    found = document.get("revision")
    if not isinstance(found, int) or isinstance(found, bool):
        raise UndecodableDocumentError("a document has no revision: it is foreign", key=document.get("_id"))
    return int(found)


def head(document: Mapping[str, Any]) -> Head:
    """Read a session's document, whoever wrote it."""
    check_format(document)
    try:
        lease = document.get("lease") or {}
        return Head(
            key=SessionKey.of(document["_id"]),
            revision=revision(document),
            state=decode_state(document.get("state"), document["_id"]),
            create_time=_typed(document, "create_time", int | float),
            update_time=_typed(document, "update_time", int | float),
            lease_owner=lease.get("owner"),
            lease_until=lease.get("until"),
            expires_at=document.get("expires_at"),
            stored_state=document.get("state"),
        )
    except UndecodableDocumentError:
        raise
    except _DAMAGE as error:
        raise _damaged("a session", document) from error


def check_format(document: Mapping[str, Any]) -> None:
    """Refuse what a later version of this library wrote."""
    found = document.get("format", 0)
    if not isinstance(found, int) or found > FORMAT:
        raise SchemaVersionError(
            f"the document has format {found!r}, this version reads up to {FORMAT}: upgrade mnemongo",
            key=document.get("_id"),
            expected=FORMAT,
            found=found,
        )


def decode_state(state: object, key: object) -> dict[str, Any]:
    """A state bucket as a dict: stored as a JSON text, or (by other readers' leave) as a document."""
    if state is None:
        return {}
    if isinstance(state, str):
        return _loads(state, key)
    if isinstance(state, dict):
        return state
    raise UndecodableDocumentError("a state is neither JSON text nor a document", key=key)


def _loads(text: str, key: object) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UndecodableDocumentError("a stored JSON text is damaged", key=key) from error
    if not isinstance(value, dict):
        raise UndecodableDocumentError("a stored JSON text is not an object", key=key)
    return value


def moved(lease: Lease, *, until: datetime) -> Lease:
    """The lease with its new expiry."""
    return replace(lease, until=until)


def placed(lease: Lease, revision: int) -> Lease:
    """The lease counting from ``revision``."""
    return replace(lease, revision=revision)
