"""The errors' tree and what each carries."""

from __future__ import annotations

import inspect
import pickle

import pytest

from mnemongo import errors
from mnemongo.commands import DuplicateError, RefusedError

TREE = """
MnemongoError
  ConfigurationError   TopologyError SchemaVersionError TransactionRequiredError
  ConflictError        StaleRevisionError KeyConflictError AlreadyExistsError LeaseHeldError LeaseLostError
  NotFoundError
  DocumentError        InvalidKeyError DocumentTooLargeError UndecodableDocumentError UnsafeFilterError
  UnavailableError
  OutcomeUnknownError
"""


def parents() -> dict[str, str]:
    """The parent of each error, by the design's tree."""
    found = {"MnemongoError": "Exception"}
    for line in TREE.strip().splitlines()[1:]:
        kind, *kinds = line.split()
        found |= {kind: "MnemongoError"} | dict.fromkeys(kinds, kind)
    return found


def test_the_tree() -> None:
    there = {name: getattr(errors, name) for name in errors.__all__}
    assert {name: kind.__base__.__name__ for name, kind in there.items()} == parents()


def test_all_is_sorted_and_complete() -> None:
    classes = {n for n, v in vars(errors).items() if inspect.isclass(v) and v.__module__ == errors.__name__}
    assert sorted(classes) == errors.__all__


@pytest.mark.parametrize("name", errors.__all__)
def test_each_carries_its_facts(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("what to do", key="k", expected=1, found=2)
    assert (str(error), error.key, error.expected, error.found) == ("what to do", "k", 1, 2)
    bare = kind("what to do")
    assert (bare.key, bare.expected, bare.found) == (None, None, None)
    assert kind.__doc__


@pytest.mark.parametrize("name", errors.__all__)
def test_each_can_be_pickled(name: str) -> None:
    """A process pool hands errors over this way."""
    error = getattr(errors, name)("what to do", key="k", expected=1, found=2)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.key, copy.expected, copy.found) == ("what to do", "k", 1, 2)


def test_the_errors_that_only_plans_see_are_not_public() -> None:
    assert {DuplicateError.__name__, RefusedError.__name__} & set(errors.__all__) == set()
    assert DuplicateError(("_id",)).on_id
    assert not DuplicateError(("app_name", "revision")).on_id
