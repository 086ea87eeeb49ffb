"""The form of an encoded text that content hashes are made of."""

from __future__ import annotations

from itertools import islice
from typing import cast

from mnemongo.codec._rules import DamagedError
from mnemongo.codec._text import loads, sorted_text
from mnemongo.errors import UndecodableDocumentError


def canonical(text: str) -> str:
    """A form of an encoded text in which the order of dict keys does not matter: for content hashes.

    Args:
        text: what ``encode`` returned.

    Returns:
        The same value as ASCII JSON. Equal for two texts exactly when the values are the same,
        types included, but for the order of keys.

    Raises:
        UndecodableDocumentError: the text is not JSON.

    >>> from mnemongo.codec import encode
    >>> canonical(encode({"b": 1, "a": 2})) == canonical(encode({"a": 2, "b": 1}))
    True
    >>> canonical(encode({"a": 1})) == canonical(encode({"a": True}))
    False
    """
    try:
        return sorted_text(_in_order(loads(text)))
    except DamagedError as damaged:
        raise UndecodableDocumentError(f"a stored value is damaged: {damaged}") from None
    except RecursionError as error:
        raise UndecodableDocumentError("a stored value is damaged: nested too deep") from error


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
    return [item for pair in sorted(pairs, key=lambda pair: sorted_text(pair[0])) for item in pair]
