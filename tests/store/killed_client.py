"""A client that is killed inside a transaction: ``python killed_client.py URI DATABASE TIMEOUT COMMAND OP``.

It kills itself when the first reply to COMMAND has come in, so before its commit is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from mnemongo import Entry, SessionKey, Store, entries, state

KEY = SessionKey("shop", "ann", "s1")
EVENT = '{"id": "k", "author": "user", "actions": {"state_delta": {"killed": 1}}}'
OPERATIONS = {
    "append_many": lambda: entries.append_many(KEY, [Entry("k1", EVENT, 1.0), Entry("k2", EVENT, 1.0)]),
    "merge": lambda: state.merge(KEY, {"killed": 1, "app:killed": 1, "user:killed": 1}),
}


class Suicide(CommandListener):
    def __init__(self, command: str) -> None:
        self.command = command

    def started(self, event: Any) -> None:
        """Not of interest."""

    def failed(self, event: Any) -> None:
        """Not of interest."""

    def succeeded(self, event: Any) -> None:
        if event.command_name == self.command:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    uri, database, timeout, command, operation = sys.argv[1:]
    client: MongoClient[dict[str, Any]] = MongoClient(uri, event_listeners=[Suicide(command)])
    Store(client, database, timeout=float(timeout)).run(OPERATIONS[operation]())
