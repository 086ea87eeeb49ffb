"""The asyncio face: ``AsyncChatHistory`` and its ``AsyncTurn``; the names are those of the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from mnemongo import keys
from mnemongo.commands import Operation, Pause
from mnemongo.documents import Stored
from mnemongo.drive import pause_seconds
from mnemongo.errors import LeaseHeldError, MnemongoError, OutcomeUnknownError, UnavailableError
from mnemongo.history._chat import ChatTalk
from mnemongo.history._turn import TurnTalk, output, question, reply
from mnemongo.history._window import Context, Limits, Talk, TokenCounter
from mnemongo.keys import SessionKey
from mnemongo.messages import Message, ToolCall

T = TypeVar("T")


class AsyncRunner(Protocol):
    """What runs operations: an ``AsyncStore``, or an ``AsyncModelStore`` in tests."""

    async def run(self, op: Operation[T], /) -> T:
        """Run one operation."""
        ...


async def _talk(store: AsyncRunner, talk: Talk[T]) -> T:
    """Carry a conversation with the store through."""
    try:
        said = next(talk)
        while True:
            try:
                heard = await _heard(store, said)
            except MnemongoError as error:
                said = talk.throw(error)
            else:
                said = talk.send(heard)
    except StopIteration as end:
        result: T = end.value
        return result


async def _heard(store: AsyncRunner, said: Operation[Any] | Pause) -> Any:
    if isinstance(said, Pause):
        return await asyncio.sleep(pause_seconds(said.attempt))
    return await store.run(said)


class AsyncChatHistory:
    """One conversation, framework-free. No I/O until a method is called.

    Args:
        store: an ``AsyncStore`` (or an ``AsyncModelStore``).
        key: names the session; it is created by the first write.
        ttl: seconds after the last write at which the whole session disappears; ``None``: never.

    A history that has seen its session never takes a successor of the same name for it: once the session
    was deleted, its writes raise ``NotFoundError`` or ``StaleRevisionError``.

    >>> import asyncio
    >>> from mnemongo import SessionKey
    >>> from mnemongo.testing import AsyncModelStore
    >>> async def talk():
    ...     history = AsyncChatHistory(AsyncModelStore(), SessionKey("shop", "ann", "s1"))
    ...     async with history.turn("t-42") as turn:
    ...         _ = await turn.user("Where is my order?")
    ...         if turn.answer is None:
    ...             _ = await turn.assistant("On its way.")
    ...     return [message.text for message in await history.messages()]
    >>> asyncio.run(talk())
    ['Where is my order?', 'On its way.']
    """

    def __init__(self, store: AsyncRunner, key: SessionKey, *, ttl: float | None = None) -> None:
        self._store = store
        self._chat = ChatTalk(key, ttl=ttl)

    @property
    def key(self) -> SessionKey:
        """The session's name."""
        return self._chat.key

    def turn(
        self, turn_id: str, *, lease: float = 60.0, wait: float = 0.0, owner: str | None = None
    ) -> AsyncTurn:
        """One turn, to be used with ``async with``: its lease is taken on entry, given back on exit.

        Args:
            turn_id: names the turn for ever; a retry passes the same one.
            lease: seconds until others may take over from a worker that died; renewed meanwhile.
            wait: seconds to wait for a session that is busy.
            owner: who is at work, for people to read; default: a random name.

        Raises:
            InvalidKeyError: the id is not a valid name.
        """
        return AsyncTurn(self._store, self._chat, turn_id, lease=lease, wait=wait, owner=owner)

    async def append(self, message: Message | str, *, key: str | None = None) -> Stored:
        """Append one message outside any turn.

        Args:
            message: the message; a text is a user's.
            key: names it for ever, which makes a retry harmless; ``None``: a random name.

        Raises:
            KeyConflictError: the key is stored with other content.
            StaleRevisionError: the session was deleted or cleared since this history saw it.
        """
        return await _talk(self._store, self._chat.append(question(message), key))

    async def messages(
        self,
        *,
        last_turns: int | None = None,
        last_messages: int | None = None,
        max_tokens: int | None = None,
        token_counter: TokenCounter | None = None,
        repair: bool = False,
    ) -> Context:
        """The newest whole turns within all of the limits; everything without one.

        Args:
            last_turns: at most so many turns (1 to 1,000).
            last_messages: at most so many messages in them (1 to 10,000).
            max_tokens: at most so many tokens, pinned system messages included.
            token_counter: counts the tokens of a list of messages.
            repair: answer unanswered tool calls in what is returned, never in what is stored.

        Returns:
            The messages, oldest first, system messages from before the window at the front. Empty when
            there is no such session.
        """
        limits = Limits(last_turns, last_messages, max_tokens, token_counter)
        return await _talk(self._store, self._chat.messages(limits, repair=repair))

    async def clear(self) -> None:
        """Remove all messages; state stays. An append that races with it fails or is removed whole."""
        await _talk(self._store, self._chat.clear())


class AsyncTurn:
    """One turn of a ``ChatHistory``; see ``ChatHistory.turn``.

    Writes in it are durable when they return, and the turn is complete when its block ends without an
    error: a session deleted or cleared meanwhile is told of then at the latest.
    """

    def __init__(
        self,
        store: AsyncRunner,
        chat: ChatTalk,
        turn_id: str,
        *,
        lease: float,
        wait: float,
        owner: str | None,
    ) -> None:
        self._store = store
        self._chat = chat
        self._wait = wait
        self._turn = TurnTalk(chat.key, turn_id, owner=owner or keys.new_nonce(), ttl=lease)
        self._renewing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Take the lease.

        Raises:
            LeaseHeldError: the session is busy, also after ``wait`` seconds.
            StaleRevisionError, NotFoundError: the session was deleted since the history saw it.
        """
        self._turn.use()
        beginning = asyncio.ensure_future(self._begin())
        try:
            failure = await asyncio.shield(beginning)
        except asyncio.CancelledError as cancellation:  # the lease may be taken all the same
            _ = beginning.cancel()
            self._leaving = asyncio.ensure_future(self._leave(beginning, cancellation))
            await asyncio.shield(self._leaving)  # goes on when this is cancelled again
            raise
        if failure is None:
            return self
        if not isinstance(failure, LeaseHeldError):
            await self._abandon(failure)
        raise failure

    async def _begin(self) -> BaseException | None:
        """Take the lease. A failure is returned: a task that raises an interruption stops the loop."""
        create = not self._chat.is_known
        try:
            await self._say(self._turn.begin(wait=self._wait, create=create, session_ttl=self._chat.ttl))
            await self._say(self._chat.check_life(self._turn.lease))
            self._renewing = asyncio.create_task(self._renew(), name="mnemongo-lease")
        except BaseException as failure:  # noqa: BLE001 - raised by ``__aenter__``
            return failure
        return None

    async def _leave(self, beginning: asyncio.Future[Any], error: BaseException) -> None:
        """Give the lease back after ``beginning`` has ended, so that this is not overtaken by it."""
        _ = await asyncio.wait([beginning])
        await self._stop_renewing()
        await self._abandon(error)

    async def _abandon(self, error: BaseException) -> None:
        try:
            await self._say(self._turn.abandon())
        except MnemongoError as failure:
            error.add_note(f"and the lease could not be given back: {failure}")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lease back, also after an error.

        Raises:
            StaleRevisionError, NotFoundError: the session was deleted or cleared during the turn.
        """
        try:
            await self._stop_renewing()
        finally:
            await self._end(error)

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            _ = self._renewing.cancel()
            _ = await asyncio.wait([self._renewing])

    async def _end(self, error: BaseException | None) -> None:
        try:
            _ = await self._say(self._turn.end())
        except MnemongoError as failure:
            if error is None:
                raise
            error.add_note(f"and the lease could not be given back: {failure}")

    async def _renew(self) -> None:
        """Renew the lease every third of its time, until the block ends or the lease is lost."""
        while True:
            await asyncio.sleep(self._turn.ttl / 3)
            try:
                self._turn.lease = await self._say(self._turn.renewed())
            except (UnavailableError, OutcomeUnknownError):  # there is time until the expiry
                continue
            except MnemongoError as failure:
                self._turn.failure = failure  # raised by the next write
                return

    async def _say(self, talk: Talk[T]) -> T:
        return await _talk(self._store, talk)

    @property
    def answer(self) -> Message | None:
        """The answer, when this or an earlier attempt stored one. Known once ``user`` was called.

        Raises:
            ConfigurationError: nothing was written yet: call ``user`` or ``resume`` first.
        """
        return self._turn.answer

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turn's own messages so far, those of an earlier attempt included."""
        return tuple(Message.of(stored.entry) for stored in self._turn.own)

    async def resume(self) -> bool:
        """Read what an earlier attempt stored; only needed before ``user``."""
        return await self._say(self._turn.resume())

    async def user(self, message: Message | str) -> Stored:
        """The question, the turn's first message; on a retry, replayed.

        Raises:
            LeaseLostError: the lease ran out; nothing was stored.
            KeyConflictError: an earlier attempt stored another question.
        """
        return await self._say(self._turn.user(question(message)))

    async def assistant(self, message: Message | str = "", *, calls: Iterable[ToolCall] = ()) -> Stored:
        """The answer; with tool calls, a step towards it.

        Raises:
            LeaseLostError: the lease ran out; nothing was stored.
            KeyConflictError: another answer is stored.
        """
        return await self._say(self._turn.assistant(reply(message, calls)))

    async def tool(self, call_id: str, value: object, *, name: str | None = None) -> Stored:
        """What the tool returned for a call: a text, or any value the codec keeps.

        Raises:
            LeaseLostError: the lease ran out; nothing was stored.
            DocumentError: the value cannot be stored; the path to it is named.
        """
        return await self._say(self._turn.tool(output(call_id, value, name)))

    async def append(self, message: Message, name: str) -> Stored:
        """Any other message of the turn, under the key ``<turn>:<name>``."""
        return await self._say(self._turn.append(message, name))

    async def context(
        self,
        *,
        last_turns: int | None = None,
        last_messages: int | None = None,
        max_tokens: int | None = None,
        token_counter: TokenCounter | None = None,
        repair: bool = False,
    ) -> Context:
        """What the model is to read: whole turns from before this one, then this turn, never cut.

        The same on a retry, whatever was written since. The arguments are those of
        ``ChatHistory.messages``.
        """
        limits = Limits(last_turns, last_messages, max_tokens, token_counter)
        return await self._say(self._turn.context(limits, repair=repair))
