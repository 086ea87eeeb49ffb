"""Fixtures of the store tests: every test that takes ``opener`` runs on Store and on AsyncStore."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import unquote, urlsplit

import pytest
from pymongo import MongoClient, common

from mnemongo import schema
from store.harness import COLOURS, Client, Opener, Proxy, admin, open_transactions


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for a lost server again after 0.05 s instead of 0.5."""
    monkeypatch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.05)


@pytest.fixture(autouse=True)
def indexes(request: pytest.FixtureRequest) -> None:
    """The indexes are there, on every server that the test uses: most tests are not about ``setup``."""
    if "database_name" not in request.fixturenames or request.node.get_closest_marker("bare"):
        return
    for name in {"mongodb_uri", "standalone_uri"} & set(request.fixturenames):
        client: Client = MongoClient(request.getfixturevalue(name))
        with client:
            database = client[request.getfixturevalue("database_name")]
            for index in schema.INDEXES:
                _ = database[index.collection].create_index(**index.arguments)


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    """Which of the two stores."""
    name: str = request.param
    return name


@pytest.fixture
async def opener(colour: str, mongodb_uri: str, database_name: str) -> AsyncIterator[Opener]:
    """Opens stores on the replica set."""
    made = Opener(colour, mongodb_uri, database_name)
    yield made
    await made.close()
    with admin(mongodb_uri) as client:  # what a failed test left open would block the drop for a minute
        for one in open_transactions(client):
            _ = client.admin.command("killSessions", [{"id": one["lsid"]["id"]}])


@pytest.fixture
def server_client(mongodb_uri: str) -> Iterator[Client]:
    """A client beside the store's."""
    with admin(mongodb_uri) as client:
        yield client


@pytest.fixture
def proxy(mongodb_uri: str) -> Iterator[Proxy]:
    """A way to the replica set that can lose replies."""
    made = Proxy(unquote(urlsplit(mongodb_uri).netloc))
    yield made
    made.close()
