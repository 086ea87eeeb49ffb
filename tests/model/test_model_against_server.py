"""The model against a real server: random commands give the same replies, errors and contents.

What the model refuses as outside its vocabulary is skipped; each test counts that it compares enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from mnemongo.commands import Command, DuplicateError, RefusedError
from mnemongo.drive import OPTIONS, refusal
from mnemongo.store import _METHODS
from mnemongo.testing import ModelStore, ServerError, UnsupportedError
from mnemongo.testing._values import encoded

ITEMS = "model_items"
FAILED = "failed"
PAST, FUTURE = datetime(2001, 2, 3, tzinfo=UTC), datetime(2101, 2, 3, tzinfo=UTC)
Execute = Callable[[Command], Any]


# Running a command on both


@dataclass(frozen=True, slots=True)
class Server:
    """The other side: a command as the real store sends it."""

    database: Database[dict[str, Any]]

    def execute(self, command: Command) -> Any:
        collection = self.database.get_collection(command.collection, codec_options=OPTIONS)
        return _METHODS[command.method](collection, command.arguments, None)


def outcome(execute: Execute, command: Command) -> str:
    """What became of a command, in a form that tells 1 from 1.0 and knows the order of fields."""
    try:
        reply = execute(command)
    except (OperationFailure, ServerError, DuplicateError, RefusedError) as error:
        return failure(error)
    return repr(encoded(reply) if isinstance(reply, list | dict) else reply)


def failure(error: Exception) -> str:
    if isinstance(error, OperationFailure):
        error = refusal(error) or error
    if isinstance(error, DuplicateError):
        return f"duplicate in {error.index}"
    # Which of several errors is met first is the server's choice, so codes are not compared.
    return "refused" if isinstance(error, RefusedError) else FAILED


@dataclass(frozen=True, slots=True)
class Both:
    """The model and the server, with the same contents."""

    model: ModelStore
    server: Server

    def run(self, command: Command) -> str | None:
        """Run on both and compare; ``None``: outside the model's vocabulary, so on neither."""
        try:
            ours = outcome(self.model.execute, command)
        except UnsupportedError as error:
            event(f"unsupported: {error}")
            return None
        theirs = outcome(self.server.execute, command)
        if command.method == "find" and FAILED in {ours, theirs}:
            # Constants and the clauses an index serves come first: who meets a failing one is open.
            event("an expression failed, on one or both")
            return None
        assert ours == theirs, command
        event(ours if ours.startswith(("failed", "dupl", "refused")) else f"{command.method} done")
        return ours

    def insert(self, *documents: Mapping[str, Any]) -> None:
        for document in documents:
            self.run(Command(ITEMS, "insert_one", {"document": dict(document)}))

    def check_contents(self) -> None:
        self.run(find({}))


def find(selection: Mapping[str, Any], **more: Any) -> Command:
    return Command(ITEMS, "find", {"filter": selection, "sort": (("_id", 1),), **more})


INDEXES = (
    {"keys": [("a", 1), ("c.x", 1)], "name": "a_cx", "unique": True},
    {
        "keys": [("b", 1)],
        "name": "b",
        "unique": True,
        "partialFilterExpression": {"b": {"$gt": 0}},
    },
)


@pytest.fixture(scope="module")
def client(mongodb_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient(mongodb_uri, tz_aware=True) as client:
        yield client


@pytest.fixture
def server(client: MongoClient[dict[str, Any]], database_name: str) -> Server:
    client[database_name][ITEMS].drop()
    return Server(client[database_name])


def both(server: Server, *, unique: bool = False) -> Both:
    """Both, empty; with unique indexes if asked. One test never mixes the two."""
    pair = Both(ModelStore(), server)
    server.database[ITEMS].delete_many({})
    for index in INDEXES if unique else ():
        pair.run(Command(ITEMS, "create_index", index))
    return pair


def compared(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


# Documents

numbers = st.sampled_from([0, 1, 2, -1, 3, 2**31, 1.0, 0.5, -2.5, 2.0, float("nan")])
scalars = st.one_of(
    numbers,
    st.none(),
    st.booleans(),
    st.sampled_from(["", "a", "b", "é", PAST, FUTURE, b"", b"ab"]),
)
subdocuments = st.one_of(
    st.dictionaries(st.sampled_from("xyz"), scalars, max_size=3),
    st.fixed_dictionaries({"y": st.dictionaries(st.sampled_from("xz"), scalars, max_size=2)}),
)
items = st.one_of(scalars, scalars, subdocuments)
ids = st.one_of(
    st.sampled_from([1, 2, 3, 1.0, "k", True, PAST]),
    st.permutations([("p", 1), ("q", 2)]).map(dict),
    st.fixed_dictionaries({"p": st.integers(1, 3), "q": st.integers(1, 3)}),
)
bodies = st.fixed_dictionaries({}, optional={"a": items, "b": items, "c": subdocuments})
documents = st.builds(lambda key, body: {"_id": key, **body}, ids, bodies)
paths = st.sampled_from(["a", "b", "c", "c.x", "c.y", "c.y.x", "a.x", "a.y.z", "n"])


# Expressions

leaves = st.one_of(
    paths.map(lambda path: f"${path}"),
    scalars,
    items.map(lambda item: {"$literal": item}),
    st.sampled_from(["$$REMOVE", "$$ROOT", "$$ROOT.a", "$_id", {"$gt": ["$$NOW", PAST]}]),
    st.sampled_from([{"$lt": ["$a", "$$NOW"]}, {"$literal": "$a"}, "$$NOW.x"]),
)


def _calls(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Every operator over ``inner``."""
    pairs = st.lists(inner, min_size=2, max_size=2)
    some = st.lists(inner, max_size=3)
    forms: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"], pairs),
        **dict.fromkeys(["$subtract", "$divide"], pairs),
        **dict.fromkeys(["$and", "$or", "$add", "$multiply", "$max", "$min", "$mergeObjects"], some),
        **dict.fromkeys(["$not", "$toLong", "$isNumber"], inner.map(lambda operand: [operand])),
        "$ifNull": st.lists(inner, min_size=1, max_size=3),
        "$cond": st.one_of(
            st.lists(inner, min_size=3, max_size=3),
            st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
        ),
        "$switch": st.fixed_dictionaries(
            {"branches": st.lists(st.fixed_dictionaries({"case": inner, "then": inner}), max_size=2)},
            optional={"default": inner},
        ),
        "$dateAdd": st.fixed_dictionaries(
            {"startDate": inner, "unit": st.just("millisecond"), "amount": inner}
        ),
        "$let": st.fixed_dictionaries(
            {
                "vars": st.dictionaries(st.sampled_from(["v", "w"]), inner),
                "in": st.one_of(inner, st.sampled_from(["$$v", "$$w.x", ["$$v", "$a"]])),
            }
        ),
    }
    calls = [form.map(lambda operand, name=name: {name: operand}) for name, form in forms.items()]
    type_of = inner.map(lambda operand: {"$eq": [{"$type": operand}, "missing"]})
    fields = st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)
    return st.one_of(*calls, type_of, fields, st.lists(inner, max_size=2))


expressions = st.recursive(leaves, _calls, max_leaves=6)


@compared(300)
@example(
    document={"_id": 1, "a": PAST},
    specs=[{name: ["$a", number]} for name in ("$add", "$subtract") for number in (0.5, 1.6, -0.5, 2.5)],
)
@given(document=documents, specs=st.lists(_calls(expressions), min_size=3, max_size=6))
def test_expressions(server: Server, document: dict[str, Any], specs: list[Any]) -> None:
    pair = both(server)
    pair.insert(document)
    for spec in specs:
        computed = [{"$set": {"r": {"$literal": None}}}, {"$set": {"r": {"$cond": [True, spec, None]}}}]
        selection = {"_id": document["_id"]}
        pair.run(Command(ITEMS, "find_one_and_update", {"filter": selection, "update": computed}))


# Filters

bounds = st.one_of(scalars, subdocuments)
conditions = st.one_of(
    items,
    st.dictionaries(
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), bounds, min_size=1, max_size=2
    ),
    st.fixed_dictionaries({"$in": st.lists(bounds, max_size=3)}),
    st.fixed_dictionaries({"$exists": st.booleans()}),
    st.just({"$type": "date"}),
)
id_conditions = st.one_of(
    ids, st.fixed_dictionaries({"$gt": ids, "$lte": ids}), st.lists(ids).map(lambda i: {"$in": i})
)


def filters_with(conditions_on_all: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Filters with these expressions under ``$expr``."""
    clauses = st.one_of(
        st.dictionaries(paths, conditions, max_size=2),
        st.fixed_dictionaries({"_id": id_conditions}),
        conditions_on_all.map(lambda spec: {"$expr": spec}),
    )
    return st.recursive(
        clauses,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"$and": branches}),
            st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"$or": branches}),
        ),
        max_leaves=3,
    )


finds = st.builds(
    lambda selection, way, path, skip, limit, projection: find(
        selection,
        sort=((path, way), ("_id", -way)),
        skip=skip,
        limit=limit,
        projection=projection,
    ),
    filters_with(expressions),
    st.sampled_from([1, -1]),
    paths,
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([None, {"a": 1}, {"_id": 1}, {"b": True, "_id": 0}, {"_id": 0}, {"n": 1, "c": 1}]),
)


@compared(300)
@given(stored=st.lists(documents, max_size=5), commands=st.lists(finds, min_size=2, max_size=5))
def test_finds(server: Server, stored: list[dict[str, Any]], commands: list[Command]) -> None:
    pair = both(server)
    pair.insert(*stored)
    for command in commands:
        pair.run(command)


# Updates

operators = st.dictionaries(
    st.sampled_from(["$set", "$set", "$unset", "$inc", "$max", "$setOnInsert"]),
    st.dictionaries(
        st.one_of(paths, paths, st.sampled_from(["_id", "_id.p", "d.e.f"])),
        st.one_of(items, numbers),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)
stages = st.one_of(
    st.dictionaries(st.one_of(paths, paths, st.just("_id")), expressions, max_size=3).map(
        lambda fields: {"$set": fields}
    ),
    st.lists(st.one_of(paths, st.just("_id")), max_size=2).map(lambda names: {"$unset": names}),
    expressions.map(lambda spec: {"$replaceWith": {"$mergeObjects": ["$$ROOT", spec]}}),
    expressions.map(lambda spec: {"$replaceWith": spec}),
    st.tuples(expressions, st.one_of(ids, st.none())).map(
        lambda pair: {"$set": {"_id": {"$cond": [pair[0], "$_id", {"$literal": pair[1]}]}}}
    ),
)
updates = st.one_of(operators, st.lists(stages, min_size=1, max_size=3))
comparisons = st.builds(  # never fail: a server may compute constants before it looks for a document
    lambda name, operands: {name: operands},
    st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]),
    st.lists(leaves, min_size=2, max_size=2),
)
few_ids = st.sampled_from([1, {"p": 1, "q": 2}])
selections = st.one_of(
    few_ids.map(lambda key: {"_id": key}),
    st.builds(
        lambda key, rest: {"_id": key, **rest},
        few_ids,
        st.one_of(filters_with(comparisons), st.dictionaries(paths, items, max_size=2)),
    ),
)
changes = st.builds(
    lambda method, selection, update, upsert: Command(
        ITEMS, method, {"filter": selection, "update": update, "upsert": upsert}
    ),
    st.sampled_from(["update_one", "find_one_and_update"]),
    selections,
    updates,
    st.booleans(),
)


@compared(400)
@given(
    stored=st.lists(st.builds(lambda key, body: {"_id": key, **body}, few_ids, bodies), max_size=2),
    commands=st.lists(changes, min_size=1, max_size=4),
)
@example(
    stored=[{"_id": 1, "c": {"x": 1, "y": 2}, "a": 5}],
    commands=[
        Command(ITEMS, "find_one_and_update", {"filter": {"_id": 1}, "update": [{"$set": fields}]})
        for fields in ({"c": {"z": 3}}, {"c.x": "$n"}, {"a": {"x": 1}}, {"c": {"$literal": {"x": 4}}})
    ],
)
def test_updates(server: Server, stored: list[dict[str, Any]], commands: list[Command]) -> None:
    pair = both(server)
    pair.insert(*stored)
    for command in commands:
        pair.run(command)
        pair.check_contents()


# Everything, with unique indexes

few = st.sampled_from([0, 1, 2, 1.0, None, "a"])
crowded = st.builds(
    lambda key, body: {"_id": key, **body},
    st.integers(1, 4),
    st.fixed_dictionaries(
        {}, optional={"a": few, "b": few, "c": st.dictionaries(st.sampled_from("xy"), few)}
    ),
)
crowding = st.builds(
    lambda method, key, update, upsert: Command(
        ITEMS, method, {"filter": {"_id": key}, "update": update, "upsert": upsert}
    ),
    st.sampled_from(["update_one", "find_one_and_update"]),
    st.integers(1, 4),
    st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c.x"]), few, min_size=1).map(
            lambda fields: {"$set": fields}
        ),
        crowded.map(lambda document: [{"$replaceWith": {"$literal": document}}]),
        st.just([{"$set": {"a": {"$max": ["$a", "$b"]}, "b": "$c.x"}}]),
    ),
    st.booleans(),
)
anything = st.one_of(
    crowded.map(lambda document: Command(ITEMS, "insert_one", {"document": document})),
    st.lists(crowded, min_size=1, max_size=3).map(
        lambda several: Command(ITEMS, "insert_many", {"documents": several})
    ),
    crowding,
    crowding,
    st.integers(1, 4).map(lambda key: Command(ITEMS, "delete_one", {"filter": {"_id": key}})),
    few.map(lambda value: Command(ITEMS, "delete_many", {"filter": {"a": value}})),
)


@compared(300)
@given(commands=st.lists(anything, min_size=3, max_size=12))
def test_unique_indexes(server: Server, commands: list[Command]) -> None:
    pair = both(server, unique=True)
    for command in commands:
        pair.run(command)
    pair.check_contents()
