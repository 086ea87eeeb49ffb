"""The nearest JSON to any value, for readers of an event who do not have the exact form."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from math import isfinite, isinf
from typing import Any, Final, cast

_JSON_INT_BITS: Final = 63
_READABLE_BITS: Final = 1024
# ADK's parser stops below 200 levels, some of which are the event's own.
_MAX_EVENT_DEPTH: Final = 128


def jsonable(value: object, depth: int = 0) -> Any:
    """The nearest JSON: for a reader without the exact form."""
    if depth > _MAX_EVENT_DEPTH:
        return "(nested too deep)"
    write = _NEAREST.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, Mapping):
        named = cast("Mapping[object, object]", value).items()
        return {_jsonable_key(key): jsonable(item, depth + 1) for key, item in named}
    if type(value) in (list, tuple, set, frozenset):
        return [jsonable(item, depth + 1) for item in cast("Iterable[object]", value)]
    return utf8(str(value))


def _jsonable_key(key: object) -> str:
    return utf8(key) if type(key) is str else str(jsonable(key))


def _float(value: float) -> float | str:
    if isfinite(value):
        return value
    return ("Infinity" if value > 0 else "-Infinity") if isinf(value) else "NaN"


def _int(value: int) -> int | str:
    if value.bit_length() <= _JSON_INT_BITS:
        return value
    return str(value) if value.bit_length() <= _READABLE_BITS else hex(value)


def utf8(text: str) -> str:
    """Pairs of surrogates as the character they mean, lone ones as the replacement character."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def base64_text(value: bytes | bytearray) -> str:
    """Bytes as a reader of the event gets them."""
    return base64.b64encode(value).decode("ascii")


def _itself(value: object) -> object:
    return value


_NEAREST: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _itself,
    bool: _itself,
    int: _int,
    float: _float,
    str: utf8,
    bytes: base64_text,
    bytearray: base64_text,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
}
