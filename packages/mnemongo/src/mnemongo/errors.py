"""Every error mnemongo raises. Each carries its facts and says what the caller can do.

The driver's own error, where there is one, is the ``__cause__``. Texts name keys, never payloads.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExistsError",
    "ConfigurationError",
    "ConflictError",
    "DocumentError",
    "DocumentTooLargeError",
    "InvalidKeyError",
    "KeyConflictError",
    "LeaseHeldError",
    "LeaseLostError",
    "MnemongoError",
    "NotFoundError",
    "OutcomeUnknownError",
    "SchemaVersionError",
    "StaleRevisionError",
    "TopologyError",
    "TransactionRequiredError",
    "UnavailableError",
    "UndecodableDocumentError",
    "UnsafeFilterError",
]


class MnemongoError(Exception):
    """The base of all errors of this library.

    Attributes:
        key: what the operation was about (a ``SessionKey``, an entry's key, ...), or ``None``.
        expected: what the caller took for granted (a revision, a lease token, ...), or ``None``.
        found: what was there instead, or ``None``.
    """

    def __init__(
        self, message: str, *, key: object = None, expected: object = None, found: object = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.expected = expected
        self.found = found


class ConfigurationError(MnemongoError):
    """The deployment, its users or the way this library is set up must change; retrying does not help."""


class TopologyError(ConfigurationError):
    """The deployment cannot do what was asked, or no server could be found to run."""


class SchemaVersionError(ConfigurationError):
    """A document was written in a format newer than this version reads: upgrade mnemongo."""


class TransactionRequiredError(ConfigurationError):
    """An atomic operation was composed inside one that is not: run it on its own."""


class ConflictError(MnemongoError):
    """Somebody else's write stands where this one was to go."""


class StaleRevisionError(ConflictError):
    """The session has moved on (or begun anew) since it was read: read it again and decide."""


class KeyConflictError(ConflictError):
    """The key is taken by other content: a key names one piece of work for ever, use a new one."""


class AlreadyExistsError(ConflictError):
    """What was to be created is there already."""


class LeaseHeldError(ConflictError):
    """Another worker holds the lease: come back after ``found`` (its expiry, server time)."""


class LeaseLostError(ConflictError):
    """The lease ran out or was taken over; nothing was stored: acquire it again and begin anew."""


class NotFoundError(MnemongoError):
    """There is no such session: it was never created, was deleted, or has expired."""


class DocumentError(MnemongoError):
    """A value cannot be stored as it is, or a stored one cannot be read."""


class InvalidKeyError(DocumentError):
    """An identifier is not a non-empty, bounded string without NUL and lone surrogates."""


class DocumentTooLargeError(DocumentError):
    """The payload is over the limit; nothing was written."""


class UndecodableDocumentError(DocumentError):
    """A stored document is damaged or foreign; the others of its session stay readable."""


class UnsafeFilterError(DocumentError):
    """A filter holds something outside the allowlist."""


class UnavailableError(MnemongoError):
    """The database could not be reached in time; nothing is known to be written: try again."""


class OutcomeUnknownError(MnemongoError):
    """The write may have happened: repeat it with the same key, which stores it once either way."""
