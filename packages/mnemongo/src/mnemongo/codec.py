"""Python values to JSON text and back, exactly: the text is stored as an opaque string.

What JSON has stays JSON; anything else is a tagged object of one key, ``{"$bytes": "..."}``. A dict that
could be taken for a tag, or has keys other than text, is ``{"$dict": [key, value, ...]}``. Exact types
only: a value that would not come back as it is (any subclass included) is refused before a write.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
from itertools import islice, repeat
from math import isfinite, isinf
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bson.objectid import ObjectId

from mnemongo.errors import DocumentError, UndecodableDocumentError

MAX_DEPTH: Final = 200
"""How many levels of containers a value may have."""

_JSON_INT_BITS: Final = 63
_OID_BYTES: Final = 12
_SHOWN_STEPS: Final = 12
_SHOWN_KEY: Final = 40
_MICROSECOND: Final = timedelta(microseconds=1)
# The thread's own context would change the text (capitals) and the errors (traps).
_DECIMALS: Final = Context(capitals=1, traps=[InvalidOperation])
# Two code points that the escapes of JSON would merge into one character.
_SURROGATE_PAIR: Final = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_ZONE_KEY: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")
_NO_ZONE: Final = (ZoneInfoNotFoundError, OSError, ValueError)


class _RefusedError(Exception):
    """What cannot be kept, and (from the inside out) the steps to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


class _DamagedError(Exception):
    """A stored text that `encode` does not write."""


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
        return _dumps(_tree(value, 0))
    except _RefusedError as refused:
        raise DocumentError(f"{_path(refused.steps)}: {refused.reason}") from None
    except RecursionError as error:
        raise DocumentError("$: nested too deep for what is left of the call stack") from error


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
        return _value(_loads(text), 0)
    except _DamagedError as damaged:
        raise UndecodableDocumentError(f"a stored value is damaged: {damaged}") from None
    except RecursionError as error:
        raise UndecodableDocumentError("a stored value is damaged: nested too deep") from error


def canonical(text: str) -> str:
    """A form of an encoded text in which the order of dict keys does not matter: for content hashes.

    Args:
        text: what ``encode`` returned.

    Returns:
        The same value as ASCII JSON. Equal for two texts exactly when the values are the same,
        types included, but for the order of keys.

    Raises:
        UndecodableDocumentError: the text is not JSON.

    >>> canonical(encode({"b": 1, "a": 2})) == canonical(encode({"a": 2, "b": 1}))
    True
    >>> canonical(encode({"a": 1})) == canonical(encode({"a": True}))
    False
    """
    try:
        return _sorted_text(_in_order(_loads(text)))
    except _DamagedError as damaged:
        raise UndecodableDocumentError(f"a stored value is damaged: {damaged}") from None
    except RecursionError as error:
        raise UndecodableDocumentError("a stored value is damaged: nested too deep") from error


# Values to a tree of JSON values.


def _tree(value: object, depth: int) -> object:
    kind: type = type(value)
    write = _WRITERS.get(kind)
    if write is not None:
        return write(value)
    if depth >= MAX_DEPTH and kind in _CONTAINERS:
        raise _RefusedError(f"more than {MAX_DEPTH} levels of containers (or a cycle)")
    if kind is dict:
        return _dict(cast("dict[object, object]", value), depth + 1)
    tag = _CONTAINERS.get(kind)
    if tag is None:
        raise _RefusedError(f"a {_type_name(kind)} cannot be stored; convert it first")
    items = _items(cast("Iterable[object]", value), depth + 1, ordered=kind in _ORDERED)
    return {tag: items} if tag else items


def _items(values: Iterable[object], depth: int, *, ordered: bool) -> list[object]:
    items: list[object] = []
    try:
        for value in values:
            items.append(_tree(value, depth))  # noqa: PERF401 - the length is the index in the path
    except _RefusedError as refused:
        refused.steps.append(f"[{len(items)}]" if ordered else "[*]")
        raise
    if not ordered:
        items.sort(key=_sorted_text)
    return items


def _dict(values: dict[object, object], depth: int) -> object:
    pairs: list[tuple[object, object]] = []
    key: object = None
    try:
        for key, value in values.items():
            pairs.append((key if type(key) is str else _key(key, depth), _tree(value, depth)))
    except _RefusedError as refused:
        refused.steps.append(_step(key))
        raise
    if _is_plain(values):
        return dict(pairs)
    return {"$dict": [item for key, item in pairs for item in (_text_key(key), item)]}


def _key(key: object, depth: int) -> object:
    """Write a key that is not text; what is wrong with it is said of the key."""
    try:
        return _tree(key, depth)
    except _RefusedError as refused:
        refused.reason = f"as a key, {refused.reason}"
        refused.steps.clear()
        raise


def _text_key(key: object) -> object:
    return _str(key) if type(key) is str else key


def _is_plain(values: dict[object, object]) -> bool:
    """Whether a JSON object can hold it, and cannot be taken for a tag."""
    if not all(type(key) is str and _str(key) is key for key in values):
        return False
    return len(values) != 1 or not cast("str", next(iter(values))).startswith("$")


def _int(value: int) -> object:
    # Hexadecimal has no limit on digits, and other readers of JSON stop at 64 bits.
    return value if value.bit_length() <= _JSON_INT_BITS else {"$int": hex(value)}


def _float(value: float) -> object:
    return value if isfinite(value) else {"$float": repr(value)}


def _str(value: str) -> object:
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
        raise _RefusedError(f"a time in a zone of type {_type_name(type(zone))} cannot be stored")
    if type(zone.key) is not str or not _ZONE_KEY.fullmatch(zone.key):
        raise _RefusedError("a time in a ZoneInfo without a usual key cannot be stored")
    offset = value.utcoffset()  # None for a time whose date decides
    return ["zone", zone.key, None if offset is None else offset // _MICROSECOND]


def _fixed_zone(zone: timezone) -> list[object]:
    offset, name = zone.utcoffset(None), zone.tzname(None)
    own_name = None if name == timezone(offset).tzname(None) else _str(name)
    return ["offset", offset // _MICROSECOND, own_name]


def _itself(value: object) -> object:
    return value


_WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _itself,
    bool: _itself,
    int: _int,
    float: _float,
    str: _str,
    bytes: lambda value: {"$bytes": _base64(value)},
    bytearray: lambda value: {"$bytearray": _base64(value)},
    datetime: lambda value: {"$datetime": _moment(value)},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": _moment(value)},
    timedelta: lambda value: {"$timedelta": value // _MICROSECOND},
    Decimal: lambda value: {"$decimal": _DECIMALS.to_sci_string(value)},
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


# A tree of JSON values to values.


def _value(node: object, depth: int) -> object:
    if type(node) is not list and type(node) is not dict:
        return node
    if type(node) is dict and len(cast("dict[str, object]", node)) == 1:
        tag, payload = next(iter(cast("dict[str, object]", node).items()))
        if tag.startswith("$"):
            return _tagged(tag, payload, depth)
    if depth >= MAX_DEPTH:
        raise _DamagedError("nested too deep")
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
        raise _DamagedError("unknown tag")
    if type(payload) is not list:
        raise _DamagedError(f"{tag} holds no list")
    if depth >= MAX_DEPTH:
        raise _DamagedError("nested too deep")
    items = _values(cast("list[object]", payload), depth)
    try:
        container, size = _CONTAINER_READERS[tag](items), len(items)
    except (TypeError, ValueError):
        raise _DamagedError(f"{tag} holds what cannot be in it") from None
    if len(container) != (size // 2 if tag == "$dict" else size):
        raise _DamagedError(f"{tag} holds something twice")
    return container


def _scalar(tag: str, payload: object) -> object:
    kind, read = _SCALAR_READERS[tag]
    if type(payload) is not kind:
        raise _DamagedError(f"{tag} holds another type")
    try:
        value = read(payload)
    except (ValueError, TypeError, ArithmeticError):
        raise _DamagedError(f"{tag} holds no such value") from None
    # One spelling for one value: what is not written this way was not written here.
    if kind is not list and _WRITERS[type(value)](value) != {tag: payload}:
        raise _DamagedError(f"{tag} holds another spelling")
    return value


def _pairs(items: list[object]) -> dict[object, object]:
    walk: Iterator[object] = iter(items)
    return dict(zip(walk, walk, strict=True))


def _pieces(payload: list[object]) -> str:
    text = "".join(cast("list[str]", payload))
    if _str(text) != {"$str": payload}:
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
    if not _ZONE_KEY.fullmatch(key):
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
    "$decimal": (str, lambda payload: Decimal(payload, _DECIMALS)),
    "$uuid": (str, UUID),
    "$oid": (str, _read_oid),
}
_CONTAINER_READERS: Final[dict[str, Callable[[list[object]], Any]]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": _pairs,
}


# Trees to text and back.


def _dumps(tree: object) -> str:
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if text.isascii() or _is_utf8(text):
        return text
    return json.dumps(tree, separators=(",", ":"), allow_nan=False)


def _is_utf8(text: str) -> bool:
    try:
        _ = text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _loads(text: object) -> object:
    if type(text) is not str:
        raise _DamagedError("not a text")
    try:
        return _DECODER.decode(text)
    except ValueError:
        raise _DamagedError("not the JSON it was written as") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise _DamagedError("a key twice")
    return read


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise _DamagedError("a number out of range")
    return value


def _constant(text: str) -> object:
    raise _DamagedError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)


def _in_order(node: object) -> object:
    if type(node) is list:
        return [_in_order(item) for item in cast("list[object]", node)]
    if type(node) is not dict:
        return node
    tree = {key: _in_order(item) for key, item in cast("dict[str, object]", node).items()}
    payload = tree.get("$dict")
    if len(tree) == 1 and type(payload) is list:
        return {"$dict": _sorted_pairs(cast("list[object]", payload))}
    return tree


def _sorted_pairs(items: list[object]) -> list[object]:
    pairs = zip(items[::2], islice(items, 1, None, 2), strict=False)
    return [item for pair in sorted(pairs, key=lambda pair: _sorted_text(pair[0])) for item in pair]


def _sorted_text(tree: object) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


# Paths, for people.


def _path(steps: list[str]) -> str:
    """Outermost first; the middle of a long one (a cycle's) is left out."""
    outer = steps[::-1]
    if len(outer) > _SHOWN_STEPS:
        outer = [*outer[: _SHOWN_STEPS - 3], " ... ", *outer[-2:]]
    return "$" + "".join(outer)


def _step(key: object) -> str:
    if type(key) is str:
        return f".{key}" if key.isidentifier() and len(key) <= _SHOWN_KEY else _quoted(key)
    if key is None or type(key) in (bool, int, float):
        return f"[{_short_repr(key)}]"
    return f"[<{_type_name(type(key))}>]"


def _short_repr(key: object) -> str:
    huge = type(key) is int and key.bit_length() > _JSON_INT_BITS
    return "<int>" if huge else repr(key)


def _quoted(key: str) -> str:
    shown = key if len(key) <= _SHOWN_KEY else key[:_SHOWN_KEY] + "..."
    return f"[{json.dumps(shown)}]"


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
