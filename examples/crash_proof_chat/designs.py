"""The two designs under one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from durable import DurableChat
from naive import OneDocumentChat
from pymongo import MongoClient
from stand_in import Messages, Model
from workload import Job


class Design(Protocol):
    """A way to keep chats in MongoDB."""

    title: str

    def setup(self) -> None:
        """Prepare the database."""
        ...

    def answer(self, job: Job, model: Model) -> str:
        """Answer one question and remember it."""
        ...

    def stored(self, session: str) -> Messages:
        """What the database has of a session."""
        ...


DESIGNS: Mapping[str, Callable[[MongoClient[dict[str, Any]], str], Design]] = {
    "durable": DurableChat,
    "naive": OneDocumentChat,
}
