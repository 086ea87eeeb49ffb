"""Durable memory for AI agents on MongoDB.

Make a ``Store`` (or an ``AsyncStore``) from a PyMongo client; talk through ``ChatHistory``, or run the
operations of ``sessions``, ``entries``, ``state``, ``leases`` and ``retention`` yourself.
"""

from mnemongo._version import __version__
from mnemongo.async_store import AsyncStore
from mnemongo.documents import Entry
from mnemongo.errors import (
    AlreadyExistsError,
    ConfigurationError,
    ConflictError,
    DocumentError,
    DocumentTooLargeError,
    InvalidKeyError,
    KeyConflictError,
    LeaseHeldError,
    LeaseLostError,
    MnemongoError,
    NotFoundError,
    OutcomeUnknownError,
    SchemaVersionError,
    StaleRevisionError,
    TopologyError,
    TransactionRequiredError,
    UnavailableError,
    UndecodableDocumentError,
    UnsafeFilterError,
)
from mnemongo.history import AsyncChatHistory, AsyncTurn, ChatHistory, Context, Turn
from mnemongo.keys import SessionKey
from mnemongo.local import LocalServer, local
from mnemongo.messages import Message, ToolCall
from mnemongo.plans import entries, leases, retention, sessions, setup, state
from mnemongo.store import Store

__all__ = [
    "AlreadyExistsError",
    "AsyncChatHistory",
    "AsyncStore",
    "AsyncTurn",
    "ChatHistory",
    "ConfigurationError",
    "ConflictError",
    "Context",
    "DocumentError",
    "DocumentTooLargeError",
    "Entry",
    "InvalidKeyError",
    "KeyConflictError",
    "LeaseHeldError",
    "LeaseLostError",
    "LocalServer",
    "Message",
    "MnemongoError",
    "NotFoundError",
    "OutcomeUnknownError",
    "SchemaVersionError",
    "SessionKey",
    "StaleRevisionError",
    "Store",
    "ToolCall",
    "TopologyError",
    "TransactionRequiredError",
    "Turn",
    "UnavailableError",
    "UndecodableDocumentError",
    "UnsafeFilterError",
    "__version__",
    "entries",
    "leases",
    "local",
    "retention",
    "sessions",
    "setup",
    "state",
]
