"""Retention: removing what expired sessions and interrupted deletes have left, in bounded batches.

An expired session is invisible at once; this only gives its space back. Nothing living is touched: each
session is removed on the condition that it still is expired, by the server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from mnemongo.commands import Plan, find, finding, operation
from mnemongo.keys import SessionKey
from mnemongo.plans import sessions
from mnemongo.plans.arguments import check_count
from mnemongo.schema import SESSIONS


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep removed: sessions, entries. ``finished``: nothing was left over."""

    sessions: int
    entries: int
    finished: bool


@operation()
def sweep(*, limit: int = 100) -> Plan[Swept]:
    """Remove up to ``limit`` expired sessions, the longest expired first. Safe to repeat and to race.

    >>> from mnemongo.testing import ModelStore
    >>> ModelStore().run(sweep())
    Swept(sessions=0, entries=0, finished=True)
    """
    _ = check_count(limit)
    expired = yield from find(
        finding(
            SESSIONS,
            {"expires_at": {"$exists": True}, "$expr": sessions.EXPIRED},
            sort=(("expires_at", 1),),
            limit=limit,
            projection={"_id": 1},
        )
    )
    clearing = yield from find(finding(SESSIONS, {"clearing": {"$exists": True}}, limit=limit))
    removed = 0
    for document in expired:
        removed += (yield from sessions.remove_expired(SessionKey(**document["_id"]))) or 0
    for document in clearing:
        removed += yield from sessions.finish_clearing(SessionKey(**document["_id"]), document)
    return Swept(len(expired), removed, finished=max(len(expired), len(clearing)) < limit)
