"""``ModelStore`` and ``AsyncModelStore``: drive plans over collections in memory, one lock around all.

1. An atomic operation holds the lock from its first command to its last, and is rolled back whole.
2. Every other operation holds it for one command at a time, so that operations interleave.
3. After an error inside a transaction every further command fails, and so does the commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypeVar

from mnemongo import schema
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
from mnemongo.errors import TransactionRequiredError, UnavailableError
from mnemongo.testing import _commands as commands
from mnemongo.testing import _values as values
from mnemongo.testing._collections import Collection
from mnemongo.testing._errors import ServerError

T = TypeVar("T")

MAX_PAUSES: Final = 1000
_IN_PROGRESS, _ABORTED = 117, 251


@dataclass(slots=True)
class _Transaction:
    aborted: bool = False

    def check(self) -> None:
        if self.aborted:
            raise ServerError(_ABORTED, "an error has aborted the transaction: only raise after it")


@dataclass(slots=True)
class _Patience:
    """How often an operation has waited for others, of whom there are few in a test."""

    times: int = 0

    def once_more(self, cause: Exception | None = None) -> None:
        self.times += 1
        if self.times > MAX_PAUSES:
            raise UnavailableError(f"waited {MAX_PAUSES} times: what it waits for never came") from cause


def _real_time() -> datetime:
    return datetime.now(UTC)


class ModelStore:
    """A store in memory: for tests of code that runs mnemongo's operations.

    It has the schema's unique indexes from the start, keeps all rules of a replica set that plans
    depend on, and raises ``UnsupportedError`` for commands outside mnemongo's vocabulary. Indexes
    with an expiry remove nothing. Safe to use from several threads.

    Args:
        clock: the server's time, aware; default: the real time.

    >>> from mnemongo.commands import find_one, insert_one, operation
    >>> @operation()
    ... def note(text):
    ...     yield from insert_one("notes", {"_id": 1, "text": text})
    ...     return (yield from find_one("notes", {"text": text}))
    >>> ModelStore().run(note("hello"))
    {'_id': 1, 'text': 'hello'}
    """

    def __init__(self, *, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or _real_time
        self._ahead = timedelta()
        self._lock = threading.RLock()
        self._collections: dict[str, Collection] = {}
        self._transaction: _Transaction | None = None
        self.setup()

    def setup(self) -> None:
        """Create the schema's indexes, where they are missing."""
        for index in schema.INDEXES:
            self.execute(Command(index.collection, "create_index", index.arguments))

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def advance(self, seconds: float) -> None:
        """Let the server's time go forward."""
        with self._lock:
            self._ahead += timedelta(seconds=seconds)

    def now(self) -> datetime:
        """The server's time, in milliseconds: what ``$$NOW`` is to a command sent now."""
        moment: datetime = values.encoded(self._clock() + self._ahead)
        return moment

    def __enter__(self) -> Self:
        """Nothing is opened."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def run(self, op: Operation[T]) -> T:
        """Run an operation and return its result, or raise what its plan raises.

        Raises:
            TransactionRequiredError: it composes an atomic operation and is not atomic.
            UnavailableError: it paused, or lost a race, over 1000 times.
        """
        return _finished(self.steps(op))

    def steps(self, op: Operation[T]) -> Generator[Step, None, T]:
        """Run an operation, yielding each step just before it is taken; returns its result.

        An atomic one holds the lock, so that whoever steps it keeps all others out.
        """
        waited = _Patience()
        while True:
            try:
                with self.transaction() if op.atomic else nullcontext():
                    return (yield from self._driven(op.plan(), waited))
            except DuplicateError as lost:  # as the real stores do: a fresh plan looks anew
                waited.once_more(lost)

    def _driven(self, plan: Plan[T], waited: _Patience) -> Generator[Step, None, T]:
        with closing(plan):
            try:
                step = next(plan)
                while True:
                    if isinstance(step, Pause):
                        waited.once_more()
                    yield step
                    step = self._next(plan, step)
            except StopIteration as stop:
                result: T = stop.value
                return result

    def _next(self, plan: Plan[T], step: Step) -> Step:
        try:
            reply = self.execute(step)
        except (DuplicateError, RefusedError) as error:
            return plan.throw(error)
        return plan.send(reply)

    def execute(self, step: Step) -> Any:
        """Take one step of a plan and return its reply: for tests that step plans themselves.

        Outside ``transaction()`` each command is a write of its own.
        """
        with self._lock:
            if self._transaction is None:
                return self._reply(step)
            self._transaction.check()
            try:
                return self._reply(step)
            except BaseException:
                self._transaction.aborted = True
                raise

    def _reply(self, step: Step) -> Any:
        match step:
            case Command():
                return self._run(step, self.now())
            case FindEach():
                now = self.now()
                return [self._run(find, now) for find in step.finds]
            case Pause():
                return time.sleep(0)  # lets the thread go on that this one waits for
            case RequireTransaction():
                return self._require_transaction(step.name)

    def _run(self, command: Command, now: datetime) -> Any:
        collection = self._collections.setdefault(command.collection, Collection())
        return commands.run(collection, command, now)

    def _require_transaction(self, name: str) -> None:
        if self._transaction is None:
            raise TransactionRequiredError(
                f"{name} is atomic, the operation it is part of is not: run it on its own", key=name
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What this thread does inside is undone when an exception leaves the block.

        Other threads wait. After a command has failed, the others fail, and so does the commit.
        """
        with self._lock:
            if self._transaction is not None:
                raise ServerError(_IN_PROGRESS, "a transaction is in progress already")
            before = {name: held.copy() for name, held in self._collections.items()}
            self._transaction = _Transaction()
            try:
                yield
                self._transaction.check()
            except BaseException:
                self._collections = before
                raise
            finally:
                self._transaction = None


def _finished(steps: Generator[Step, None, T]) -> T:
    with closing(steps):
        while True:
            try:
                _ = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result


class AsyncModelStore:
    """The same store for asyncio. Between two commands of an operation other tasks run.

    Args:
        model: the store to share the data of; default: a new one.
    """

    def __init__(self, model: ModelStore | None = None) -> None:
        self.model = ModelStore() if model is None else model

    async def setup(self) -> None:
        """Create the schema's indexes, where they are missing."""
        self.model.setup()

    async def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    async def __aenter__(self) -> Self:
        """Nothing is opened."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def run(self, op: Operation[T]) -> T:
        """Run an operation as ``ModelStore.run`` does; an atomic one without a break."""
        if op.atomic:
            await asyncio.sleep(0)
            return self.model.run(op)
        with closing(self.model.steps(op)) as steps:
            while True:
                try:
                    _ = next(steps)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                await asyncio.sleep(0)
