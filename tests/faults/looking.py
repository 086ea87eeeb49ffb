"""What can be seen of a session, and what an operation returned, in a form equal runs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from faults.stepping import Backend, Process, run
from mnemongo import keys, schema
from mnemongo.commands import Command, Operation
from mnemongo.documents import FENCE, Head, Lease, Page, Stored
from mnemongo.errors import NotFoundError
from mnemongo.keys import SessionKey
from mnemongo.plans import entries, sessions, state
from mnemongo.plans.reading import Window
from mnemongo.plans.retention import Orphans, Swept
from mnemongo.plans.state import State


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the caller was told; ``replayed`` is left out, since a retry may tell it."""

    value: Any

    @property
    def refused(self) -> bool:
        return isinstance(self.value, str) and self.value.endswith("Error")


def outcome(process: Process) -> Outcome:
    if process.error is not None:
        return Outcome(type(process.error).__name__)
    return Outcome(told_by(process.op, process.result))


def told_by(op: Operation[Any], result: Any) -> Any:
    """The head that a clear returns may count what was appended since."""
    return "cleared" if op.name == "sessions.clear" else described(result)


def described(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of result
    match value:
        case Stored():
            return value.entry.key, keys.place(value.revision), value.entry.digest
        case Head():
            return "head", keys.place(value.revision), repr(sorted(value.state.items()))
        case Lease():
            return "lease", value.token, keys.place(value.revision)
        case Window():
            return described(value.entries), described(value.pinned), value.truncated
        case Page():
            return described(value.items), value.next is None
        case State():
            return repr(sorted(value.merged.items()))
        case tuple():
            return tuple(described(item) for item in value)
        case Swept() | Orphans():
            return type(value).__name__
        case _:
            return value


@dataclass(frozen=True, slots=True)
class View:
    """A session as every reader sees it; ``None`` for the entries when there is no session."""

    entries: tuple[str, ...] | None
    place: int = 0
    state: str = ""
    token: int = 0
    held: bool = False


def view(backend: Backend, key: SessionKey) -> View:
    """The session, read in every way; the ways must agree."""
    head = run(backend, sessions.get(key))
    seen = run(backend, state.get(key))
    if head is None:
        for read in (entries.page(key), entries.last(key, 100), entries.turns(key, 100)):
            assert Process(backend, read).finish().error.__class__ is NotFoundError
        return View(None, state=described(seen))
    page = run(backend, entries.page(key))
    last = run(backend, entries.last(key, 100))
    turns = run(backend, entries.turns(key, 100))
    assert page.items == last.entries == turns.entries, "readers disagree"
    assert not last.truncated
    for newest in page.items[-1:]:
        assert run(backend, entries.get(key, newest.entry.key)) == newest
    assert run(backend, entries.last(key, 1)).entries == page.items[-1:]
    assert all(keys.life(s.revision) == keys.life(head.revision) for s in page.items)
    _check_dense(backend, key, head)
    document = _raw(backend, schema.SESSIONS, {"_id": key.document_id})[0]
    lease = document.get("lease") or {}
    return View(
        tuple(stored.entry.key for stored in page.items),
        keys.place(head.revision),
        described(seen),
        int(lease.get("token", 0)),
        lease.get("owner") is not None,
    )


def _check_dense(backend: Backend, key: SessionKey, head: Head) -> None:
    """The places up to the head, fences included, are there without a gap, each once."""
    living = [d for d in events(backend, key) if keys.life(d["revision"]) == keys.life(head.revision)]
    places = sorted(keys.place(d["revision"]) for d in living if d["revision"] <= head.revision)
    assert places == [*range(1, keys.place(head.revision) + 1)], places


def events(backend: Backend, key: SessionKey) -> list[dict[str, Any]]:
    return _raw(backend, schema.EVENTS, key.fields)


def fences(backend: Backend, key: SessionKey) -> int:
    return sum(document.get("kind") == FENCE for document in events(backend, key))


def stored(backend: Backend, key: SessionKey) -> dict[str, int]:
    """How many documents of the session there are, by collection, where there are any."""
    of = {
        schema.SESSIONS: {"_id": key.document_id},
        schema.EVENTS: key.fields,
        schema.PAYLOADS: key.fields,
    }
    found = {name: len(_raw(backend, name, selection)) for name, selection in of.items()}
    return {name: number for name, number in found.items() if number}


def check_no_litter(backend: Backend, key: SessionKey) -> None:
    """After operations that ran to their ends nothing is there that no reader sees."""
    heads = _raw(backend, schema.SESSIONS, {"_id": key.document_id})
    living = {keys.life(int(head["revision"])) for head in heads}
    assert all("clearing" not in head for head in heads), "a clear is not finished"
    found = events(backend, key)
    assert {keys.life(d["revision"]) for d in found} <= living, "entries of a life that is over"
    places = sorted(keys.place(d["revision"]) for d in found)
    assert places == [*range(1, len(places) + 1)], f"a hole or a stray: {places}"
    parts = _raw(backend, schema.PAYLOADS, key.fields)
    assert {int(part["life"]) for part in parts} <= living, "payloads of a life that is over"
    referred = {d["payload"]["hash"] for d in found if "payload" in d}
    assert {part["_id"]["hash"] for part in parts} <= referred, "payloads of no entry"


def _raw(backend: Backend, collection: str, selection: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = backend.execute(Command(collection, "find", {"filter": selection}))
    return found
