"""The asyncio store: runs operations with an ``AsyncMongoClient``.

An operation that has begun is carried through, within its timeout, when its caller is cancelled: a
cancelled task inside a transaction would leave it open on the server and block others.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pymongo
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from mnemongo import attempts, drive, plans, schema
from mnemongo.attempts import Attempts, ProcessGuard
from mnemongo.commands import (
    Command,
    Document,
    DuplicateError,
    FindEach,
    Operation,
    Pause,
    RequireTransaction,
    Step,
)
from mnemongo.settings import DEFAULT_TIMEOUT, Settings, check_client, metadata

T = TypeVar("T")
_Collection = AsyncCollection[dict[str, Any]]


class AsyncStore:
    """Runs operations on one event loop. The arguments are those of ``Store``.

    Args:
        client: the caller's own ``AsyncMongoClient``; it is never closed here.
        database: the database's name.
        timeout: seconds that one operation may take in all.
        collections: other names for the collections, by ours.

    Raises:
        ConfigurationError: an argument is not what it must be. No I/O is done.
    """

    def __init__(
        self,
        client: AsyncMongoClient[Any],
        database: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        collections: Mapping[str, str] | None = None,
    ) -> None:
        check_client(client, AsyncMongoClient)
        self._settings = Settings(database, timeout, collections or {})
        self._client = client
        self._owned = False
        self._transactions: bool | None = None
        self._prepared = False
        self._process = ProcessGuard()
        client.append_metadata(metadata())
        options: dict[str, Any] = {"codec_options": drive.OPTIONS, **drive.CONCERNS}
        self._database = client.get_database(database, **options)
        self._collections: dict[str, _Collection] = {
            name: self._database.get_collection(stored) for name, stored in self._settings.names.items()
        }

    @classmethod
    def from_uri(cls, uri: str, database: str, **settings: Any) -> Self:
        """A store with a client of its own, which ``close`` closes. Connects on first use."""
        store = cls(AsyncMongoClient(uri, connect=False), database, **settings)
        store._owned = True
        return store

    async def setup(self) -> None:
        """Create the indexes; see ``Store.setup``."""
        await self.run(plans.setup.indexes())

    async def close(self) -> None:
        """Close the client if this store made it (``from_uri``), else nothing."""
        if self._owned:
            await self._client.close()

    async def __aenter__(self) -> Self:
        """Nothing is opened."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    async def run(self, op: Operation[T]) -> T:
        """Run an operation to its end, within the timeout; see ``Store.run``.

        A caller that is cancelled gets its ``CancelledError`` once the operation has ended: nothing is
        left half done or open. A second cancellation does not wait.
        """
        self._process.check()
        running = asyncio.ensure_future(self._run(op))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_fetch_error)  # the caller is told of its cancellation instead
            if not running.done():
                _ = await asyncio.wait([running])
            raise

    async def _run(self, op: Operation[T]) -> T:
        tries = Attempts(op, self._settings.timeout)
        while True:
            try:
                with pymongo.timeout(tries.bound(atomic=op.atomic)):
                    return await self._attempt(op, tries)
            except (PyMongoError, DuplicateError) as error:
                await self._make_way(tries, error)
                delay = tries.after(error)
            await asyncio.sleep(delay)

    async def _attempt(self, op: Operation[T], tries: Attempts) -> T:
        transactions = await self._in_transactions()
        if not (op.prepares or self._prepared):
            self._prepared = await self._is_prepared()
        if not (op.atomic and transactions):
            execute = partial(self._execute, tries, op, None)
            return await drive.drive_async(op.plan(), execute)
        async with self._client.start_session() as session:
            tries.session = session.session_id
            return await session.with_transaction(
                lambda s: drive.drive_async(
                    op.plan(), partial(self._execute, tries, op, s), in_transaction=True
                ),
                **drive.TRANSACTION,
            )

    async def _execute(
        self, tries: Attempts, op: Operation[Any], session: AsyncClientSession | None, step: Step
    ) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(tries.pause(step.attempt))
        if isinstance(step, RequireTransaction):
            return drive.check_transaction(step, atomic=op.atomic)
        try:
            reply = await self._send(tries, session, step)
        except drive.UNCONVERTIBLE as error:
            raise drive.unconvertible(error, op.name) from error
        except PyMongoError as error:
            tries.failed_sending(step, error, in_transaction=session is not None)
            raise
        tries.sent(step, in_transaction=session is not None)
        return reply

    async def _send(
        self, tries: Attempts, session: AsyncClientSession | None, step: Command | FindEach
    ) -> Any:
        if isinstance(step, FindEach):
            return await self._find_each(tries, session, step)
        method, convert = _METHODS[step.method]
        return convert(await method(self._collections[step.collection], step.arguments, session))

    async def _find_each(
        self, tries: Attempts, session: AsyncClientSession | None, step: FindEach
    ) -> list[list[Document]]:
        names = self._settings.names
        if session is None:
            first = self._collections[step.finds[0].collection]
            if self._transactions:
                first = first.with_options(read_concern=drive.SNAPSHOT)
            united = await first.aggregate(drive.united(step, names), batchSize=drive.BATCH)
            return drive.separated(step, await united.to_list())
        if tries.separately:
            return [await self._send(tries, session, find) for find in step.finds]
        tries.looks_up()
        first = self._collections[step.finds[0].collection]
        looked_up = await first.aggregate(drive.looked_up(step, names), session=session)
        return drive.separated(step, drive.flattened(await looked_up.to_list()))

    async def _in_transactions(self) -> bool:
        """Whether the deployment has transactions; asked once. Warns, once, when it has none."""
        if self._transactions is None:
            hello = await self._client.admin.command("hello")
            if self._transactions is None and not attempts.has_transactions(hello):
                warnings.warn(attempts.STANDALONE, stacklevel=4)
            self._transactions = attempts.has_transactions(hello)
        return self._transactions

    async def _is_prepared(self) -> bool:
        """Whether the index that decides who gets a place is there; asked until it is.

        Raises:
            ConfigurationError: it is not.
        """
        try:
            found = await self._collections[schema.EVENTS].index_information()
        except OperationFailure as error:
            if drive.code_of(error) != drive.NOT_AUTHORIZED:
                raise
            return True  # a user who may not list indexes relies on whoever has set up
        attempts.check_indexes(found, self._settings.database)
        return True

    async def _make_way(self, tries: Attempts, error: Exception) -> None:
        """End the transaction that this attempt may have left open, and those of dead clients."""
        open_ = tries.left_open(error)
        if not open_ and not attempts.is_blocked(error):
            return
        try:
            with pymongo.timeout(attempts.clearing_time(self._settings.timeout)):
                if attempts.is_blocked(error):
                    open_ += await self._orphans()
                if open_:
                    _ = await self._client.admin.command(attempts.kill(open_))
        except PyMongoError:  # the operation's own error is what the caller is told
            return

    async def _orphans(self) -> list[Any]:
        found = await self._client.admin.aggregate(attempts.LISTING)
        return attempts.orphans(await found.to_list(), self._settings.timeout)


def _fetch_error(running: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting an error that nobody waits for."""
    if not running.cancelled():
        _ = running.exception()


def _unchanged(result: Any) -> Any:
    return result


def _deleted(result: Any) -> int:
    count: int = result.deleted_count
    return count


_Method = Callable[[_Collection, Mapping[str, Any], AsyncClientSession | None], Awaitable[Any]]
_METHODS: Mapping[str, tuple[_Method, Callable[[Any], Any]]] = {
    "find": (
        lambda c, a, s: c.find(**drive.find_arguments(a), session=s).to_list(),
        _unchanged,
    ),
    "insert_one": (lambda c, a, s: c.insert_one(**a, session=s), drive.nothing),
    "insert_many": (lambda c, a, s: c.insert_many(**a, session=s), drive.nothing),
    "update_one": (lambda c, a, s: c.update_one(**a, session=s), drive.update_reply),
    "find_one_and_update": (
        lambda c, a, s: c.find_one_and_update(**a, return_document=pymongo.ReturnDocument.AFTER, session=s),
        _unchanged,
    ),
    "delete_one": (lambda c, a, s: c.delete_one(**a, session=s), _deleted),
    "delete_many": (lambda c, a, s: c.delete_many(**a, session=s), _deleted),
    "create_index": (lambda c, a, s: c.create_index(**a, session=s), drive.nothing),
}
