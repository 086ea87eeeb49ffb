"""When an operation is tried again and when it has failed: decided here, for both stores.

An operation may take ``timeout`` seconds in all, and each attempt at it, its transaction included, at
most a quarter of that. So a transaction that is older than half of it has certainly lost its client: it may
be killed when it stands in the way, and there is still time for an attempt after that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import errors as driver

from mnemongo.commands import Command, Document, DuplicateError
from mnemongo.drive import code_of, is_passing, is_too_large, pause_seconds, translated
from mnemongo.errors import ConfigurationError, UnavailableError
from mnemongo.settings import METADATA

ATTEMPTS = 4
_READS = {"find"}
_NEVER_SENT = (driver.ServerSelectionTimeoutError, driver.WaitQueueTimeoutError)
_MAX_TIME_EXPIRED, _WRITE_CONFLICT = 50, 112
_COMMIT_UNKNOWN = "UnknownTransactionCommitResult"


class Attempts:
    """The attempts at one operation: what time is left, and what a failure means.

    ``separately``: whether several finds are sent one by one, since their reply did not fit a document.
    ``session``: the server session of the last transaction.
    """

    __slots__ = ("_deadline", "_name", "_number", "_timeout", "_written", "separately", "session")

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._number = 0
        self._written = False
        self.separately = False
        self.session: Mapping[str, Any] | None = None

    def bound(self) -> float:
        """Seconds that the next attempt may take."""
        left = self._deadline - time.monotonic()
        return max(0.001, min(left, self._timeout / ATTEMPTS))

    def pause(self, attempt: int) -> float:
        """Seconds to back off inside an attempt.

        Raises:
            UnavailableError: no time is left for it.
        """
        seconds = pause_seconds(attempt)
        if time.monotonic() + seconds > self._deadline:
            raise UnavailableError(
                f"{self._name}: others were first for {self._timeout:g} s: try again later"
            )
        return seconds

    def sent(self, step: object, *, in_transaction: bool) -> None:
        """Note that a command has reached the server: outside a transaction, it counts at once."""
        if not in_transaction and isinstance(step, Command) and step.method not in _READS:
            self._written = True

    def failed_sending(self, step: object, error: BaseException, *, in_transaction: bool) -> None:
        """Note a command that failed: it may have been carried out unless it was never sent."""
        if not isinstance(error, _NEVER_SENT):
            self.sent(step, in_transaction=in_transaction)

    def left_open(self, error: BaseException) -> list[Mapping[str, Any]]:
        """The session whose transaction may still be open, when its commit got no answer."""
        return [self.session] if self.session and is_unknown_commit(error) else []

    def after(self, error: BaseException) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            MnemongoError: the failure is final; the error says whether anything may be written.
        """
        self._number += 1
        self._written |= is_unknown_commit(error)
        too_large = is_too_large(error) and not self.separately
        self.separately |= too_large
        seconds = pause_seconds(self._number)
        timely = time.monotonic() + seconds < self._deadline
        if timely and (too_large or isinstance(error, DuplicateError) or is_passing(error)):
            return seconds
        raise translated(error, self._name, may_be_written=self._written) from error


class ProcessGuard:
    """Refuses the use of a client in a process forked after its first use (PyMongo is not fork-safe)."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid: int | None = None

    def check(self) -> None:
        """Remember the process at the first use.

        Raises:
            ConfigurationError: the process was forked since.
        """
        pid = os.getpid()
        if self._pid is None:
            self._pid = pid
        if self._pid != pid:
            raise ConfigurationError(
                "the store was used before this process was forked: make a client and a store after it",
                expected=self._pid,
                found=pid,
            )


def is_unknown_commit(error: BaseException) -> bool:
    """Whether a commit was sent and its outcome is not known."""
    return isinstance(error, driver.PyMongoError) and error.has_error_label(_COMMIT_UNKNOWN)


def is_blocked(error: BaseException) -> bool:
    """Whether somebody else's open transaction may be the cause."""
    if isinstance(error, DuplicateError):
        return False
    timed_out = isinstance(error, driver.PyMongoError) and error.timeout
    return not isinstance(error, _NEVER_SENT) and (
        timed_out or code_of(error) in {_MAX_TIME_EXPIRED, _WRITE_CONFLICT}
    )


def orphans(timeout: float) -> list[Document]:
    """The aggregation (on ``admin``) that lists this user's own abandoned transactions of ours."""
    older = {"$gt": int(timeout / 2 * 1_000_000)}
    return [
        {"$currentOp": {"allUsers": False, "idleSessions": True}},
        {
            "$match": {
                "active": False,
                "transaction.timeOpenMicros": older,
                "clientMetadata.driver.name": {"$regex": rf"(^|\|){METADATA.name}(\||$)"},
            }
        },
        {"$project": {"lsid": 1}},
    ]


def kill(sessions: Sequence[Mapping[str, Any]]) -> Document:
    """The command that ends server sessions, by their ``lsid``, and with them their transactions."""
    return {"killSessions": [{"id": session["id"]} for session in sessions]}


def has_transactions(hello: Mapping[str, Any]) -> bool:
    """Whether the deployment that gave this ``hello`` can run transactions."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


STANDALONE = (
    "the server is a standalone: batches and state changes are not atomic there, what a crash leaves "
    "behind is healed at the next access; a single-node replica set is enough to have transactions"
)
