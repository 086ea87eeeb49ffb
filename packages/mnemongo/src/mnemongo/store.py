"""The blocking store: runs operations with a ``MongoClient``."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pymongo
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
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
_Collection = Collection[dict[str, Any]]


class Store:
    """Runs operations. Safe to share between threads; make it after a fork, not before.

    Args:
        client: the caller's own; it is never closed here. Its write concern, read concern and read
            preference do not matter: everything is written and read with majority on the primary.
        database: the database's name.
        timeout: seconds that one operation may take in all. Stores on one database should agree on it:
            a transaction left open by a dead client is ended once it is older than this.
        collections: other names for the collections, by ours (``{"events": "agent_events"}``).

    Raises:
        ConfigurationError: an argument is not what it must be. No I/O is done.

    >>> from pymongo import MongoClient
    >>> store = Store(MongoClient(connect=False), "agents")
    >>> store.close()
    """

    def __init__(
        self,
        client: MongoClient[Any],
        database: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        collections: Mapping[str, str] | None = None,
    ) -> None:
        check_client(client, MongoClient)
        self._settings = Settings(database, timeout, collections or {})
        self._client = client
        self._owned = False
        self._transactions: bool | None = None
        self._prepared = False
        self._asking = threading.Lock()
        self._process = ProcessGuard()
        client.append_metadata(metadata())
        options: dict[str, Any] = {"codec_options": drive.OPTIONS, **drive.CONCERNS}
        self._database = client.get_database(database, **options)
        self._collections: dict[str, _Collection] = {
            name: self._database.get_collection(stored) for name, stored in self._settings.names.items()
        }

    @classmethod
    def from_uri(cls, uri: str, database: str, **settings: Any) -> Self:
        """A store with a client of its own, which ``close`` closes. Connects on first use.

        Args:
            uri: a MongoDB connection string.
            database: the database's name.
            settings: the keyword arguments of ``Store``.
        """
        store = cls(MongoClient(uri, connect=False), database, **settings)
        store._owned = True
        return store

    def setup(self) -> None:
        """Create the indexes. Run it once per deployment, as a user who may create them.

        Raises:
            ConfigurationError: the user may not, or an index of the same name differs.
        """
        self.run(plans.setup.indexes())

    def close(self) -> None:
        """Close the client if this store made it (``from_uri``), else nothing."""
        if self._owned:
            self._client.close()

    def __enter__(self) -> Self:
        """Nothing is opened."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def run(self, op: Operation[T]) -> T:
        """Run an operation to its end, within the timeout.

        Returns:
            What the operation returns.

        Raises:
            MnemongoError: see the operation; beside its own, ``UnavailableError`` (nothing is known to
                be written), ``OutcomeUnknownError`` (repeat it with the same keys) and
                ``ConfigurationError``.
        """
        self._process.check()
        tries = Attempts(op, self._settings.timeout)
        while True:
            try:
                with pymongo.timeout(tries.bound(atomic=op.atomic)):
                    return self._attempt(op, tries)
            except (PyMongoError, DuplicateError) as error:
                self._make_way(tries, error)
                delay = tries.after(error)
            time.sleep(delay)

    def _attempt(self, op: Operation[T], tries: Attempts) -> T:
        transactions = self._in_transactions()
        if not (op.prepares or self._prepared):
            self._prepared = self._is_prepared()
        if not (op.atomic and transactions):
            execute = partial(self._execute, tries, op, None)
            return drive.drive(op.plan(), execute)
        with self._client.start_session() as session:
            tries.session = session.session_id
            return session.with_transaction(
                lambda s: drive.drive(op.plan(), partial(self._execute, tries, op, s), in_transaction=True),
                **drive.TRANSACTION,
            )

    def _execute(self, tries: Attempts, op: Operation[Any], session: ClientSession | None, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(tries.pause(step.attempt))
        if isinstance(step, RequireTransaction):
            return drive.check_transaction(step, atomic=op.atomic)
        try:
            reply = self._send(tries, session, step)
        except drive.UNCONVERTIBLE as error:
            raise drive.unconvertible(error, op.name) from error
        except PyMongoError as error:
            tries.failed_sending(step, error, in_transaction=session is not None)
            raise
        tries.sent(step, in_transaction=session is not None)
        return reply

    def _send(self, tries: Attempts, session: ClientSession | None, step: Command | FindEach) -> Any:
        if isinstance(step, FindEach):
            return self._find_each(tries, session, step)
        method = _METHODS[step.method]
        return method(self._collections[step.collection], step.arguments, session)

    def _find_each(
        self, tries: Attempts, session: ClientSession | None, step: FindEach
    ) -> list[list[Document]]:
        names = self._settings.names
        if session is None:
            first = self._collections[step.finds[0].collection]
            if self._transactions:
                first = first.with_options(read_concern=drive.SNAPSHOT)
            united = first.aggregate(drive.united(step, names), batchSize=drive.BATCH)
            return drive.separated(step, united.to_list())
        if tries.separately:
            return [self._send(tries, session, find) for find in step.finds]
        tries.looks_up()
        first = self._collections[step.finds[0].collection]
        looked_up = first.aggregate(drive.looked_up(step, names), session=session)
        return drive.separated(step, drive.flattened(looked_up.to_list()))

    def _in_transactions(self) -> bool:
        """Whether the deployment has transactions; asked once. Warns, once, when it has none."""
        if self._transactions is None:
            hello = self._client.admin.command("hello")
            with self._asking:
                if self._transactions is None and not attempts.has_transactions(hello):
                    warnings.warn(attempts.STANDALONE, stacklevel=4)
                self._transactions = attempts.has_transactions(hello)
        return self._transactions

    def _is_prepared(self) -> bool:
        """Whether the index that decides who gets a place is there; asked until it is.

        Raises:
            ConfigurationError: it is not.
        """
        try:
            found = self._collections[schema.EVENTS].index_information()
        except OperationFailure as error:
            if drive.code_of(error) != drive.NOT_AUTHORIZED:
                raise
            return True  # a user who may not list indexes relies on whoever has set up
        attempts.check_indexes(found, self._settings.database)
        return True

    def _make_way(self, tries: Attempts, error: Exception) -> None:
        """End the transaction that this attempt may have left open, and those of dead clients."""
        open_ = tries.left_open(error)
        if not open_ and not attempts.is_blocked(error):
            return
        try:
            with pymongo.timeout(attempts.clearing_time(self._settings.timeout)):
                if attempts.is_blocked(error):
                    open_ += self._orphans()
                if open_:
                    _ = self._client.admin.command(attempts.kill(open_))
        except PyMongoError:  # the operation's own error is what the caller is told
            return

    def _orphans(self) -> list[Any]:
        found = self._client.admin.aggregate(attempts.LISTING)
        return attempts.orphans(found.to_list(), self._settings.timeout)


_Method = Callable[[_Collection, Mapping[str, Any], ClientSession | None], Any]
_METHODS: Mapping[str, _Method] = {
    "find": lambda c, a, s: c.find(**drive.find_arguments(a), session=s).to_list(),
    "insert_one": lambda c, a, s: drive.nothing(c.insert_one(**a, session=s)),
    "insert_many": lambda c, a, s: drive.nothing(c.insert_many(**a, session=s)),
    "update_one": lambda c, a, s: drive.update_reply(c.update_one(**a, session=s)),
    "find_one_and_update": lambda c, a, s: c.find_one_and_update(
        **a, return_document=pymongo.ReturnDocument.AFTER, session=s
    ),
    "delete_one": lambda c, a, s: c.delete_one(**a, session=s).deleted_count,
    "delete_many": lambda c, a, s: c.delete_many(**a, session=s).deleted_count,
    "create_index": lambda c, a, s: drive.nothing(c.create_index(**a, session=s)),
}
