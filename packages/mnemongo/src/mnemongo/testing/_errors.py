"""The two ways a command can be wrong: the server would refuse it, or the model does not know it."""

from __future__ import annotations

from mnemongo.errors import MnemongoError


class UnsupportedError(MnemongoError, NotImplementedError):
    """Outside the vocabulary of the model, which never guesses: use a real server for this."""


class ServerError(MnemongoError):
    """A server fails this command with this code; no plan is meant to act on it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (server code {code})")
        self.code = code
