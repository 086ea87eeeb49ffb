"""The design to compare with: one document per session, with the conversation in an array.

Read the history, call the model, write the history back. Most agents begin like this; it is the first design
of the article this project began with ("Agent memory in MongoDB: why the one-document session breaks"), left
as it is there: a question that comes again is a new one to it. ``$push`` in place of ``$set`` would lose no
turn in a race, but still answer a job twice that is delivered again, and grow until the limit of 16 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pymongo import MongoClient
from stand_in import Messages, Model
from workload import SESSIONS, Job


class OneDocumentChat:
    """The whole session in one document."""

    title = "one document per session"

    def __init__(self, client: MongoClient[dict[str, Any]], database: str) -> None:
        self._sessions = client[database]["one_document_sessions"]

    def setup(self) -> None:
        """Create the empty sessions."""
        self._sessions.insert_many([{"_id": session, "messages": []} for session in SESSIONS])

    def answer(self, job: Job, model: Model) -> str:
        """Answer the question from what was read, and write all of it back."""
        history = [*self._messages(job.session), {"role": "user", "content": job.question}]
        answer = model(_pairs(history))
        messages = [*history, {"role": "assistant", "content": answer}]
        self._sessions.update_one({"_id": job.session}, {"$set": {"messages": messages}})
        return answer

    def stored(self, session: str) -> Messages:
        """The whole session, as the database has it."""
        return _pairs(self._messages(session))

    def _messages(self, session: str) -> list[dict[str, str]]:
        document = self._sessions.find_one({"_id": session})
        assert document is not None
        messages: list[dict[str, str]] = document["messages"]
        return messages


def _pairs(messages: Iterable[dict[str, str]]) -> Messages:
    return [(message["role"], message["content"]) for message in messages]
