"""Payloads that do not fit a document: stored in parts before their entry, joined when it is read.

The parts carry their session's life, so that clearing a session while its successor stores the same
content can never take the successor's parts away.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mnemongo import documents, keys
from mnemongo.commands import Document, DuplicateError, Plan, find, finding, insert_one
from mnemongo.documents import Entry, Stored
from mnemongo.errors import DocumentError, DocumentTooLargeError, InvalidKeyError, UndecodableDocumentError
from mnemongo.keys import SessionKey
from mnemongo.plans import buckets
from mnemongo.schema import ENTRY_BYTES, INLINE_BYTES, PART_BYTES, PAYLOADS

_LONG_TEXT = 1000


def check_entry(entry: Entry) -> None:
    """Refuse what no append can store, before any I/O."""
    if entry.key.startswith(keys.RESERVED):
        raise InvalidKeyError(f"an entry key must not begin with {keys.RESERVED!r}", key=entry.key)
    if entry.size > ENTRY_BYTES:
        raise DocumentTooLargeError(
            f"the entry {entry.key!r} has {entry.size} bytes, at most {ENTRY_BYTES} are stored",
            key=entry.key,
            expected=ENTRY_BYTES,
            found=entry.size,
        )
    _ = _event(entry)
    _ = buckets.encoded(entry.state_delta)


def _event(entry: Entry) -> dict[str, Any]:
    try:
        event = json.loads(entry.event_data, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"the event_data of {entry.key!r} is not JSON", key=entry.key) from error
    if not isinstance(event, dict):
        raise DocumentError(f"the event_data of {entry.key!r} is not an object", key=entry.key)
    return event


def _refuse(name: str) -> None:
    """NaN and the infinities, which other readers of JSON do not take."""
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def written(key: SessionKey, entry: Entry, revision: int) -> Plan[Document]:
    """Store the parts of ``entry`` when it has any; returns the document that refers to them."""
    document, parts = split(key, entry, revision)
    for part in (yield from _not_stored(key, parts)):
        try:
            yield from insert_one(PAYLOADS, part)
        except DuplicateError:  # named by content: an earlier attempt has written it
            continue
    return document


def _not_stored(key: SessionKey, parts: Sequence[Document]) -> Plan[Sequence[Document]]:
    """The parts that an earlier attempt has not written: a large payload goes on where it stopped."""
    if not parts:
        return parts
    ids = [part["_id"] for part in parts]
    found = yield from find(finding(PAYLOADS, {**key.fields, "_id": {"$in": ids}}, projection={"_id": 1}))
    stored = {document["_id"]["part"] for document in found}
    return [part for part in parts if part["_id"]["part"] not in stored]


def split(key: SessionKey, entry: Entry, revision: int) -> tuple[Document, list[Document]]:
    """The entry's document and the parts that must be stored before it."""
    if entry.size <= INLINE_BYTES:
        return document_of(key, entry, revision), []
    event, native = _bytes(entry.event_data), _bytes(entry.native or "")
    body = event + native
    digest = hashlib.sha256(body).hexdigest()
    shown = replace(entry, event_data=_shortened(entry), native=None)
    document = document_of(key, shown, revision, has_delta=bool(entry.state_delta))
    document["payload"] = {
        "hash": digest,
        "bytes": len(body),
        "event_bytes": len(event),
        "part_bytes": PART_BYTES,
        "has_native": entry.native is not None,
    }
    return document, list(_parts(key, keys.life(revision), digest, body))


def document_of(key: SessionKey, entry: Entry, revision: int, *, has_delta: bool | None = None) -> Document:
    """The entry's document; ``has_delta`` marks one whose state a crash may have left unapplied."""
    document = documents.entry_document(key, entry, revision)
    if entry.state_delta if has_delta is None else has_delta:
        document["has_delta"] = True
    return document


def _parts(key: SessionKey, life: int, digest: str, body: bytes) -> Iterable[Document]:
    for number, start in enumerate(range(0, len(body), PART_BYTES)):
        yield {
            "_id": key.payload_id(life, digest, number),
            **key.fields,
            "life": life,
            "data": body[start : start + PART_BYTES],
            "format": documents.FORMAT,
        }


def _shortened(entry: Entry) -> str:
    """The event with its long texts replaced, for readers that know nothing of parts."""
    event = _short(_event(entry))
    text = json.dumps(event)
    if len(text) > INLINE_BYTES:
        text = json.dumps({**event, "content": None})
    return text if len(text) <= INLINE_BYTES else json.dumps({"id": entry.key, "author": "mnemongo"})


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"[{len(value)} characters, stored in parts]"
    if isinstance(value, list):
        return [_short(item) for item in value]
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    return value


def joined(key: SessionKey, found: Sequence[Document]) -> Plan[list[Stored]]:
    """Read entries' documents, fetching the parts of those that have them."""
    entries = []
    for document in found:
        stored = documents.stored_entry(document)
        if "payload" in document:
            stored = yield from _whole(key, stored, document["payload"])
        entries.append(stored)
    return entries


def _whole(key: SessionKey, stored: Stored, payload: Document) -> Plan[Stored]:
    life = keys.life(stored.revision)
    count = -(-payload["bytes"] // payload["part_bytes"])
    ids = [key.payload_id(life, payload["hash"], number) for number in range(count)]
    parts = yield from find(finding(PAYLOADS, {**key.fields, "_id": {"$in": ids}}))
    body = b"".join(part["data"] for part in sorted(parts, key=lambda part: part["_id"]["part"]))
    if hashlib.sha256(body).hexdigest() != payload["hash"]:
        raise UndecodableDocumentError(
            f"the payload of entry {stored.entry.key!r} is not whole: {len(parts)} of {count} parts",
            key=stored.entry.key,
            expected=payload["bytes"],
            found=len(body),
        )
    event = _text(body[: payload["event_bytes"]])
    native = _text(body[payload["event_bytes"] :]) if payload["has_native"] else None
    return replace(stored, entry=replace(stored.entry, event_data=event, native=native))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(body: bytes) -> str:
    return body.decode("utf-8", "surrogatepass")
