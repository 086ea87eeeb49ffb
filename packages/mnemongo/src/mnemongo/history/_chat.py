"""What a chat history does outside of turns, as conversations with the store."""

from __future__ import annotations

import time

from mnemongo import keys
from mnemongo.documents import Head, Lease, Stored
from mnemongo.errors import AlreadyExistsError, NotFoundError, StaleRevisionError
from mnemongo.history._window import Context, Limits, Talk, context
from mnemongo.keys import SessionKey
from mnemongo.messages import Message
from mnemongo.plans import entries, leases, sessions


class ChatTalk:
    """One session as its handle knows it: once seen, a successor is not taken for it."""

    def __init__(self, key: SessionKey, *, ttl: float | None) -> None:
        self.key = key
        self.ttl = ttl
        self._position: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the session was seen to exist."""
        return self._position is not None

    def seen(self, revision: int) -> None:
        """Note that the session has come to ``revision``."""
        if self._position is None:
            self._position = revision
        elif keys.life(self._position) == keys.life(revision):  # else another thread has cleared it
            self._position = max(self._position, revision)

    def check_life(self, lease: Lease) -> Talk[None]:
        """Refuse a session that was deleted or cleared since this handle saw it."""
        if self._position is None or keys.life(self._position) == keys.life(lease.revision):
            self.seen(lease.revision)
            return
        _ = yield leases.release(lease)
        raise StaleRevisionError(
            f"the session {self.key} was deleted or cleared since this history saw it: make a new one",
            key=self.key,
            expected=self._position,
            found=lease.revision,
        )

    def append(self, message: Message, entry_key: str | None) -> Talk[Stored]:
        """Append one message; creates the session unless it was seen before."""
        entry = message.entry(entry_key or keys.new_nonce(), timestamp=time.time())
        after = self._position
        if after is None:
            after = yield from self._opened()
        stored: Stored = yield entries.append(self.key, entry, after=after)
        self.seen(stored.revision)
        return stored

    def _opened(self) -> Talk[int]:
        head: Head | None = yield sessions.get(self.key)
        while head is None:
            try:
                head = yield sessions.create(self.key, ttl=self.ttl)
            except AlreadyExistsError:  # another worker was first
                head = yield sessions.get(self.key)
        return head.revision

    def messages(self, limits: Limits, *, repair: bool) -> Talk[Context]:
        """The newest whole turns within the limits; empty when there is no session yet."""
        try:
            return (yield from context(self.key, limits, before=None, own=(), repair=repair))
        except NotFoundError:
            if self.is_known:
                raise
            return Context(())

    def clear(self) -> Talk[None]:
        """Remove all messages; state and leases stay."""
        try:
            head: Head = yield sessions.clear(self.key)
        except NotFoundError:
            if self.is_known:
                raise
            return
        self._position = head.revision
