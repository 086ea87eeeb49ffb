"""Checks of the numbers that callers pass, before any I/O."""

from __future__ import annotations

from mnemongo.errors import InvalidKeyError


def check_count(value: object, name: str = "limit", most: int = 1000) -> int:
    """Return ``value`` if it is a whole number from 1 to ``most``, else ``InvalidKeyError``."""
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidKeyError(f"{name} must be a whole number from 1 to {most}", key=name)
    return value


def optional_milliseconds(ttl: object, name: str = "ttl") -> int | None:
    """As ``milliseconds``; ``None`` stays ``None``."""
    return None if ttl is None else milliseconds(ttl, name)


def milliseconds(ttl: object, name: str = "ttl") -> int:
    """A time in seconds as whole milliseconds, at least one, else ``InvalidKeyError``."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < 10**9:
        raise InvalidKeyError(f"{name} must be seconds, over 0 and under 10**9", key=name)
    return max(1, round(ttl * 1000))
