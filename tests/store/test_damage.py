"""A damaged or newer document is told by its own error; the rest of its session stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from mnemongo import SchemaVersionError, UndecodableDocumentError, entries, keys, sessions, state
from mnemongo.documents import FORMAT
from store.harness import KEY, Client, Opened, Opener, entry

DAMAGES: dict[str, Any] = {
    "without its event": {"$unset": {"event_data": 1}},
    "without a time": {"$unset": {"timestamp": 1}},
    "newer": {"$set": {"format": FORMAT + 1}},
}


async def five(opener: Opener, client: Client, damage: Any) -> tuple[Opened, int]:
    """A session of five, the third of them damaged; and its revision."""
    opened = await opener.ready()
    head = await opened.run(sessions.create(KEY, state={"a": 1}))
    _ = await opened.run(entries.append_many(KEY, [entry(f"e{n}") for n in range(1, 6)]))
    _ = client[opener.database]["events"].update_one({"_id": KEY.entry_id("e3")}, damage)
    return opened, head.revision + 3


@pytest.mark.parametrize("how", DAMAGES)
async def test_one_entry(opener: Opener, server_client: Client, how: str) -> None:
    opened, revision = await five(opener, server_client, DAMAGES[how])
    kind = SchemaVersionError if how == "newer" else UndecodableDocumentError
    for op in (entries.get(KEY, "e3"), entries.last(KEY, 3), entries.page(KEY)):
        with pytest.raises(kind) as caught:
            _ = await opened.run(op)
        assert caught.value.key == KEY.entry_id("e3")
    before = await opened.run(entries.page(KEY, limit=2))
    after = await opened.run(entries.page(KEY, after=revision))
    newest = await opened.run(entries.last(KEY, 2))
    assert [one.entry.key for one in (*before, *after)] == ["e1", "e2", "e4", "e5"]
    assert [one.entry.key for one in newest.entries] == ["e4", "e5"]
    assert (await opened.run(entries.get(KEY, "e5"))) is not None
    stored = await opened.run(entries.append(KEY, entry("e6")))
    assert keys.place(stored.revision) == 6
    with pytest.raises(kind):
        _ = await opened.run(entries.append(KEY, entry("e3")))


async def test_a_newer_head(opener: Opener, server_client: Client) -> None:
    opened, _ = await five(opener, server_client, {"$set": {"more": 1}})
    heads = server_client[opener.database]["sessions"]
    _ = heads.update_one({"_id": KEY.document_id}, {"$set": {"format": FORMAT + 1}})
    for op in (sessions.get(KEY), entries.page(KEY), entries.append(KEY, entry("e6")), sessions.list("shop")):
        with pytest.raises(SchemaVersionError, match="upgrade"):
            _ = await opened.run(op)
    assert server_client[opener.database]["events"].count_documents({}) == 5


@pytest.mark.parametrize("text", ["{", "[]", 5])
async def test_a_damaged_state(opener: Opener, server_client: Client, text: object) -> None:
    opened, _ = await five(opener, server_client, {"$set": {"more": 1}})
    heads = server_client[opener.database]["sessions"]
    _ = heads.update_one({"_id": KEY.document_id}, {"$set": {"state": text}})
    for op in (sessions.get(KEY), state.get(KEY), state.merge(KEY, {"a": 2})):
        with pytest.raises(UndecodableDocumentError):
            _ = await opened.run(op)
    stored = heads.find_one({"_id": KEY.document_id})
    assert stored is not None
    assert stored["state"] == text
