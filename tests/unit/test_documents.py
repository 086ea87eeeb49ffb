"""Stored values to and from their documents: round trips, newer formats, damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemongo import documents
from mnemongo.documents import EVENT, FENCE, FORMAT, MESSAGE, Entry, Head, Page, Stored
from mnemongo.errors import InvalidKeyError, SchemaVersionError, UndecodableDocumentError
from mnemongo.keys import SessionKey

KEY = SessionKey("shop", "ann", "s1")
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
ENTRIES = st.builds(
    Entry,
    key=NAMES,
    event_data=st.dictionaries(st.text(max_size=5), st.text(max_size=20)).map(json.dumps),
    timestamp=st.floats(0, 2e9),
    kind=st.sampled_from([MESSAGE, EVENT]),
    turn=st.none() | NAMES,
    starts_turn=st.booleans(),
    pinned=st.booleans(),
    native=st.none() | st.text(max_size=20),
    digest=st.just("") | st.just("f" * 64),
)
HEAD: dict[str, Any] = {
    "_id": KEY.document_id,
    **KEY.fields,
    "id": "s1",
    "state": '{"a": 1}',
    "revision": 5 << 28,
    "lease": {"token": 0},
    "format": FORMAT,
    "create_time": 1.5,
    "update_time": 2.5,
}


@given(ENTRIES, st.integers(1, 1 << 62))
def test_an_entry_comes_back(entry: Entry, revision: int) -> None:
    document = documents.entry_document(KEY, entry, revision)
    assert documents.stored_entry(document) == Stored(entry, revision)
    assert document["format"] == FORMAT
    assert document["_id"] == KEY.entry_id(entry.key)
    assert None not in document.values()
    assert ("starts_turn" in document) is entry.starts_turn
    assert ("pinned" in document) is entry.pinned


def test_a_fence_is_marked_for_those_who_count() -> None:
    fence = Entry(":fence:1", "{}", 1.0, kind=FENCE)
    document = documents.entry_document(KEY, fence, 7)
    assert document["pinned"] is False
    assert documents.stored_entry(document) == Stored(fence, 7)


def test_a_head_comes_back() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    assert documents.head(HEAD) == Head(KEY, 5 << 28, {"a": 1}, 1.5, 2.5)
    lease = {"token": 3, "owner": "w", "until": until, "nonce": "n"}
    full = documents.head({**HEAD, "lease": lease, "expires_at": until})
    assert (full.lease_owner, full.lease_until, full.expires_at) == ("w", until, until)


def test_documents_of_the_adk_service_are_format_0() -> None:
    bare = {k: HEAD[k] for k in ("_id", "app_name", "user_id", "id", "create_time", "update_time")}
    bare["revision"] = 0
    assert documents.head({**bare, "state": {"a": 1}}) == Head(KEY, 0, {"a": 1}, 1.5, 2.5)
    event = {"_id": KEY.entry_id("e"), **KEY.fields, "timestamp": 1.5, "revision": 3, "event_data": "{}"}
    stored = documents.stored_entry(event)
    assert (stored.entry.kind, stored.entry.turn, stored.revision) == (EVENT, None, 3)
    assert stored.entry.digest == documents.sha256("{}")


@pytest.mark.parametrize("found", [FORMAT + 1, 99, 1 << 40, "2", 1.5, None, [1], {"$gt": 0}])
@pytest.mark.parametrize("read", [documents.head, documents.stored_entry])
def test_a_newer_format_is_refused(read: Any, found: object) -> None:
    document = {**HEAD, "format": found}
    with pytest.raises(SchemaVersionError, match="upgrade") as caught:
        _ = read(document)
    assert (caught.value.expected, caught.value.found) == (FORMAT, found)
    assert caught.value.key == KEY.document_id


ENTRY = documents.entry_document(KEY, Entry("e", "{}", 1.5, turn="t"), 7)
DAMAGES: list[dict[str, Any]] = [
    {"_id": None},
    {"_id": "text"},
    {"_id": {}},
    {"_id": {"event_id": ""}},
    {"_id": {"event_id": 5}},
    {"_id": {"event_id": "a\0"}},
    {"event_data": ...},
    {"event_data": None},
    {"event_data": 5},
    {"event_data": b"{}"},
    {"event_data": {"a": 1}},
    {"timestamp": ...},
    {"timestamp": "yesterday"},
    {"revision": ...},
    {"revision": None},
    {"revision": "x"},
    {"turn": 5},
    {"turn": ""},
    {"kind": 5},
    {"native": 5},
    {"hash": 5},
]


def damaged(document: dict[str, Any], damage: dict[str, Any]) -> dict[str, Any]:
    """The document with fields replaced, ``...`` removing one."""
    changed = {**document, **damage}
    return {name: value for name, value in changed.items() if value is not ...}


@pytest.mark.parametrize("damage", DAMAGES, ids=repr)
def test_a_damaged_entry(damage: dict[str, Any]) -> None:
    with pytest.raises(UndecodableDocumentError):
        _ = documents.stored_entry(damaged(ENTRY, damage))


@pytest.mark.parametrize(
    "damage",
    [
        {"_id": ...},
        {"_id": None},
        {"_id": {"app_name": "a"}},
        {"_id": {"app_name": "", "user_id": "u", "session_id": "s"}},
        {"state": "{"},
        {"state": "[]"},
        {"state": 5},
        {"state": "[" * 100_000},
        {"create_time": ...},
        {"update_time": ...},
        {"update_time": "now"},
        {"revision": "x"},
        {"revision": None},
        {"lease": 5},
        {"lease": "x"},
    ],
    ids=lambda damage: repr(damage)[:60],
)
def test_a_damaged_head(damage: dict[str, Any]) -> None:
    with pytest.raises(UndecodableDocumentError):
        _ = documents.head(damaged(HEAD, damage))


@pytest.mark.parametrize("value", ["", "a\0", "\ud800", None, 5, "x" * 2049])
def test_an_entry_s_names_are_checked(value: Any) -> None:
    with pytest.raises(InvalidKeyError):
        _ = Entry(value, "{}", 1.0)


def test_digests_and_sizes() -> None:
    assert Entry("e", "{}", 1.0).digest == documents.sha256("{}")
    assert Entry("e", "{}", 1.0, digest="d").digest == "d"
    assert documents.sha256("\ud800") != documents.sha256("\udc00")
    assert Entry("e", "é😀", 1.0, native="aé").size == 2 + 4 + 1 + 2


def test_a_state_delta() -> None:
    event = {"id": "e", "actions": {"state_delta": {"app:a": 1, "b": None}}}
    assert Entry("e", json.dumps(event), 1.0).state_delta == {"app:a": 1, "b": None}
    for without in (
        {},
        {"actions": {}},
        {"actions": {"state_delta": {}}},
        {"actions": {"state_delta": None}},
    ):
        assert Entry("e", json.dumps(without), 1.0).state_delta == {}
    quoting = {"content": 'the word "state_delta"', "actions": {}}
    assert Entry("e", json.dumps(quoting), 1.0).state_delta == {}


@pytest.mark.parametrize(
    "text",
    ['{"state_delta"', '["state_delta"]', '{"actions": {"state_delta": 5}}', '{"actions": ["state_delta"]}'],
)
def test_a_damaged_event_with_a_delta(text: str) -> None:
    with pytest.raises(UndecodableDocumentError):
        _ = Entry("e", text, 1.0).state_delta


def test_a_page_is_a_sequence_of_its_items() -> None:
    page = Page((1, 2), next=5)
    assert (list(page), len(page), page.next) == ([1, 2], 2, 5)
