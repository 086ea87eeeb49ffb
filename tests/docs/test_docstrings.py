"""Every example in a docstring of the packages is executed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import mnemongo

MODULES = sorted(found.name for found in pkgutil.walk_packages(mnemongo.__path__, "mnemongo."))


@pytest.mark.parametrize("name", ["mnemongo", *MODULES])
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS, report=True)
    assert not failed, "see the doctest report above"
