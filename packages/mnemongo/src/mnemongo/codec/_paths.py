"""The path to what is refused, for people: ``$.calls[0].args.x``. It shows keys, never values."""

from __future__ import annotations

import json
from typing import Final

from mnemongo.codec._rules import JSON_INT_BITS

_SHOWN_STEPS: Final = 12
_SHOWN_KEY: Final = 40


def path(steps: list[str]) -> str:
    """Outermost first; the middle of a long one (a cycle's) is left out."""
    outer = steps[::-1]
    if len(outer) > _SHOWN_STEPS:
        outer = [*outer[: _SHOWN_STEPS - 3], " ... ", *outer[-2:]]
    return "$" + "".join(outer)


def step(key: object) -> str:
    """One step, into a dict at a key."""
    if type(key) is str:
        return f".{key}" if key.isidentifier() and len(key) <= _SHOWN_KEY else _quoted(key)
    if key is None or type(key) in (bool, int, float):
        return f"[{_short_repr(key)}]"
    return f"[<{type_name(type(key))}>]"


def _short_repr(key: object) -> str:
    huge = type(key) is int and key.bit_length() > JSON_INT_BITS
    return "<int>" if huge else repr(key)


def _quoted(key: str) -> str:
    shown = key if len(key) <= _SHOWN_KEY else key[:_SHOWN_KEY] + "..."
    return f"[{json.dumps(shown)}]"


def type_name(kind: type) -> str:
    """A type as an error names it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
