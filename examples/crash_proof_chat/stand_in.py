"""The stand-in for a language model, and the log of its calls.

Its answer tells what it was given to read: how many turns, and a digest of every word. So an answer that was
made from a missing or torn context is recognised later. The log is a plain file beside the database: what
is counted from it does not depend on what a design remembers.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODEL_SECONDS = 0.3

Messages = Sequence[tuple[str, str]]  # (role, text), oldest first; the last one is the question
Model = Callable[[Messages], str]


def reply(messages: Messages, call: str) -> str:
    """What the model says to these messages, in the call of this name."""
    turns = sum(role == "user" for role, _ in messages[:-1])
    digest = hashlib.sha256(json.dumps([list(message) for message in messages]).encode()).hexdigest()[:6]
    return f"{turns} {'turn' if turns == 1 else 'turns'} read, digest {digest}, call {call}"


def call_of(answer: str) -> str:
    """The name of the call that an answer says it comes from."""
    return answer.rpartition(" ")[2]


class CallLog:
    """A file with one line when a call begins and one when it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, call: str, delivery: int) -> None:
        """Add a line, in one write: a killed process leaves a whole line or none."""
        line = json.dumps({"event": event, "call": call, "delivery": delivery}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _ = os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def deliveries(self, event: str) -> set[int]:
        """The deliveries for which calls began, or ended."""
        return {line["delivery"] for line in self.read() if line["event"] == event}

    def read(self) -> list[dict[str, Any]]:
        """All lines."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [json.loads(line) for line in lines]


def model_for(delivery: int, log: CallLog) -> Model:
    """A model whose calls are logged with the number of the delivery that they are made for."""

    def model(messages: Messages) -> str:
        call = uuid.uuid4().hex[:8]
        log.write("begin", call, delivery)
        time.sleep(MODEL_SECONDS)
        log.write("end", call, delivery)
        return reply(messages, call)

    return model
