"""Identifiers: what may name something, keys that never meet, revisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemongo import keys
from mnemongo.errors import InvalidKeyError
from mnemongo.keys import SessionKey, check_identifier, turn_key

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
DELIMITED = st.text(st.sampled_from("ab:%253A;"), min_size=1, max_size=12)
NAMES = st.lists(DELIMITED | TEXTS, max_size=3)
FLAT = st.text(st.sampled_from("ab%253A;"), min_size=1, max_size=6)
REVISIONS = st.integers(0, (1 << 63) - 1)


class Named(str):
    """A str that is not exactly one."""

    __slots__ = ()


@given(TEXTS)
def test_any_text_names_something(text: str) -> None:
    assert check_identifier(text, "x") == text
    assert SessionKey(text, text, text).document_id == {"app_name": text, "user_id": text, "session_id": text}


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", 1, 1.5, True, b"x", bytearray(b"x"), [], ["x"], (), {}, {"$gt": ""}, {"$ne": None}),
        *(object(), Named("x"), "a\0b", "\0", "\ud800", "a\udfffb", "x" * 513, "é" * 257, "😀" * 129),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("part", ["app_name", "user_id", "session_id"])
def test_what_names_nothing(value: Any, part: str) -> None:
    given = {"app_name": "a", "user_id": "u", "session_id": "s"} | {part: value}
    with pytest.raises(InvalidKeyError, match=part) as caught:
        _ = SessionKey(**given)
    assert caught.value.key == part


@pytest.mark.parametrize("value", ["x" * 512, "é" * 256, "😀" * 128, " ", "\n", "$a.b", "\x01", "e\u0301"])
def test_the_edge_of_what_names_something(value: str) -> None:
    assert check_identifier(value, "x") == value


def test_normal_forms_differ() -> None:
    assert SessionKey("é", "u", "s") != SessionKey("e\u0301", "u", "s")


def test_the_order_of_fields_is_the_documents() -> None:
    key = SessionKey("a", "u", "s")
    assert list(key.document_id) == ["app_name", "user_id", "session_id"]
    assert list(key.entry_id("e")) == ["app_name", "user_id", "session_id", "event_id"]
    assert list(key.payload_id(1, "h", 2)) == ["app_name", "user_id", "session_id", "life", "hash", "part"]
    assert list(key.user_state_id) == ["app_name", "user_id"]
    assert key.document_id is not key.document_id


@given(st.tuples(DELIMITED, st.lists(FLAT, max_size=3)), st.tuples(DELIMITED, st.lists(FLAT, max_size=3)))
def test_turn_keys_never_meet(one: tuple[str, list[str]], other: tuple[str, list[str]]) -> None:
    """Over the turn and names without a colon: different pairs, different keys."""
    keys_made = turn_key(one[0], *one[1]), turn_key(other[0], *other[1])
    assert (keys_made[0] == keys_made[1]) is (one == other)


@given(DELIMITED, DELIMITED, DELIMITED | TEXTS, DELIMITED | TEXTS)
def test_calls_and_turns_never_meet(turn: str, other: str, call: str, another: str) -> None:
    """One last name may hold anything: ``<turn>:tool:<call>`` as the history makes it."""
    made = turn_key(turn, "tool", call), turn_key(other, "tool", another)
    assert (made[0] == made[1]) is ((turn, call) == (other, another))


@given(DELIMITED | TEXTS, NAMES, DELIMITED | TEXTS, NAMES)
def test_the_keys_of_two_turns_never_meet(one: str, names: list[str], other: str, more: list[str]) -> None:
    """Whatever the names are, colons included."""
    if one != other:
        assert turn_key(one, *names) != turn_key(other, *more)


@given(DELIMITED | TEXTS, NAMES, DELIMITED | TEXTS, NAMES)
def test_a_turn_s_keys_are_one_range(one: str, names: list[str], other: str, more: list[str]) -> None:
    """``entries.turn`` reads from ``<turn>:`` to before ``<turn>;``, in the order of UTF-8 bytes."""
    first = turn_key(one, "").encode()
    beyond = first[:-1] + b";"
    assert first <= turn_key(one, "x", *names).encode() < beyond
    if one != other:
        assert not first <= turn_key(other, "x", *more).encode() < beyond


@pytest.mark.parametrize("bad", ["", None, "a\0", "\ud800", 3])
def test_a_turn_s_id_is_checked(bad: Any) -> None:
    with pytest.raises(InvalidKeyError):
        _ = turn_key(bad, "user")


def test_an_entry_key_is_bounded() -> None:
    assert turn_key("t", "x" * 2046)
    with pytest.raises(InvalidKeyError, match="entry key"):
        _ = turn_key("t", "x" * 2047)
    with pytest.raises(InvalidKeyError):
        _ = turn_key("t", "\0")
    assert turn_key(":" * 512, "user").count("%3A") == 512


@given(TEXTS, st.integers(1, 1 << 60), st.text("0123456789abcdef", min_size=32, max_size=32))
def test_fences_have_keys_no_turn_has(turn: str, token: int, nonce: str) -> None:
    fence = keys.fence_key(token, nonce)
    assert fence.startswith(keys.RESERVED)
    assert not turn_key(turn, "fence", str(token), nonce).startswith(keys.RESERVED)


@given(REVISIONS)
def test_a_revision_is_its_life_and_its_place(revision: int) -> None:
    assert keys.life(revision) + keys.place(revision) == revision
    assert keys.life(keys.life(revision)) == keys.life(revision)
    assert keys.life(revision) <= revision <= keys.end_of_life(revision)
    assert keys.life(keys.end_of_life(revision)) == keys.life(revision)
    assert keys.life(keys.end_of_life(revision) + 1) != keys.life(revision)
    if keys.place(revision) != (1 << keys.PLACE_BITS) - 1:
        assert keys.check_revision(revision) == revision


@pytest.mark.parametrize("value", [None, "1", 1.0, True, -1, 1 << 63, {"$gt": 0}, (1 << 28) - 1])
def test_what_is_no_revision(value: Any) -> None:
    with pytest.raises(InvalidKeyError):
        _ = keys.check_revision(value)


def test_nonces_are_drawn() -> None:
    nonces = {keys.new_nonce() for _ in range(1000)}
    assert len(nonces) == 1000
    assert all(len(nonce) == 32 for nonce in nonces)
