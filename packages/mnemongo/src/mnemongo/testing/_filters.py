"""Filters: parsed into predicates, and the equalities from which an upsert's new document starts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mnemongo.testing import _expressions as expressions
from mnemongo.testing import _values as values
from mnemongo.testing._errors import UnsupportedError
from mnemongo.testing._expressions import Scope, is_operator
from mnemongo.testing._values import MISSING, Order, Path, is_nan, order

Matches = Callable[[Scope], bool]
Test = Callable[[Any], bool]


def parsed(spec: Mapping[str, Any]) -> Matches:
    """The filter as a predicate."""
    return _every([_clause(name, argument) for name, argument in spec.items()])


def has_expression(spec: Mapping[str, Any]) -> bool:
    """Whether the filter holds an ``$expr``, which a server refuses in an upsert."""
    return "$expr" in spec or any(map(has_expression, _inner(spec, "$and", "$or")))


def equalities(spec: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The fields that the filter fixes to one value."""
    for name, argument in spec.items():
        if not name.startswith("$"):
            yield from ((values.parsed_path(name), value) for value in _fixed(argument))
    single = _inner(spec, "$or") if len(spec.get("$or", ())) == 1 else []
    for inner in (*_inner(spec, "$and"), *single):
        yield from equalities(inner)


def _fixed(argument: Any) -> list[Any]:
    if not is_operator(argument):
        return [argument]
    choice = list({order(value): value for value in argument.get("$in", ())}.values())
    fixed = [argument["$eq"]] if "$eq" in argument else []
    return fixed + choice if len(choice) == 1 else fixed


def _inner(spec: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    return [inner for name in names for inner in spec.get(name, ())]


# Clauses


def _every(clauses: Sequence[Matches]) -> Matches:
    return lambda scope: all(clause(scope) for clause in clauses)


def _clause(name: str, argument: Any) -> Matches:
    if name in _LOGICAL:
        return _LOGICAL[name](argument)
    return _field(values.parsed_path(name), argument)


def _field(path: Path, argument: Any) -> Matches:
    conditions = argument if is_operator(argument) else {"$eq": argument}
    tests = [_test(name, operand) for name, operand in conditions.items()]
    find = values.at if conditions.keys() == {"$exists"} else values.scalar_at
    return lambda scope: all(test(find(scope.root, path)) for test in tests)


def _test(name: str, operand: Any) -> Test:
    if name not in _TESTS:
        raise UnsupportedError(f"the filter operator {name!r}")
    return _TESTS[name](operand)


def _branches(argument: Any) -> list[Matches]:
    if type(argument) is not list or not argument:
        raise UnsupportedError("$and and $or take a list that is not empty")
    return [parsed(branch) for branch in argument]


def _either(argument: Any) -> Matches:
    branches = _branches(argument)
    return lambda scope: any(branch(scope) for branch in branches)


def _expression(argument: Any) -> Matches:
    evaluate = expressions.parsed(argument)
    return lambda scope: expressions.true(evaluate(scope))


_LOGICAL: Mapping[str, Callable[[Any], Matches]] = {
    "$and": lambda argument: _every(_branches(argument)),
    "$or": _either,
    "$expr": _expression,
}


# Tests of one field


def _comparing(holds: Callable[[Order, Order], bool]) -> Callable[[Any], Test]:
    """A comparison that only values of the operand's own kind pass; a missing field is null."""

    def build(operand: Any) -> Test:
        if type(operand) is list:
            raise UnsupportedError("comparing with a list")
        bound = order(operand)

        def test(value: Any) -> bool:
            found = order(None if value is MISSING else value)
            comparable = found[0] == bound[0] and is_nan(value) == is_nan(operand)
            return comparable and holds(found, bound)

        return test

    return build


_equal = _comparing(operator.eq)


def _not_equal(operand: Any) -> Test:
    equal = _equal(operand)
    return lambda value: not equal(value)


def _any_of(operand: Any) -> Test:
    if type(operand) is not list:
        raise UnsupportedError("$in takes a list")
    choices = [_equal(choice) for choice in operand]
    return lambda value: any(choice(value) for choice in choices)


def _exists(operand: Any) -> Test:
    wanted = expressions.true(operand)
    return lambda value: (value is not MISSING) == wanted


def _of_type(operand: Any) -> Test:
    if operand != "date":
        raise UnsupportedError("$type of another type than date")
    return lambda value: isinstance(value, datetime)


_TESTS: Mapping[str, Callable[[Any], Test]] = {
    "$eq": _equal,
    "$ne": _not_equal,
    "$gt": _comparing(operator.gt),
    "$gte": _comparing(operator.ge),
    "$lt": _comparing(operator.lt),
    "$lte": _comparing(operator.le),
    "$in": _any_of,
    "$exists": _exists,
    "$type": _of_type,
}
