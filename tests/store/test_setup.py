"""A database without the indexes, and clients of the wrong kind, are refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from mnemongo import AsyncStore, ConfigurationError, SessionKey, Store, sessions
from store.harness import Client, Opener

KEY = SessionKey("shop", "ann", "s1")


@pytest.mark.bare
async def test_without_setup_nothing_is_written(opener: Opener, server_client: Client) -> None:
    opened = opener()
    with pytest.raises(ConfigurationError, match=r"call the store.s setup\(\) once"):
        await opened.run(sessions.create(KEY))
    assert server_client[opener.database].list_collection_names() == []
    await opened.setup()
    _ = await opened.run(sessions.create(KEY))  # noticed without a new store


@pytest.mark.parametrize(
    ("kind", "client"),
    [
        (Store, "mongodb://127.0.0.1:1"),
        (Store, AsyncMongoClient),
        (AsyncStore, MongoClient),
        (AsyncStore, None),
    ],
)
async def test_a_client_of_another_kind(kind: Any, client: Any) -> None:
    made = client("mongodb://127.0.0.1:1", connect=False) if isinstance(client, type) else client
    with pytest.raises(ConfigurationError, match="client must be"):
        kind(made, "agents")
    if isinstance(made, AsyncMongoClient):
        await made.close()
    elif isinstance(made, MongoClient):
        made.close()
