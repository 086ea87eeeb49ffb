"""Collections of documents on dicts, and what their unique indexes allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mnemongo.commands import Document, DuplicateError
from mnemongo.errors import ConfigurationError, DocumentTooLargeError
from mnemongo.testing import _filters as filters
from mnemongo.testing import _values as values
from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._expressions import Scope
from mnemongo.testing._values import EPOCH, MISSING, Order

MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index, and the documents it holds by the values of its fields."""

    fields: tuple[str, ...]
    only: filters.Matches | None = None
    entries: dict[Order, Order] = field(default_factory=dict)

    def entry(self, document: Mapping[str, Any]) -> Order | None:
        """Where the document stands in this index, or ``None`` when it is not in it."""
        if self.only is not None and not self.only(Scope(document, EPOCH)):
            return None
        found = (values.scalar_at(document, values.parsed_path(name)) for name in self.fields)
        return tuple(values.order(None if value is MISSING else value) for value in found)

    def check(self, document: Mapping[str, Any], own: Order) -> None:
        """Refuse the document if another one has its place."""
        entry = self.entry(document)
        if entry is not None and self.entries.get(entry, own) != own:
            raise DuplicateError(self.fields)

    def add(self, document: Mapping[str, Any], own: Order) -> None:
        """Enter the document."""
        if (entry := self.entry(document)) is not None:
            self.entries[entry] = own

    def remove(self, document: Mapping[str, Any]) -> None:
        """Take the document out."""
        if (entry := self.entry(document)) is not None:
            del self.entries[entry]


@dataclass(slots=True)
class Collection:
    """Documents in the order they were inserted. They are replaced, never changed in place."""

    documents: dict[Order, Document] = field(default_factory=dict)
    indexes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    unique: dict[str, UniqueIndex] = field(default_factory=dict)

    def copy(self) -> Collection:
        """The collection as it is now, for a rollback."""
        unique = {name: replace(index, entries=dict(index.entries)) for name, index in self.unique.items()}
        return Collection(dict(self.documents), dict(self.indexes), unique)

    def insert(self, document: Document) -> None:
        """Add a document.

        Raises:
            DuplicateError: a unique index has its place already; ``_id`` is checked first.
            DocumentTooLargeError: it is over 16 MiB.
        """
        own = values.order(checked_id(document))
        if own in self.documents:
            raise DuplicateError(("_id",))
        self._store(own, document)

    def replace(self, old: Document, new: Document) -> None:
        """Put the changed document in the place of the old one, with the same ``_id``."""
        own = values.order(old["_id"])
        for index in self.unique.values():
            index.check(new, own)
        _check_size(new)
        for index in self.unique.values():
            index.remove(old)
        self._store(own, new)

    def _store(self, own: Order, document: Document) -> None:
        _check_size(document)
        for index in self.unique.values():
            index.check(document, own)
        for index in self.unique.values():
            index.add(document, own)
        self.documents[own] = document

    def delete(self, document: Document) -> None:
        """Remove a stored document."""
        for index in self.unique.values():
            index.remove(document)
        del self.documents[values.order(document["_id"])]

    def create_index(self, name: str, options: Mapping[str, Any]) -> None:
        """Create an index; nothing happens when the same one is there.

        Raises:
            ConfigurationError: another index has its name, or its fields.
            DuplicateError: it is unique, and stored documents are not.
        """
        for other, existing in self.indexes.items():
            if other == name and existing == options:
                return
            if other == name or existing["keys"] == options["keys"]:
                raise ConfigurationError(f"the index {name} differs from {other}, which exists")
        if options.get("unique"):
            self.unique[name] = self._built(options)
        self.indexes[name] = options

    def _built(self, options: Mapping[str, Any]) -> UniqueIndex:
        only = options.get("partialFilterExpression")
        fields = tuple(key for key, _direction in options["keys"])
        index = UniqueIndex(fields, None if only is None else filters.parsed(only))
        for own, document in self.documents.items():
            index.check(document, own)
            index.add(document, own)
        return index


def checked_id(document: Mapping[str, Any]) -> Any:
    """The document's ``_id``."""
    if "_id" not in document:
        raise UnsupportedError("a document without _id: the model makes up none")
    if type(document["_id"]) is list:
        raise ServerError(53, "an _id cannot be a list")
    return document["_id"]


def _check_size(document: Document) -> None:
    if (size := values.size(document)) > MAX_BYTES:
        raise DocumentTooLargeError(
            f"the document has {size} bytes, at most {MAX_BYTES} are allowed",
            key=document["_id"],
            expected=MAX_BYTES,
            found=size,
        )
