"""Polling with a deadline, locks between processes, private directories."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from mnemongo.errors import TopologyError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

T = TypeVar("T")
INTERVAL = 0.01


def poll(step: Callable[[], T | None], *, seconds: float) -> T | None:
    """Call ``step`` until it returns something true, or ``None`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        if found := step():
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(INTERVAL)


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold a lock that the operating system releases when its holder dies.

    Raises:
        TopologyError: another process kept it for ``seconds``.
    """
    with path.open("ab") as file:
        if not poll(lambda: _try_lock(file), seconds=seconds):
            raise TopologyError(f"another process has held {path} for {seconds:.0f} s: is it stopped?")
        try:
            yield
        finally:
            _unlock(file)  # not left to close(): a child forked meanwhile has the same open file


def in_use(path: Path) -> bool:
    """Whether another process has a lock on the file ``path`` (as mongod has on its ``mongod.lock``)."""
    try:
        with path.open("r+b") as file:
            if not _try_lock(file):
                return True
            _unlock(file)
            return False
    except PermissionError:  # how Windows says so
        return True
    except FileNotFoundError:
        return False


def private_directory(path: Path) -> Path:
    """Create ``path`` with its parents, readable by this user only."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform != "win32":
        path.chmod(0o700)
    return path


def alive(pid: int) -> bool:
    """Whether there may be a process ``pid``; always so where asking would signal it (Windows)."""
    if sys.platform != "win32":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is another user's
            return True
    return True


if sys.platform == "win32":

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
