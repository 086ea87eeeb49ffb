"""Make a mongod the primary of a replica set of one, whatever state its directory is in.

Each step asks and does one thing, and may be repeated: a crash in the middle is continued by the next start.
"""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure

from mnemongo.local.address import Address

_ALREADY_INITIALIZED = 23
_NOT_YET = frozenset({94, 109})  # NotYetInitialized: still loading; ConfigurationInProgress


def step_towards_primary(address: Address, replica_set: str) -> bool:
    """Initiate or move the set if that is what it lacks; whether it is a writable primary now.

    With a new client each time: one opened before ``replSetInitiate`` goes on saying "Sessions are not
    supported".
    """
    with boot_client(address) as client:
        try:
            hello = client.admin.command("hello")
            if not hello.get("isWritablePrimary") and "setName" not in hello:
                _initiate(client, replica_set, address.member)
        except AutoReconnect:
            return False
        except OperationFailure as error:
            if error.code not in _NOT_YET:
                raise
            return False
        return bool(hello.get("isWritablePrimary"))


def boot_client(address: Address) -> MongoClient[dict[str, Any]]:
    """A client of this one server, in whatever state it is, that does not wait long."""
    return MongoClient(
        address.uri(None),
        directConnection=True,
        serverSelectionTimeoutMS=1000,
        socketTimeoutMS=5000,
    )


def _initiate(client: MongoClient[dict[str, Any]], replica_set: str, member: str) -> None:
    config = {"_id": replica_set, "members": [{"_id": 0, "host": member}]}
    try:
        _ = client.admin.command("replSetInitiate", config)
    except OperationFailure as error:
        if error.code != _ALREADY_INITIALIZED:
            raise
        _move(client, member)


def _move(client: MongoClient[dict[str, Any]], member: str) -> None:
    """Give the only member its new host. Forced: a node that is not in its own set cannot be primary."""
    config = client.admin.command("replSetGetConfig")["config"]
    first = config["members"][0]
    if first["host"] != member:
        moved = {**config, "version": config["version"] + 1, "members": [{**first, "host": member}]}
        _ = client.admin.command("replSetReconfig", moved, force=True)
