"""State buckets: JSON texts that several writers merge keys into.

A merge reads the text and writes it back on the condition that it has not changed. Outside a
transaction that condition is what loses no key; inside one the server's conflict check is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mnemongo.commands import (
    Document,
    DuplicateError,
    Plan,
    find_one,
    insert_one,
    pause,
    update_one,
)
from mnemongo.documents import FORMAT, decode_state
from mnemongo.errors import DocumentError, DocumentTooLargeError
from mnemongo.keys import SessionKey
from mnemongo.schema import APP_STATES, STATE_BYTES, USER_STATES

APP_PREFIX = "app:"
USER_PREFIX = "user:"
TEMP_PREFIX = "temp:"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where one shared state lives, and the keys to merge into it."""

    prefix: str
    collection: str
    id: object
    fields: Mapping[str, str]
    delta: Mapping[str, Any]


def own(delta: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a delta that belongs to the session alone."""
    prefixes = (APP_PREFIX, USER_PREFIX, TEMP_PREFIX)
    return {name: value for name, value in delta.items() if not name.startswith(prefixes)}


def shared(delta: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    """The parts of a delta that are shared, by prefix, without it."""
    return {prefix: part for prefix in (APP_PREFIX, USER_PREFIX) if (part := _without(prefix, delta))}


def _without(prefix: str, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): value for k, value in delta.items() if k.startswith(prefix)}


def shared_buckets(key: SessionKey, parts: Mapping[str, dict[str, Any]]) -> list[Bucket]:
    """The buckets that ``parts`` (by prefix) go to, in one fixed order."""
    places: dict[str, Callable[[dict[str, Any]], Bucket]] = {
        APP_PREFIX: lambda part: Bucket(
            APP_PREFIX, APP_STATES, key.app_name, {"app_name": key.app_name}, part
        ),
        USER_PREFIX: lambda part: Bucket(
            USER_PREFIX, USER_STATES, key.user_state_id, key.user_state_id, part
        ),
    }
    return [place(parts[prefix]) for prefix, place in places.items() if parts.get(prefix)]


def encoded(state: Mapping[str, Any]) -> str:
    """A state as JSON text.

    Raises:
        DocumentError: for a value that JSON cannot hold as it is, naming the path to it.
        DocumentTooLargeError: over 15 MiB.
    """
    if not isinstance(state, Mapping):
        raise DocumentError(f"a state must be a mapping, not {type(state).__name__}")
    _check_json(dict(state), "state", _DEPTH)
    return _dumped(state)


def _dumped(state: Mapping[str, Any]) -> str:
    text = json.dumps(dict(state))
    if len(text) > STATE_BYTES:
        raise DocumentTooLargeError(
            f"the state would have {len(text)} bytes, at most {STATE_BYTES} are stored",
            expected=STATE_BYTES,
            found=len(text),
        )
    return text


_DEPTH = 200
_PLAIN = (str, bool, int, type(None))


def _check_json(value: object, path: str, depth: int) -> None:
    """Refuse what JSON would change in silence: NaN, tuples, keys that are no text, other types."""
    if type(value) in _PLAIN or (type(value) is float and math.isfinite(value)):
        return
    if depth and isinstance(value, list):
        for number, item in enumerate(value):
            _check_json(item, f"{path}[{number}]", depth - 1)
    elif depth and isinstance(value, dict) and all(type(name) is str for name in value):
        for name, item in value.items():
            _check_json(item, f"{path}[{name!r}]", depth - 1)
    else:
        raise DocumentError(f"{path} is not JSON ({type(value).__name__}): convert it before storing it")


def merged(state: Mapping[str, Any], delta: Mapping[str, Any]) -> str:
    """The JSON text of ``state``, as others may have stored it, with the keys of ``delta`` over it."""
    return _dumped({**state, **delta})


def merge_shared(key: SessionKey, parts: Mapping[str, dict[str, Any]]) -> Plan[None]:
    """Merge shared state outside a transaction: each bucket until its condition held."""
    for bucket in shared_buckets(key, parts):
        attempt = 0
        while not (yield from _merged_now(bucket)):
            attempt += 1
            yield from pause(attempt)


def _merged_now(bucket: Bucket) -> Plan[bool]:
    found = yield from find_one(bucket.collection, {"_id": bucket.id})
    try:
        return (yield from merge_into(bucket, found))
    except DuplicateError:
        return False


def merge_into(bucket: Bucket, found: Document | None) -> Plan[bool]:
    """Write the bucket on the condition that it still is as ``found``; says whether it was."""
    if found is None:
        yield from insert_one(
            bucket.collection,
            {"_id": bucket.id, **bucket.fields, "state": encoded(bucket.delta), "format": FORMAT},
        )
        return True
    text = merged(decode_state(found.get("state"), bucket.id), bucket.delta)
    reply = yield from update_one(
        bucket.collection,
        {"_id": bucket.id, "state": found.get("state")},
        {"$set": {"state": text}},
    )
    return reply.matched == 1
