"""What one turn does, as conversations with the store; no thread, no loop, no sleep.

A turn takes the lease of its session, writes each entry under it at the session's next place, and gives
the lease back at its end, which is also when the head is moved. Its keys come from its id, so a turn that
was cut short and is run again finds what it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import count

from mnemongo import keys
from mnemongo.commands import Pause
from mnemongo.documents import Lease, Stored
from mnemongo.errors import ConfigurationError, LeaseHeldError, MnemongoError
from mnemongo.history._steps import Steps
from mnemongo.history._window import Context, Limits, Talk, context
from mnemongo.keys import SessionKey
from mnemongo.messages import Message, ToolCall
from mnemongo.plans import entries, leases

QUESTION, ANSWER, TOOL = "user", "assistant", "tool"


class TurnTalk:
    """The state of one turn, and what it says to the store.

    ``lease`` is replaced by whoever renews it; ``failure`` is set when that failed for good.
    """

    def __init__(self, key: SessionKey, turn: str, *, owner: str, ttl: float) -> None:
        _ = keys.turn_key(turn)
        self.key = key
        self.turn = turn
        self.ttl = ttl
        self.failure: MnemongoError | None = None
        self._owner = owner
        self._nonce = keys.new_nonce()
        self._used = False
        self._lease: Lease | None = None
        self._position: int | None = None
        self._own: list[Stored] = []
        self._known = False
        self._steps = Steps()

    @property
    def lease(self) -> Lease:
        """The lease, while the turn is running."""
        if self._lease is None:
            raise ConfigurationError("the turn is not running: use it inside its with block")
        return self._lease

    @lease.setter
    def lease(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def own(self) -> Sequence[Stored]:
        """The turn's entries as far as they are known."""
        return self._own

    @property
    def answer(self) -> Message | None:
        """The final answer, or ``None``.

        Raises:
            ConfigurationError: nothing was written or read yet, so nobody can know.
        """
        if not self._known:
            raise ConfigurationError(
                "what an earlier attempt stored is not known yet: call user(...) or resume() first"
            )
        key = keys.turn_key(self.turn, ANSWER)
        found = [stored for stored in self._own if stored.entry.key == key]
        return Message.of(found[0].entry) if found else None

    def use(self) -> None:
        """Refuse a second use: it would take the lease from the first."""
        if self._used:
            raise ConfigurationError("a turn is used once: call history.turn(...) again")
        self._used = True

    def begin(self, *, wait: float, create: bool, session_ttl: float | None) -> Talk[None]:
        """Take the lease; when it is held, ask again for ``wait`` seconds."""
        taking = leases.acquire(
            self.key,
            owner=self._owner,
            ttl=self.ttl,
            create=create,
            session_ttl=session_ttl,
            nonce=self._nonce,
        )
        give_up = time.monotonic() + max(0.0, wait)
        for attempt in count(1):
            try:
                self._lease = yield taking
                break
            except LeaseHeldError:
                if time.monotonic() >= give_up:
                    raise
                yield Pause(attempt)
        self._position = self.lease.revision

    def abandon(self) -> Talk[None]:
        """Give back the lease that an interrupted ``begin`` may have got."""
        self._lease = None
        yield leases.abandon(self.key, nonce=self._nonce)

    def resume(self) -> Talk[bool]:
        """Read what an earlier attempt of this turn stored; returns whether there was anything."""
        self._own = list((yield entries.turn(self.key, self.turn)))
        self._known = True
        self._steps.found(self._own)
        return bool(self._own)

    def user(self, message: Message) -> Talk[Stored]:
        """The question: the turn's first entry."""
        return (yield from self.append(message, QUESTION))

    def assistant(self, message: Message) -> Talk[Stored]:
        """The answer, or (with tool calls) a step towards it, named by its first call."""
        if not message.calls:
            return (yield from self.append(message, ANSWER))
        yield from self._learn()
        return (yield from self.append(message, ANSWER, self._steps.step(message, self._draft(message))))

    def tool(self, message: Message) -> Talk[Stored]:
        """What a tool returned, named by the call it answers."""
        yield from self._learn()
        return (yield from self.append(message, TOOL, self._steps.result(message, self._draft(message))))

    def _draft(self, message: Message) -> str:
        """The digest the message will have."""
        return message.entry("draft", timestamp=0.0).digest

    def _learn(self) -> Talk[None]:
        """Know what is stored, before anything but the question is written."""
        if not self._known:
            _ = yield from self.resume()

    def append(self, message: Message, *names: str) -> Talk[Stored]:
        """Write one message under the key ``<turn>:<names>``."""
        lease = self.lease
        if self.failure is not None:
            raise self.failure
        if names != (QUESTION,):
            yield from self._learn()
        entry = message.entry(
            keys.turn_key(self.turn, *names),
            timestamp=time.time(),
            turn=self.turn,
            starts_turn=not self._own,
        )
        stored: Stored = yield entries.append(
            self.key, entry, after=self._position, lease=lease, settle=False
        )
        if stored.replayed:
            yield from self._learn()
        self._note(stored)
        return stored

    def _note(self, stored: Stored) -> None:
        self._known = True
        self._position = max(self._position or 0, stored.revision)
        if all(known.revision != stored.revision for known in self._own):
            self._own.append(stored)

    def context(self, limits: Limits, *, repair: bool) -> Talk[Context]:
        """The whole turns before this one within the limits, then this turn: equal on a retry."""
        yield from self._learn()
        first = self._own[0].revision if self._own else None
        return (yield from context(self.key, limits, before=first, own=self._own, repair=repair))

    def renewed(self) -> Talk[Lease]:
        """Renew the lease."""
        lease: Lease = yield leases.renew(self.lease, ttl=self.ttl)
        return lease

    def end(self) -> Talk[bool]:
        """Give the lease back and move the head over what was written."""
        lease, self._lease = self.lease, None
        held: bool = yield leases.release(lease, revision=self._position)
        return held


def question(text: str | Message) -> Message:
    """A text as a user's message."""
    return text if isinstance(text, Message) else Message.user(text)


def reply(text: str | Message, calls: Iterable[ToolCall]) -> Message:
    """A text, or calls, as an assistant's message."""
    return text if isinstance(text, Message) else Message.assistant(text, calls=calls)


def output(call_id: str, value: object, name: str | None) -> Message:
    """A tool's output as a message."""
    return value if isinstance(value, Message) else Message.tool(call_id, value, name=name)
