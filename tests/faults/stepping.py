"""Plans stepped by hand: one command at a time, abandoned at any of them, two in any order.

A ``Backend`` is where the commands go: the model or a real server, with or without transactions. A
``Process`` is one client at work on one operation: each ``step`` sends one command. What the server does not
do at once (several finds in one aggregation, a delete of many outside a transaction) the model can
take apart into its single steps: ``fine``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field
from typing import Any

import pytest
from pymongo.errors import OperationFailure, PyMongoError

from mnemongo import drive
from mnemongo.attempts import Attempts
from mnemongo.commands import (
    Command,
    DuplicateError,
    FindEach,
    Operation,
    Pause,
    Plan,
    RefusedError,
    RequireTransaction,
    Step,
)
from mnemongo.errors import MnemongoError
from mnemongo.keys import SessionKey
from mnemongo.plans import sessions
from mnemongo.store import Store
from mnemongo.testing import ModelStore

LIVELOCK = 400
BLOCKED_SECONDS = 0.03
COMMIT = "commit"


class TransientError(Exception):
    """The store would start the transaction again."""


# Where commands go


class Model:
    """The model; ``transactions=False`` makes it a standalone server."""

    def __init__(self, *, transactions: bool = True, fine: bool = False) -> None:
        self.transactions = transactions
        self.fine = fine
        self.store = ModelStore()
        self.name = f"model{'' if transactions else '-standalone'}{'-fine' if fine else ''}"

    def execute(self, step: Step, _transaction: Any = None) -> Any:
        return self.store.execute(step)

    def begin(self) -> Any:
        scope = self.store.transaction()
        scope.__enter__()
        return scope

    def commit(self, transaction: Any) -> None:
        transaction.__exit__(None, None, None)

    def abort(self, transaction: Any) -> None:
        error = MnemongoError("aborted")
        try:
            transaction.__exit__(MnemongoError, error, None)
        except MnemongoError as raised:
            if raised is not error:
                raise

    def snapshot(self) -> Any:
        return {name: held.copy() for name, held in self.store._collections.items()}

    def restore(self, snapshot: Any) -> None:
        self.store._collections = {name: held.copy() for name, held in snapshot.items()}


class Server:
    """A real server, through the store's own way of sending a command."""

    fine = False

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.transactions = store._in_transactions()
        self._tries = Attempts(sessions.get(SessionKey("a", "u", "s")), 60)
        self._pool = ThreadPoolExecutor(2)
        self._open: list[Any] = []

    def close(self) -> None:
        self._pool.shutdown()

    def execute(self, step: Step, transaction: Any = None) -> Any:
        """One command, waited for."""
        return self.heard(self.sent(step, transaction), seconds=20)

    def sent(self, step: Step, transaction: Any) -> Future[Any]:
        """Send a command. Where another's transaction is open it may have to wait for that one's end."""
        if any(other is not transaction for other in self._open):
            return self._pool.submit(self.store._send, self._tries, transaction, step)
        future: Future[Any] = Future()
        try:
            future.set_result(self.store._send(self._tries, transaction, step))
        except PyMongoError as error:
            future.set_exception(error)
        return future

    def heard(self, future: Future[Any], *, seconds: float) -> Any:
        try:
            return future.result(seconds)
        except PyMongoError as error:
            raise _known(error) from error

    def begin(self) -> Any:
        session = self.store._client.start_session()
        session.start_transaction(**drive.TRANSACTION)
        self._open.append(session)
        return session

    def commit(self, transaction: Any) -> None:
        try:
            transaction.commit_transaction()
        except PyMongoError as error:
            raise _known(error) from error
        finally:
            self._ended(transaction)

    def abort(self, transaction: Any) -> None:
        if transaction.in_transaction:
            transaction.abort_transaction()
        self._ended(transaction)

    def _ended(self, transaction: Any) -> None:
        self._open.remove(transaction)
        transaction.end_session()


def _known(error: PyMongoError) -> Exception:
    """The error as a plan or the store's loop knows it."""
    if isinstance(error, OperationFailure) and (found := drive.refusal(error)):
        return found
    return TransientError(str(error)) if drive.is_passing(error) else error


Backend = Model | Server


# One client at work


def finely(plan: Plan[Any]) -> Plan[Any]:
    """The same plan, in the single steps a server takes outside a transaction."""
    try:
        step = next(plan)
        while True:
            try:
                reply = yield from _apart(step)
            except (DuplicateError, RefusedError) as error:
                step = plan.throw(error)
            else:
                step = plan.send(reply)
    except StopIteration as end:
        return end.value


def _apart(step: Step) -> Generator[Step, Any, Any]:
    match step:
        case FindEach(finds):
            found: list[Any] = [None] * len(finds)
            for at, find in enumerate(finds):
                found[at] = yield find
            return found
        case Command(collection, "delete_many", arguments):
            doomed = yield Command(collection, "find", {"filter": arguments["filter"]})
            removed = 0
            for document in doomed:
                removed += yield Command(collection, "delete_one", {"filter": {"_id": document["_id"]}})
            return removed
        case Command(collection, "insert_many", arguments):
            for document in arguments["documents"]:
                yield Command(collection, "insert_one", {"document": document})
            return None
        case _:
            return (yield step)


class Process:
    """One client that runs one operation. ``result`` or ``error`` is set when it is ``done``."""

    def __init__(self, backend: Backend, op: Operation[Any]) -> None:
        self.backend = backend
        self.op = op
        self.done = False
        self.result: Any = None
        self.error: MnemongoError | None = None
        self.log: list[Any] = []
        self._in_one = op.atomic and backend.transactions and isinstance(backend, Model)
        self._waiting: Future[Any] | None = None
        self._start()

    def _start(self) -> None:
        self._transaction: Any = None
        self._plan = self.op.plan()
        if self.backend.fine and not (self.op.atomic and self.backend.transactions):
            self._plan = finely(self._plan)
        self._pending: Any = None
        self._begun = False

    def step(self, *, within: bool = False) -> bool:
        """Take one step; returns whether it got anywhere (not when it paused, or must wait).

        On the model an atomic operation is one step, unless it is looked at from ``within``.
        """
        if self._in_one and not within:
            while not self.done:
                _ = self._step()
            return True
        return self._step()

    def _step(self) -> bool:
        if not self._begun:
            self._begun = True
            if self.op.atomic and self.backend.transactions:
                self._transaction = self.backend.begin()
            self._resume(lambda: next(self._plan))
            if self.done:
                return True
        try:
            return self._take(self._pending)
        except TransientError:
            self._restart()
            return False

    def _take(self, step: Any) -> bool:
        self.log.append(step)
        assert len(self.log) < LIVELOCK, "this goes on for ever"
        if step is COMMIT:
            transaction, self._transaction = self._transaction, None
            self.backend.commit(transaction)
            self.done = True
            return True
        if isinstance(step, Pause | RequireTransaction):
            assert isinstance(step, Pause) or self.op.atomic, step
            self._resume(lambda: self._plan.send(None))
            return isinstance(step, RequireTransaction)
        try:
            reply = self._reply(step)
        except NotYetError:
            return False
        except (DuplicateError, RefusedError) as refused:
            error = refused
            self._resume(lambda: self._plan.throw(error))
        else:
            self._resume(lambda: self._plan.send(reply))
        return True

    def _reply(self, step: Step) -> Any:
        if isinstance(self.backend, Model):
            return self.backend.execute(step)
        if self._waiting is None:
            self._waiting = self.backend.sent(step, self._transaction)
        try:
            reply = self.backend.heard(self._waiting, seconds=BLOCKED_SECONDS)
        except NotYetError:
            raise
        except Exception:
            self._waiting = None
            raise
        self._waiting = None
        return reply

    def _resume(self, go_on: Callable[[], Step]) -> None:
        try:
            self._pending = go_on()
        except StopIteration as end:
            self.result = end.value
            self._pending = COMMIT
            self.done = self._transaction is None
        except DuplicateError as error:  # the store starts such an operation again
            if not self.op.atomic:
                raise AssertionError("a DuplicateError left a plan") from error
            raise TransientError from error
        except MnemongoError as error:
            self.error = error
            self._end_transaction()
            self.done = True

    def _restart(self) -> None:
        self._end_transaction()
        self._start()

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            self.backend.abort(transaction)

    def abandon(self) -> None:
        """The client dies; the server has noticed."""
        self._end_transaction()
        self._plan.close()
        self.done = True

    def finish(self) -> Process:
        """All the rest, alone."""
        while not self.done:
            _ = self.step(within=True)
        return self


def run(backend: Backend, op: Operation[Any]) -> Any:
    """The operation to its end, alone; its result or its error."""
    process = Process(backend, op).finish()
    if process.error is not None:
        raise process.error
    return process.result


def crashed(backend: Backend, op: Operation[Any], steps: int) -> Process:
    """The operation until ``steps`` of its commands are carried out; then its client is dead."""
    process = Process(backend, op)
    for _ in range(steps):
        _ = process.step(within=True)
    process.abandon()
    return process


def log_of(backend: Backend, op: Operation[Any]) -> list[Any]:
    """The steps the operation takes when nothing disturbs it; a commit is one."""
    return Process(backend, op).finish().log


# Two at once


@dataclass
class Schedule:
    """Which process goes next, wherever there is a choice; ``taken`` is what was chosen of how many."""

    prefix: Sequence[int] = ()
    rng: random.Random | None = None
    taken: list[tuple[int, int]] = field(default_factory=list)

    def choose(self, among: int) -> int:
        at = len(self.taken)
        if at < len(self.prefix):
            choice = min(self.prefix[at], among - 1)
        else:
            choice = self.rng.randrange(among) if self.rng else 0
        self.taken.append((choice, among))
        return choice

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(choice for choice, _among in self.taken)


def race(processes: Sequence[Process], schedule: Schedule) -> None:
    """Step the processes in the order of ``schedule``; one that pauses lets another go first."""
    waiting: Process | None = None
    for _ in range(LIVELOCK):
        working = [process for process in processes if not process.done]
        if not working:
            return
        ready = [process for process in working if process is not waiting] or working
        chosen = ready[schedule.choose(len(ready))] if len(ready) > 1 else ready[0]
        waiting = None if chosen.step() else chosen
    pytest.fail(f"livelock: {[process.log[-4:] for process in processes]}")


def explored(most: int, sample: int, seed: int) -> Iterator[Schedule]:
    """All schedules, depth first; when there are more than ``most``, ``sample`` drawn at random follow."""
    prefix: list[int] | None = []
    for _ in range(most):
        schedule = Schedule(prefix)
        yield schedule
        prefix = _next(schedule.taken)
        if prefix is None:
            return
    rng = random.Random(seed)
    for _ in range(sample):
        yield Schedule(rng=rng)


def _next(taken: Sequence[tuple[int, int]]) -> list[int] | None:
    for at in range(len(taken) - 1, -1, -1):
        choice, among = taken[at]
        if choice + 1 < among:
            return [*(earlier for earlier, _among in taken[:at]), choice + 1]
    return None
