"""A message as the entry that is stored, and back.

The entry holds the ADK event; where that does not give the equal message, also the exact fields.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final, cast

from mnemongo import codec
from mnemongo.documents import MESSAGE, Entry, sha256
from mnemongo.errors import DocumentError, DocumentTooLargeError, UndecodableDocumentError
from mnemongo.keys import check_entry_key
from mnemongo.messages._event import from_event, to_event
from mnemongo.messages._message import Message, ToolCall

_FORM: Final = "message"


def to_entry(
    message: Message,
    *,
    key: str,
    timestamp: float,
    turn: str | None,
    starts_turn: bool | None,
    max_bytes: int,
) -> Entry:
    """The entry of a message; see ``Message.entry``."""
    own = _encoded(message)
    event = to_event(message, key=key, timestamp=timestamp, turn=turn)
    entry = Entry(
        key=check_entry_key(key),
        event_data=json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
        timestamp=event["timestamp"],
        kind=MESSAGE,
        turn=turn,
        starts_turn=turn is None and message.role == "user" if starts_turn is None else starts_turn,
        pinned=message.role == "system",
        native=None if _encoded(from_event(event)) == own else own,
        digest=sha256(f"{MESSAGE}:{codec.canonical(own)}"),
    )
    return _bounded(entry, max_bytes)


def from_entry(entry: Entry) -> Message:
    """The message of an entry; see ``Message.of``."""
    try:
        exact = None if entry.native is None else _exact(codec.decode(entry.native))
        return exact or from_event(_event(entry.event_data))
    except DocumentError as error:
        raise UndecodableDocumentError(f"an entry cannot be read: {error}", key=entry.key) from error


def _encoded(message: Message) -> str:
    """The fields that say something; ``form`` tells it from what other writers keep as ``native``."""
    known = {item.name: getattr(message, item.name) for item in fields(message)}
    known["parts"] = list(message.parts)
    known["calls"] = [{"id": call.id, "name": call.name, "args": call.args} for call in message.calls]
    told = {name: value for name, value in known.items() if _says(name, value)}
    return codec.encode({"form": _FORM, **told})


def _says(name: str, value: object) -> bool:
    if name in ("call_id", "result", "name"):
        return value is not None
    return bool(value)


def _exact(native: object) -> Message | None:
    """The message ``_encoded`` wrote; ``None``: another framework's form, its event is to be read."""
    if type(native) is not dict:
        raise UndecodableDocumentError("its native form is damaged")
    known = dict(cast("dict[str, Any]", native))
    if known.pop("form", None) != _FORM:
        return None
    try:
        calls = [ToolCall(**call) for call in known.pop("calls", ())]
        return Message(**known, calls=tuple(calls))
    except TypeError:
        raise UndecodableDocumentError("its native form lacks fields or has others") from None


def _event(event_data: str) -> dict[str, Any]:
    try:
        event = json.loads(event_data)
    except (ValueError, TypeError, RecursionError):
        raise UndecodableDocumentError("its event is not JSON") from None
    if type(event) is not dict:
        raise UndecodableDocumentError("its event is not an object")
    return cast("dict[str, Any]", event)


def _bounded(entry: Entry, max_bytes: int) -> Entry:
    if entry.size <= max_bytes:
        return entry
    raise DocumentTooLargeError(
        f"the message has {entry.size} bytes, at most {max_bytes} are allowed",
        key=entry.key,
        expected=max_bytes,
        found=entry.size,
    )
