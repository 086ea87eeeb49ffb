"""Identifiers: session keys, entry keys, revisions. The only place where they are built.

A **revision** is one 63-bit integer that names a place in a session for ever. Its upper 35 bits are the
session's *life* (drawn at random by the server whenever the session is created or cleared), its lower
28 bits the entry's place in that life, counted from 1. Revisions of one life are dense and
ordered; revisions of two lives never meet, so a handle of a deleted session can never be mistaken for
one of its successor (docs/decisions/0002-revisions.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mnemongo.errors import InvalidKeyError, UndecodableDocumentError

MAX_PART_BYTES = 512
MAX_ENTRY_KEY_BYTES = 2048
RESERVED = ":"
"""How keys of this library's own entries begin; a turn's never do."""
PLACE_BITS = 28
LIFE_BITS = 35
_PLACE_MASK = (1 << PLACE_BITS) - 1


def check_identifier(value: object, name: str, limit: int = MAX_PART_BYTES) -> str:
    """Return ``value`` if it may name something, else raise ``InvalidKeyError`` saying why.

    Exactly ``str`` (a subclass could compare as something else), not empty, no NUL, no lone
    surrogate, at most ``limit`` bytes of UTF-8. NFC and NFD spellings are different identifiers.
    """
    if type(value) is not str:
        raise InvalidKeyError(f"{name} must be a str, not {type(value).__name__}", key=name)
    if not value:
        raise InvalidKeyError(f"{name} must not be empty", key=name)
    if "\0" in value:
        raise InvalidKeyError(f"{name} must not contain NUL", key=name)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"{name} must not contain lone surrogates", key=name) from error
    if size > limit:
        raise InvalidKeyError(f"{name} has {size} bytes, at most {limit} are allowed", key=name)
    return value


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """Names one conversation: an application, one of its users, one of that user's sessions.

    Each part is a non-empty string of at most 512 bytes of UTF-8, without NUL or lone surrogates.

    Raises:
        InvalidKeyError: for anything else, before any I/O.

    >>> SessionKey("shop", "ann", "s1")
    SessionKey(app_name='shop', user_id='ann', session_id='s1')
    """

    app_name: str
    user_id: str
    session_id: str

    def __post_init__(self) -> None:
        """Check the three parts."""
        for name in ("app_name", "user_id", "session_id"):
            _ = check_identifier(getattr(self, name), name)

    @classmethod
    def of(cls, document_id: Mapping[str, Any]) -> Self:
        """The session that a document's ``_id`` belongs to.

        Raises:
            UndecodableDocumentError: the ``_id`` is not one of ours.
        """
        if not isinstance(document_id, Mapping) or not {"app_name", "user_id", "session_id"} <= set(
            document_id
        ):
            raise UndecodableDocumentError("a document's _id is not one of ours", key=document_id)
        return cls(document_id["app_name"], document_id["user_id"], document_id["session_id"])

    @property
    def document_id(self) -> dict[str, str]:
        """The ``_id`` of the session's head. MongoDB compares it by field order: this is the order."""
        return {
            "app_name": self.app_name,
            "user_id": self.user_id,
            "session_id": self.session_id,
        }

    @property
    def fields(self) -> dict[str, str]:
        """The same three fields, as every entry carries them: a filter that a shard key can route."""
        return self.document_id

    @property
    def beyond_id(self) -> dict[str, str]:
        """Greater than every ``_id`` of this session's documents, less than the next session's."""
        return {**self.document_id, "session_id": f"{self.session_id}\0"}

    def entry_id(self, entry_key: str) -> dict[str, str]:
        """The ``_id`` of the entry ``entry_key`` of this session."""
        return {**self.document_id, "event_id": entry_key}

    def payload_id(self, life: int, digest: str, part: int) -> dict[str, str | int]:
        """The ``_id`` of one part of a payload that does not fit a document."""
        return {**self.document_id, "life": life, "hash": digest, "part": part}

    @property
    def user_state_id(self) -> dict[str, str]:
        """The ``_id`` of the state that all sessions of this user share."""
        return {"app_name": self.app_name, "user_id": self.user_id}


def check_session_key(value: object) -> None:
    """Refuse what is not a ``SessionKey``."""
    if not isinstance(value, SessionKey):
        raise InvalidKeyError(f"a session's key must be a SessionKey, not {type(value).__name__}", key="key")


def check_entry_key(value: object) -> str:
    """Return ``value`` if it may be an entry's key, else raise ``InvalidKeyError``."""
    return check_identifier(value, "entry key", MAX_ENTRY_KEY_BYTES)


def turn_key(turn: str, *names: str) -> str:
    """The key of a part of a turn: ``<turn>:user``, ``<turn>:tool:<call>``.

    A ``:`` inside the turn's id is escaped, so that no two (turn, part) pairs share a key.

    >>> turn_key("t-42", "tool", "c:1"), turn_key("t:42", "user")
    ('t-42:tool:c:1', 't%3A42:user')
    """
    escaped = check_identifier(turn, "turn").replace("%", "%25").replace(":", "%3A")
    return check_entry_key(":".join((escaped, *names)))


def fence_key(token: int, nonce: str) -> str:
    """The key of the entry that closes a session to the holders of earlier leases."""
    return f"{RESERVED}fence:{token}:{nonce}"


def gap_key(revision: int) -> str:
    """The key of the entry that fills a place nobody will take any more."""
    return f"{RESERVED}gap:{revision}"


def new_nonce() -> str:
    """Draw a name for one attempt at a lease (128 random bits)."""
    return secrets.token_hex(16)


def life(revision: int) -> int:
    """The life ``revision`` belongs to, as the revision of its place 0."""
    return revision & ~_PLACE_MASK


def place(revision: int) -> int:
    """The place of ``revision`` in its life: 0 for the empty session, 1 for its first entry."""
    return revision & _PLACE_MASK


def end_of_life(revision: int) -> int:
    """The last revision of the life ``revision`` belongs to."""
    return revision | _PLACE_MASK


def check_revision(value: object, name: str = "expected") -> int:
    """Return ``value`` if it is a revision with a place after it, else raise ``InvalidKeyError``."""
    if type(value) is not int or not 0 <= value < 1 << (LIFE_BITS + PLACE_BITS):
        raise InvalidKeyError(f"{name} must be a revision (an int from this library)", key=name)
    if place(value) == _PLACE_MASK:
        raise InvalidKeyError(f"the session is full: {_PLACE_MASK} entries", key=name)
    return value
