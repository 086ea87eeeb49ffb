"""One public door: ``__all__`` is explicit, sorted, and exactly what is there."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import mnemongo
from mnemongo import errors, history, plans

SUBMODULES = {
    path.stem for path in Path(mnemongo.__file__).parent.iterdir() if not path.name.startswith("__")
}
PROMISED = {
    "Store",
    "AsyncStore",
    "SessionKey",
    "Entry",
    "Message",
    "ChatHistory",
    "AsyncChatHistory",
    "Turn",
}
PROMISED |= {"Turn", "local", "sessions", "entries", "state", "leases", "retention", "setup"}


def imported(module: ModuleType) -> set[str]:
    """The names that a package's ``__init__`` imports or defines."""
    tree = ast.parse(inspect.getsource(module))
    froms = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {alias.asname or alias.name for alias in froms} - {"annotations"}


def test_all_is_sorted_and_without_doubles() -> None:
    assert mnemongo.__all__ == sorted(set(mnemongo.__all__))


def test_all_is_what_is_there() -> None:
    assert set(mnemongo.__all__) == imported(mnemongo)
    public = {name for name in vars(mnemongo) if not name.startswith("_")} | {"__version__"}
    assert public - (SUBMODULES - set(mnemongo.__all__)) == set(mnemongo.__all__)


def test_what_was_promised_is_there() -> None:
    assert PROMISED | set(errors.__all__) <= set(mnemongo.__all__)
    assert callable(mnemongo.local)


@pytest.mark.parametrize("module", [plans, history], ids=lambda module: module.__name__)
def test_packages_say_what_they_show(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(set(module.__all__))
    assert set(module.__all__) <= set(vars(module))
    assert set(module.__all__) == imported(module)


@pytest.mark.parametrize("name", mnemongo.__all__)
def test_every_name_is_documented(name: str) -> None:
    value = getattr(mnemongo, name)
    assert isinstance(value, str) or inspect.getdoc(value)
