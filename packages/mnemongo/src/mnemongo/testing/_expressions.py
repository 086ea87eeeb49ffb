"""Aggregation expressions, parsed into functions of a scope; whatever is not known is refused then."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from mnemongo.testing import _functions as functions
from mnemongo.testing import _values as values
from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._values import MISSING, is_number, nullish, order


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can see: the document, the server's time, the variables of ``$let``."""

    root: Mapping[str, Any]
    now: datetime
    variables: Mapping[str, Any] = field(default_factory=dict)


Evaluate = Callable[[Scope], Any]
Names = frozenset[str]
Builder = Callable[[Any, Names], Evaluate]
NO_NAMES: Final[Names] = frozenset()


def parsed(spec: Any, names: Names = NO_NAMES) -> Evaluate:
    """The expression as a function. ``names`` are the variables that ``$let`` has defined."""
    build = _BUILDERS.get(type(spec), _constant)
    return build(spec, names)


def is_operator(spec: Any) -> bool:
    """Whether a document names an operator instead of fields."""
    return type(spec) is dict and any(name.startswith("$") for name in spec)


def true(value: Any) -> bool:
    """What MongoDB takes for true: everything but false, null, missing and zero."""
    if nullish(value) or value is False:
        return False
    return not is_number(value) or value != 0


# Constants, paths, variables, documents, lists


def _constant(spec: Any, _names: Names = NO_NAMES) -> Evaluate:
    return lambda _scope: spec


def _text(spec: str, names: Names) -> Evaluate:
    if spec.startswith("$$"):
        return _variable(spec, names)
    if not spec.startswith("$"):
        return _constant(spec)
    path = values.parsed_path(spec[1:])
    return lambda scope: values.at(scope.root, path)


def _variable(spec: str, names: Names) -> Evaluate:
    name, *rest = values.parsed_path(spec[2:])
    path = tuple(rest)
    if name in names:
        return lambda scope: values.at(scope.variables[name], path)
    if name not in _SYSTEM:
        raise UnsupportedError(f"the variable $${name}")
    find = _SYSTEM[name]
    return lambda scope: values.at(find(scope), path)


_SYSTEM: Mapping[str, Evaluate] = {
    "NOW": lambda scope: scope.now,
    "ROOT": lambda scope: scope.root,
    "REMOVE": lambda _scope: MISSING,
}


def _document(spec: Mapping[str, Any], names: Names) -> Evaluate:
    if is_operator(spec):
        return _operator(spec, names)
    if any("." in name or not name for name in spec):
        raise ServerError(16412, "a field's name in an expression must not be empty or dotted")
    fields = [(name, parsed(item, names)) for name, item in spec.items()]

    def evaluate(scope: Scope) -> dict[str, Any]:
        found = ((name, item(scope)) for name, item in fields)
        return {name: value for name, value in found if value is not MISSING}

    return evaluate


def _operator(spec: Mapping[str, Any], names: Names) -> Evaluate:
    if len(spec) != 1:
        raise ServerError(15983, "an expression must have exactly one operator")
    name, argument = next(iter(spec.items()))
    if name not in _OPERATORS:
        raise UnsupportedError(f"the expression {name}")
    return _OPERATORS[name](argument, names)


def _list(spec: Sequence[Any], names: Names) -> Evaluate:
    items = [parsed(item, names) for item in spec]

    def evaluate(scope: Scope) -> list[Any]:
        found = (item(scope) for item in items)
        return [None if value is MISSING else value for value in found]

    return evaluate


_BUILDERS: Mapping[type, Builder] = {str: _text, dict: _document, list: _list}


# Operators of evaluated operands


def _on(function: Callable[..., Any], count: int | None = None) -> Builder:
    """An operator that evaluates all its operands first."""

    def build(argument: Any, names: Names) -> Evaluate:
        operands = _operands(argument, names, count)
        return lambda scope: function(*(operand(scope) for operand in operands))

    return build


def _folded(function: Callable[[Iterable[Any]], Any]) -> Builder:
    """An operator that evaluates one operand after the other, and may stop before the last."""

    def build(argument: Any, names: Names) -> Evaluate:
        operands = _operands(argument, names)
        return lambda scope: function(operand(scope) for operand in operands)

    return build


def _operands(argument: Any, names: Names, count: int | None = None) -> list[Evaluate]:
    specs = argument if type(argument) is list else [argument]
    if count is not None and len(specs) != count:
        raise ServerError(16020, f"the expression takes {count} arguments, not {len(specs)}")
    return [parsed(spec, names) for spec in specs]


def _comparing(holds: Callable[[Any, Any], bool]) -> Builder:
    """A comparison over all types in BSON's order, in which a missing field comes before null."""
    compare = _on(lambda one, other: holds(order(one), order(other)), 2)

    def build(argument: Any, names: Names) -> Evaluate:
        # 32 and 64 bits are one int here: which of the two a server has stored is not known.
        if type(argument) is list and {"int", "long"} & {a for a in argument if type(a) is str}:
            raise UnsupportedError("comparing with the type int or long: use $isNumber")
        return compare(argument, names)

    return build


def _extreme(choose: Callable[..., Any]) -> Builder:
    def function(*operands: Any) -> Any:
        if len(operands) == 1 and type(operands[0]) is list:
            raise UnsupportedError("$max or $min over a list")
        present = [operand for operand in operands if not nullish(operand)]
        return choose(present, key=order, default=None)

    return _on(function)


# Operators with arguments of their own form


def _literal(argument: Any, _names: Names) -> Evaluate:
    return _constant(argument)


def _if_null(argument: Any, names: Names) -> Evaluate:
    operands = _operands(argument, names)
    if len(operands) < 2:  # noqa: PLR2004 - the server's own rule
        raise ServerError(1257300, "$ifNull takes at least two arguments")

    def evaluate(scope: Scope) -> Any:
        for operand in operands[:-1]:
            if not nullish(value := operand(scope)):
                return value
        return operands[-1](scope)

    return evaluate


def _cond(argument: Any, names: Names) -> Evaluate:
    specs = argument if type(argument) is list else _parts(argument, ("if", "then", "else"))
    condition, then, otherwise = _operands(specs, names, 3)
    return lambda scope: then(scope) if true(condition(scope)) else otherwise(scope)


def _parts(argument: Any, required: Sequence[str], optional: Sequence[str] = ()) -> list[Any]:
    """The values of a document with exactly these fields; ``MISSING`` for an optional one."""
    if type(argument) is not dict or not set(required) <= set(argument) <= {*required, *optional}:
        raise UnsupportedError(f"an argument must have the fields {', '.join(required)}")
    return [argument.get(name, MISSING) for name in (*required, *optional)]


def _switch(argument: Any, names: Names) -> Evaluate:
    specs, default = _parts(argument, ["branches"], ["default"])
    if type(specs) is not list or not specs:
        raise ServerError(40068, "$switch takes at least one branch")
    branches = [_operands(_parts(spec, ("case", "then")), names, 2) for spec in specs]
    otherwise = _no_branch if default is MISSING else parsed(default, names)

    def evaluate(scope: Scope) -> Any:
        for case, then in branches:
            if true(case(scope)):
                return then(scope)
        return otherwise(scope)

    return evaluate


def _no_branch(_scope: Scope) -> Any:
    raise ServerError(40066, "no branch of a $switch held, and it has no default")


def _and(argument: Any, names: Names) -> Evaluate:
    operands = _operands(argument, names)
    return lambda scope: all(true(operand(scope)) for operand in operands)


def _or(argument: Any, names: Names) -> Evaluate:
    operands = _operands(argument, names)
    return lambda scope: any(true(operand(scope)) for operand in operands)


def _date_add(argument: Any, names: Names) -> Evaluate:
    start, unit, amount = _parts(argument, ("startDate", "unit", "amount"))
    if unit != "millisecond":
        raise UnsupportedError("$dateAdd of another unit than millisecond")
    return _folded(functions.shifted)([start, amount], names)


def _let(argument: Any, names: Names) -> Evaluate:
    specs, inside = _parts(argument, ("vars", "in"))
    if type(specs) is not dict or not all(map(_may_be_defined, specs)):
        raise UnsupportedError("a variable's name must begin with a small letter")
    variables = {name: parsed(spec, names) for name, spec in specs.items()}
    body = parsed(inside, names | specs.keys())

    def evaluate(scope: Scope) -> Any:
        found = {name: variable(scope) for name, variable in variables.items()}
        return body(replace(scope, variables={**scope.variables, **found}))

    return evaluate


def _rand(argument: Any, _names: Names) -> Evaluate:
    if argument != {}:
        raise ServerError(10065, "$rand takes no arguments")
    return lambda _scope: random.random()  # noqa: S311 - what the server's is


def _may_be_defined(name: str) -> bool:
    return name.isidentifier() and name.isascii() and name[0].islower()


_OPERATORS: Mapping[str, Builder] = {
    "$literal": _literal,
    "$cond": _cond,
    "$switch": _switch,
    "$ifNull": _if_null,
    "$let": _let,
    "$and": _and,
    "$or": _or,
    "$not": _on(lambda value: not true(value), 1),
    "$eq": _comparing(operator.eq),
    "$ne": _comparing(operator.ne),
    "$gt": _comparing(operator.gt),
    "$gte": _comparing(operator.ge),
    "$lt": _comparing(operator.lt),
    "$lte": _comparing(operator.le),
    "$add": _folded(functions.total),
    "$subtract": _on(functions.subtract, 2),
    "$multiply": _folded(functions.multiply),
    "$divide": _on(functions.divide, 2),
    "$max": _extreme(max),
    "$min": _extreme(min),
    "$mergeObjects": _on(functions.merge),
    "$dateAdd": _date_add,
    "$toLong": _on(functions.to_long, 1),
    "$type": _on(functions.type_name, 1),
    "$isNumber": _on(is_number, 1),
    "$floor": _on(functions.floor, 1),
    "$rand": _rand,
}
