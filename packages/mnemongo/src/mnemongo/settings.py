"""What both stores are constructed with: the database, the time limit, the collections' names."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pymongo.driver_info import DriverInfo

from mnemongo import schema
from mnemongo._version import __version__
from mnemongo.errors import ConfigurationError

DEFAULT_TIMEOUT = 20.0
NAME = "mnemongo"
MARK = "mnemongo:"
"""How the mark of a client begins in the platform that its connections name to the server."""
COLLECTIONS = (
    schema.SESSIONS,
    schema.EVENTS,
    schema.APP_STATES,
    schema.USER_STATES,
    schema.PAYLOADS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked settings.

    Attributes:
        database: the database's name.
        timeout: seconds that one operation may take in all.
        names: the collection each of ours is stored in, by our name for it.
    """

    database: str
    timeout: float = DEFAULT_TIMEOUT
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all three, and complete the names."""
        _check_name(self.database, "database", _NOT_IN_DATABASES, 63)
        numeric = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not numeric or not 0 < self.timeout < 10**6:
            raise ConfigurationError("timeout must be a number of seconds over 0", key="timeout")
        if not isinstance(self.names, Mapping):
            raise ConfigurationError("collections must be a mapping of names", key="collections")
        unknown = sorted(map(str, set(self.names) - set(COLLECTIONS)))
        if unknown:
            raise ConfigurationError(f"there is no collection {unknown[0]!r} to rename", key=unknown[0])
        complete = {name: self.names.get(name, name) for name in COLLECTIONS}
        for name, stored in complete.items():
            _check_name(stored, name, "$\0", 200)
        if len(set(complete.values())) != len(complete):
            raise ConfigurationError("two collections have the same name", key="collections")
        object.__setattr__(self, "names", MappingProxyType(complete))


def metadata() -> DriverInfo:
    """What a client's connections name to the server: this library, and a mark that no other client has."""
    return DriverInfo(NAME, __version__, MARK + secrets.token_hex(8))


def check_client(client: object, kind: type) -> None:
    """Refuse what is not the client that a store needs."""
    if not isinstance(client, kind):
        raise ConfigurationError(
            f"client must be a {kind.__name__}, not {type(client).__name__}; "
            "for a connection string use from_uri",
            key="client",
        )


_NOT_IN_DATABASES = '/\\. "$*<>:|?\0'


def _check_name(value: object, name: str, forbidden: str, limit: int) -> None:
    if type(value) is not str or not value or len(value.encode("utf-8", "replace")) > limit:
        raise ConfigurationError(f"{name} must be a str of 1 to {limit} bytes", key=name)
    if any(character in forbidden for character in value) or value.startswith("system."):
        raise ConfigurationError(f"{name} has a character or a beginning MongoDB forbids", key=name)
