"""What the tests of the stores share: both colours behind one face, a listener, fail points, a proxy.

Every test is written once, with ``await``: the blocking store runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pymongo
import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from mnemongo import AsyncStore, Entry, SessionKey, Store
from mnemongo.commands import Operation

T = TypeVar("T")
Client = MongoClient[dict[str, Any]]
COLOURS = ("Store", "AsyncStore")
KEY = SessionKey("shop", "ann", "s1")
MARGIN = 1.5
"""Seconds that a loaded machine may take beyond an operation's limit."""


def entry(name: str, text: str = "hello", **more: Any) -> Entry:
    """An entry with a small event."""
    content = {"role": "user", "parts": [{"text": text}]}
    event = {"id": name, "author": "user", "timestamp": 1.5, "content": content}
    return Entry(name, json.dumps(event), 1.5, **more)


def stateful(name: str, **delta: object) -> Entry:
    """An entry whose event carries state; ``app_x`` stands for ``app:x``, ``user_x`` for ``user:x``."""
    named = {k.replace("app_", "app:").replace("user_", "user:"): v for k, v in delta.items()}
    event = {"id": name, "author": "user", "timestamp": 1.5, "actions": {"state_delta": named}}
    return Entry(name, json.dumps(event), 1.5)


class Recorder(CommandListener):
    """Keeps what was sent; ``on_success`` is called with each reply as it comes in."""

    def __init__(self) -> None:
        self.started_events: list[CommandStartedEvent] = []
        self.on_start: Callable[[CommandStartedEvent], None] | None = None
        self.on_success: Callable[[CommandSucceededEvent], None] | None = None

    def started(self, event: CommandStartedEvent) -> None:
        self.started_events.append(event)
        if self.on_start is not None:
            self.on_start(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if self.on_success is not None:
            self.on_success(event)

    def failed(self, event: CommandFailedEvent) -> None:
        """Not of interest."""

    def clear(self) -> None:
        self.started_events.clear()

    @property
    def names(self) -> list[str]:
        return [event.command_name for event in self.started_events]

    @property
    def commands(self) -> list[Mapping[str, Any]]:
        return [event.command for event in self.started_events]


@dataclass
class Opened:
    """One store of one colour, with its client and what the client sent."""

    colour: str
    store: Any
    client: Any
    recorder: Recorder

    async def run(self, op: Operation[T]) -> T:
        if self.colour == "Store":
            result: T = await asyncio.to_thread(self.store.run, op)
        else:
            result = await self.store.run(op)
        return result

    async def setup(self) -> None:
        if self.colour == "Store":
            await asyncio.to_thread(self.store.setup)
        else:
            await self.store.setup()

    async def counted(self, op: Operation[T]) -> tuple[T, list[str]]:
        """The result, and the names of the commands it took."""
        self.recorder.clear()
        result = await self.run(op)
        return result, self.recorder.names

    async def close_client(self) -> None:
        if self.colour == "Store":
            await asyncio.to_thread(self.client.close)
        else:
            await self.client.close()


class Opener:
    """Opens stores of one colour on one database, and closes their clients in the end."""

    def __init__(self, colour: str, uri: str, database: str) -> None:
        self.colour = colour
        self.uri = uri
        self.database = database
        self.opened: list[Opened] = []

    def __call__(self, uri: str | None = None, *, timeout: float = 20.0, **options: Any) -> Opened:
        recorder = Recorder()
        client_kind: Any = MongoClient if self.colour == "Store" else AsyncMongoClient
        store_kind: Any = Store if self.colour == "Store" else AsyncStore
        client = client_kind(uri or self.uri, event_listeners=[recorder], **options)
        store = store_kind(client, self.database, timeout=timeout)
        self.opened.append(Opened(self.colour, store, client, recorder))
        return self.opened[-1]

    async def ready(self, uri: str | None = None, **options: Any) -> Opened:
        """An opened store whose indexes are there, that knows its server."""
        opened = self(uri, **options)
        await opened.setup()
        opened.recorder.clear()
        return opened

    async def close(self) -> None:
        for opened in self.opened:
            await opened.close_client()


@contextmanager
def admin(uri: str) -> Iterator[Client]:
    """A client of the test's own, bounded in time."""
    client: Client = MongoClient(uri, serverSelectionTimeoutMS=10_000)
    with client, pymongo.timeout(30):
        yield client


@contextmanager
def failing(uri: str, *commands: str, times: int | None = None, skip: int | None = None, **data: Any):
    """Let the server fail these commands (of the clients whose appname is given) inside the block."""
    mode: Any = "alwaysOn" if times is None else {"times": times}
    if skip is not None:
        mode = {"skip": skip}
    point = {"configureFailPoint": "failCommand", "mode": mode, "data": {"failCommands": commands, **data}}
    with admin(uri) as client:
        client.admin.command(point)
        try:
            yield
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def open_transactions(client: Client) -> list[dict[str, Any]]:
    """Every transaction the server holds open for a client, running or idle."""
    listing = [
        {"$currentOp": {"allUsers": True, "idleSessions": True}},
        {"$match": {"transaction.timeOpenMicros": {"$gt": 0}, "lsid": {"$exists": True}}},
    ]
    return list(client.admin.aggregate(listing))


def environment() -> dict[str, str]:
    """What a subprocess needs to import what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


async def until(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Poll without blocking the loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so after {seconds} s: {condition}")
        await asyncio.sleep(0.01)


# A proxy that loses replies


@dataclass
class Proxy:
    """Stands between a client and a server, one thread per connection.

    ``lose`` are names of commands that reach the server and whose reply is lost (the connection is
    closed); ``lost`` counts them. Messages and replies alternate: no streaming, no compression.
    """

    server: str
    lose: set[str] = field(default_factory=set)
    lost: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        port = self._listening.getsockname()[1]
        return f"mongodb://127.0.0.1:{port}/?directConnection=true&serverMonitoringMode=poll"

    def close(self) -> None:
        for end in (self._listening, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self._listening.accept()
                self._ends.append(end)
                threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, _, port = self.server.partition(":")
        if port:
            return socket.create_connection((host, int(port)))
        end = socket.socket(socket.AF_UNIX)
        end.connect(self.server)
        return end

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, self._connect() as server:
            self._ends.append(server)
            while message := _message(client):
                server.sendall(message)
                reply = _message(server)
                if self._is_lost(message):
                    return
                client.sendall(reply)

    def _is_lost(self, message: bytes) -> bool:
        lost = any(name.encode() in message[:60] for name in self.lose)
        if lost and (self.most is None or self.lost < self.most):
            self.lost += 1
            return True
        return False


def _message(end: socket.socket) -> bytes:
    head = _exactly(end, 4)
    return head + _exactly(end, struct.unpack("<i", head)[0] - 4) if head else b""


def _exactly(end: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = end.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return parts
