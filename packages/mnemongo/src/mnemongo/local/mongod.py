"""Run a mongod as a child that cannot outlive this process, and wait until it is of use."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from pymongo.errors import PyMongoError

from mnemongo.errors import TopologyError
from mnemongo.local.address import Address, choose_address
from mnemongo.local.binary import find_mongod
from mnemongo.local.replica import boot_client, step_towards_primary
from mnemongo.local.waiting import poll, private_directory

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOG_LINES = 15
_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})
_DEFAULTS = {
    # Preallocated journals make an empty directory 301 MB; so it is 11.
    "--wiredTigerEngineConfigString": "log=(prealloc=false,file_max=10MB)",
    "--wiredTigerCacheSizeGB": "1",  # half of the memory by default; 0.25 refuses documents of 16 MiB
    "--oplogSize": "512",  # MB; by default it grows to a twentieth of the disk
    "--networkMessageCompressors": "disabled",
}
# A process that asks to die with its parent, then becomes mongod. Not ``preexec_fn``: that runs Python
# between fork and exec, which can deadlock when there are threads. The parent may be gone by then: getppid.
_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]), 0, 0, 0)
if os.getppid() != int(sys.argv[2]): os._exit(1)
os.execv(sys.argv[3], sys.argv[3:])"""


class MongodProcess:
    """A running mongod of ours. Stop it by ``stop``; it is also stopped when the interpreter exits.

    Attributes:
        uri: how to reach it; with ``replicaSet=`` if it is one.
        pid: its process id.
        directory: what it was started on.
    """

    __slots__ = ("_address", "_owner", "_process", "directory", "pid", "uri")

    def __init__(self, process: subprocess.Popen[bytes], address: Address, directory: Path, uri: str) -> None:
        self._process = process
        self._address = address
        self._owner = os.getpid()
        self.directory = directory
        self.pid = process.pid
        self.uri = uri
        _ = atexit.register(self.stop)

    def __repr__(self) -> str:
        """Name the process."""
        return f"MongodProcess(pid={self.pid}, uri={self.uri!r}, running={self.running})"

    @property
    def running(self) -> bool:
        """Whether the process is there (a stopped, frozen one is)."""
        return self._process.poll() is None

    @property
    def ending(self) -> str:
        """How it ended, in words: its exit code or the signal."""
        code = self._process.poll()
        if code is None:
            return "still running"
        return signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal; nothing happens if it is gone. ``stop`` afterwards, to wait."""
        self._process.send_signal(number)

    def stop(self, *, force: bool = False) -> None:
        """Shut it down and wait until it is gone. Safe to repeat.

        Args:
            force: kill it at once (its journal stays); else that is done when it has not gone in 10 s.
        """
        if os.getpid() != self._owner:  # a forked child has the object, but not the server
            return
        atexit.unregister(self.stop)
        if not force:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                _ = self._process.wait(STOP_SECONDS)
        self._process.kill()
        _ = self._process.wait()
        self._address.remove_scratch()


def start_mongod(
    directory: Path,
    *,
    replica_set: str | None = "rs0",
    port: int | None = None,
    parameters: Mapping[str, str] = _NO_PARAMETERS,
    arguments: Sequence[str] = (),
) -> MongodProcess:
    """Start mongod on ``directory`` (its data stays there) and return when it takes writes.

    Args:
        directory: gets ``db`` and ``run``, readable by this user only.
        replica_set: name of its replica set of one; ``None``: a standalone server.
        port: a loopback port, 0 for any free one; default: a unix socket where there are any.
        parameters: server parameters (``--setParameter``).
        arguments: more arguments; one of ours that appears here is left out.

    Raises:
        TopologyError: no binary, or it did not come up; the text ends with the end of its log.
    """
    binary = find_mongod()
    directory = directory.absolute()
    run = private_directory(directory / "run")
    _ = private_directory(directory / "db")
    address = choose_address(run, port)
    command = [
        *(str(binary), "--dbpath", str(directory / "db"), *address.arguments),
        *(["--replSet", replica_set] if replica_set else []),
        *_options(parameters, arguments),
    ]
    try:
        process = _spawn(command, run / "mongod.log")
    except OSError as error:
        address.remove_scratch()
        raise TopologyError(f"{binary} cannot be run: {error.strerror}") from error
    server = MongodProcess(process, address, directory, address.uri(replica_set))
    try:
        _wait_until_usable(server, address, replica_set)
    except BaseException:
        server.stop(force=True)
        raise
    return server


def _options(parameters: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    given = {argument.partition("=")[0] for argument in arguments}
    options = [part for flag, value in _DEFAULTS.items() if flag not in given for part in (flag, value)]
    for name, value in {"diagnosticDataCollectionEnabled": "false", **parameters}.items():
        options += ["--setParameter", f"{name}={value}"]
    return [*options, *arguments]


def _spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it from a thread that lives as long as it does, and reaps it.

    "Dies with its parent" means the parent's *thread* (prctl(2)): the caller's may end long before.
    """
    started: Future[subprocess.Popen[bytes]] = Future()

    def run() -> None:
        try:
            process = _popen(command, log)
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            started.set_exception(error)
            return
        started.set_result(process)
        _ = process.wait()

    threading.Thread(target=run, name="mnemongo-mongod", daemon=True).start()
    return started.result()


def _popen(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*_prefix(), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,  # Ctrl-C is for the caller, who then stops it
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


def _prefix() -> list[str]:
    if sys.platform == "linux" and sys.executable and not getattr(sys, "frozen", False):
        # SIGKILL: it also ends a server that is frozen. The journal keeps what was acknowledged.
        die = str(int(signal.SIGKILL))
        return [sys.executable, "-I", "-S", "-c", _WITH_PARENT, die, str(os.getpid())]
    return []


def _wait_until_usable(server: MongodProcess, address: Address, replica_set: str | None) -> None:
    def usable() -> bool:
        if not server.running:
            raise _failure(server, f"ended ({server.ending}) before it could be used")
        if not address.listening():
            return False
        return step_towards_primary(address, replica_set) if replica_set else _answers(address)

    try:
        if not poll(usable, seconds=START_SECONDS):
            raise _failure(server, f"was of no use after {START_SECONDS:.0f} s")
    except PyMongoError as error:
        raise _failure(server, f"refused to be set up: {error}") from error


def _answers(address: Address) -> bool:
    with boot_client(address) as client:
        return bool(client.admin.command("hello")["ok"])


def _failure(server: MongodProcess, what: str) -> TopologyError:
    log = server.directory / "run" / "mongod.log"
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    tail = "\n".join(f"  {_readable(line)}" for line in lines)
    return TopologyError(f"mongod on {server.directory} {what}; the end of its log:\n{tail}")


def _readable(line: str) -> str:
    """A log line without its attributes, which could hold documents; what is not JSON, as it is."""
    try:
        entry = json.loads(line)
        detail = entry.get("attr", {}).get("error", "")
        return f"{entry['s']} {entry['c']}: {entry['msg']} {detail}".rstrip()
    except (ValueError, KeyError, AttributeError, TypeError):
        return line
