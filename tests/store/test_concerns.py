"""Majority, primary and majority reads on every command, whatever the client's defaults are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from bson import SON
from pymongo.read_preferences import SecondaryPreferred

from mnemongo import entries, leases, retention, sessions, state
from store.harness import KEY, Opened, Opener, entry, stateful

CONTRARY: Mapping[str, Any] = {
    "readPreference": "secondaryPreferred",
    "w": 1,
    "journal": False,
    "readConcernLevel": "local",
    "retryWrites": False,
    "retryReads": False,
    "tz_aware": False,
    "document_class": SON,
}
MAJORITY = {"level": "majority"}
SNAPSHOT = {"level": "snapshot"}
FIRST = {"hello", "listIndexes"}  # asked once: neither reads or writes what is ours
READS = {"find", "aggregate"}
WRITES = {"insert", "update", "delete", "findAndModify", "createIndexes"}
COMMITS = {"commitTransaction", "abortTransaction"}


async def everything(opened: Opened) -> None:
    """Run each operation once, also those in transactions."""
    await opened.setup()
    run = opened.run
    head = await run(sessions.create(KEY, state={"a": 1}))
    stored = await run(entries.append(KEY, entry("e1", starts_turn=True, turn="t"), expected=head.revision))
    _ = await run(entries.append(KEY, entry("e2")))
    _ = await run(entries.append(KEY, entry("e2")))
    _ = await run(entries.append_many(KEY, [entry("b1"), stateful("b2", own=1, app_a=1, user_u=1)]))
    _ = await run(entries.get(KEY, "e1"))
    _ = await run(entries.turn(KEY, "t"))
    _ = await run(entries.page(KEY, after=stored.revision))
    _ = await run(entries.last(KEY, 3))
    _ = await run(entries.turns(KEY, 2))
    _ = await run(state.merge(KEY, {"own": 2}))
    _ = await run(state.merge(KEY, {"own": 2, "app:b": 1, "user:b": 2}))
    _ = await run(state.get(KEY))
    lease = await run(leases.acquire(KEY, owner="w", ttl=30))
    lease = await run(leases.renew(lease, ttl=30))
    last = await run(entries.append(KEY, entry("l1"), lease=lease))
    _ = await run(leases.release(lease, revision=last.revision))
    _ = await run(sessions.get(KEY))
    _ = await run(sessions.list("shop", "ann"))
    _ = await run(sessions.clear(KEY))
    _ = await run(sessions.delete(KEY))
    _ = await run(retention.sweep())


@pytest.mark.parametrize("options", [{}, CONTRARY], ids=["defaults", "contrary"])
async def test_every_command_is_pinned(opener: Opener, options: Mapping[str, Any]) -> None:
    opened = opener(**options)
    await everything(opened)
    commands = opened.recorder.commands
    checked = {wrong(command) for command in commands if next(iter(command)) not in FIRST}
    assert checked == {None}
    assert READS | WRITES | {"commitTransaction"} <= set(opened.recorder.names)


def wrong(command: Mapping[str, Any]) -> str | None:
    """What is not as it must be in one command; ``None`` when all is."""
    name = next(iter(command))
    preference = command.get("$readPreference", {"mode": "primary"})
    if preference != {"mode": "primary"}:
        return f"{name} is read from {preference}"
    if "txnNumber" in command and command.get("autocommit") is False:
        return _wrong_in_transaction(name, command)
    several = any("$unionWith" in stage for stage in command.get("pipeline", ()))
    if name in READS and level(command) != (SNAPSHOT if several else MAJORITY):
        return f"{name} has read concern {level(command)}"
    if name in WRITES and command.get("writeConcern") != {"w": "majority"}:
        return f"{name} has write concern {command.get('writeConcern')}"
    return None if name in READS | WRITES else f"{name} is not known to this test"


def _wrong_in_transaction(name: str, command: Mapping[str, Any]) -> str | None:
    if command.get("startTransaction") and level(command) != SNAPSHOT:
        return f"a transaction began at {level(command)}"
    if not command.get("startTransaction") and level(command):
        return f"{name} has a read concern inside its transaction"
    if name in COMMITS and command.get("writeConcern", {}).get("w") != "majority":
        return f"{name} has write concern {command.get('writeConcern')}"
    if name not in COMMITS and "writeConcern" in command:
        return f"{name} has a write concern inside its transaction"
    return None


def level(command: Mapping[str, Any]) -> Mapping[str, Any]:
    """The read concern without the cluster time."""
    return {k: v for k, v in command.get("readConcern", {}).items() if k == "level"}


async def test_the_client_of_the_test_is_contrary(opener: Opener) -> None:
    opened = opener(**CONTRARY)
    assert opened.client.read_preference == SecondaryPreferred()
    assert opened.client.write_concern.document == {"w": 1, "j": False}
    assert opened.client.codec_options.document_class is SON


async def test_values_do_not_depend_on_the_client_s_codec(opener: Opener) -> None:
    opened = await opener.ready(**CONTRARY)
    head = await opened.run(sessions.create(KEY, state={"b": {"c": 1}}, ttl=60))
    assert head.expires_at is not None
    assert head.expires_at.utcoffset() == timedelta(0)
    assert head.state == {"b": {"c": 1}}
    lease = await opened.run(leases.acquire(KEY, owner="w", ttl=30))
    assert lease.until.utcoffset() == timedelta(0)
    again = await opened.run(sessions.get(KEY))
    assert again is not None
    assert again.lease_until == lease.until
    assert type(again.state["b"]) is dict
