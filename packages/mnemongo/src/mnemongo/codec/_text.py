"""Trees of JSON values to text and back, strictly: what JSON has, nothing twice, nothing out of range."""

from __future__ import annotations

import json
from math import isinf
from typing import Final

from mnemongo.codec._rules import DamagedError


def dumps(tree: object) -> str:
    """The text of a tree, readable where UTF-8 can hold it so."""
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


def sorted_text(tree: object) -> str:
    """The text of a tree to sort and to hash by: ASCII, its keys in order."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def loads(text: object) -> object:
    """The tree of a text."""
    if type(text) is not str:
        raise DamagedError("not a text")
    try:
        return _DECODER.decode(text)
    except ValueError:
        raise DamagedError("not the JSON it was written as") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise DamagedError("a key twice")
    return read


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise DamagedError("a number out of range")
    return value


def _constant(text: str) -> object:
    raise DamagedError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)
