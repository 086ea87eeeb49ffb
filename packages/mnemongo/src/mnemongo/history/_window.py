"""What a model is given to read: whole turns within limits, nothing cut, nothing invented.

Built by generators that yield operations, so that the blocking and the asyncio history share them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from mnemongo.commands import Operation, Pause
from mnemongo.documents import Stored
from mnemongo.errors import DocumentError
from mnemongo.keys import SessionKey
from mnemongo.messages import Message, ToolCall
from mnemongo.plans import entries
from mnemongo.plans.arguments import check_count
from mnemongo.plans.reading import Window

T = TypeVar("T")
Talk = Generator[Operation[Any] | Pause, Any, T]
"""A conversation with the store: yields operations, is sent their results."""
TokenCounter = Callable[[Sequence[Message]], int]

_CHUNK = 20
_MOST_TURNS = 1000
UNANSWERED = "[no result was recorded for this call]"


@dataclass(frozen=True, slots=True)
class Context(Sequence[Message]):
    """Messages for a model, oldest first.

    Attributes:
        messages: pinned system messages, whole turns, the current turn.
        truncated: whether earlier messages were left out.
        unanswered: the ids of tool calls that no message answers (and that were not repaired).
    """

    messages: tuple[Message, ...]
    truncated: bool = False
    unanswered: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """One message, or a tuple of some."""
        return self.messages[index]

    def __len__(self) -> int:
        """How many messages."""
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the past is wanted: the tightest limit counts, in whole turns.

    Attributes:
        turns: at most so many turns, 1 to 1,000.
        messages: at most so many messages in them.
        tokens: at most so many tokens of pinned messages, turns and the current turn together.
        counter: counts the tokens of some messages.
    """

    turns: int | None = None
    messages: int | None = None
    tokens: int | None = None
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and that tokens can be counted."""
        for name, most in (("turns", _MOST_TURNS), ("messages", 10_000), ("tokens", 10**9)):
            value = getattr(self, name)
            if value is not None:
                _ = check_count(value, name, most)
        if (self.tokens is None) != (self.counter is None):
            raise DocumentError("max_tokens and token_counter belong together: give both or neither")

    @property
    def chunk(self) -> int:
        """How many turns to read at once: those that the limits can admit, if they tell."""
        if self.turns is not None:
            return self.turns
        if self.messages is not None:
            return min(_MOST_TURNS, max(1, self.messages // 2))
        return _CHUNK

    def count(self, messages: Sequence[Message]) -> int:
        """The tokens of some messages; 0 where nobody asks."""
        return self.counter(messages) if self.counter and messages else 0


@dataclass(slots=True)
class _Room:
    """What is left of the limits while turns are admitted, newest first."""

    limits: Limits
    used_tokens: int
    turns: int = 0
    messages: int = 0
    full: bool = False

    def reserve(self, pinned: Sequence[Message]) -> None:
        """Count what is shown whatever the limits are."""
        self.used_tokens += self.limits.count(pinned)

    def admit(self, turn: Sequence[Message]) -> bool:
        tokens = self.limits.count(turn)
        self.full |= (
            _over(self.turns + 1, self.limits.turns)
            or _over(self.messages + len(turn), self.limits.messages)
            or _over(self.used_tokens + tokens, self.limits.tokens)
        )
        if not self.full:
            self.turns += 1
            self.messages += len(turn)
            self.used_tokens += tokens
        return not self.full

    @property
    def has_place(self) -> bool:
        """Whether one more turn could be admitted at all."""
        return not self.full and not _over(self.turns + 1, self.limits.turns)


def _over(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit


@dataclass(slots=True)
class _Past:
    """Whole turns read so far, oldest first, and what is pinned before them."""

    turns: list[list[Stored]] = field(default_factory=list[list[Stored]])
    pinned: dict[int, Stored] = field(default_factory=dict[int, Stored])
    truncated: bool = False


def context(
    key: SessionKey, limits: Limits, *, before: int | None, own: Sequence[Stored], repair: bool
) -> Talk[Context]:
    """The past before ``before`` within the limits, then ``own`` whole."""
    current = [Message.of(stored.entry) for stored in own]
    room = _Room(limits, limits.count(current))
    past = yield from _past(key, room, before)
    pinned = [Message.of(stored.entry) for _, stored in sorted(past.pinned.items())]
    said = [Message.of(stored.entry) for turn in past.turns for stored in turn]
    return paired([*pinned, *said, *current], truncated=past.truncated, repair=repair)


def _past(key: SessionKey, room: _Room, before: int | None) -> Talk[_Past]:
    past = _Past()
    while room.has_place:
        window: Window = yield entries.turns(key, room.limits.chunk, before=before)
        past.truncated = window.truncated
        past.pinned |= {stored.revision: stored for stored in window.pinned}
        if not past.turns:
            pinned = [*window.pinned, *(stored for stored in window.entries if stored.entry.pinned)]
            room.reserve([Message.of(stored.entry) for stored in pinned])
        _admit(window, room, past)
        if not window.truncated or room.full:
            break
        before = window.entries[0].revision
    shown = past.turns[0][0].revision if past.turns else None
    past.pinned = {r: s for r, s in past.pinned.items() if shown is None or r < shown}
    return past


def _admit(window: Window, room: _Room, past: _Past) -> None:
    for turn in reversed(list(whole_turns(window.entries))):
        said = [Message.of(stored.entry) for stored in turn if not stored.entry.pinned]
        if room.full or (said and not room.admit(said)):
            past.truncated |= bool(said)
            past.pinned |= {stored.revision: stored for stored in turn if stored.entry.pinned}
        else:
            past.turns.insert(0, turn)


def whole_turns(stored: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Entries grouped by turn; what stands before the first one is a group of its own.

    Where nothing says where turns begin, each entry is one.
    """
    marked = any(one.entry.starts_turn for one in stored)
    group: list[Stored] = []
    for one in stored:
        if group and (one.entry.starts_turn or not marked):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def paired(messages: Sequence[Message], *, truncated: bool, repair: bool) -> Context:
    """Find the tool calls without an answer; with ``repair``, answer them in what is read."""
    shown: list[Message] = []
    unanswered: list[str] = []
    for message, missing in zip(messages, _missing(messages), strict=True):
        shown.append(message)
        if repair:
            shown += [Message.tool(call.id, UNANSWERED, name=call.name or None) for call in missing]
        else:
            unanswered += [call.id for call in missing]
    return Context(tuple(shown), truncated, tuple(unanswered))


def _missing(messages: Sequence[Message]) -> Sequence[Sequence[ToolCall]]:
    """For each message its calls that nothing answers before the next question: ids may repeat later."""
    answered: set[str] = set()
    found: list[Sequence[ToolCall]] = []
    for message in reversed(messages):
        if message.role == "user":
            answered = set()
        found.append([call for call in message.calls if call.id not in answered])
        answered.update(message.answers)
    return found[::-1]
