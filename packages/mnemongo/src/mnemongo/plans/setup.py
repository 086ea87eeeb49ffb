"""Create the indexes. Safe to repeat: an index that exists costs one command and changes nothing."""

from __future__ import annotations

from mnemongo import schema
from mnemongo.commands import Plan, create_index, operation

__all__ = ["indexes"]


@operation(prepares=True)
def indexes() -> Plan[None]:
    """Create every index of the schema.

    Raises:
        ConfigurationError: the user may not create indexes, or one of the same name differs.
    """
    for index in schema.INDEXES:
        yield from create_index(index.collection, index.arguments)
