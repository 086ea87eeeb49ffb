"""Values as MongoDB sees them: what can be stored, in which order they sort, how large they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from mnemongo.errors import DocumentError
from mnemongo.testing._errors import ServerError, UnsupportedError

Path = tuple[str, ...]
Order = tuple[Any, ...]

MAX_LONG: Final = (1 << 63) - 1
MIN_LONG: Final = -(1 << 63)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
NUMBER: Final = 10
_INT32_BITS: Final = 31


class Missing(Enum):
    """The type of ``MISSING``: what a path finds where there is no field."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


def fits_int32(number: int) -> bool:
    """Whether the driver sends the number in 32 bits."""
    return -(1 << _INT32_BITS) <= number < 1 << _INT32_BITS


def fits_long(number: int) -> bool:
    """Whether the number fits BSON's largest integer."""
    return MIN_LONG <= number <= MAX_LONG


def nullish(value: Any) -> bool:
    """Whether an expression takes the value for nothing."""
    return value is None or value is MISSING


def is_number(value: Any) -> bool:
    """Whether the value is a number; to MongoDB ``True`` is none."""
    return type(value) is int or type(value) is float


def is_nan(value: Any) -> bool:
    """Whether the value is the number that equals no other."""
    return type(value) is float and math.isnan(value)


def milliseconds(moment: datetime) -> int:
    """Milliseconds since the epoch."""
    return (moment - EPOCH) // MILLISECOND


def moment_at(ms: int) -> datetime:
    """The moment so many milliseconds after the epoch."""
    try:
        return EPOCH + ms * MILLISECOND
    except OverflowError as error:
        raise UnsupportedError("a date outside the years 1 to 9999") from error


# What can be stored


def encoded(value: Any) -> Any:
    """A deep copy of the value as it comes back from a server.

    Raises:
        DocumentError: BSON has no such value.
        UnsupportedError: BSON may have, the model has not.
    """
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value)
    raise UnsupportedError(f"the model stores no {type(value).__name__}")


def copied(value: Any) -> Any:
    """A deep copy of a value that ``encoded`` made."""
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if type(value) is list else value


def _encoded_int(value: int) -> int:
    if not fits_long(value):
        raise DocumentError("an int of more than 64 bits")
    return int(value)


def _encoded_text(value: str) -> str:
    try:
        _ = value.encode()
    except UnicodeEncodeError as error:
        raise DocumentError("a text with lone surrogates") from error
    return str(value)


def _encoded_moment(value: datetime) -> datetime:
    aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return aware.replace(microsecond=aware.microsecond // 1000 * 1000, fold=0)


def _encoded_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {_encoded_name(name): encoded(item) for name, item in value.items()}


def _encoded_name(name: Any) -> str:
    if not isinstance(name, str) or "\0" in name:
        raise DocumentError("a field's name must be a str without NUL")
    return _encoded_text(name)


def _encoded_list(value: Sequence[Any]) -> list[Any]:
    return [encoded(item) for item in value]


_ENCODERS: Sequence[tuple[type | tuple[type, ...], Callable[[Any], Any]]] = (
    (str, _encoded_text),
    ((bool, type(None), bytes), lambda value: value),
    (int, _encoded_int),
    (float, float),
    (datetime, _encoded_moment),
    (Mapping, _encoded_mapping),
    ((list, tuple), _encoded_list),
)


# In which order


def order(value: Any) -> Order:
    """A hashable key that compares as BSON does, over all types; 1 and 1.0 are equal."""
    return _ORDERS[type(value)](value)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal to MongoDB: sub-documents by field order, 1 as 1.0."""
    return order(one) == order(other)


def identical(one: Any, other: Any) -> bool:
    """Whether two values are stored as the same bytes, near enough: 1 is not 1.0."""
    return repr(one) == repr(other)


def _number_order(value: float) -> Order:
    return (NUMBER, 0, 0) if is_nan(value) else (NUMBER, 1, value)


def _document_order(value: Mapping[str, Any]) -> Order:
    # The manual: field by field, each by type, then name, then value; the shorter one first.
    fields = ((name, order(item)) for name, item in value.items())
    return (20, tuple((key[0], name, key[1:]) for name, key in fields))


_ORDERS: Mapping[type, Callable[[Any], Order]] = {
    Missing: lambda _: (0,),
    type(None): lambda _: (5,),
    int: _number_order,
    float: _number_order,
    str: lambda value: (15, value),
    dict: _document_order,
    list: lambda value: (25, tuple(order(item) for item in value)),
    bytes: lambda value: (30, len(value), value),
    bool: lambda value: (40, value),
    datetime: lambda value: (45, value),
}


# How large


def size(value: Any) -> int:
    """The value's bytes in BSON, without its type and name."""
    return _SIZES[type(value)](value)


def _list_size(value: Sequence[Any]) -> int:
    return _document_size({str(place): item for place, item in enumerate(value)})


def _document_size(value: Mapping[str, Any]) -> int:
    return 5 + sum(2 + _text_size(name) + size(item) for name, item in value.items())


def _text_size(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


_SIZES: Mapping[type, Callable[[Any], int]] = {
    type(None): lambda _: 0,
    bool: lambda _: 1,
    int: lambda value: 4 if fits_int32(value) else 8,
    float: lambda _: 8,
    datetime: lambda _: 8,
    str: lambda value: 5 + _text_size(value),
    bytes: lambda value: 5 + len(value),
    list: _list_size,
    dict: _document_size,
}


# Paths


def parsed_path(name: str) -> Path:
    """The parts of a dotted name."""
    path = tuple(name.split("."))
    if not all(path) or any(part.startswith("$") for part in path):
        raise UnsupportedError(f"the path {name!r}")
    return path


def at(value: Any, path: Path) -> Any:
    """What the path leads to, or ``MISSING``."""
    for name in path:
        value = field(value, name)
    return value


def field(value: Any, name: str) -> Any:
    """One field of a sub-document, or ``MISSING``."""
    if type(value) is list:
        raise UnsupportedError(f"the path to {name!r} leads through a list")
    return value.get(name, MISSING) if type(value) is dict else MISSING


def scalar_at(value: Any, path: Path) -> Any:
    """What the path leads to, refusing lists: they match, sort and are indexed by element."""
    found = at(value, path)
    if type(found) is list:
        raise UnsupportedError(f"{'.'.join(path)!r} is a list: the model has no lookup by element")
    return found


def removed(document: dict[str, Any], path: Path) -> None:
    """Remove the field at the path, if it is there."""
    holder = at(document, path[:-1])
    if field(holder, path[-1]) is not MISSING:
        del holder[path[-1]]


def check_conflicts(paths: Sequence[Path], code: int) -> None:
    """Refuse two paths of which one leads to, or through, the other."""
    for one, other in _neighbours(paths):
        if other[: len(one)] == one:
            raise ServerError(code, f"conflicting paths {'.'.join(one)!r} and {'.'.join(other)!r}")


def _neighbours(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    return pairwise(sorted(paths))
