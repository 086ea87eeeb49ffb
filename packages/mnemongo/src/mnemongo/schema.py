"""Collections, their indexes, and the sizes at which a payload is split: data, nothing that acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

SESSIONS = "sessions"
EVENTS = "events"
APP_STATES = "app_states"
USER_STATES = "user_states"
PAYLOADS = "payloads"

MIB = 1024 * 1024
INLINE_BYTES = 8 * MIB
"""A larger payload is stored in parts: half a document, which leaves room for the other fields."""
PART_BYTES = 8 * MIB
ENTRY_BYTES = 256 * MIB
"""The most that one entry may have."""
STATE_BYTES = 15 * MIB
"""The most that one state bucket may have: a document, less room for the other fields."""
BATCH_BYTES = 64 * MIB
"""The most that one transaction carries: more would fill the cache of a small server (code 388)."""


@dataclass(frozen=True, slots=True)
class Index:
    """One index of one collection; ``keys`` in order, 1 ascending and -1 descending."""

    collection: str
    name: str
    keys: Mapping[str, int]
    unique: bool = False
    only: Mapping[str, Any] | None = field(default=None)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the driver's ``create_index``."""
        arguments: dict[str, Any] = {"keys": list(self.keys.items()), "name": self.name}
        if self.unique:
            arguments["unique"] = True
        if self.only is not None:
            arguments["partialFilterExpression"] = dict(self.only)
        return arguments


def _by_session(**then: int) -> Mapping[str, int]:
    return MappingProxyType({"app_name": 1, "user_id": 1, "session_id": 1, **then})


PLACE = Index(EVENTS, "mnemongo_place", _by_session(revision=1), unique=True)
"""Part of correctness: it decides which of two appends gets a place."""

INDEXES = (
    PLACE,
    Index(
        EVENTS,
        "mnemongo_turn_starts",
        _by_session(starts_turn=1, revision=1),
        only={"starts_turn": True},
    ),
    Index(EVENTS, "mnemongo_pinned", _by_session(pinned=1, revision=1), only={"pinned": {"$exists": True}}),
    Index(PAYLOADS, "mnemongo_life", _by_session(life=1)),
    Index(
        SESSIONS,
        "mnemongo_app_activity",
        {"app_name": 1, "update_time": 1, "user_id": 1, "id": 1},
    ),
    Index(
        SESSIONS,
        "mnemongo_user_activity",
        {"app_name": 1, "user_id": 1, "update_time": 1, "id": 1},
    ),
    Index(SESSIONS, "mnemongo_expiry", {"expires_at": 1}, only={"expires_at": {"$exists": True}}),
    Index(SESSIONS, "mnemongo_clearing", {"clearing": 1}, only={"clearing": {"$exists": True}}),
)
