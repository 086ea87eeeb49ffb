"""A tree of JSON values to values, each tag by its reader; takes only what the writers write."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import repeat
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bson.objectid import ObjectId

from mnemongo.codec._rules import DECIMALS, MAX_DEPTH, ZONE_KEY, DamagedError
from mnemongo.codec._text import loads
from mnemongo.codec._write import SCALAR_WRITERS, write_str
from mnemongo.errors import UndecodableDocumentError

_OID_BYTES: Final = 12
_NO_ZONE: Final = (ZoneInfoNotFoundError, OSError, ValueError)


def decode(text: str) -> object:
    """Read what ``encode`` wrote. Runs nothing and looks no type up by name.

    A datetime whose zone is not known here comes back with the fixed offset it had.

    Args:
        text: a stored text.

    Returns:
        The value.

    Raises:
        UndecodableDocumentError: ``encode`` does not write this text: it is damaged or foreign.

    >>> decode('{"a":{"$set":[1,2]}}')
    {'a': {1, 2}}
    >>> decode('{"$type":"os.system"}')
    Traceback (most recent call last):
    mnemongo.errors.UndecodableDocumentError: a stored value is damaged: unknown tag
    """
    try:
        return _value(loads(text), 0)
    except DamagedError as damaged:
        raise UndecodableDocumentError(f"a stored value is damaged: {damaged}") from None
    except RecursionError as error:
        raise UndecodableDocumentError("a stored value is damaged: nested too deep") from error


def _value(node: object, depth: int) -> object:
    if type(node) is not list and type(node) is not dict:
        return node
    if type(node) is dict and len(cast("dict[str, object]", node)) == 1:
        tag, payload = next(iter(cast("dict[str, object]", node).items()))
        if tag.startswith("$"):
            return _tagged(tag, payload, depth)
    if depth >= MAX_DEPTH:
        raise DamagedError("nested too deep")
    if type(node) is list:
        return _values(cast("list[object]", node), depth)
    named = cast("dict[str, object]", node)
    return dict(zip(named, _values(named.values(), depth), strict=True))


def _values(nodes: Iterable[object], depth: int) -> list[object]:
    return list(map(_value, nodes, repeat(depth + 1)))


def _tagged(tag: str, payload: object, depth: int) -> object:
    if tag in _SCALAR_READERS:
        return _scalar(tag, payload)
    if tag not in _CONTAINER_READERS:
        raise DamagedError("unknown tag")
    if type(payload) is not list:
        raise DamagedError(f"{tag} holds no list")
    if depth >= MAX_DEPTH:
        raise DamagedError("nested too deep")
    items = _values(cast("list[object]", payload), depth)
    try:
        container, size = _CONTAINER_READERS[tag](items), len(items)
    except (TypeError, ValueError):
        raise DamagedError(f"{tag} holds what cannot be in it") from None
    if len(container) != (size // 2 if tag == "$dict" else size):
        raise DamagedError(f"{tag} holds something twice")
    return container


def _scalar(tag: str, payload: object) -> object:
    kind, read = _SCALAR_READERS[tag]
    if type(payload) is not kind:
        raise DamagedError(f"{tag} holds another type")
    try:
        value = read(payload)
    except (ValueError, TypeError, ArithmeticError):
        raise DamagedError(f"{tag} holds no such value") from None
    # One spelling for one value: what is not written this way was not written here.
    if kind is not list and SCALAR_WRITERS[type(value)](value) != {tag: payload}:
        raise DamagedError(f"{tag} holds another spelling")
    return value


def _pairs(items: list[object]) -> dict[object, object]:
    walk: Iterator[object] = iter(items)
    return dict(zip(walk, walk, strict=True))


def _pieces(payload: list[object]) -> str:
    text = "".join(cast("list[str]", payload))
    if write_str(text) != {"$str": payload}:
        raise ValueError
    return text


def _read_oid(payload: str) -> ObjectId:
    raw = bytes.fromhex(payload)
    if len(raw) != _OID_BYTES:
        raise ValueError
    return ObjectId(raw)


def _read_datetime(payload: list[object]) -> datetime:
    text, fold, zone = cast("tuple[str, int, object]", tuple(payload))
    value = datetime.fromisoformat(text)
    _check_moment(value, text, fold)
    known = _read_zone(zone)
    if known is None and zone is not None:
        raise ValueError
    return value.replace(fold=fold, tzinfo=known)


def _read_time(payload: list[object]) -> time:
    text, fold, zone = cast("tuple[str, int, object]", tuple(payload))
    value = time.fromisoformat(text)
    _check_moment(value, text, fold)
    return value.replace(fold=fold, tzinfo=_read_zone(zone))


def _check_moment(value: datetime | time, text: str, fold: object) -> None:
    if value.tzinfo is not None or value.isoformat() != text or type(fold) is not int:
        raise ValueError


def _read_zone(payload: object) -> timezone | ZoneInfo | None:
    if payload is None:
        return None
    if type(payload) is not list:
        raise ValueError
    form, first, second = cast("list[object]", payload)
    if form == "offset":
        name = second if second is None else _value(second, 0)
        return _fixed(first) if name is None else timezone(_offset(first), cast("str", name))
    if form != "zone" or type(first) is not str:
        raise ValueError
    fallback = None if second is None else _fixed(second)
    return _named_zone(first) or fallback


def _named_zone(key: str) -> ZoneInfo | None:
    if not ZONE_KEY.fullmatch(key):
        raise ValueError
    try:
        return ZoneInfo(key)
    except _NO_ZONE:
        return None


def _fixed(micros: object) -> timezone:
    return timezone(_offset(micros))


def _offset(micros: object) -> timedelta:
    if type(micros) is not int:
        raise ValueError
    return timedelta(microseconds=micros)


_SCALAR_READERS: Final[dict[str, tuple[type, Callable[[Any], object]]]] = {
    "$int": (str, lambda payload: int(payload, 16)),
    "$float": (str, float),
    "$str": (list, _pieces),
    "$bytes": (str, lambda payload: binascii.a2b_base64(payload, strict_mode=True)),
    "$bytearray": (str, lambda payload: bytearray(binascii.a2b_base64(payload, strict_mode=True))),
    "$datetime": (list, _read_datetime),
    "$date": (str, date.fromisoformat),
    "$time": (list, _read_time),
    "$timedelta": (int, lambda payload: timedelta(microseconds=payload)),
    "$decimal": (str, lambda payload: Decimal(payload, DECIMALS)),
    "$uuid": (str, UUID),
    "$oid": (str, _read_oid),
}
_CONTAINER_READERS: Final[dict[str, Callable[[list[object]], Any]]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": _pairs,
}
