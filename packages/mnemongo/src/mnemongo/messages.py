"""The neutral message, its entry, and the ADK event every framework can read.

``to_event`` and ``from_event`` work on plain dicts. An event holds what JSON can; where reading it back
would not give the equal message, the entry keeps the exact fields beside it, as ``native``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, time
from math import isfinite, isinf
from typing import Any, Final, Literal, TypeVar, cast, get_args

from mnemongo import codec
from mnemongo.documents import MESSAGE, Entry, sha256
from mnemongo.errors import DocumentError, DocumentTooLargeError, UndecodableDocumentError
from mnemongo.keys import check_entry_key

Role = Literal["system", "user", "assistant", "tool"]

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""How many bytes an entry may have unless told otherwise."""

_ROLES: Final = get_args(Role)
_FORM: Final = "message"
_JSON_INT_BITS: Final = 63
_READABLE_BITS: Final = 1024
# ADK's parser stops below 200 levels, some of which are the event's own.
_MAX_EVENT_DEPTH: Final = 128
# The only parts ADK takes as they are; it refuses an event with an unknown field in a part.
_ADK_PARTS: Final[Mapping[str, Mapping[str, type]]] = {
    "inline_data": {"data": str, "mime_type": str, "display_name": str},
    "file_data": {"file_uri": str, "mime_type": str, "display_name": str},
    "function_call": {"id": str, "name": str, "args": dict},
    "function_response": {"id": str, "name": str, "response": dict},
}
_READ_ELSEWHERE: Final = frozenset(
    ("text", "function_call", "functionCall", "function_response", "functionResponse")
)

T = TypeVar("T")


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
        max_bytes: int = MAX_MESSAGE_BYTES,
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
        own = _encoded(self)
        event = to_event(self, key=key, timestamp=timestamp, turn=turn)
        entry = Entry(
            key=check_entry_key(key),
            event_data=json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
            timestamp=event["timestamp"],
            kind=MESSAGE,
            turn=turn,
            starts_turn=turn is None and self.role == "user" if starts_turn is None else starts_turn,
            pinned=self.role == "system",
            native=None if _encoded(from_event(event)) == own else own,
            digest=sha256(f"{MESSAGE}:{codec.canonical(own)}"),
        )
        return _bounded(entry, max_bytes)

    @classmethod
    def of(cls, entry: Entry) -> Message:
        """Read an entry, whoever wrote it: exactly where it was a message, else as its event says.

        Raises:
            UndecodableDocumentError: the entry is damaged.
        """
        try:
            exact = None if entry.native is None else _exact(codec.decode(entry.native))
            return exact or from_event(_event(entry.event_data))
        except DocumentError as error:
            raise UndecodableDocumentError(f"an entry cannot be read: {error}", key=entry.key) from error


# To an event and back: dicts that are JSON.


def to_event(message: Message, *, key: str, timestamp: float, turn: str | None = None) -> dict[str, Any]:
    """The message as an ADK event: a dict that is valid JSON, whatever the message holds.

    What JSON cannot hold is replaced by what a reader can use (bytes by base64, NaN by its name); a part
    ADK does not know is named in a text.

    Args:
        message: the message.
        key: the event's id.
        timestamp: seconds since the epoch.
        turn: the event's invocation id.

    Returns:
        The event by its field names (snake case).

    Raises:
        DocumentError: the timestamp is not a finite number.

    >>> to_event(Message.user("Hello"), key="k", timestamp=1.5)["content"]
    {'role': 'user', 'parts': [{'text': 'Hello'}]}
    """
    if type(timestamp) not in (int, float) or not isfinite(timestamp):
        raise DocumentError("a timestamp must be a finite number of seconds")
    role = "model" if message.role == "assistant" else "user"
    event: dict[str, Any] = {
        "id": key,
        "author": _author(message),
        "timestamp": float(timestamp),
        "invocation_id": turn or "",
        "content": {"role": role, "parts": _event_parts(message)},
    }
    if message.metadata:
        event["custom_metadata"] = _jsonable(message.metadata)
    return event


def from_event(event: Mapping[str, Any]) -> Message:
    """The message an ADK event holds, whoever wrote it; thoughts and signatures are left out.

    Text parts are joined. A part that is neither text nor a call nor an answer goes to ``parts``, and so
    do the second and later answers of one event.

    Args:
        event: an event as JSON has it, by field names or by their camel-case aliases.

    Returns:
        The message.

    Raises:
        UndecodableDocumentError: it is not an event.

    >>> from_event({"author": "bot", "content": {"role": "model", "parts": [{"text": "Hi"}]}}).name
    'bot'
    """
    author = _get(event, "author", str)
    if author is None:
        raise UndecodableDocumentError("an event has no author: it is damaged or foreign")
    content = _get(event, "content", dict) or {}
    role = _get(content, "role", str)
    parts = [_part(part) for part in _get(content, "parts", list) or []]
    spoken = [part for part in parts if not part.get("thought")]
    text = "".join(_get(part, "text", str) or "" for part in spoken)
    others = tuple(filter(_is_other, spoken))
    metadata = _get(event, "custom_metadata", dict) or {}
    calls, answers = _each(spoken, "function_call"), _each(spoken, "function_response")
    if answers:
        return _answer(text, others, answers, calls, metadata)
    if author in ("user", "system") and not calls and role != "model":
        return Message(cast("Role", author), text, others, metadata=metadata)
    name = None if author == "assistant" else author
    return Message("assistant", text, others, tuple(map(_call, calls)), name=name, metadata=metadata)


def _author(message: Message) -> str:
    """A tool does not know its agent: its event goes with the unnamed assistant's."""
    if message.role in ("user", "system"):
        return message.role
    named = message.role == "assistant" and message.name
    return _utf8(named) if named else "assistant"


def _event_parts(message: Message) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    in_response = message.role == "tool" and message.result is None
    if message.role == "tool":
        parts.append(_response_part(message))
    if message.text and not in_response:
        parts.append({"text": _utf8(message.text)})
    parts += [_event_part(part) for part in message.parts]
    for call in message.calls:
        known = {"id": call.id, "name": call.name, "args": call.args}
        parts.append({"function_call": _jsonable(known)})
    return parts


def _response_part(message: Message) -> dict[str, Any]:
    """ADK wants a dict, and itself wraps any other output as ``{"result": ...}``."""
    output = message.output
    response: dict[str, Any] = {"id": message.call_id}
    if message.name is not None:
        response["name"] = message.name
    response["response"] = output if type(output) is dict else {"result": output}
    return {"function_response": _jsonable(response)}


def _event_part(part: Mapping[str, object]) -> dict[str, Any]:
    name = next(iter(part), "empty")
    if len(part) == 1 and name in _ADK_PARTS:
        value = _jsonable(part[name])
        if type(value) is dict and _fits(value, _ADK_PARTS[name]):
            return {name: value}
    kind = part.get("type")
    return {"text": f"[{_utf8(kind if type(kind) is str else name)}]"}


def _fits(value: Mapping[str, object], types: Mapping[str, type]) -> bool:
    if not all(type(item) is types.get(name) for name, item in value.items()):
        return False
    return _is_base64(cast("str", value.get("data", "")))


def _is_base64(text: str) -> bool:
    """In either alphabet, spelled as an encoder does: ADK refuses anything else."""
    standard = text if "+" in text or "/" in text else text.replace("-", "+").replace("_", "/")
    try:
        return _base64(base64.b64decode(standard, validate=True)) == standard
    except ValueError:
        return False


def _each(parts: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    found = (_get(part, name, dict) for part in parts)
    return [value for value in found if value is not None]


def _is_other(part: dict[str, Any]) -> bool:
    return bool(part) and _READ_ELSEWHERE.isdisjoint(part)


def _part(part: object) -> dict[str, Any]:
    if type(part) is not dict:
        raise UndecodableDocumentError("a part of an event is not an object: it is damaged or foreign")
    return {name: value for name, value in cast("dict[str, Any]", part).items() if value is not None}


def _call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(
        _get(call, "id", str) or "", _get(call, "name", str) or "", _get(call, "args", dict) or {}
    )


def _answer(
    text: str,
    others: tuple[dict[str, Any], ...],
    answers: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    metadata: dict[str, Any],
) -> Message:
    first, *later = answers
    more = [{"function_response": answer} for answer in later] + [{"function_call": call} for call in calls]
    response = _get(first, "response", dict) or {}
    output: object = response["result"] if list(response) == ["result"] else response
    if type(output) is str and not text:
        text, output = output, None
    call_id, name = _get(first, "id", str) or "", _get(first, "name", str)
    return Message("tool", text, (*others, *more), (), call_id, output, name, metadata)


def _get(value: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """A field by its name or its camel-case alias; ``None`` when it is absent or null."""
    head, *rest = name.split("_")
    found = value.get(name, value.get(head + "".join(map(str.capitalize, rest))))
    if found is not None and type(found) is not kind:
        raise UndecodableDocumentError(f"{name} in an event has another type: it is damaged or foreign")
    return found


# What JSON cannot hold, for readers of the event.


def _jsonable(value: object, depth: int = 0) -> Any:
    """The nearest JSON: for a reader without the exact form."""
    if depth > _MAX_EVENT_DEPTH:
        return "(nested too deep)"
    write = _NEAREST.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, Mapping):
        named = cast("Mapping[object, object]", value).items()
        return {_jsonable_key(key): _jsonable(item, depth + 1) for key, item in named}
    if type(value) in (list, tuple, set, frozenset):
        return [_jsonable(item, depth + 1) for item in cast("Iterable[object]", value)]
    return _utf8(str(value))


def _jsonable_key(key: object) -> str:
    return _utf8(key) if type(key) is str else str(_jsonable(key))


def _float(value: float) -> float | str:
    if isfinite(value):
        return value
    return ("Infinity" if value > 0 else "-Infinity") if isinf(value) else "NaN"


def _int(value: int) -> int | str:
    if value.bit_length() <= _JSON_INT_BITS:
        return value
    return str(value) if value.bit_length() <= _READABLE_BITS else hex(value)


def _utf8(text: str) -> str:
    """Pairs of surrogates as the character they mean, lone ones as the replacement character."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _itself(value: T) -> T:
    return value


_NEAREST: Final[dict[type, Callable[[Any], object]]] = {
    type(None): _itself,
    bool: _itself,
    int: _int,
    float: _float,
    str: _utf8,
    bytes: _base64,
    bytearray: _base64,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
}


# The exact form, and the checks.


def _encoded(message: Message) -> str:
    """The fields that say something; ``form`` tells it from what other writers keep as ``native``."""
    known = {item.name: getattr(message, item.name) for item in fields(message)}
    known["parts"] = list(message.parts)
    known["calls"] = [{"id": call.id, "name": call.name, "args": call.args} for call in message.calls]
    told = {name: value for name, value in known.items() if _says(name, value)}
    return codec.encode({"form": _FORM, **told})


def _says(name: str, value: object) -> bool:
    if name in ("call_id", "result", "name"):
        return value is not None
    return bool(value)


def _exact(native: object) -> Message | None:
    """The message ``_encoded`` wrote; ``None``: another framework's form, its event is to be read."""
    if type(native) is not dict:
        raise UndecodableDocumentError("its native form is damaged")
    known = dict(cast("dict[str, Any]", native))
    if known.pop("form", None) != _FORM:
        return None
    try:
        calls = [ToolCall(**call) for call in known.pop("calls", ())]
        return Message(**known, calls=tuple(calls))
    except TypeError:
        raise UndecodableDocumentError("its native form lacks fields or has others") from None


def _event(event_data: str) -> dict[str, Any]:
    try:
        event = json.loads(event_data)
    except (ValueError, TypeError, RecursionError):
        raise UndecodableDocumentError("its event is not JSON") from None
    if type(event) is not dict:
        raise UndecodableDocumentError("its event is not an object")
    return cast("dict[str, Any]", event)


def _bounded(entry: Entry, max_bytes: int) -> Entry:
    if entry.size <= max_bytes:
        return entry
    raise DocumentTooLargeError(
        f"the message has {entry.size} bytes, at most {max_bytes} are allowed",
        key=entry.key,
        expected=max_bytes,
        found=entry.size,
    )


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
