"""Commands on collections: from a ``Command`` and the server's time to the driver's reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mnemongo.commands import Command, Document, UpdateReply
from mnemongo.testing import _filters as filters
from mnemongo.testing import _updates as updates
from mnemongo.testing import _values as values
from mnemongo.testing._collections import Collection, checked_id
from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._expressions import Scope, is_operator
from mnemongo.testing._values import MISSING

Arguments = Mapping[str, Any]
Handler = Callable[[Collection, Arguments, datetime], Any]


def run(collection: Collection, command: Command, now: datetime) -> Any:
    """Run one command at the server's time ``now``; the reply is the caller's own copy."""
    if command.method not in _HANDLERS:
        raise UnsupportedError(f"the method {command.method}")
    handler, names = _HANDLERS[command.method]
    unknown = command.arguments.keys() - names
    if unknown and command.method != "create_index":
        raise UnsupportedError(f"{command.method} with {', '.join(sorted(unknown))}")
    return handler(collection, values.encoded(command.arguments), now)


def _matching(collection: Collection, selection: Any, now: datetime) -> Iterator[Document]:
    matches = filters.parsed(selection)
    found = _candidates(collection, selection)
    return (document for document in found if matches(Scope(document, now)))


def _candidates(collection: Collection, selection: Any) -> Sequence[Document]:
    """All documents, or the one with the ``_id`` that the filter names."""
    if "_id" not in selection or is_operator(selection["_id"]):
        return list(collection.documents.values())
    found = collection.documents.get(values.order(selection["_id"]))
    return [] if found is None else [found]


# Find


def _find(collection: Collection, arguments: Arguments, now: datetime) -> list[Document]:
    skip, limit = arguments.get("skip", 0), arguments.get("limit", 0)
    if skip < 0 or limit < 0:
        raise UnsupportedError("a negative skip or limit")
    found = list(_matching(collection, arguments["filter"], now))
    sort: Sequence[tuple[str, int]] = arguments.get("sort", ())
    for name, direction in reversed(sort):
        found.sort(key=_sort_key(name), reverse=_descending(direction))
    end = skip + limit if limit else None
    project = _projection(arguments.get("projection"))
    return [values.copied(project(document)) for document in found[skip:end]]


def _descending(direction: Any) -> bool:
    if direction not in {1, -1}:
        raise UnsupportedError("a sort by another direction than 1 and -1")
    return bool(direction == -1)


def _sort_key(name: str) -> Callable[[Document], Any]:
    path = values.parsed_path(name)

    def key(document: Document) -> Any:
        found = values.scalar_at(document, path)
        return values.order(None if found is MISSING else found)

    return key


def _projection(spec: Any) -> Callable[[Document], Document]:
    if not spec:
        return lambda document: document
    if any("." in name or name.startswith("$") for name in spec):
        raise UnsupportedError("a projection of anything but whole fields")
    if any(shown not in {0, 1} or type(shown) is str for shown in spec.values()):
        raise UnsupportedError("a projection by anything but 0 and 1")
    if not all(shown for name, shown in spec.items() if name != "_id"):
        raise UnsupportedError("a projection that excludes other fields than _id")
    shown = {"_id": 1, **spec}
    names = {name for name in shown if shown[name]}
    if spec.keys() == {"_id"} and not names:
        return lambda document: {name: document[name] for name in document if name != "_id"}
    return lambda document: {name: document[name] for name in document if name in names}


# Insert


def _insert_one(collection: Collection, arguments: Arguments, _now: datetime) -> None:
    _insert(collection, arguments["document"])


def _insert_many(collection: Collection, arguments: Arguments, _now: datetime) -> None:
    for document in arguments["documents"]:
        _insert(collection, document)


def _insert(collection: Collection, document: Document) -> None:
    if any(name.startswith("$") for name in document):
        raise UnsupportedError("a field whose name begins with $")
    checked_id(document)
    collection.insert({"_id": document["_id"], **document})


# Update


def _update_one(collection: Collection, arguments: Arguments, now: datetime) -> UpdateReply:
    document, inserted = _updated(collection, arguments, now)
    return UpdateReply(matched=int(document is not None and not inserted), upserted=inserted)


def _find_one_and_update(collection: Collection, arguments: Arguments, now: datetime) -> Document | None:
    document, _inserted = _updated(collection, arguments, now)
    return None if document is None else dict(values.copied(document))


def _updated(collection: Collection, arguments: Arguments, now: datetime) -> tuple[Document | None, bool]:
    """The document as it is afterwards, if any, and whether it was inserted."""
    selection, upsert = arguments["filter"], arguments.get("upsert", False)
    if upsert and filters.has_expression(selection):
        raise ServerError(224, "$expr in the filter of an upsert")
    update = updates.parsed(arguments["update"])
    old = next(_matching(collection, selection, now), None)
    if old is None:
        return _upserted(collection, selection, update, now) if upsert else None, upsert
    new = values.copied(update(Scope(old, now), False))  # noqa: FBT003 - not inserting
    collection.replace(old, new)
    return new, False


def _upserted(
    collection: Collection, selection: Arguments, update: updates.Update, now: datetime
) -> Document:
    base = updates.upserted(selection)
    document: Document = values.copied(update(Scope(base, now), True))  # noqa: FBT003 - inserting
    collection.insert(document)
    return document


# Delete, indexes


def _delete_one(collection: Collection, arguments: Arguments, now: datetime) -> int:
    document = next(_matching(collection, arguments["filter"], now), None)
    if document is not None:
        collection.delete(document)
    return int(document is not None)


def _delete_many(collection: Collection, arguments: Arguments, now: datetime) -> int:
    doomed = list(_matching(collection, arguments["filter"], now))
    for document in doomed:
        collection.delete(document)
    return len(doomed)


def _create_index(collection: Collection, arguments: Arguments, _now: datetime) -> None:
    keys = arguments["keys"]
    pairs = [list(pair) for pair in keys.items()] if type(keys) is dict else keys
    collection.create_index(arguments["name"], {**arguments, "keys": pairs})


_UPDATE = frozenset({"filter", "update", "upsert"})
_HANDLERS: Mapping[str, tuple[Handler, frozenset[str]]] = {
    "find": (_find, frozenset({"filter", "sort", "limit", "skip", "projection"})),
    "insert_one": (_insert_one, frozenset({"document"})),
    "insert_many": (_insert_many, frozenset({"documents"})),
    "update_one": (_update_one, _UPDATE),
    "find_one_and_update": (_find_one_and_update, _UPDATE),
    "delete_one": (_delete_one, frozenset({"filter"})),
    "delete_many": (_delete_many, frozenset({"filter"})),
    "create_index": (_create_index, frozenset()),
}
