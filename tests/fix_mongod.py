"""The servers the tests run on: real ones, started here, or the one that ``--mongodb-uri`` names.

``mongodb_uri`` is a replica set, ``standalone_uri`` is not; ``mongod_factory`` starts servers to kill.
Without a server to run, a test that needs one fails: it is never skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from mnemongo.errors import MnemongoError
from mnemongo.local import MongodProcess, find_mongod, local, start_mongod

TEST_PARAMETERS = {"enableTestCommands": "1", "ttlMonitorSleepSecs": "1"}
READY_SECONDS = 60.0
_PORT = 27017

Client = MongoClient[dict[str, Any]]


class Factory(Protocol):
    """Starts a mongod; the arguments are those of ``start_mongod``, the directory a new one by default."""

    def __call__(self, directory: Path | None = None, **options: Any) -> MongodProcess:
        """Start one."""
        ...


def wait_until(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Poll ``condition`` until it holds; fail the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so after {seconds} s: {condition}")
        time.sleep(0.01)


class Servers:
    """What the session runs on: each server is started when it is first asked for."""

    def __init__(self, config: pytest.Config, directory: Callable[[], Path]) -> None:
        self._uri: str | None = config.getoption("--mongodb-uri")
        self._image: str | None = config.getoption("--mongodb-image")
        self._directory = directory
        self._started: dict[bool, str] = {}
        self._stack = ExitStack()

    def replica_set(self) -> str:
        """Return the URI of a replica set."""
        if self._uri is not None and True not in self._started:
            self._started[True] = local(self._uri).uri
        return self._one(replica_set=True)

    def standalone(self) -> str:
        """Return the URI of a server without one: always our own, whatever ``--mongodb-uri`` names."""
        return self._one(replica_set=False)

    def drop(self, name: str) -> None:
        """Drop a database wherever it may have been made."""
        for uri in self._started.values():
            client: Client = MongoClient(uri)
            with client, pymongo.timeout(30):
                client.drop_database(name)

    def close(self) -> None:
        """Stop all that was started here."""
        self._stack.close()

    def _one(self, *, replica_set: bool) -> str:
        if replica_set not in self._started:
            start = self._container if self._image else self._process
            self._started[replica_set] = start(replica_set)
        return self._started[replica_set]

    def _process(self, replica_set: bool) -> str:
        name = "rs0" if replica_set else None
        process = start_mongod(self._directory(), replica_set=name, parameters=TEST_PARAMETERS)
        _ = self._stack.callback(_discard, process)
        return process.uri

    def _container(self, replica_set: bool) -> str:
        containers = import_module("testcontainers.core.container")
        command = "mongod --bind_ip_all" + (" --replSet rs0" if replica_set else "")
        for name, value in TEST_PARAMETERS.items():
            command += f" --setParameter {name}={value}"
        container = containers.DockerContainer(self._image).with_command(command).with_exposed_ports(_PORT)
        self._stack.enter_context(container)
        host = f"{container.get_container_host_ip()}:{container.get_exposed_port(_PORT)}"
        # Direct: the member's name is the one inside the container.
        uri = f"mongodb://{host}/?directConnection=true"
        wait_until(lambda: _ready(uri, replica_set), seconds=READY_SECONDS)
        return uri


def _discard(process: MongodProcess) -> None:
    """Stop it and remove its files: pytest would keep them for three sessions."""
    process.stop(force=True)
    shutil.rmtree(process.directory, ignore_errors=True)


def _ready(uri: str, replica_set: bool) -> bool:
    """One step: initiate the container's set if it has none; whether it takes writes."""
    client: Client = MongoClient(uri, serverSelectionTimeoutMS=1000)
    with client:
        try:
            hello = client.admin.command("hello")
            if replica_set and "setName" not in hello:
                members = [{"_id": 0, "host": f"localhost:{_PORT}"}]
                _ = client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        except PyMongoError:
            return False
        return bool(hello["isWritablePrimary"] and replica_set == ("setName" in hello))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mnemongo")
    group.addoption("--mongodb-uri", metavar="URI", help="run on this replica set, not on one started here")
    group.addoption("--mongodb-image", metavar="IMAGE", help="run on containers of this image (needs Docker)")


def pytest_configure(config: pytest.Config) -> None:
    image = config.getoption("--mongodb-image")
    if image is None:
        return
    if config.getoption("--mongodb-uri") is not None:
        raise pytest.UsageError("give --mongodb-uri or --mongodb-image, not both")
    try:
        client = import_module("docker").from_env()
        _ = import_module("testcontainers.core.container")
    except ImportError as error:
        raise pytest.UsageError(f"--mongodb-image needs: pip install testcontainers ({error})") from error
    except Exception as error:
        raise pytest.UsageError(f"--mongodb-image {image}: no Docker engine answers ({error})") from error
    client.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [
        f"mongodb: {_server(config)}",
        f"versions: pymongo {pymongo.version}, mnemongo {_version('mnemongo')}",
    ]


def _server(config: pytest.Config) -> str:
    if image := config.getoption("--mongodb-image"):
        return f"containers of {image}"
    try:
        if uri := config.getoption("--mongodb-uri"):
            client: Client = MongoClient(local(uri).uri)
            with client:
                return f"{client.server_info()['version']} (--mongodb-uri)"
        binary = find_mongod()
        shown = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
        return f"{shown.stdout.partition(os.linesep)[0] or shown.stderr.strip()} ({binary})"
    except (MnemongoError, OSError, subprocess.TimeoutExpired) as error:
        return f"none: {str(error).partition(os.linesep)[0]}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed, from the sources"


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of this session."""
    started = Servers(pytestconfig, lambda: tmp_path_factory.mktemp("m"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def mongodb_uri(servers: Servers) -> str:
    """A replica set."""
    return servers.replica_set()


@pytest.fixture(scope="session")
def standalone_uri(servers: Servers) -> str:
    """A server without a replica set."""
    return servers.standalone()


@pytest.fixture
def database_name(servers: Servers) -> Iterator[str]:
    """A new database's name; the database is dropped afterwards, on every server of the session."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    servers.drop(name)


@pytest.fixture
def mongod_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Factory]:
    """Start throw-away servers (to kill, freeze, fill); all are gone when the test ends."""
    started: list[MongodProcess] = []

    def start(directory: Path | None = None, **options: Any) -> MongodProcess:
        options.setdefault("parameters", TEST_PARAMETERS)
        process = start_mongod(directory or tmp_path_factory.mktemp("m"), **options)
        started.append(process)
        return process

    yield start
    for process in started:
        _discard(process)
