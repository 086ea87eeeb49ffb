"""Commands, plans and operations: what is to be done, as values. Nothing here does it.

A plan is a generator: it yields commands, is sent each reply, and returns the result. An ``Operation``
holds a plan *factory*, since every attempt (a retried transaction, a crashed worker) runs a fresh plan.

Rules a plan keeps:
1. No clock, no randomness, no I/O: times, ids and tokens are arguments, or come from the server.
2. It never yields in ``finally``, and catches only ``DuplicateError`` and ``RefusedError``.
3. After a caught error inside a transaction it may only raise: the server has already aborted.
4. Another operation is composed with ``yield from op``; an atomic one only inside an atomic one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, cast

from mnemongo.errors import MnemongoError
from mnemongo.keys import check_session_key

Document = dict[str, Any]
Filter = Mapping[str, Any]
Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Sort = tuple[tuple[str, int], ...]

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Command:
    """One round trip: a method of a collection, by the driver's own name, with its arguments."""

    collection: str
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindEach:
    """Several finds in one round trip; the reply is one list of documents per find."""

    finds: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a little before trying again: a jittered time that grows with ``attempt`` (from 1)."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RequireTransaction:
    """Yielded first by an atomic operation that is composed: refused outside an atomic one."""

    name: str


Step = Command | FindEach | Pause | RequireTransaction
Plan = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class UpdateReply:
    """What an update did: documents matched, and whether it inserted one."""

    matched: int
    upserted: bool


class DuplicateError(MnemongoError):
    """Thrown into a plan: a unique index refused the insert. ``index`` are that index's fields.

    Never reaches a caller as it is: a plan turns it into a replay or into an error that says more.
    """

    def __init__(self, index: tuple[str, ...]) -> None:
        super().__init__(f"duplicate key in the index on {', '.join(index)}")
        self.index = index

    @property
    def on_id(self) -> bool:
        """Whether the document's own key is taken (else it is the place that is)."""
        return self.index == ("_id",)


class RefusedError(MnemongoError):
    """Thrown into a plan: the server evaluated the write's own guard and refused it."""

    def __init__(self) -> None:
        super().__init__("the write's guard did not hold")


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """A named plan factory.

    ``atomic`` operations run in a transaction where there are any. Those that do not ``repeats`` have no key
    that would make a second run harmless: a store does not try them again once they may have written.
    Those that ``prepares`` may run before the indexes are there.

    Run it with ``Store.run`` or ``await AsyncStore.run``, as often as you like.
    """

    name: str
    factory: Callable[[], Plan[T]] = field(repr=False)
    atomic: bool = False
    repeats: bool = True
    prepares: bool = False

    def plan(self) -> Plan[T]:
        """A fresh plan, for a driver."""
        return self.factory()

    def __iter__(self) -> Plan[T]:
        """Compose inside another plan: ``stored = yield from entries.append(...)``."""
        if self.atomic:
            yield RequireTransaction(self.name)
        return (yield from self.factory())


def operation(
    *, atomic: bool = False, repeats: bool = True, prepares: bool = False
) -> Callable[[Callable[P, Plan[T]]], Callable[P, Operation[T]]]:
    """Turn a plan function into a function that returns an ``Operation``.

    Where the plan's first parameter is ``key``, what is passed for it must be a ``SessionKey``.
    """

    def decorate(plan: Callable[P, Plan[T]]) -> Callable[P, Operation[T]]:
        keyed = next(iter(inspect.signature(plan).parameters), None) == "key"
        name = f"{plan.__module__.rpartition('.')[2]}.{plan.__name__.strip('_')}"

        @functools.wraps(plan)
        def build(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
            if keyed:
                check_session_key(args[0] if args else kwargs.get("key"))
            return Operation(name, functools.partial(plan, *args, **kwargs), atomic, repeats, prepares)

        return build

    return decorate


def finding(
    collection: str,
    filter: Filter,  # noqa: A002 - the driver's own name
    *,
    sort: Sort = (),
    limit: int = 0,
    skip: int = 0,
    projection: Mapping[str, Any] | None = None,
) -> Command:
    """A find as a value, to be yielded by ``find`` or several at once by ``find_each``."""
    arguments: dict[str, Any] = {"filter": filter}
    if sort:
        arguments["sort"] = sort
    if limit:
        arguments["limit"] = limit
    if skip:
        arguments["skip"] = skip
    if projection is not None:
        arguments["projection"] = projection
    return Command(collection, "find", arguments)


def find(command: Command) -> Plan[list[Document]]:
    """All documents of one find (bound it with ``limit``)."""
    return cast("list[Document]", (yield command))


def find_one(collection: str, filter: Filter) -> Plan[Document | None]:  # noqa: A002 - the driver's own name
    """The first document that matches, or ``None``."""
    found = yield from find(finding(collection, filter, limit=1))
    return found[0] if found else None


def find_each(*finds: Command) -> Plan[list[list[Document]]]:
    """Several finds in one round trip: the first starts it, the others are united with it."""
    return cast("list[list[Document]]", (yield FindEach(finds)))


def insert_one(collection: str, document: Document) -> Plan[None]:
    """Insert one document; ``DuplicateError`` is thrown in when a unique index refuses it."""
    yield Command(collection, "insert_one", {"document": document})


def insert_many(collection: str, documents: Sequence[Document]) -> Plan[None]:
    """Insert in order, stopping at the first duplicate: whole only inside a transaction."""
    yield Command(collection, "insert_many", {"documents": list(documents)})


def update_one(
    collection: str,
    filter: Filter,  # noqa: A002 - the driver's own name
    update: Update,
    *,
    upsert: bool = False,
) -> Plan[UpdateReply]:
    """Update at most one document, by operators or by a pipeline."""
    arguments = {"filter": filter, "update": update, "upsert": upsert}
    return cast("UpdateReply", (yield Command(collection, "update_one", arguments)))


def find_one_and_update(
    collection: str,
    filter: Filter,  # noqa: A002 - the driver's own name
    update: Update,
    *,
    upsert: bool = False,
) -> Plan[Document | None]:
    """Update at most one document and return it as it is afterwards."""
    arguments = {"filter": filter, "update": update, "upsert": upsert}
    return cast("Document | None", (yield Command(collection, "find_one_and_update", arguments)))


def delete_one(collection: str, filter: Filter) -> Plan[int]:  # noqa: A002 - the driver's own name
    """Delete at most one document; returns how many."""
    return cast("int", (yield Command(collection, "delete_one", {"filter": filter})))


def delete_many(collection: str, filter: Filter) -> Plan[int]:  # noqa: A002 - the driver's own name
    """Delete what matches; returns how many. Bound it by the filter."""
    return cast("int", (yield Command(collection, "delete_many", {"filter": filter})))


def create_index(collection: str, index: Mapping[str, Any]) -> Plan[None]:
    """Create one index (``keys``, ``name`` and options), or nothing when it is there."""
    yield Command(collection, "create_index", index)


def pause(attempt: int) -> Plan[None]:
    """Back off before the next attempt."""
    yield Pause(attempt)
