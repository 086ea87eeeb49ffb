"""``local()``: the lookup of a development MongoDB, and the per-user server it ends at."""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from mnemongo.errors import TopologyError
from mnemongo.local.mongod import MongodProcess, start_mongod
from mnemongo.local.waiting import alive, in_use, locked, poll, private_directory

GIVEN_SECONDS = 10.0
FOUND_SECONDS = 2.0
RELEASE_SECONDS = 15.0
LOCK_SECONDS = 120.0


class LocalServer:
    """A MongoDB to develop with. Closing it stops the server if, and only if, ``local`` started it.

    A server that was started serves every process of this user, until the one that started it closes it
    or ends.

    Attributes:
        uri: for ``MongoClient`` and ``AsyncMongoClient``.
    """

    __slots__ = ("_owner", "_process", "_record", "uri")

    def __init__(self, uri: str, *, process: MongodProcess | None = None, record: Path | None = None) -> None:
        self.uri = uri
        self._process = process
        self._record = record
        self._owner = os.getpid()
        if process is not None:
            _ = atexit.register(self.close)

    def __repr__(self) -> str:
        """Say whether it is ours. Not the URI: one that was given may hold a password."""
        return f"LocalServer(started={self.started})"

    @property
    def started(self) -> bool:
        """Whether it was started here, so that ``close`` stops it."""
        return self._process is not None

    def close(self) -> None:
        """Stop the server if it was started here, and wait for its end. Safe to repeat."""
        if self._process is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if self._record is not None:
            _withdraw(self._record, self._process.pid)  # first: nobody is to find a server that goes away
        self._process.stop()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()


@dataclass(frozen=True, slots=True)
class _Record:
    """What one process tells the others about the server it started."""

    pid: int
    uri: str


def local(uri: str | None = None, *, directory: Path | None = None) -> LocalServer:
    """Find a development MongoDB, or start one, and hand out its URI. For development only.

    Looked for in this order: ``uri``; ``MONGODB_URI``; a running server of this user's; then one is
    started, from ``MONGOD``, PATH, the usual folders, or the extra ``mnemongo[local]``. Its data stays for
    the next time. What is set explicitly and does not work is an error: nothing else is tried.

    Args:
        uri: a deployment of yours; handed out as it is if it answers.
        directory: where the server's files are; default: ``$XDG_DATA_HOME/mnemongo`` or what the platform
            has in its place.

    Raises:
        TopologyError: what was set explicitly does not work, or there is no server to start.
    """
    if uri is not None:
        return _given(uri, "the uri= argument")
    if named := os.environ.get("MONGODB_URI"):
        return _given(named, "MONGODB_URI")
    try:
        home = private_directory(_user_directory()) if directory is None else directory.absolute()
        run = private_directory(home / "run")
    except (OSError, RuntimeError) as error:
        raise TopologyError(f"no directory for the development server: {error}; give directory=") from error
    with locked(run / "lock", seconds=LOCK_SECONDS):
        return _running(run / "server.json") or _start(home)


def _given(uri: str, origin: str) -> LocalServer:
    """Ping it. What a driver says of a URI it cannot read could quote the password: not passed on."""
    try:
        client: MongoClient[dict[str, Any]] = MongoClient(
            uri, serverSelectionTimeoutMS=int(GIVEN_SECONDS * 1000), connect=False
        )
    except (PyMongoError, OSError, ValueError, TypeError) as error:
        kind = type(error).__name__
        raise TopologyError(f"{origin} is not a valid MongoDB URI ({kind}): correct or drop it") from None
    with client:
        try:
            _ = client.admin.command("ping")
        except PyMongoError as error:
            raise TopologyError(
                f"the server that {origin} names does not answer ({type(error).__name__}): correct or drop it"
            ) from error
    return LocalServer(uri)


def _user_directory() -> Path:
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    if named.is_absolute():  # the XDG specification: ignore a relative one
        return named / "mnemongo"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path.home() / ".local" / "share"
    return base / "mnemongo"


def _running(path: Path) -> LocalServer | None:
    record = _read(path)
    if record is None or not alive(record.pid) or not _answers(record):
        return None
    return LocalServer(record.uri)


def _answers(record: _Record) -> bool:
    """Whether that very process answers: its id, or its port, may belong to another by now."""
    client: MongoClient[dict[str, Any]] = MongoClient(
        record.uri,
        serverSelectionTimeoutMS=int(FOUND_SECONDS * 1000),
        socketTimeoutMS=int(FOUND_SECONDS * 1000),
    )
    with client, suppress(PyMongoError):
        return bool(client.admin.command("serverStatus")["pid"] == record.pid)
    return False


def _start(home: Path) -> LocalServer:
    lock = home / "db" / "mongod.lock"
    if not poll(lambda: not in_use(lock), seconds=RELEASE_SECONDS):  # one may be shutting down
        raise TopologyError(f"a mongod that does not answer holds {home / 'db'}: end it, or give directory=")
    process = start_mongod(home)
    path = home / "run" / "server.json"
    _write(path, _Record(process.pid, process.uri))
    return LocalServer(process.uri, process=process, record=path)


def _read(path: Path) -> _Record | None:
    try:
        return _Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _withdraw(path: Path, pid: int) -> None:
    """Remove the record of ``pid``, not that of a server which took its place after a crash."""
    record = _read(path)
    if record is not None and record.pid == pid:
        path.unlink(missing_ok=True)


def _write(path: Path, record: _Record) -> None:
    """At once, or not at all: a reader never sees a part."""
    part = path.with_suffix(".new")
    _ = part.write_text(json.dumps(asdict(record)))
    _ = part.replace(path)
