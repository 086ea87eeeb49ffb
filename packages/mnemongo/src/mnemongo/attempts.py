"""When an operation is tried again and when it has failed: decided here, for both stores.

An operation may take ``timeout`` seconds in all, a transaction a quarter of that. So one that is older,
and whose client has no connection left, has lost it: it is ended when it stands in the way, and there is
still time for another attempt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import errors as driver

from mnemongo import schema
from mnemongo.commands import Command, Document, DuplicateError, Operation
from mnemongo.drive import code_of, is_passing, pause_seconds, translated
from mnemongo.errors import ConfigurationError, UnavailableError
from mnemongo.settings import MARK

ATTEMPTS = 4
_READS = {"find"}
_NEVER_SENT = (driver.ServerSelectionTimeoutError, driver.WaitQueueTimeoutError)
_MAX_TIME_EXPIRED, _WRITE_CONFLICT = 50, 112
_COMMIT_UNKNOWN = "UnknownTransactionCommitResult"


class Attempts:
    """The attempts at one operation: what time is left, and what a failure means.

    ``separately``: whether several finds are sent one by one, since they could not be sent as one.
    ``session``: the server session of the last transaction.
    """

    __slots__ = (
        "_deadline",
        "_looking_up",
        "_name",
        "_number",
        "_repeats",
        "_timeout",
        "_written",
        "separately",
        "session",
    )

    def __init__(self, op: Operation[Any], timeout: float) -> None:
        self._name = op.name
        self._repeats = op.repeats
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._number = 0
        self._written = False
        self._looking_up = False
        self.separately = False
        self.session: Mapping[str, Any] | None = None

    def bound(self, *, atomic: bool) -> float:
        """Seconds that the next attempt may take.

        All that is left; but a quarter of the whole for a transaction, and for the first attempt, which
        may be blocked by a transaction that must be ended.
        """
        left = max(0.001, self._deadline - time.monotonic())
        return min(left, self._timeout / ATTEMPTS) if atomic or not self._number else left

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

    def looks_up(self) -> None:
        """Note that several finds are sent as one; should the server not take that, they are sent singly."""
        self._looking_up = True

    def sent(self, step: object, *, in_transaction: bool) -> None:
        """Note that a command has reached the server: outside a transaction, it counts at once."""
        self._looking_up = False
        if not in_transaction and isinstance(step, Command) and step.method not in _READS:
            self._written = True

    def failed_sending(self, step: object, error: BaseException, *, in_transaction: bool) -> None:
        """Note a command that failed: it may have been carried out unless it was never sent."""
        refused = not is_passing(error) or code_of(error) == _MAX_TIME_EXPIRED
        written = isinstance(error, driver.WriteConcernError) or not refused
        if written and not isinstance(error, _NEVER_SENT):
            self.sent(step, in_transaction=in_transaction)

    def left_open(self, error: BaseException) -> list[Mapping[str, Any]]:
        """The session of a transaction that may still be open: neither commit nor abort was answered."""
        unanswered = is_unknown_commit(error) or is_cut_off(error)
        return [self.session] if self.session and unanswered else []

    def after(self, error: BaseException) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            MnemongoError: the failure is final; the error says whether anything may be written.
        """
        self._number += 1
        self._written |= is_unknown_commit(error)
        in_pieces = self._looking_up and not self.separately and not is_passing(error)
        self.separately |= in_pieces
        seconds = pause_seconds(self._number)
        again = self._repeats or not self._written
        timely = again and time.monotonic() + seconds < self._deadline
        if timely and (in_pieces or isinstance(error, DuplicateError) or is_passing(error)):
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


def is_cut_off(error: BaseException) -> bool:
    """Whether the time or the link was gone, for an abort as well."""
    if not isinstance(error, driver.PyMongoError):
        return False
    return isinstance(error, driver.ConnectionFailure) or error.timeout


def is_blocked(error: BaseException) -> bool:
    """Whether somebody else's open transaction may be the cause."""
    if isinstance(error, DuplicateError):
        return False
    timed_out = isinstance(error, driver.PyMongoError) and error.timeout
    return not isinstance(error, _NEVER_SENT) and (
        timed_out or code_of(error) in {_MAX_TIME_EXPIRED, _WRITE_CONFLICT}
    )


LISTING: list[Document] = [
    {"$currentOp": {"allUsers": False, "idleSessions": True, "idleConnections": True}},
    {
        "$project": {
            "type": 1,
            "lsid": 1,
            "transaction.timeOpenMicros": 1,
            "clientMetadata.platform": 1,
        }
    },
]
"""The aggregation (on ``admin``) that lists this user's own connections and idle transactions."""


def orphans(listed: Sequence[Mapping[str, Any]], timeout: float) -> list[Mapping[str, Any]]:
    """The sessions whose transactions have lost their clients.

    Such a transaction is idle, older than any attempt of a living client may be, and bears the mark of a
    client that has no connection left. The application's own transactions on the same client are left
    alone, however long they take.
    """
    living = set[str]().union(*(_marks(found) for found in listed if found.get("type") == "op"))
    return [
        found["lsid"]
        for found in listed
        if found.get("type") == "idleSession"
        and found.get("transaction", {}).get("timeOpenMicros", 0) > timeout / ATTEMPTS * 1_000_000
        and _marks(found)
        and living.isdisjoint(_marks(found))
    ]


def _marks(found: Mapping[str, Any]) -> set[str]:
    platform = found.get("clientMetadata", {}).get("platform", "")
    return {part for part in platform.split("|") if part.startswith(MARK)}


def clearing_time(timeout: float) -> float:
    """Seconds for ending what stands in the way: an attempt's, but time enough to connect anew."""
    return max(0.5, timeout / ATTEMPTS)


def kill(sessions: Sequence[Mapping[str, Any]]) -> Document:
    """The command that ends server sessions, by their ``lsid``, and with them their transactions."""
    return {"killSessions": [{"id": session["id"]} for session in sessions]}


def check_indexes(found: Mapping[str, Any], database: str) -> None:
    """Refuse a database without the index that decides who gets a place.

    Raises:
        ConfigurationError: ``setup`` was not run there.
    """
    if schema.PLACE.name not in found:
        raise ConfigurationError(
            f"the indexes of database {database!r} are missing: call the store's setup() once",
            key=database,
        )


def has_transactions(hello: Mapping[str, Any]) -> bool:
    """Whether the deployment that gave this ``hello`` can run transactions."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


STANDALONE = (
    "the server is a standalone: batches and state changes are not atomic there, what a crash leaves "
    "behind is healed at the next access; a single-node replica set is enough to have transactions"
)
