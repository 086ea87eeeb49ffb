"""Driving a plan with PyMongo, blocking or asyncio, and the one translation of the driver's errors.

A plan is stepped until it returns; what it yields is executed, what comes back is sent in. Only the two
errors a plan can act on are thrown into it: a duplicate key, and a write whose own guard refused it.
All others pass through untouched (``with_transaction`` reads their labels) and are translated once,
outside, by ``translated``.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import bson.errors
from bson.codec_options import CodecOptions
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from mnemongo import errors
from mnemongo.commands import (
    Command,
    Document,
    DuplicateError,
    FindEach,
    Plan,
    RefusedError,
    RequireTransaction,
    Step,
    UpdateReply,
)

T = TypeVar("T")

CONCERNS: Mapping[str, Any] = {
    "read_concern": ReadConcern("majority"),
    "write_concern": WriteConcern("majority"),
    "read_preference": ReadPreference.PRIMARY,
}
"""What every command is sent with, whatever the client's defaults."""
SNAPSHOT = ReadConcern("snapshot")
"""What several finds are sent with: they are of one moment. A standalone server has no such thing."""
TRANSACTION: Mapping[str, Any] = {**CONCERNS, "read_concern": SNAPSHOT}
"""What every transaction is started with."""
BATCH = 10_000
"""Documents in a reply: all of them, up to 16 MiB, instead of 101 and another round trip."""
OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)

# 16 appenders on one session: bounds of 30, 100, 500 ms give 200, 211, 241 appends a second and a slowest
# of 0.9, 1.6, 2.7 s.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_SOURCE = "mnemongo_source"


def drive(plan: Plan[T], execute: Callable[[Step], Any], *, in_transaction: bool = False) -> T:
    """Run a plan to its end with a blocking executor."""
    try:
        step = next(plan)
        while True:
            try:
                reply = execute(step)
            except driver.OperationFailure as error:
                step = _told(plan, error, in_transaction=in_transaction)
            else:
                step = plan.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(
    plan: Plan[T], execute: Callable[[Step], Awaitable[Any]], *, in_transaction: bool = False
) -> T:
    """Run a plan to its end with an asyncio executor."""
    try:
        step = next(plan)
        while True:
            try:
                reply = await execute(step)
            except driver.OperationFailure as error:
                step = _told(plan, error, in_transaction=in_transaction)
            else:
                step = plan.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


def _told(plan: Plan[Any], error: driver.OperationFailure, *, in_transaction: bool) -> Step:
    """Throw the error into the plan, which may go on, unless the server has aborted its transaction."""
    try:
        step = plan.throw(for_plan(error))
    except StopIteration:
        if not in_transaction:
            raise
    else:
        if not in_transaction:
            return step
    raise errors.MnemongoError("a plan went on after an error inside a transaction; it may only raise")


def for_plan(error: driver.OperationFailure) -> Exception:
    """The error as a plan knows it; itself when a plan cannot act on it."""
    found = refusal(error)
    if found is None:
        return error
    found.__cause__ = error
    return found


def refusal(error: driver.OperationFailure) -> Exception | None:
    """A duplicate key or a refused guard, told by its code."""
    details: Mapping[str, Any] = error.details or {}
    if isinstance(error, driver.BulkWriteError):
        details = (details.get("writeErrors") or [{}])[0]
    code = details.get("code", error.code)
    if code == _DUPLICATE_KEY:
        return DuplicateError(tuple(details.get("keyPattern") or ("_id",)))
    if code == _IMMUTABLE_FIELD:
        return RefusedError()
    return None


def pause_seconds(attempt: int) -> float:
    """How long to back off: up to a bound that doubles from 4 to 50 ms, with full jitter."""
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
    return random.uniform(0, longest)  # noqa: S311 - spreads retries, guards nothing


def check_transaction(step: RequireTransaction, *, atomic: bool) -> None:
    """Refuse an atomic operation composed inside one that is not."""
    if not atomic:
        raise errors.TransactionRequiredError(
            f"{step.name} is atomic and was composed inside an operation that is not: "
            "run it on its own, or declare the outer one atomic"
        )


def united(step: FindEach, names: Mapping[str, str]) -> list[Document]:
    """One aggregation that runs every find of ``step``, marking each document with its source."""
    first, *others = (_stages(find, source) for source, find in enumerate(step.finds))
    unions = (
        {"$unionWith": {"coll": names[find.collection], "pipeline": stages}}
        for find, stages in zip(step.finds[1:], others, strict=True)
    )
    return [*first, *unions]


def _stages(find: Command, source: int) -> list[Document]:
    arguments = find.arguments
    stages: list[Document] = [{"$match": arguments["filter"]}]
    if "sort" in arguments:
        stages.append({"$sort": dict(arguments["sort"])})
    if "skip" in arguments:
        stages.append({"$skip": arguments["skip"]})
    if "limit" in arguments:
        stages.append({"$limit": arguments["limit"]})
    if "projection" in arguments:
        stages.append({"$project": arguments["projection"]})
    return [*stages, {"$set": {_SOURCE: source}}]


def looked_up(step: FindEach, names: Mapping[str, str]) -> list[Document]:
    """The same as one document, for a transaction, where ``$unionWith`` is not allowed (code 263).

    ``$facet`` makes one document of whatever the first find gives. All that is found must fit one, and
    sharded collections can be looked up in from MongoDB 8.0 on; else the finds are sent one by one.
    """
    first, *others = (_stages(find, source) for source, find in enumerate(step.finds))
    lookups = (
        {"$lookup": {"from": names[find.collection], "pipeline": stages, "as": f"{_SOURCE}{source}"}}
        for source, (find, stages) in enumerate(zip(step.finds[1:], others, strict=True), start=1)
    )
    return [*first[:-1], {"$facet": {f"{_SOURCE}0": first[-1:]}}, *lookups]


def flattened(found: list[Document]) -> list[Document]:
    """The documents of ``looked_up`` in one list, as ``united`` returns them."""
    return [document for part in found[0].values() for document in part]


def separated(step: FindEach, found: list[Document]) -> list[list[Document]]:
    """The documents of ``united`` by their source."""
    replies: list[list[Document]] = [[] for _ in step.finds]
    for document in found:
        replies[document.pop(_SOURCE)].append(document)
    return replies


def find_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's arguments of a find that is read whole."""
    given = dict(arguments)
    if "sort" in given:
        given["sort"] = list(given["sort"])
    given["batch_size"] = BATCH
    return given


def nothing(_result: object) -> None:
    """What a plan learns of an insert."""


def update_reply(result: Any) -> UpdateReply:
    """What a plan learns of an update."""
    return UpdateReply(result.matched_count, result.upserted_id is not None)


_DUPLICATE_KEY = 11000
_IMMUTABLE_FIELD = 66
_TOO_LARGE = {10334, 17419, 17420}
UNCONVERTIBLE = (bson.errors.BSONError, OverflowError, ValueError, RecursionError)
"""What the driver raises, before it sends anything, for a value that BSON cannot hold."""

# LockTimeout, LockBusy, MaxTimeMSExpired, WriteConcernFailed, WriteConflict, ConflictingOperationInProgress,
# FailedToSatisfyReadPreference, ReadConcernMajorityNotAvailableYet, SnapshotTooOld, SnapshotUnavailable,
# ExceededTimeLimit, ClientDisconnect
_PASSING_CODES = {24, 46, 50, 64, 112, 117, 133, 134, 239, 246, 262, 279}
# A write concern error came after the write was carried out: whether it stays is not known.
_PASSING = (driver.ConnectionFailure, driver.WaitQueueTimeoutError, driver.WriteConcernError)
_PASSING_LABELS = (
    "TransientTransactionError",
    "RetryableWriteError",
    "UnknownTransactionCommitResult",
)
NOT_AUTHORIZED = 13
_REFUSALS: Mapping[int, tuple[type[errors.MnemongoError], str]] = {
    NOT_AUTHORIZED: (errors.ConfigurationError, "the database user lacks a privilege for it"),
    18: (errors.ConfigurationError, "the database user's credentials were refused"),
    20: (errors.TopologyError, "this deployment cannot do it (a standalone server?)"),
    85: (errors.ConfigurationError, "an index of these keys has another name: drop it first"),
    86: (errors.ConfigurationError, "an index of this name has other keys: drop it first"),
    121: (errors.DocumentError, "the collection's validator refused the document"),
    **dict.fromkeys(
        _TOO_LARGE, (errors.DocumentTooLargeError, "a document is over 16 MiB; nothing was written")
    ),
}


def is_passing(error: BaseException) -> bool:
    """Whether the same operation may succeed later: time-outs, elections, conflicts, lost links."""
    if not isinstance(error, driver.PyMongoError):
        return False
    return (
        isinstance(error, _PASSING)
        or error.timeout
        or code_of(error) in _PASSING_CODES
        or any(error.has_error_label(label) for label in _PASSING_LABELS)
    )


def code_of(error: BaseException) -> int | None:
    """The server's error code."""
    return error.code if isinstance(error, driver.OperationFailure) else None


def translated(error: BaseException, name: str, *, may_be_written: bool) -> errors.MnemongoError:
    """The error of ours for one of the driver's; texts never carry the failing values."""
    if isinstance(error, DuplicateError) or is_passing(error):
        return _unsure(name, may_be_written=may_be_written)
    code = code_of(error)
    if code is None:
        return errors.ConfigurationError(f"{name}: the driver refused it: see the cause")
    if code in _REFUSALS:
        kind, text = _REFUSALS[code]
        return kind(f"{name}: {text}")
    if may_be_written:
        return _unsure(name, may_be_written=True)
    return errors.MnemongoError(f"{name}: the server refused it (code {code}); nothing was written")


def unconvertible(error: Exception, name: str) -> errors.DocumentError:
    """The error of ours for a command that could not be encoded."""
    if isinstance(error, driver.DocumentTooLarge):
        return errors.DocumentTooLargeError(f"{name}: a document is over 16 MiB; nothing was written")
    return errors.DocumentError(f"{name}: a value cannot be stored in BSON; nothing was written")


def _unsure(name: str, *, may_be_written: bool) -> errors.MnemongoError:
    if may_be_written:
        return errors.OutcomeUnknownError(
            f"{name}: the reply was lost, the write may have happened: repeat it with the same key"
        )
    return errors.UnavailableError(
        f"{name}: the database could not do it in time; nothing is known to be written: try again"
    )
