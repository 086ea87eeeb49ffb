"""Updates, by operators or by a pipeline: parsed into functions from document to document.

The ``_id`` cannot change: a server refuses that (code 66), and guarded writes are built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mnemongo.commands import RefusedError
from mnemongo.testing import _expressions as expressions
from mnemongo.testing import _filters as filters
from mnemongo.testing import _values as values
from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._expressions import Evaluate, Scope, is_operator
from mnemongo.testing._values import MISSING, Path, is_number, order

Document = dict[str, Any]
Change = Callable[[Document, Path, Any], None]
Stage = Callable[[Scope], Document]
Update = Callable[[Scope, bool], Document]
"""From the scope, and whether the document is being inserted, to the new document."""

_CONFLICT, _COMPUTED_CONFLICT, _UPSERT_CONFLICT = 40, 40176, 54


def parsed(spec: Any) -> Update:
    """The update as a function."""
    return _pipeline(spec) if type(spec) is list else _operators(spec)


def upserted(selection: Mapping[str, Any]) -> Document:
    """The document an upsert starts from: the filter's equalities, by name, the ``_id`` first."""
    fixed = sorted(filters.equalities(selection), key=lambda item: item[0])
    values.check_conflicts([path for path, _ in fixed], _UPSERT_CONFLICT)
    document: Document = {}
    for path, value in fixed:
        _set(document, path, values.copied(value))
    return _id_first(document)


def _id_first(document: Document) -> Document:
    if "_id" not in document:
        return document
    return {"_id": document["_id"], **document}


# Operators


def _operators(spec: Any) -> Update:
    if not is_operator(spec) or not spec.keys() <= _CHANGES.keys():
        raise UnsupportedError(f"an update by other operators than {', '.join(_CHANGES)}")
    changes = [change for name, fields in spec.items() for change in _changes(name, fields)]
    values.check_conflicts([path for path, _, _ in changes], _CONFLICT)
    changes.sort(key=lambda change: change[0])  # servers since 5.0 go by name

    def update(scope: Scope, inserting: bool) -> Document:  # noqa: FBT001 - one of two values
        document: Document = values.copied(scope.root)
        for path, name, argument in changes:
            if inserting or name != "$setOnInsert":
                _CHANGES[name](document, path, values.copied(argument))
                _check_same_id(scope.root, document)
        return _id_first(document)

    return update


def _check_same_id(old: Mapping[str, Any], new: Document) -> None:
    """Operators may not even turn 1 into 1.0, which a pipeline may."""
    if "_id" in old and not values.identical(old["_id"], new.get("_id")):
        raise RefusedError


def _changes(name: str, fields: Any) -> Iterator[tuple[Path, str, Any]]:
    if type(fields) is not dict:
        raise UnsupportedError(f"{name} takes a document")
    for dotted, argument in fields.items():
        path = values.parsed_path(dotted)
        if any(part.isdigit() for part in path):
            raise UnsupportedError(f"the path {dotted!r}: a number could be a place in a list")
        if name == "$inc" and not is_number(argument):
            raise ServerError(14, "$inc takes a number")
        yield path, name, argument


def _holder(document: Document, path: Path) -> Document:
    """The sub-document that holds the path's last field, made where it is missing."""
    holder: Any = document
    for name in path[:-1]:
        if values.field(holder, name) is MISSING:
            holder[name] = {}
        holder = holder[name]
        if type(holder) is not dict:
            _refuse_list(holder, path)
            raise ServerError(28, f"{'.'.join(path)!r} leads through what is no document")
    found: Document = holder
    return found


def _refuse_list(value: Any, path: Path) -> None:
    if type(value) is list:
        raise UnsupportedError(f"{'.'.join(path)!r} leads through a list")


def _set(document: Document, path: Path, argument: Any) -> None:
    _holder(document, path)[path[-1]] = argument


def _unset(document: Document, path: Path, _argument: Any) -> None:
    values.removed(document, path)


def _increment(document: Document, path: Path, argument: Any) -> None:
    holder = _holder(document, path)
    found = holder.get(path[-1], 0)
    if not is_number(found):
        raise ServerError(14, f"$inc of {'.'.join(path)!r}, which is no number")
    total = found + argument if path[-1] in holder else argument
    if type(total) is int and not values.fits_long(total):
        raise ServerError(2, "$inc beyond 64 bits")
    holder[path[-1]] = total


def _maximum(document: Document, path: Path, argument: Any) -> None:
    holder = _holder(document, path)
    if order(argument) > order(holder.get(path[-1], MISSING)):
        holder[path[-1]] = argument


_CHANGES: Mapping[str, Change] = {
    "$set": _set,
    "$unset": _unset,
    "$inc": _increment,
    "$max": _maximum,
    "$setOnInsert": _set,
}


# Pipelines


def _pipeline(spec: Sequence[Any]) -> Update:
    if not spec:
        raise UnsupportedError("a pipeline without stages")
    stages = [_stage(stage) for stage in spec]

    def update(scope: Scope, _inserting: bool) -> Document:  # noqa: FBT001 - see Update
        document: Document = dict(scope.root)
        for stage in stages:
            document = stage(Scope(document, scope.now))
        return _with_same_id(document, scope.root.get("_id", MISSING))

    return update


def _with_same_id(document: Document, old: Any) -> Document:
    found = document.get("_id", old)
    if old is not MISSING and not values.equal(found, old):
        raise RefusedError
    return _id_first(document if found is MISSING else document | {"_id": found})


def _stage(spec: Any) -> Stage:
    if type(spec) is not dict or len(spec) != 1:
        raise UnsupportedError("a stage must have exactly one name")
    name, argument = next(iter(spec.items()))
    if name not in _STAGES:
        raise UnsupportedError(f"the stage {name}")
    return _STAGES[name](argument)


def _set_stage(argument: Any) -> Stage:
    if type(argument) is not dict:
        raise UnsupportedError("$set takes a document")
    fields = list(_computed(argument))
    values.check_conflicts([path for path, _ in fields], _COMPUTED_CONFLICT)

    def stage(scope: Scope) -> Document:
        document: Document = values.copied(scope.root)
        for path, evaluate in fields:  # each sees the stage's input, not what others have set
            _put(document, path, values.copied(evaluate(scope)))
        return document

    return stage


def _computed(argument: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Evaluate]]:
    """The paths and their expressions: a document without operators is merged, not assigned."""
    for name, spec in argument.items():
        if above and "." in name:
            raise ServerError(40183, f"the name {name!r} in a sub-document is dotted")
        path = above + values.parsed_path(name)
        if type(spec) is not dict or is_operator(spec):
            yield path, expressions.parsed(spec)
        elif spec:
            yield from _computed(spec, path)
        else:
            raise ServerError(40180, f"an empty document at {'.'.join(path)!r}")


def _put(document: Document, path: Path, value: Any) -> None:
    """Set or remove a field; what is on its way and is no document becomes one."""
    holder: Document = document
    for name in path[:-1]:
        below = holder.get(name, MISSING)
        _refuse_list(below, path)
        holder[name] = below if type(below) is dict else {}
        holder = holder[name]
    if value is MISSING:
        holder.pop(path[-1], None)
    else:
        _refuse_list(holder.get(path[-1]) if type(value) is dict else None, path)
        holder[path[-1]] = value


def _unset_stage(argument: Any) -> Stage:
    names = argument if type(argument) is list else [argument]
    if not names or not all(type(name) is str for name in names):
        raise ServerError(31119, "$unset takes a name or a list of names")
    paths = [values.parsed_path(name) for name in names]
    values.check_conflicts(paths, _COMPUTED_CONFLICT)

    def stage(scope: Scope) -> Document:
        document: Document = values.copied(scope.root)
        for path in paths:
            values.removed(document, path)
        return document

    return stage


def _replace_stage(argument: Any) -> Stage:
    evaluate = expressions.parsed(argument)

    def stage(scope: Scope) -> Document:
        document = evaluate(scope)
        if type(document) is not dict:
            raise ServerError(40228, "$replaceWith takes a document")
        return dict(document)

    return stage


_STAGES: Mapping[str, Callable[[Any], Stage]] = {
    "$set": _set_stage,
    "$unset": _unset_stage,
    "$replaceWith": _replace_stage,
}
