"""The chat on mnemongo."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from stand_in import Messages, Model
from workload import Job

from mnemongo import ChatHistory, SessionKey, Store

LEASE_SECONDS = 0.6  # so long a session waits after its worker was killed; in production a minute is usual
WAIT_SECONDS = 10.0


class DurableChat:
    """One turn of a ``ChatHistory`` for each job."""

    title = "mnemongo"

    def __init__(self, client: MongoClient[dict[str, Any]], database: str) -> None:
        self._store = Store(client, database)

    def setup(self) -> None:
        """Create the indexes; sessions are created by their first turn."""
        self._store.setup()

    def answer(self, job: Job, model: Model) -> str:
        """Answer the question, or find the answer that an earlier attempt stored."""
        with self._history(job.session).turn(job.turn, lease=LEASE_SECONDS, wait=WAIT_SECONDS) as turn:
            turn.user(job.question)
            if turn.answer is None:
                turn.assistant(model([(message.role, message.text) for message in turn.context()]))
            assert turn.answer is not None
            return turn.answer.text

    def stored(self, session: str) -> Messages:
        """The whole session, as the database has it."""
        return [(message.role, message.text) for message in self._history(session).messages()]

    def _history(self, session: str) -> ChatHistory:
        return ChatHistory(self._store, SessionKey("crash-proof-chat", session, "s1"))
