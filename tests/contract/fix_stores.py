"""The subjects of the contract suites: each test runs once on each of them."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from contract.subjects import ModelClock, ServerClock, Subject
from fix_mongod import Servers
from mnemongo import AsyncStore, SessionKey, Store, sessions
from mnemongo.testing import AsyncModelStore, ModelStore

ATOMIC = ["store", "async_store", "model", "async_model"]
ALL = [*ATOMIC, "standalone"]
BRIEF = 0.4
MODEL_BRIEF = 60.0
THREADS = 40


class Databases:
    """A blocking store per server and database, made once: creating a database costs more than a test."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._stack = ExitStack()
        self._stores: dict[tuple[str, str], tuple[MongoClient[dict[str, Any]], Store]] = {}
        self.shared = f"test_contract_{uuid.uuid4().hex[:12]}"
        _ = self._stack.callback(servers.drop, self.shared)

    def uri(self, name: str) -> str:
        return self._servers.standalone() if name == "standalone" else self._servers.replica_set()

    def store(self, name: str, database: str) -> tuple[MongoClient[dict[str, Any]], Store]:
        uri = self.uri(name)
        if (uri, database) not in self._stores:
            client: MongoClient[dict[str, Any]] = MongoClient(uri, tz_aware=True)
            self._stack.enter_context(client)
            store = Store(client, database)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                store.setup()
                _ = store.run(sessions.get(SessionKey("a", "b", "c")))
            # The one warning of a standalone server; test_sessions counts it.
            assert {one.category for one in caught} <= ({UserWarning} if name == "standalone" else set())
            self._stores[uri, database] = (client, store)
        return self._stores[uri, database]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def databases(servers: Servers) -> Iterator[Databases]:
    """The stores of this session."""
    made = Databases(servers)
    yield made
    made.close()


async def _make(name: str, databases: Databases, database: str, stack: AsyncExitStack) -> Subject:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    if name.endswith("model"):
        model = ModelStore()
        blocking = name == "model"
        store: Any = model if blocking else AsyncModelStore(model)
        return Subject(store, blocking, ModelClock(model), MODEL_BRIEF)
    client, store = await asyncio.to_thread(databases.store, name, database)
    clock = ServerClock(client, database)
    if name == "async_store":
        own = await stack.enter_async_context(AsyncMongoClient[Any](databases.uri(name)))
        return Subject(AsyncStore(own, database), False, clock, BRIEF, client[database])
    return Subject(store, True, clock, BRIEF, client[database])


@pytest.fixture(params=ALL)
async def subject(request: pytest.FixtureRequest, databases: Databases) -> AsyncIterator[Subject]:
    """Every store; its database is shared, its application is not."""
    async with AsyncExitStack() as stack:
        yield await _make(request.param, databases, databases.shared, stack)


@pytest.fixture(params=ATOMIC)
async def atomic_subject(request: pytest.FixtureRequest, databases: Databases) -> AsyncIterator[Subject]:
    """Every store that has transactions: what a standalone server cannot promise."""
    async with AsyncExitStack() as stack:
        yield await _make(request.param, databases, databases.shared, stack)


@pytest.fixture(params=ALL)
async def alone(
    request: pytest.FixtureRequest, databases: Databases, database_name: str
) -> AsyncIterator[Subject]:
    """Every store, on a database of its own: for what looks at all sessions."""
    async with AsyncExitStack() as stack:
        yield await _make(request.param, databases, database_name, stack)


@pytest.fixture(params=[True, False], ids=["blocking", "asyncio"])
async def deaf(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """A store whose server does not exist: whatever it sends raises ``UnavailableError``."""
    address = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"
    model = ModelClock(ModelStore())
    if request.param:
        with MongoClient[Any](address, connect=False) as client:
            yield Subject(Store(client, "none", timeout=0.5), True, model, BRIEF)
    else:
        async with AsyncMongoClient[Any](address, connect=False) as own:
            yield Subject(AsyncStore(own, "none", timeout=0.5), False, model, BRIEF)
