"""A development MongoDB: find one or start one, and hand out its URI. Development only.

``local()`` is the door; ``start_mongod`` is the launcher under it, which tests use for throw-away servers.
"""

from mnemongo.local.binary import find_mongod
from mnemongo.local.mongod import MongodProcess, start_mongod
from mnemongo.local.server import LocalServer, local

__all__ = ["LocalServer", "MongodProcess", "find_mongod", "local", "start_mongod"]
