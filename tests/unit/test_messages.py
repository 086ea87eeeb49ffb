"""Messages: what is stored of them, what any reader of the event gets, and when two are the same."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemongo import codec
from mnemongo.documents import MESSAGE, Entry
from mnemongo.errors import DocumentError, DocumentTooLargeError, InvalidKeyError, UndecodableDocumentError
from mnemongo.messages import Message, ToolCall, from_event, to_event

texts = st.text(st.one_of(st.characters(), st.sampled_from("\0\ud83d\ude00\ud800😀")), max_size=8)
names = st.none() | texts | st.sampled_from(["assistant", "user", "system", "bot"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    texts,
    st.binary(max_size=4),
    st.just(10**400),
    st.just(Decimal("NaN")),
    st.datetimes(timezones=st.just(UTC)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(texts, inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=2),
        st.builds(lambda value: {"result": value}, inner),
    ),
    max_leaves=8,
)
mappings = st.dictionaries(texts, values, max_size=3)
blobs = st.fixed_dictionaries({"data": st.binary(max_size=4) | texts | st.just("eA=="), "mime_type": texts})
parts = st.lists(
    st.one_of(
        mappings,
        st.builds(lambda blob: {"inline_data": blob}, blobs),
        st.builds(lambda uri: {"file_data": {"file_uri": uri}}, texts),
        st.builds(lambda kind: {"type": kind, "image_url": {"url": "https://example.org"}}, texts),
        st.builds(lambda id_: {"function_response": {"id": id_, "response": {"result": 1}}}, texts),
    ),
    max_size=2,
)
calls = st.lists(st.builds(ToolCall, texts, texts, mappings), max_size=3)
messages = st.one_of(
    st.builds(Message.system, texts, name=names, metadata=mappings),
    st.builds(Message.user, texts, parts=parts, name=names, metadata=mappings),
    st.builds(Message.assistant, texts, calls=calls, parts=parts, name=names, metadata=mappings),
    st.builds(Message.tool, texts, values, parts=parts, name=names, metadata=mappings),
    st.builds(lambda text, result: Message("tool", text, call_id="c", result=result), texts, values),
)
json_scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("abcé😀", max_size=8)
json_values = st.recursive(
    json_scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc$."), inner, max_size=3),
    max_leaves=8,
)
json_mappings = st.dictionaries(st.text("abc$."), json_values, max_size=3)


def exact(message: Message) -> str:
    """All fields with their types, as one comparable text."""
    named = {item.name: getattr(message, item.name) for item in fields(message)}
    named["calls"] = [(call.id, call.name, call.args) for call in message.calls]
    return codec.encode(named)


def entry_of(message: Message, **options: Any) -> Entry:
    return message.entry("k", **({"timestamp": 1.5} | options))


def strict_json(text: str) -> Any:
    """What a strict reader of UTF-8 JSON accepts."""

    def constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text.encode().decode(), parse_constant=constant)


@given(messages)
def test_any_message_comes_back_exactly(message: Message) -> None:
    entry = entry_of(message)
    back = Message.of(entry)
    assert exact(back) == exact(message)
    again = entry_of(back)
    assert again == entry


@given(messages)
def test_the_event_is_strict_json_whatever_the_message(message: Message) -> None:
    event = strict_json(entry_of(message).event_data)
    assert event["id"] == "k"
    assert event["content"]["role"] == ("model" if message.role == "assistant" else "user")
    for part in event["content"]["parts"]:
        assert len(part) == 1
        assert part.keys() <= {"text", "inline_data", "file_data", "function_call", "function_response"}
    assert from_event(event).role == message.role or message.parts


@given(st.text("abcé😀\0\n"), json_mappings, json_mappings, st.sampled_from(["ADK", "bot", None]))
def test_what_json_holds_is_stored_once(
    text: str, args: dict[str, Any], metadata: dict[str, Any], name: str | None
) -> None:
    call = ToolCall("c1", "look", args)
    part = {"file_data": {"file_uri": "gs://x", "mime_type": "image/png"}}
    for message in (
        Message.system(text, metadata=metadata),
        Message.user(text, parts=[part], metadata=metadata),
        Message.assistant(text, calls=[call, call], name=name, metadata=metadata),
        Message.tool("c1", text, name=name, parts=[part], metadata=metadata),
        Message.tool("c1", [args, text, 1.0], name=name),
    ):
        entry = entry_of(message)
        assert entry.native is None
        assert exact(Message.of(entry)) == exact(message)


@pytest.mark.parametrize(
    "message",
    [
        Message.user("\ud800"),
        Message.user("Hi", name="Ann"),
        Message.user("Hi", parts=[{"type": "image_url"}]),
        Message.user(parts=[{"inline_data": {"data": b"x", "mime_type": "image/png"}}]),
        Message.assistant(calls=[ToolCall("c", "f", {"x": (1,)})]),
        Message.assistant(calls=[ToolCall("c", "f", {"x": float("nan")})]),
        Message.assistant(calls=[ToolCall("c", "f", {"x": 2**70})]),
        Message.assistant("Hi", name="assistant"),
        Message.tool("c", {"result": 1}),
        Message.tool("c", {1: "a", "1": "b"}),
        Message.tool("c", b"raw"),
        Message.user("Hi", metadata={"at": datetime(2024, 1, 2, tzinfo=UTC)}),
    ],
)
def test_what_json_does_not_hold_is_kept_beside_it(message: Message) -> None:
    entry = entry_of(message)
    assert entry.native is not None
    assert exact(Message.of(entry)) == exact(message)


def test_the_event_keeps_what_a_reader_can_use() -> None:
    result = {"nan": float("nan"), "raw": b"\xff", "pair": (1, "\ud83d\ude00\ud800"), 3: 2**70}
    event = to_event(Message.tool("c", result, name="f"), key="k", timestamp=1, turn="t")
    assert event == {
        "id": "k",
        "author": "assistant",
        "timestamp": 1.0,
        "invocation_id": "t",
        "content": {
            "role": "user",
            "parts": [
                {
                    "function_response": {
                        "id": "c",
                        "name": "f",
                        "response": {"nan": "NaN", "raw": "/w==", "pair": [1, "😀\ufffd"], "3": str(2**70)},
                    }
                }
            ],
        },
    }


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}])
def test_the_event_is_no_deeper_than_adk_reads(wrap: Any) -> None:
    result = "deepest"
    for _ in range(190):
        result = wrap(result)
    for message in (
        Message.tool("c", result),
        Message.assistant(calls=[ToolCall("c", "f", {"x": result})]),
        Message.user("a", metadata={"x": result}),
    ):
        entry = entry_of(message)
        assert max(entry.event_data.count("["), entry.event_data.count("{")) < 150
        assert exact(Message.of(entry)) == exact(message)


def test_authors_and_roles() -> None:
    def written(message: Message) -> tuple[str, str]:
        event = to_event(message, key="k", timestamp=1)
        return event["author"], event["content"]["role"]

    assert written(Message.system("Be kind")) == ("system", "user")
    assert written(Message.user("Hi", name="Ann")) == ("user", "user")
    assert written(Message.assistant("Hi")) == ("assistant", "model")
    assert written(Message.assistant("Hi", name="shop")) == ("shop", "model")
    assert written(Message.tool("c", 1, name="look")) == ("assistant", "user")


def test_a_part_adk_does_not_know_is_named_in_text() -> None:
    def parts_of(*given: Mapping[str, object]) -> list[dict[str, Any]]:
        event = to_event(Message.user(parts=given), key="k", timestamp=1)
        return event["content"]["parts"]

    assert parts_of({"type": "image_url", "image_url": {}}) == [{"text": "[image_url]"}]
    assert parts_of({"input_audio": {}}, {}) == [{"text": "[input_audio]"}, {"text": "[empty]"}]
    assert parts_of({"inline_data": {"data": "no base64"}}) == [{"text": "[inline_data]"}]
    assert parts_of({"inline_data": {"data": "eB=="}}) == [{"text": "[inline_data]"}]
    assert parts_of({"inline_data": {"data": "+_8="}}) == [{"text": "[inline_data]"}]
    assert parts_of({"inline_data": {"data": "-_8="}}) == [{"inline_data": {"data": "-_8="}}]
    assert parts_of({"file_data": {"uri": "x"}}) == [{"text": "[file_data]"}]
    assert parts_of({"inline_data": {"data": b"x"}}) == [{"inline_data": {"data": "eA=="}}]


def test_flags_of_the_entry() -> None:
    user, system, answer = Message.user("a"), Message.system("b"), Message.assistant("c")
    assert entry_of(user).kind == MESSAGE
    assert [entry_of(message).pinned for message in (user, system, answer)] == [False, True, False]
    assert [entry_of(message).starts_turn for message in (user, system, answer)] == [True, False, False]
    assert not entry_of(user, turn="t").starts_turn
    assert entry_of(user, turn="t", starts_turn=True).starts_turn
    assert not entry_of(user, starts_turn=False).starts_turn
    assert entry_of(user, turn="t").turn == "t"


@given(messages)
def test_the_digest_is_of_the_content(message: Message) -> None:
    digest = entry_of(message).digest
    assert entry_of(message, timestamp=99.0, turn="t").digest == digest
    assert message.entry("other", timestamp=1.5).digest == digest
    assert entry_of(replace(message, text=message.text + "x")).digest != digest
    assert entry_of(replace(message, metadata={**message.metadata, "x" * 9: 1})).digest != digest


@given(mappings, st.randoms())
def test_the_digest_does_not_know_the_order_of_keys(args: dict[str, object], random: Any) -> None:
    items = list(args.items())
    random.shuffle(items)
    one, other = (
        Message.assistant(calls=[ToolCall("c", "f", given)], metadata=given) for given in (args, dict(items))
    )
    assert entry_of(one).digest == entry_of(other).digest


def test_the_digest_tells_contents_apart() -> None:
    contents = [
        Message.user("a"),
        Message.system("a"),
        Message.assistant("a"),
        Message.assistant("a", name="bot"),
        Message.tool("a", "a"),
        Message.tool("a", ""),
        Message.tool("a", 0),
        Message.tool("a", False),
        Message.tool("a", 0.0),
        Message.tool("a", -0.0),
        Message.tool("a", []),
        Message.tool("a", ()),
        Message.tool("a", {}),
        Message.tool("a", {"result": ""}),
        Message.tool("a", {1: 2}),
        Message.tool("a", {"1": 2}),
        Message.user("a", parts=[{}]),
        Message.user("a", metadata={"a": None}),
        Message.assistant("a", calls=[ToolCall("", "")]),
        Message.assistant("a", calls=[ToolCall("", ""), ToolCall("", "")]),
    ]
    assert len({entry_of(message).digest for message in contents}) == len(contents)
    assert all(exact(Message.of(entry_of(message))) == exact(message) for message in contents)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Message("robot"), "role"),  # type: ignore[arg-type]
        (lambda: Message(["user"]), "role"),  # type: ignore[arg-type]
        (lambda: Message.user(b"hunter2"), "text must be str, not bytes"),  # type: ignore[arg-type]
        (lambda: Message.user("a", name=1), "name must be str | None, not int"),  # type: ignore[arg-type]
        (lambda: Message.user("a", metadata=[1]), "metadata must be a mapping"),  # type: ignore[arg-type]
        (lambda: Message.user("a", metadata={1: "hunter2"}), "metadata must have str keys"),  # type: ignore[dict-item]
        (lambda: Message.user("a", parts=["hunter2"]), "part must be a mapping"),  # type: ignore[list-item]
        (lambda: Message("user", parts="hunter2"), "parts must be a tuple"),  # type: ignore[arg-type]
        (lambda: Message.assistant(calls=[{"id": "hunter2"}]), "call must be ToolCall"),  # type: ignore[list-item]
        (lambda: Message("user", calls=(ToolCall("c", "f"),)), "calls belong to an assistant"),
        (lambda: Message("tool", "a"), "call_id belongs"),
        (lambda: Message("user", "a", call_id="c"), "call_id belongs"),
        (lambda: Message("assistant", result=1), "result belongs"),
        (lambda: Message.tool(1, "a"), "call_id must be str"),  # type: ignore[arg-type]
        (lambda: ToolCall(1, "f"), "id must be str"),  # type: ignore[arg-type]
        (lambda: ToolCall("c", None), "name must be str"),  # type: ignore[arg-type]
        (lambda: ToolCall("c", "f", [1]), "args must be a mapping"),  # type: ignore[arg-type]
    ],
)
def test_wrong_fields_are_refused(build: Any, what: str) -> None:
    with pytest.raises(DocumentError) as error:
        build()
    assert what in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (Message.assistant(calls=[ToolCall("c", "f", {"x": {"y z": 1j}})]), '$.calls[0].args.x["y z"]'),
        (Message.tool("c", [object()]), "$.result[0]"),
        (Message.user("a", metadata={"a": OrderedDict()}), "$.metadata.a"),
        (Message.user("a", parts=[{"image": memoryview(b"")}]), "$.parts[0].image"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_path(message: Message, path: str) -> None:
    with pytest.raises(DocumentError) as error:
        entry_of(message)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("timestamp", [float("nan"), float("inf"), True, "1", None])
def test_timestamps_are_finite_numbers(timestamp: Any) -> None:
    with pytest.raises(DocumentError, match="timestamp"):
        entry_of(Message.user("a"), timestamp=timestamp)


@pytest.mark.parametrize("key", ["", "\ud800", None])
def test_keys_are_checked(key: Any) -> None:
    with pytest.raises(InvalidKeyError):
        Message.user("a").entry(key, timestamp=1.0)


def test_a_message_over_the_limit_is_refused() -> None:
    message = Message.user("é" * 1000)
    size = entry_of(message).size
    assert entry_of(message, max_bytes=size).size == size
    with pytest.raises(DocumentTooLargeError) as error:
        entry_of(message, max_bytes=size - 1)
    assert (error.value.key, error.value.expected, error.value.found) == ("k", size - 1, size)


def test_messages_are_values() -> None:
    args = {"x": 1}
    call = ToolCall("c", "f", MappingProxyType(args))
    args["x"] = 2
    assert call == ToolCall("c", "f", {"x": 1})
    message = Message("assistant", parts=[{"a": 1}], calls=[call])  # type: ignore[arg-type]
    assert message == Message.assistant(parts=[{"a": 1}], calls=[call])
    with pytest.raises(FrozenInstanceError):
        message.text = "b"  # type: ignore[misc]


def test_outputs_and_answers() -> None:
    assert Message.tool("c", "text").output == "text"
    assert Message.tool("c", {"a": 1}).output == {"a": 1}
    assert Message("tool", "seen", call_id="c", result=[1]).output == [1]
    assert Message.tool("c", 1).answers == ("c",)
    assert Message.user("a").answers == ()


def adk_event(*parts: Any, author: str = "shop", role: str | None = "model", **other: Any) -> Entry:
    event = {"id": "e", "author": author, "timestamp": 1.0, "content": {"role": role, "parts": list(parts)}}
    return Entry("e", json.dumps(event | other), 1.0)


def test_events_adk_wrote() -> None:
    call = {"function_call": {"id": "adk-1", "name": "look", "args": {"q": 1}}, "thought_signature": "eA=="}
    blob = {"inline_data": {"data": "eA==", "mime_type": "image/png"}}
    thought = {"text": "hm", "thought": True}
    read = Message.of(adk_event(thought, {"text": "Let me "}, blob, {"text": "see"}, call, {}))
    assert read == Message.assistant(
        "Let me see", calls=[ToolCall("adk-1", "look", {"q": 1})], parts=[blob], name="shop"
    )
    assert Message.of(adk_event({"text": "Hi"}, author="user", role="user")) == Message.user("Hi")
    assert Message.of(adk_event({"text": "Hi"}, author="user", role=None)) == Message.user("Hi")
    code = {"executable_code": {"code": "1", "language": "PYTHON"}}
    assert Message.of(adk_event(code)).parts == (code,)


def test_answers_adk_wrote() -> None:
    def answer(id_: str | None, response: Any) -> dict[str, Any]:
        return {"function_response": {"id": id_, "name": "look", "response": response}}

    one = Message.of(adk_event(answer("a", {"x": 1}), role="user"))
    assert one == Message.tool("a", {"x": 1}, name="look")
    assert Message.of(adk_event(answer("a", {"result": "sunny"}), role="user")).output == "sunny"
    assert Message.of(adk_event(answer(None, None), role="user")) == Message.tool("", {}, name="look")
    several = Message.of(adk_event(answer("a", {"x": 1}), answer("b", {"y": 2}), role="user"))
    assert several.answers == ("a", "b")
    assert several.parts == (answer("b", {"y": 2}),)
    assert entry_of(several).native is None


def test_events_without_content_and_by_alias() -> None:
    bare = {"author": "shop", "actions": {"state_delta": {"a": 1}}, "custom_metadata": {"a": 1}}
    assert from_event(bare) == Message.assistant(name="shop", metadata={"a": 1})
    assert from_event({"author": "shop", "content": None}) == Message.assistant(name="shop")
    assert from_event({"author": "shop", "content": {"parts": None}}) == Message.assistant(name="shop")
    camel = {"parts": [{"functionCall": {"name": "f"}}]}
    assert from_event({"author": "assistant", "content": camel, "customMetadata": {}}) == Message.assistant(
        calls=[ToolCall("", "f")]
    )


def test_another_frameworks_native_form_is_left_to_it() -> None:
    entry = replace(entry_of(Message.user("Hi")), native=codec.encode({"type": "human", "data": {}}))
    assert Message.of(entry) == Message.user("Hi")


DAMAGED_EVENTS = [
    "",
    "null",
    "[]",
    "{",
    "[" * 100_000,
    "{}",
    '{"author":1}',
    '{"author":"a","content":[]}',
    '{"author":"a","content":{"parts":{}}}',
    '{"author":"a","content":{"parts":[1]}}',
    '{"author":"a","content":{"role":1}}',
    '{"author":"a","content":{"parts":[{"text":1}]}}',
    '{"author":"a","content":{"parts":[{"function_call":1}]}}',
    '{"author":"a","content":{"parts":[{"function_call":{"args":1}}]}}',
    '{"author":"a","content":{"parts":[{"function_response":{"id":1}}]}}',
    '{"author":"a","custom_metadata":1}',
]


@pytest.mark.parametrize("event_data", DAMAGED_EVENTS, ids=lambda text: text[:60])
def test_damaged_events(event_data: str) -> None:
    with pytest.raises(UndecodableDocumentError) as error:
        Message.of(Entry("e", event_data, 1.0))
    assert error.value.key == "e"


@pytest.mark.parametrize(
    "native",
    [
        "",
        "{",
        "1",
        '{"$unknown":1}',
        '{"form":"message","text":"a"}',
        '{"form":"message","role":"robot"}',
        '{"form":"message","role":"user","more":1}',
        '{"form":"message","role":"user","calls":1}',
        '{"form":"message","role":"assistant","calls":[1]}',
        '{"form":"message","role":"assistant","calls":[{"id":"a"}]}',
        '{"form":"message","role":"assistant","calls":[{"id":1,"name":"b"}]}',
        '{"form":"message","role":"user","parts":[1]}',
        '{"$dict":["form","message",1,2]}',
    ],
)
def test_damaged_native_forms(native: str) -> None:
    with pytest.raises(UndecodableDocumentError) as error:
        Message.of(replace(entry_of(Message.user("Hi")), native=native))
    assert error.value.key == "k"


KEYS = ["author", "content", "role", "parts", "text", "function_call", "function_response", "id", "args"]
KEYS += ["response", "result", "custom_metadata", "thought", "functionCall", "form", "calls", "name"]
any_json = st.recursive(
    json_scalars | st.sampled_from(["user", "message", "tool"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=15,
)


@given(any_json, any_json, st.booleans())
def test_any_stored_json_is_read_or_refused(content: object, parts: object, whole: bool) -> None:
    event = content if whole else {"author": "a", "content": {"parts": [parts], "role": "user"}}
    native = {"form": "message", "role": "user", "parts": parts}
    for entry in (
        Entry("e", json.dumps(event), 1.0),
        Entry("e", '{"author":"a"}', 1.0, native=json.dumps(content)),
        Entry("e", '{"author":"a"}', 1.0, native=json.dumps(native)),
    ):
        try:
            message = Message.of(entry)
        except UndecodableDocumentError:
            continue
        assert exact(Message.of(entry_of(message))) == exact(message)
