"""The backends that operations are stepped on: the model, a replica set, a standalone server."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator

import pytest
from pymongo import MongoClient

from faults.scenes import PART_BYTES
from faults.stepping import Model, Server
from fix_mongod import Servers
from mnemongo.keys import SessionKey
from mnemongo.plans import payloads
from mnemongo.schema import APP_STATES, USER_STATES
from mnemongo.store import Store

NewKey = Callable[[], SessionKey]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of a kilobyte go into parts."""
    monkeypatch.setattr(payloads, "INLINE_BYTES", PART_BYTES)
    monkeypatch.setattr(payloads, "PART_BYTES", PART_BYTES)


@pytest.fixture(scope="session")
def new_key() -> NewKey:
    """A session that nobody has used, of an application and a user of its own."""
    numbers = itertools.count(1)

    def make() -> SessionKey:
        number = next(numbers)
        return SessionKey(f"app{number}", f"ann{number}", "s")

    return make


def _server(uri: str, database: str, name: str) -> Iterator[Server]:
    with MongoClient(uri, tz_aware=True) as client:
        client.drop_database(database)
        store = Store(client, database)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a standalone is tested elsewhere
            server = Server(store, name)
        store.setup()
        for collection in (APP_STATES, USER_STATES):  # not created by one of two racing transactions
            client[database].create_collection(collection)
        yield server
        server.close()
        client.drop_database(database)


@pytest.fixture(scope="session")
def replica_set(servers: Servers) -> Iterator[Server]:
    yield from _server(servers.replica_set(), "test_faults", "replica-set")


@pytest.fixture(scope="session")
def standalone(servers: Servers) -> Iterator[Server]:
    yield from _server(servers.standalone(), "test_faults", "standalone")


@pytest.fixture(params=["model", "model-standalone-fine", "replica_set", "standalone"])
def backend(request: pytest.FixtureRequest) -> Model | Server:
    match request.param:
        case "model":
            return Model()
        case "model-standalone-fine":
            return Model(transactions=False, fine=True)
        case _:
            server: Server = request.getfixturevalue(request.param)
            return server
