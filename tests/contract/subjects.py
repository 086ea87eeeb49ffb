"""What the contract suites run on: every store behind one asyncio face, and the clock each one obeys."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import pytest

from mnemongo import (
    AsyncChatHistory,
    ChatHistory,
    Entry,
    Message,
    NotFoundError,
    SessionKey,
    entries,
    sessions,
)
from mnemongo.keys import life, place
from mnemongo.testing import ModelStore

DEADLINE = 20.0
TICK = timedelta(milliseconds=2)


class ServerClock:
    """A real server's time: it can only be waited for."""

    def __init__(self, client: Any, database: str) -> None:
        self.client = client
        self.sessions = client[database]["sessions"]

    def now(self) -> datetime:
        return self.client.admin.command("hello")["localTime"].replace(tzinfo=UTC)

    async def reach(self, moment: datetime) -> None:
        await eventually(lambda: asyncio.to_thread(self._is_past, moment))

    async def expire_lease(self, key: SessionKey, until: datetime) -> None:
        """Let a lease run out that would last longer than a test."""
        past = {"$set": {"lease.until": self.now() - timedelta(seconds=5)}}
        found = {"_id": key.document_id, "lease.until": until}
        done = await asyncio.to_thread(self.sessions.update_one, found, past)
        assert done.modified_count == 1

    def _is_past(self, moment: datetime) -> bool:
        return self.now() > moment


class ModelClock:
    """A model's time: it goes forward when told."""

    def __init__(self, model: ModelStore) -> None:
        self.model = model

    def now(self) -> datetime:
        return self.model.now()

    async def reach(self, moment: datetime) -> None:
        self.model.advance(max(0.0, (moment - self.now() + TICK).total_seconds()))

    async def expire_lease(self, key: SessionKey, until: datetime) -> None:  # noqa: ARG002
        await self.reach(until)


async def eventually(condition: Callable[[], Awaitable[Any]], *, seconds: float = DEADLINE) -> Any:
    """Poll until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not so after {seconds} s: {condition}")
        await asyncio.sleep(0.005)
    return found


@dataclass(frozen=True, slots=True)
class Subject:
    """A store, blocking or not, as the suites see it.

    Attributes:
        blocking: its ``run`` blocks, and is sent to a thread.
        brief: a time to live that a test can see the end of, long enough for a few writes.
        raw: the database behind it, where there is one.
    """

    store: Any
    blocking: bool
    clock: ServerClock | ModelClock
    brief: float
    raw: Any = None
    app: str = field(default_factory=lambda: f"app-{uuid.uuid4().hex}")

    async def run(self, operation: Any) -> Any:
        if self.blocking:
            return await asyncio.to_thread(self.store.run, operation)
        return await self.store.run(operation)

    def key(self, session: str = "s1", user: str = "ann") -> SessionKey:
        """A session of an application nobody else uses."""
        return SessionKey(self.app, user, session)

    async def session(self, session: str = "s1", **options: Any) -> SessionKey:
        """Create a session."""
        key = self.key(session)
        await self.run(sessions.create(key, **options))
        return key

    def history(self, key: SessionKey, **options: Any) -> Any:
        """The chat history of the store's own kind, with an asyncio face."""
        if self.blocking:
            return History(ChatHistory(self.store, key, **options))
        return AsyncChatHistory(self.store, key, **options)

    async def append(self, key: SessionKey, name: str, **options: Any) -> Any:
        return await self.run(entries.append(key, entry(name), **options))

    async def all(self, key: SessionKey) -> list[Any]:
        """Every stored entry, page by page."""
        found: list[Any] = []
        after = None
        while True:
            page = await self.run(entries.page(key, after=after, limit=1000))
            found += page.items
            if page.next is None:
                return found
            after = page.next

    async def names(self, key: SessionKey) -> list[str]:
        return [stored.entry.key for stored in await self.all(key)]

    async def reach(self, moment: datetime) -> None:
        """Let the server's time pass ``moment``."""
        await self.clock.reach(moment)

    async def real_time(self, moment: datetime) -> None:
        """Wait until the server's time passes ``moment``, by itself also in a model."""

        async def passed() -> bool:
            return await asyncio.to_thread(self.clock.now) > moment

        await eventually(passed)

    async def tick(self) -> None:
        """Let the next write have a later time than the last one."""
        await self.reach(await asyncio.to_thread(self.clock.now) + TICK)


class Turn:
    """A blocking ``Turn`` with an asyncio face."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._turn.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._turn.__exit__, kind, error, trace)

    @property
    def answer(self) -> Any:
        return self._turn.answer

    @property
    def messages(self) -> Any:
        return self._turn.messages

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _threaded(getattr(self._turn, name))


class History:
    """A blocking ``ChatHistory`` with an asyncio face."""

    def __init__(self, history: ChatHistory) -> None:
        self._history = history

    @property
    def key(self) -> SessionKey:
        return self._history.key

    def turn(self, turn_id: str, **options: Any) -> Turn:
        return Turn(self._history.turn(turn_id, **options))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _threaded(getattr(self._history, name))


def _threaded(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    return call


def entry(name: str, text: str | None = None, *, starts: bool = False, **options: Any) -> Entry:
    """A user's message under the key ``name``."""
    message = Message.user(name if text is None else text)
    return message.entry(name, timestamp=1.5, starts_turn=starts, **options)


def with_state(name: str, delta: dict[str, Any], text: str = "x") -> Entry:
    """An event that changes state."""
    made = Message.assistant(text).entry(name, timestamp=1.5)
    event = made.event_data.removesuffix("}") + ',"actions":{"state_delta":' + json.dumps(delta) + "}}"
    changed = Entry(name, event, 1.5)
    assert changed.state_delta == delta
    return changed


def assert_dense(stored: Any) -> None:
    """Each entry has the place after the one before, from the first on, in one life."""
    assert [place(one.revision) for one in stored] == list(range(1, len(stored) + 1))
    assert len({life(one.revision) for one in stored}) <= 1


@contextmanager
def gone() -> Iterator[None]:
    """What a session answers that is not there."""
    with pytest.raises(NotFoundError):
        yield


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """The results and the errors of calls made at the same time."""
    return list(await asyncio.gather(*calls, return_exceptions=True))
