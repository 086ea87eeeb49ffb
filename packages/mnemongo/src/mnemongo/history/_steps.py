"""How the steps of a turn are named: after their calls, and by number where that does not tell them apart.

Models give calls no id, or the same ids in every step. A retry may do the same steps again (they are
replays) or go on from what is stored (they are new): a step is a replay when one of the same name and
content is stored that this attempt has not come to yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from mnemongo.documents import Stored
from mnemongo.messages import Message

_UNNAMED = "#"


class Steps:
    """The names that a turn's steps and results have taken."""

    def __init__(self) -> None:
        self._stored: dict[str, str] = {}
        self._used: set[str] = set()
        self._latest: dict[str, int] = {}

    def found(self, own: Iterable[Stored]) -> None:
        """Note what earlier attempts have stored, in order."""
        for stored in own:
            name = _last_names(stored.entry.key)
            self._stored[name] = stored.entry.digest
            message = Message.of(stored.entry)
            for call in message.calls:
                self._latest[call.id] = _number(name)

    def step(self, message: Message, digest: str) -> str:
        """The name of a step, after its first call."""
        base = message.calls[0].id or _UNNAMED
        number = self._free("assistant", base, digest)
        for call in message.calls:
            self._latest[call.id] = number
        return _named(base, number)

    def result(self, message: Message, digest: str) -> str:
        """The name of a result: that of the call in its latest step."""
        call = message.call_id or ""
        number = self._latest.get(call, 1)
        base = _named(call or _UNNAMED, number)
        if call:
            return base
        return _named(base, self._free("tool", base, digest))

    def _free(self, kind: str, base: str, digest: str) -> int:
        """The first number whose name is not taken, or is taken by this very step, not yet come to."""
        for number in count(1):
            name = f"{kind}:{_named(base, number)}"
            replay = self._stored.get(name) == digest and name not in self._used
            if replay or (name not in self._stored and name not in self._used):
                self._used.add(name)
                return number
        raise AssertionError("unreachable")


def _named(base: str, number: int) -> str:
    return base if number == 1 else f"{base}#{number}"


def _number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else 1


def _last_names(key: str) -> str:
    """The key without the turn, in which a colon is escaped."""
    return key.partition(":")[2]
