"""The neutral message and its tool calls: frozen values that check themselves when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from mnemongo.documents import Entry
from mnemongo.errors import DocumentError
from mnemongo.schema import ENTRY_BYTES

Role = Literal["system", "user", "assistant", "tool"]

_ROLES: Final = get_args(Role)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to have a tool called.

    Attributes:
        id: what the answer refers to; empty where the model gives none.
        name: the tool.
        args: its arguments by name: values the codec keeps.

    >>> ToolCall("c1", "weather", {"city": "Bern"})
    ToolCall(id='c1', name='weather', args={'city': 'Bern'})
    """

    id: str
    name: str
    args: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        """Check the types, copy the arguments."""
        _check(self.id, str, "a tool call's id")
        _check(self.name, str, "a tool call's name")
        object.__setattr__(self, "args", _named(self.args, "a tool call's args"))


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in no framework's own form.

    Make one with ``system``, ``user``, ``assistant`` or ``tool``.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        text: what it says; of a tool, its output where that is text.
        parts: what is not text (images, files), as ADK parts (``{"file_data": {...}}``, snake case)
            where every framework is to read them, else in any form.
        calls: the tools an assistant wants called.
        call_id: of a tool, the call it answers.
        result: of a tool, its output where that is not text.
        name: of an assistant the agent, of a tool the tool, of a user or system who it was.
        metadata: whatever else belongs to it.

    Raises:
        DocumentError: a field has another type, or does not belong to this role.

    >>> Message.user("Where is my order?").text
    'Where is my order?'
    """

    role: Role
    text: str = ""
    parts: tuple[Mapping[str, object], ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    result: object = None
    name: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        """Check the types and what belongs to the role, copy the containers."""
        _check_role_name(self.role)
        _check(self.text, str, "a message's text")
        _check(self.name, str | None, "a message's name")
        _check(self.call_id, str | None, "a message's call_id")
        parts = [_named(part, "a message's part") for part in _several(self.parts, "parts")]
        calls = _several(self.calls, "calls")
        for call in calls:
            _check(call, ToolCall, "a message's call")
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "calls", tuple(calls))
        object.__setattr__(self, "metadata", _named(self.metadata, "a message's metadata"))
        self._check_role()

    def _check_role(self) -> None:
        if self.calls and self.role != "assistant":
            raise DocumentError(f"calls belong to an assistant's message, not to role {self.role}")
        if (self.call_id is not None) != (self.role == "tool"):
            raise DocumentError(f"call_id belongs to every tool message and to no other: role {self.role}")
        if self.result is not None and self.role != "tool":
            raise DocumentError(f"a result belongs to a tool message, not to role {self.role}")

    @classmethod
    def system(
        cls, text: str, *, name: str | None = None, metadata: Mapping[str, object] | None = None
    ) -> Message:
        """Instructions to the model; windows keep them wherever they begin."""
        return cls("system", text, name=name, metadata=metadata or {})

    @classmethod
    def user(
        cls,
        text: str = "",
        *,
        parts: Iterable[Mapping[str, object]] = (),
        name: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Message:
        """What a person says or shows."""
        return cls("user", text, tuple(parts), name=name, metadata=metadata or {})

    @classmethod
    def assistant(
        cls,
        text: str = "",
        *,
        calls: Iterable[ToolCall] = (),
        parts: Iterable[Mapping[str, object]] = (),
        name: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Message:
        """What the model answers, or the tools it wants called."""
        return cls("assistant", text, tuple(parts), tuple(calls), name=name, metadata=metadata or {})

    @classmethod
    def tool(
        cls,
        call_id: str,
        output: object,
        *,
        parts: Iterable[Mapping[str, object]] = (),
        name: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Message:
        """What a tool returned: text goes to ``text``, any other value to ``result``.

        >>> Message.tool("c1", {"degrees": 21}).output, Message.tool("c2", "sunny").output
        ({'degrees': 21}, 'sunny')
        """
        text, result = (output, None) if type(output) is str else ("", output)
        return cls("tool", text, tuple(parts), (), call_id, result, name, metadata or {})

    @property
    def output(self) -> object:
        """What a tool returned, text or not."""
        return self.text if self.result is None else self.result

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of the calls it answers; an ADK event may hold the answers to several.

        >>> Message.tool("c1", "sunny").answers
        ('c1',)
        """
        if self.call_id is None:
            return ()
        others = (part.get("function_response") for part in self.parts)
        ids = (other.get("id") or "" for other in others if isinstance(other, dict))
        return (self.call_id, *map(str, ids))

    def entry(
        self,
        key: str,
        *,
        timestamp: float,
        turn: str | None = None,
        starts_turn: bool | None = None,
        max_bytes: int = ENTRY_BYTES,
    ) -> Entry:
        """Encode it, before anything is written.

        Args:
            key: names the entry within its session, after the work: ``<turn>:user``.
            timestamp: seconds since the epoch; no part of the content.
            turn: the turn it belongs to.
            starts_turn: whether windows may begin here. Default: a user's message outside any turn.
            max_bytes: how large it may be.

        Returns:
            The entry. The same message gives the same digest at any time, in any order of keys.

        Raises:
            DocumentError: a value cannot be kept; the path to it is named.
            DocumentTooLargeError: it has more than ``max_bytes``.

        >>> entry = Message.user("Hello").entry("t1:user", timestamp=1.5, turn="t1")
        >>> entry.native is None, Message.of(entry)
        (True, Message(role='user', text='Hello', parts=(), calls=(), call_id=None, result=None, \
name=None, metadata={}))
        """
        from mnemongo.messages import _entry  # noqa: PLC0415 - it knows Message, and is loaded after it

        return _entry.to_entry(
            self, key=key, timestamp=timestamp, turn=turn, starts_turn=starts_turn, max_bytes=max_bytes
        )

    @classmethod
    def of(cls, entry: Entry) -> Message:
        """Read an entry, whoever wrote it: exactly where it was a message, else as its event says.

        Raises:
            UndecodableDocumentError: the entry is damaged.
        """
        from mnemongo.messages import _entry  # noqa: PLC0415 - it knows Message, and is loaded after it

        return _entry.from_entry(entry)


def _check(value: object, kind: Any, what: str) -> None:
    if type(value) not in getattr(kind, "__args__", (kind,)):
        expected = kind.__name__ if isinstance(kind, type) else str(kind)
        raise DocumentError(f"{what} must be {expected}, not {type(value).__name__}")


def _check_role_name(value: object) -> None:
    if type(value) is not str or value not in _ROLES:
        raise DocumentError(f"a message's role must be one of {', '.join(_ROLES)}")


def _several(value: object, what: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise DocumentError(f"a message's {what} must be a tuple, not {type(value).__name__}")
    return list(cast("Iterable[Any]", value))


def _named(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise DocumentError(f"{what} must be a mapping, not {type(value).__name__}")
    named = dict(cast("Mapping[object, object]", value))
    if any(type(key) is not str for key in named):
        raise DocumentError(f"{what} must have str keys")
    return cast("dict[str, object]", named)
