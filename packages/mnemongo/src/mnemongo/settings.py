"""What both stores are constructed with: the database, the time limit, the collections' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pymongo.driver_info import DriverInfo

from mnemongo import schema
from mnemongo._version import __version__
from mnemongo.errors import ConfigurationError

DEFAULT_TIMEOUT = 20.0
METADATA = DriverInfo("mnemongo", __version__)
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
        if type(self.database) is not str or not self.database:
            raise ConfigurationError("database must be a non-empty str", key="database")
        numeric = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not numeric or not 0 < self.timeout < 10**6:
            raise ConfigurationError("timeout must be a number of seconds over 0", key="timeout")
        unknown = sorted(set(self.names) - set(COLLECTIONS))
        if unknown:
            raise ConfigurationError(f"there is no collection {unknown[0]!r} to rename", key=unknown[0])
        complete = {name: self.names.get(name, name) for name in COLLECTIONS}
        object.__setattr__(self, "names", MappingProxyType(complete))
