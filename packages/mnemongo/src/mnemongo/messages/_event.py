"""A message as the ADK event every framework can read, and the message of any ADK event: JSON dicts."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, TypeVar, cast

from mnemongo.errors import DocumentError, UndecodableDocumentError
from mnemongo.messages._message import Message, Role, ToolCall
from mnemongo.messages._nearest import base64_text, jsonable, utf8

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
        event["custom_metadata"] = jsonable(message.metadata)
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
    return utf8(named) if named else "assistant"


def _event_parts(message: Message) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    in_response = message.role == "tool" and message.result is None
    if message.role == "tool":
        parts.append(_response_part(message))
    if message.text and not in_response:
        parts.append({"text": utf8(message.text)})
    parts += [_event_part(part) for part in message.parts]
    for call in message.calls:
        known = {"id": call.id, "name": call.name, "args": call.args}
        parts.append({"function_call": jsonable(known)})
    return parts


def _response_part(message: Message) -> dict[str, Any]:
    """ADK wants a dict, and itself wraps any other output as ``{"result": ...}``."""
    output = message.output
    response: dict[str, Any] = {"id": message.call_id}
    if message.name is not None:
        response["name"] = message.name
    response["response"] = output if type(output) is dict else {"result": output}
    return {"function_response": jsonable(response)}


def _event_part(part: Mapping[str, object]) -> dict[str, Any]:
    name = next(iter(part), "empty")
    if len(part) == 1 and name in _ADK_PARTS:
        value = jsonable(part[name])
        if type(value) is dict and _fits(value, _ADK_PARTS[name]):
            return {name: value}
    kind = part.get("type")
    return {"text": f"[{utf8(kind if type(kind) is str else name)}]"}


def _fits(value: Mapping[str, object], types: Mapping[str, type]) -> bool:
    if not all(type(item) is types.get(name) for name, item in value.items()):
        return False
    return _is_base64(cast("str", value.get("data", "")))


def _is_base64(text: str) -> bool:
    """In either alphabet, spelled as an encoder does: ADK refuses anything else."""
    standard = text if "+" in text or "/" in text else text.replace("-", "+").replace("_", "/")
    try:
        return base64_text(base64.b64decode(standard, validate=True)) == standard
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
