"""Values to a tree of JSON values, each type by its writer; the first that cannot be kept ends it."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from bson.objectid import ObjectId

from mnemongo.codec._paths import path, step, type_name
from mnemongo.codec._rules import DECIMALS, JSON_INT_BITS, MAX_DEPTH, ZONE_KEY, RefusedError
from mnemongo.codec._text import dumps, sorted_text
from mnemongo.errors import DocumentError

_MICROSECOND: Final = timedelta(microseconds=1)
# Two code points that the escapes of JSON would merge into one character.
_SURROGATE_PAIR: Final = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")


def encode(value: object) -> str:
    r"""Write ``value`` as JSON text from which ``decode`` gives it back, types included.

    Kept are ``None``, bool, int of any size, float (NaN, infinities, -0.0), str (NUL and lone surrogates),
    bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID, ObjectId, list, tuple, set, frozenset
    and dict with any of these as keys. A datetime keeps its fixed offset or its ``ZoneInfo`` key.

    Args:
        value: what to store. Not subclasses of the above, and at most 200 levels of containers.

    Returns:
        The text; UTF-8 can hold it.

    Raises:
        DocumentError: for anything else, naming the path to it and its type.

    >>> encode({"raw": b"ok", "when": [(1, 2.0)]})
    '{"raw":{"$bytes":"b2s="},"when":[{"$tuple":[1,2.0]}]}'
    >>> encode({"calls": [{"args": {"x": 1j}}]})
    Traceback (most recent call last):
    mnemongo.errors.DocumentError: $.calls[0].args.x: a complex cannot be stored; convert it first
    """
    try:
        return dumps(_tree(value, 0))
    except RefusedError as refused:
        raise DocumentError(f"{path(refused.steps)}: {refused.reason}") from None
    except RecursionError as error:
        raise DocumentError("$: nested too deep for what is left of the call stack") from error


def _tree(value: object, depth: int) -> object:
    kind: type = type(value)
    write = SCALAR_WRITERS.get(kind)
    if write is not None:
        return write(value)
    if depth >= MAX_DEPTH and kind in _CONTAINERS:
        raise RefusedError(f"more than {MAX_DEPTH} levels of containers (or a cycle)")
    if kind is dict:
        return _dict(cast("dict[object, object]", value), depth + 1)
    tag = _CONTAINERS.get(kind)
    if tag is None:
        raise RefusedError(f"a {type_name(kind)} cannot be stored; convert it first")
    items = _items(cast("Iterable[object]", value), depth + 1, ordered=kind in _ORDERED)
    return {tag: items} if tag else items


def _items(values: Iterable[object], depth: int, *, ordered: bool) -> list[object]:
    items: list[object] = []
    try:
        for value in values:
            items.append(_tree(value, depth))  # noqa: PERF401 - the length is the index in the path
    except RefusedError as refused:
        refused.steps.append(f"[{len(items)}]" if ordered else "[*]")
        raise
    if not ordered:
        items.sort(key=sorted_text)
    return items


def _dict(values: dict[object, object], depth: int) -> object:
    pairs: list[tuple[object, object]] = []
    key: object = None
    try:
        for key, value in values.items():
            pairs.append((key if type(key) is str else _key(key, depth), _tree(value, depth)))
    except RefusedError as refused:
        refused.steps.append(step(key))
        raise
    if _is_plain(values):
        return dict(pairs)
    return {"$dict": [item for key, item in pairs for item in (_text_key(key), item)]}


def _key(key: object, depth: int) -> object:
    """Write a key that is not text; what is wrong with it is said of the key."""
    try:
        return _tree(key, depth)
    except RefusedError as refused:
        refused.reason = f"as a key, {refused.reason}"
        refused.steps.clear()
        raise


def _text_key(key: object) -> object:
    return write_str(key) if type(key) is str else key


def _is_plain(values: dict[object, object]) -> bool:
    """Whether a JSON object can hold it, and cannot be taken for a tag."""
    if not all(type(key) is str and write_str(key) is key for key in values):
        return False
    return len(values) != 1 or not cast("str", next(iter(values))).startswith("$")


def _int(value: int) -> object:
    # Hexadecimal has no limit on digits, and other readers of JSON stop at 64 bits.
    return value if value.bit_length() <= JSON_INT_BITS else {"$int": hex(value)}


def _float(value: float) -> object:
    return value if isfinite(value) else {"$float": repr(value)}


def write_str(value: str) -> object:
    """Also what the reader compares a ``$str`` with."""
    if value.isascii() or not _SURROGATE_PAIR.search(value):
        return value
    return {"$str": _SURROGATE_PAIR.split(value)}


def _base64(value: bytes | bytearray) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def _moment(value: datetime | time) -> list[object]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value)]


def _zone(value: datetime | time) -> list[object] | None:
    zone = value.tzinfo
    if zone is None:
        return None
    if type(zone) is timezone:
        return _fixed_zone(zone)
    if type(zone) is not ZoneInfo:
        raise RefusedError(f"a time in a zone of type {type_name(type(zone))} cannot be stored")
    if type(zone.key) is not str or not ZONE_KEY.fullmatch(zone.key):
        raise RefusedError("a time in a ZoneInfo without a usual key cannot be stored")
    offset = value.utcoffset()  # None for a time whose date decides
    return ["zone", zone.key, None if offset is None else offset // _MICROSECOND]


def _fixed_zone(zone: timezone) -> list[object]:
    offset, name = zone.utcoffset(None), zone.tzname(None)
    own_name = None if name == timezone(offset).tzname(None) else write_str(name)
    return ["offset", offset // _MICROSECOND, own_name]


def _itself(value: object) -> object:
    return value


SCALAR_WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _itself,
    bool: _itself,
    int: _int,
    float: _float,
    str: write_str,
    bytes: lambda value: {"$bytes": _base64(value)},
    bytearray: lambda value: {"$bytearray": _base64(value)},
    datetime: lambda value: {"$datetime": _moment(value)},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": _moment(value)},
    timedelta: lambda value: {"$timedelta": value // _MICROSECOND},
    Decimal: lambda value: {"$decimal": DECIMALS.to_sci_string(value)},
    UUID: lambda value: {"$uuid": str(value)},
    ObjectId: lambda value: {"$oid": str(value)},
}
_CONTAINERS: Final[dict[type, str]] = {
    list: "",
    tuple: "$tuple",
    set: "$set",
    frozenset: "$frozenset",
    dict: "$dict",
}
_ORDERED: Final = (list, tuple)
