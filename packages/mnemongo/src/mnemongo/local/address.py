"""Where a mongod of ours listens: a unix socket in a private directory, or a loopback port."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mnemongo.local.waiting import private_directory

SOCKET_NAME = "m.sock"
LOOPBACK = "127.0.0.1"
# What stands in bind_ip (a comma list) and in a member's host (split at colons) without being quoted.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")


@dataclass(frozen=True, slots=True)
class Address:
    """One end point; ``port`` is ``None`` for a unix socket, whose path is ``host``.

    ``scratch`` is the temporary directory made for the socket, if one had to be.
    """

    host: str
    port: int | None = None
    scratch: Path | None = None

    @property
    def member(self) -> str:
        """How a replica set's configuration names it."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def arguments(self) -> list[str]:
        """What mongod is told to listen on, and on nothing else."""
        # Without --nounixsocket it also opens /tmp/mongodb-<port>.sock, taking it from a server that runs.
        quiet = [] if sys.platform == "win32" else ["--nounixsocket"]
        port = [] if self.port is None else ["--port", str(self.port)]
        return ["--bind_ip", self.host, *port, *quiet]

    def uri(self, replica_set: str | None) -> str:
        """The URI to hand out."""
        host = quote(self.member, safe=":")
        return f"mongodb://{host}/" + (f"?replicaSet={replica_set}" if replica_set else "")

    def listening(self) -> bool:
        """Whether something accepts connections there."""
        try:
            with self._connect():
                return True
        except OSError:
            return False

    def remove_scratch(self) -> None:
        """Remove the temporary directory of the socket."""
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _connect(self) -> socket.socket:
        if sys.platform != "win32" and self.port is None:
            end = socket.socket(socket.AF_UNIX)
            try:
                end.connect(self.host)
            except OSError:
                end.close()
                raise
            return end
        return socket.create_connection((self.host, self.port or 0), timeout=1)


def choose_address(run: Path, port: int | None) -> Address:
    """A unix socket in ``run`` or in a short temporary directory; a loopback port if one is asked for.

    ``port=0`` asks for any free one. Windows always gets a port.
    """
    if port is None and sys.platform != "win32":
        return _socket_address(run)
    return Address(LOOPBACK, port or _free_port())


def _socket_address(run: Path) -> Address:
    if _can_bind(run / SOCKET_NAME):
        return Address(str(run / SOCKET_NAME))
    scratch = private_directory(Path(tempfile.mkdtemp(prefix="mnemongo-", dir=_short_temporary())))
    return Address(str(scratch / SOCKET_NAME), scratch=scratch)


def _short_temporary() -> str | None:
    # TMPDIR itself may be long: /tmp then.
    default = Path(tempfile.gettempdir()) / "mnemongo-12345678" / SOCKET_NAME
    return None if _fits(default) else "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it


def _fits(path: Path) -> bool:
    # sun_path holds 108 bytes on Linux and 104 on macOS, with the closing NUL.
    return len(bytes(path)) < 100 and _PLAIN_PATH.fullmatch(str(path)) is not None  # noqa: PLR2004


def _can_bind(path: Path) -> bool:
    """Try it, beside the real name: some file systems have no sockets at all."""
    if sys.platform != "win32" and _fits(path):
        probe = path.with_suffix(".p")
        probe.unlink(missing_ok=True)
        with suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.bind(str(probe))
            probe.unlink()
            return True
    return False


def _free_port() -> int:
    with socket.socket() as end:
        end.bind((LOOPBACK, 0))
        return int(end.getsockname()[1])
