"""Stores without a server, for tests: the same operations on dicts.

They behave as MongoDB does for the commands mnemongo uses, and refuse everything else.
"""

from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._store import AsyncModelStore, ModelStore

__all__ = ["AsyncModelStore", "ModelStore", "ServerError", "UnsupportedError"]
