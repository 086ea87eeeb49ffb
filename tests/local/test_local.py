"""The development server: found or started, one for all processes, gone with its process, its data kept."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import unquote

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from fix_mongod import Factory, wait_until
from mnemongo.errors import ConfigurationError, TopologyError
from mnemongo.local import LocalServer, find_mongod, local, start_mongod

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc for what is left")

Client = MongoClient[dict[str, Any]]
PASSWORD = "sw0rdfish"
LONG = "a" * 110


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the caller's, and no directory of the user's, is used."""
    monkeypatch.delenv("MONGODB_URI", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    """The directory of the user's server; no server is left on it when the test ends."""
    path = tmp_path / "data" / "mnemongo"
    yield path
    try:
        wait_until(lambda: not mongods(path), seconds=5)  # one killed with its parent takes a moment
    finally:
        for pid in mongods(path):
            os.kill(pid, signal.SIGKILL)


def mongods(directory: Path) -> list[int]:
    """The processes that run on a directory of the test's own, by their command line."""
    wanted = f"--dbpath\0{directory}/db\0".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if wanted in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def exists(pid: int) -> bool:
    """Whether a process that is not a zombie has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return b") Z " not in _read(Path(f"/proc/{pid}/stat"))


def recorded_pid(home: Path) -> int:
    return int(json.loads((home / "run" / "server.json").read_text())["pid"])


def value(uri: str) -> Any:
    """What ``store`` put there, or ``None``."""
    client: Client = MongoClient(uri, serverSelectionTimeoutMS=5000)
    with client:
        found = client.check.values.find_one({"_id": "the one"})
        return found and found["value"]


def store(uri: str, number: int) -> None:
    """Write in a transaction: only a replica set takes it."""
    client: Client = MongoClient(uri, serverSelectionTimeoutMS=5000)
    document = {"_id": "the one", "value": number}
    with client, client.start_session() as session, session.start_transaction():
        client.check.values.replace_one({"_id": "the one"}, document, upsert=True, session=session)


@contextmanager
def script(text: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python in another process; it is gone at the end."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def line(output: IO[str] | None) -> str:
    """Read the next line of a child; the time limit of the test bounds it."""
    assert output is not None
    return output.readline().strip()


HOLD = """
    import sys
    from mnemongo.local import local
    server = local()
    print(server.started, server.uri, flush=True)
    sys.stdin.readline()
    server.close()
    print("closed", flush=True)
"""


class TestStarting:
    def test_a_replica_set_in_private_directories_without_a_port(self, home: Path) -> None:
        with local() as server:
            assert server.started
            store(server.uri, 1)
            assert value(server.uri) == 1
            assert [oct(path.stat().st_mode & 0o777) for path in (home, home / "db", home / "run")] == [
                "0o700"
            ] * 3
            assert _listening_ports(recorded_pid(home)) == []
            assert _listening_paths(recorded_pid(home)) == [str(home / "run" / "m.sock")]

    def test_its_journal_is_small(self, home: Path) -> None:
        with local():
            size = sum(path.stat().st_size for path in (home / "db").rglob("*") if path.is_file())
        assert size < 30_000_000

    def test_its_data_is_there_in_the_next_run(self) -> None:
        with local() as server:
            store(server.uri, 7)
        with local() as server:
            assert server.started
            assert value(server.uri) == 7

    def test_another_directory_is_another_server(self, tmp_path: Path) -> None:
        with local() as mine, local(directory=tmp_path / "other") as other:
            assert other.started
            store(mine.uri, 1)
            assert value(other.uri) is None

    def test_it_outlives_the_thread_that_asked_for_it(self, home: Path) -> None:
        servers: list[LocalServer] = []
        thread = threading.Thread(target=lambda: servers.append(local()))
        thread.start()
        thread.join(60)
        with servers[0] as server:
            store(server.uri, 1)
            assert exists(recorded_pid(home))

    @pytest.mark.parametrize("name", [LONG, "a,b:c d é"])
    def test_a_directory_no_socket_can_be_in(self, tmp_path: Path, name: str) -> None:
        directory = tmp_path / name
        for number in (1, 2):  # the member's host is another one each time
            with local(directory=directory) as server:
                path = Path(unquote(server.uri.removeprefix("mongodb://").partition("/")[0]))
                assert path.is_socket()
                assert path.parent.stat().st_mode & 0o777 == 0o700
                assert value(server.uri) == (None if number == 1 else 1)
                store(server.uri, number)
            assert not path.parent.exists()

    def test_the_host_of_the_member_has_changed(self, mongod_factory: Factory, tmp_path: Path) -> None:
        for number, port in enumerate([None, 0, 0, None]):
            process = mongod_factory(tmp_path / "m", port=port)
            assert value(process.uri) == (number or None)
            store(process.uri, number + 1)
            process.stop(force=number == 1)

    def test_a_port_is_bound_on_the_loopback_only(self, mongod_factory: Factory) -> None:
        process = mongod_factory(port=0)
        assert {host for host, _ in _listening_ports(process.pid)} == {"127.0.0.1"}

    def test_a_start_that_crashed_before_the_set_was_initiated(
        self, mongod_factory: Factory, tmp_path: Path
    ) -> None:
        mongod_factory(tmp_path / "m", replica_set=None).stop(force=True)
        store(mongod_factory(tmp_path / "m").uri, 1)

    def test_a_standalone_server(self, mongod_factory: Factory) -> None:
        client: Client = MongoClient(mongod_factory(replica_set=None).uri)
        with client:
            assert "setName" not in client.admin.command("hello")

    def test_parameters_and_arguments_are_passed_on(self, mongod_factory: Factory) -> None:
        process = mongod_factory(
            parameters={"ttlMonitorSleepSecs": "1"}, arguments=["--wiredTigerCacheSizeGB", "0.5"]
        )
        client: Client = MongoClient(process.uri)
        with client:
            options = client.admin.command("getCmdLineOpts")["parsed"]
        assert options["setParameter"]["ttlMonitorSleepSecs"] == "1"
        assert options["storage"]["wiredTiger"]["engineConfig"]["cacheSizeGB"] == 0.5

    def test_a_failed_start_shows_the_end_of_the_log_and_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(TopologyError, match=r"exit code(.|\n)*noSuchParameter"):
            start_mongod(tmp_path / "m", parameters={"noSuchParameter": "1"})
        assert mongods(tmp_path / "m") == []

    def test_what_is_no_mongod(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MONGOD", _binary(tmp_path / "fake", "#!/bin/sh\necho I am no server\nexit 3\n"))
        with pytest.raises(TopologyError, match=r"exit code 3(.|\n)*I am no server"):
            local()


def _listening_ports(pid: int) -> list[tuple[str, int]]:
    """The TCP end points a process listens on."""
    rows = [row for table in ("tcp", "tcp6") for row in _rows(pid, table)]
    inodes = _socket_inodes(pid)
    ends = [row[1].split(":") for row in rows if row[3] == "0A" and row[9] in inodes]
    return [(_host(host), int(port, 16)) for host, port in ends]


def _listening_paths(pid: int) -> list[str]:
    """The unix sockets a process listens on."""
    inodes = _socket_inodes(pid)
    return [row[7] for row in _rows(pid, "unix") if row[3] == "00010000" and row[6] in inodes]


def _rows(pid: int, table: str) -> list[list[str]]:
    return [row.split() for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]


def _socket_inodes(pid: int) -> set[str]:
    targets = [_target(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return {target[8:-1] for target in targets if target.startswith("socket:[")}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _host(hexadecimal: str) -> str:
    if len(hexadecimal) != 8:
        return hexadecimal
    return socket.inet_ntoa(bytes.fromhex(hexadecimal)[::-1])


def _binary(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


class TestFinding:
    def test_a_running_server_is_used_and_left_alone(self, home: Path) -> None:
        with local() as first:
            second = local()
            assert (second.started, second.uri) == (False, first.uri)
            second.close()
            store(first.uri, 1)
            assert exists(recorded_pid(home))

    def test_a_server_of_another_process_is_used_and_left_alone(self) -> None:
        with script(HOLD) as other:
            _, uri = line(other.stdout).split()
            with local() as server:
                assert (server.started, server.uri) == (False, uri)
                store(uri, 3)
            assert value(uri) == 3

    def test_starts_at_the_same_moment_end_at_one_server(self, home: Path) -> None:
        with script(HOLD) as one, script(HOLD) as two, script(HOLD) as three:
            answers = [line(child.stdout).split() for child in (one, two, three)]
            assert sorted(started for started, _ in answers) == ["False", "False", "True"]
            (uri,) = {uri for _, uri in answers}
            store(uri, 1)
            assert len(mongods(home)) == 1

    def test_a_start_while_the_earlier_server_shuts_down(self, home: Path) -> None:
        with script(HOLD) as other:
            line(other.stdout)
            pid = recorded_pid(home)
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            wait_until(lambda: not (home / "run" / "server.json").exists())
            assert exists(pid)  # it takes a second
            with local() as server:
                assert server.started
                assert not exists(pid)

    def test_it_closes_only_once_and_forgets_its_record(self, home: Path) -> None:
        server = local()
        pid = recorded_pid(home)
        server.close()
        assert not exists(pid)
        assert not (home / "run" / "server.json").exists()
        with local() as second:
            server.close()
            assert exists(recorded_pid(home))
            store(second.uri, 1)

    def test_the_default_port_is_never_probed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[object] = []
        connect = socket.socket.connect

        def watched(self: socket.socket, address: Any) -> None:
            seen.append(address)
            connect(self, address)

        monkeypatch.setattr(socket.socket, "connect", watched)
        with local() as server, local():
            assert server.started
        assert {type(address) for address in seen} == {str}

    def test_mongod_names_the_binary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = str(find_mongod())
        monkeypatch.setenv("MONGOD", _binary(tmp_path / "mine", f'#!/bin/sh\nexec {real} "$@"\n'))
        assert find_mongod() == tmp_path / "mine"
        with local() as server:
            store(server.uri, 1)

    def test_mongod_on_the_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MONGOD", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        path = _binary(tmp_path / "mongod", "")
        assert find_mongod() == Path(path)

    def test_the_extra_is_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MONGOD", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        binary = importlib.import_module("mnemongo.local.binary")
        fake = Path(_binary(tmp_path / "x", "")).rename(tmp_path / "mongod-of-the-extra")
        monkeypatch.setattr(binary, "USUAL_FOLDERS", (str(tmp_path / "no*such"),))
        monkeypatch.setattr(binary, "distribution", lambda _: _Distribution(fake))
        assert find_mongod() == fake

    @pytest.mark.usefixtures("nothing")
    def test_nothing_found_names_all_that_was_looked_for(self) -> None:
        with pytest.raises(TopologyError) as caught:
            local()
        words = ("uri=", "MONGODB_URI", "running", "MONGOD ", "PATH", "usual folders", "mnemongo[local]")
        assert all(word in str(caught.value) for word in words)
        assert isinstance(caught.value, ConfigurationError)

    def test_a_running_server_needs_no_binary(self, request: pytest.FixtureRequest) -> None:
        with local() as first:
            request.getfixturevalue("nothing")
            assert local().uri == first.uri


class _Distribution:
    """An installed distribution with one file."""

    def __init__(self, path: Path) -> None:
        self.files = [self]
        self.name = "mongod"
        self._path = path

    def locate(self) -> Path:
        return self._path


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No mongod is installed."""
    monkeypatch.delenv("MONGOD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = importlib.import_module("mnemongo.local.binary")
    monkeypatch.setattr(binary, "USUAL_FOLDERS", ())
    monkeypatch.setattr(binary, "EXTRA_DISTRIBUTIONS", ("no-such-distribution",))


class TestExplicitSettings:
    """One that fails is an error: nothing else is tried, nothing is started."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
        monkeypatch.setattr(importlib.import_module("mnemongo.local.server"), "GIVEN_SECONDS", 0.3)
        yield
        assert not (home / "db").exists()

    def test_a_uri_that_answers_is_handed_out_as_it_is(self, mongodb_uri: str) -> None:
        with local(mongodb_uri) as server:
            assert (server.uri, server.started) == (mongodb_uri, False)
        assert value(mongodb_uri) is None

    def test_a_standalone_uri_too(self, standalone_uri: str) -> None:
        assert local(standalone_uri).uri == standalone_uri

    def test_mongodb_uri(self, mongodb_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MONGODB_URI", mongodb_uri)
        assert local().uri == mongodb_uri

    def test_the_argument_goes_first(self, mongodb_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MONGODB_URI", "mongodb://127.0.0.1:1/")
        assert local(mongodb_uri).uri == mongodb_uri

    @pytest.mark.parametrize(
        "uri",
        [
            f"mongodb://ann:{PASSWORD}@127.0.0.1:1/",
            f"mongodb://ann:{PASSWORD}",
            f"mongodb://ann:x@{PASSWORD}@127.0.0.1:1/",
            f"mongodb://ann:{PASSWORD}:x@127.0.0.1:1/",
            f"mongodb://ann:x/{PASSWORD}@127.0.0.1:1/",
            f"ann:{PASSWORD}@127.0.0.1",
            f"mongodb://ann:{PASSWORD}@127.0.0.1:1/?timeoutMS=x",
            "mongodb://127.0.0.1:1/?tls=true&tlsCertificateKeyFile=/no/such",
            "",
        ],
    )
    @pytest.mark.parametrize("origin", ["the uri= argument", "MONGODB_URI"])
    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_one_that_does_not_work(self, uri: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if origin == "MONGODB_URI":
            monkeypatch.setenv("MONGODB_URI", uri or "mongodb://")
        with pytest.raises(TopologyError) as caught:
            local(uri if origin != "MONGODB_URI" else None)
        assert origin in str(caught.value)
        assert PASSWORD not in _told(caught.value)

    def test_a_driver_that_quotes_the_uri(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(uri: str, **_: object) -> None:
            raise ValueError(uri)

        monkeypatch.setattr(importlib.import_module("mnemongo.local.server"), "MongoClient", refuse)
        with pytest.raises(TopologyError, match="not a valid") as caught:
            local(f"mongodb://ann:{PASSWORD}@127.0.0.1:1/")
        assert PASSWORD not in _told(caught.value)

    def test_a_password_that_is_refused(self, mongodb_uri: str) -> None:
        uri = mongodb_uri.replace("mongodb://", f"mongodb://ann:{PASSWORD}@")
        with pytest.raises(TopologyError, match="OperationFailure") as caught:
            local(uri)
        assert PASSWORD not in _told(caught.value)

    def test_no_password_in_the_repr(self, mongodb_uri: str) -> None:
        assert "mongodb" not in repr(LocalServer(mongodb_uri))

    def test_mongod_that_cannot_be_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in (tmp_path / "missing", tmp_path, Path(__file__)):
            monkeypatch.setenv("MONGOD", str(path))
            with pytest.raises(TopologyError, match="MONGOD="):
                find_mongod()
            with pytest.raises(TopologyError, match="MONGOD="):
                local()


def _told(error: BaseException | None) -> str:
    """All that a traceback shows of an error and its causes."""
    texts = []
    while error is not None:
        texts.append(f"{error} {error!r}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


class TestCrashes:
    def test_stale_files_after_kill_9_of_mongod(self, home: Path) -> None:
        first = local()
        store(first.uri, 5)
        pid = recorded_pid(home)
        os.kill(pid, signal.SIGKILL)
        with local() as second:
            assert second.started
            assert value(second.uri) == 5
            assert recorded_pid(home) != pid
            first.close()  # stops what it started, not what took its place
            assert local().uri == second.uri

    @pytest.mark.parametrize("text", ["{", '{"pid": 1}', '{"pid": PID, "uri": "mongodb://x/"}'])
    def test_a_record_that_means_nothing(self, home: Path, text: str) -> None:
        (home / "run").mkdir(parents=True)
        (home / "run" / "server.json").write_text(text.replace("PID", str(2**22 + 1)))
        with local() as server:
            assert server.started

    def test_a_recorded_id_that_is_another_process_by_now(self, home: Path, mongodb_uri: str) -> None:
        (home / "run").mkdir(parents=True)
        record = {"pid": os.getpid(), "uri": mongodb_uri}  # it answers, but it is not that process
        (home / "run" / "server.json").write_text(json.dumps(record))
        with local() as server:
            assert server.started
            assert server.uri != mongodb_uri

    def test_a_frozen_server_is_an_error_not_a_second_server(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module("mnemongo.local.server")
        monkeypatch.setattr(module, "FOUND_SECONDS", 0.3)
        monkeypatch.setattr(module, "RELEASE_SECONDS", 0.3)
        with local():
            pid = recorded_pid(home)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(TopologyError, match="does not answer"):
                    local()
            finally:
                os.kill(pid, signal.SIGCONT)

    def test_a_killed_parent_leaves_no_server(self, home: Path) -> None:
        with script(HOLD) as parent:
            line(parent.stdout)
            pid = recorded_pid(home)
            assert exists(pid)
            parent.send_signal(signal.SIGKILL)
            wait_until(lambda: not exists(pid))
        with local() as server:
            assert server.started

    def test_a_killed_parent_leaves_no_throw_away_server_not_even_a_frozen_one(self, tmp_path: Path) -> None:
        text = f"""
            import signal, sys
            from pathlib import Path
            from mnemongo.local import start_mongod
            process = start_mongod(Path({str(tmp_path)!r}))
            process.kill(signal.SIGSTOP)
            print(process.pid, flush=True)
            sys.stdin.readline()
        """
        with script(text) as parent:
            pid = int(line(parent.stdout))
            parent.send_signal(signal.SIGKILL)
            wait_until(lambda: not exists(pid))

    @pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt"])
    def test_the_end_of_the_interpreter_stops_it(self, home: Path, end: str) -> None:
        with script(f"from mnemongo.local import local\nlocal()\n{end}") as child:
            child.communicate(timeout=60)
        assert mongods(home) == []
        assert not (home / "run" / "server.json").exists()
        with local() as server:
            assert server.started

    def test_the_end_of_the_interpreter_shuts_a_throw_away_server_down(self, tmp_path: Path) -> None:
        text = f"""
            from pathlib import Path
            from mnemongo.local import start_mongod
            start_mongod(Path({str(tmp_path)!r}))
        """
        with script(text) as child:
            _ = child.communicate(timeout=60)
        assert mongods(tmp_path) == []
        assert '"exitCode":0' in (tmp_path / "run" / "mongod.log").read_text()

    def test_a_forked_child_does_not_stop_it(self) -> None:
        text = """
            import os, signal, sys, warnings
            from mnemongo.local import local
            server = local()
            warnings.simplefilter("ignore")  # Python 3.12 warns of a fork with threads
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # it must not hang
                server.close()
                sys.exit(0)  # with its atexit functions
            os.waitpid(child, 0)
            print(server.uri, flush=True)
            sys.stdin.readline()
        """
        with script(text) as parent:
            uri = line(parent.stdout)
            store(uri, 1)
            assert local().uri == uri

    def test_an_interrupted_start_leaves_nothing(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        module = importlib.import_module("mnemongo.local.mongod")

        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, "step_towards_primary", interrupt)
            with pytest.raises(KeyboardInterrupt):
                local()
        assert mongods(home) == []
        with local() as server:
            store(server.uri, 1)

    def test_a_start_that_takes_too_long_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = importlib.import_module("mnemongo.local.mongod")
        monkeypatch.setattr(module, "step_towards_primary", lambda *_: False)
        monkeypatch.setattr(module, "START_SECONDS", 0.5)
        with pytest.raises(TopologyError, match="of no use after"):
            local()


class TestStopping:
    def test_by_its_id_and_for_good(self, mongod_factory: Factory) -> None:
        process = mongod_factory()
        process.stop()
        assert not exists(process.pid)
        assert not process.running
        process.stop()
        process.kill()

    def test_a_frozen_one_is_killed(self, mongod_factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.import_module("mnemongo.local.mongod"), "STOP_SECONDS", 0.3)
        process = mongod_factory()
        process.kill(signal.SIGSTOP)
        process.stop()
        assert not exists(process.pid)

    def test_kill_9_and_again_on_the_same_directory(self, mongod_factory: Factory, tmp_path: Path) -> None:
        process = mongod_factory(tmp_path / "m")
        store(process.uri, 9)
        process.kill(signal.SIGKILL)
        wait_until(lambda: not process.running)
        with pytest.raises(PyMongoError):
            _ping(process.uri)
        again = mongod_factory(tmp_path / "m")
        assert again.uri == process.uri
        assert value(again.uri) == 9


def _ping(uri: str) -> None:
    client: Client = MongoClient(uri, serverSelectionTimeoutMS=200)
    with client:
        client.admin.command("ping")


class TestFixtures:
    """What ``fix_mongod`` promises the other tests."""

    used: ClassVar[list[str]] = []

    def test_two_servers(self, mongodb_uri: str, standalone_uri: str) -> None:
        assert mongodb_uri != standalone_uri

    def test_a_database_of_ones_own(self, database_name: str, mongodb_uri: str) -> None:
        client: Client = MongoClient(mongodb_uri)
        with client:
            assert not {*self.used, database_name} & set(client.list_database_names())
            client[database_name].values.insert_one({})
        self.used.append(database_name)

    test_another_one = test_a_database_of_ones_own

    def test_the_monitors_of_the_tests(self, mongodb_uri: str) -> None:
        client: Client = MongoClient(mongodb_uri)
        with client:
            reply = client.admin.command({"getParameter": 1, "ttlMonitorSleepSecs": 1})
        assert reply["ttlMonitorSleepSecs"] == 1
