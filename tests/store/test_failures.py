"""The one translation of the driver's errors: on real refusals, and by its table. No text holds a value."""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import bson.errors
import pytest
from pymongo import MongoClient
from pymongo import errors as driver

from mnemongo import Store, errors
from mnemongo.commands import DuplicateError, Plan, RefusedError, find, finding, insert_one, operation
from mnemongo.drive import UNCONVERTIBLE, refusal, translated, unconvertible
from mnemongo.plans import entries, sessions, setup, state
from mnemongo.schema import APP_STATES
from store.harness import KEY, Client, Opened, Opener, entry, failing

SECRET = "s3cr3t-payload"
PASSWORD = "pa55w0rd"


@operation()
def inserting(value: Any) -> Plan[None]:
    """One insert into a collection of state."""
    yield from insert_one(APP_STATES, {"_id": "x", "state": value})


@operation(atomic=True)
def inserting_atomically(value: Any) -> Plan[None]:
    """The same in a transaction."""
    yield from insert_one(APP_STATES, {"_id": "x", "state": value})


BOTH = pytest.mark.parametrize("op", [inserting, inserting_atomically])


async def failure(opened: Opened, op: Any, kind: type[BaseException]) -> Any:
    with pytest.raises(kind) as caught:
        _ = await opened.run(op)
    assert type(caught.value) is kind
    assert op.name in str(caught.value)
    assert SECRET not in str(caught.value)
    return caught.value


@BOTH
async def test_a_validator(opener: Opener, server_client: Client, op: Any) -> None:
    _ = server_client[opener.database].create_collection(APP_STATES, validator={"state": {"$type": "int"}})
    error = await failure(await opener.ready(), op(SECRET), errors.DocumentError)
    assert error.__cause__.code == 121


@BOTH
async def test_a_document_over_the_limit(opener: Opener, server_client: Client, op: Any) -> None:
    opened = await opener.ready()
    _ = server_client[opener.database].create_collection(APP_STATES)
    error = await failure(opened, op(SECRET + "x" * (17 << 20)), errors.DocumentTooLargeError)
    assert error.__cause__ is not None
    assert server_client[opener.database][APP_STATES].find_one() is None


@BOTH
@pytest.mark.parametrize(
    "value",
    [1 << 64, "\ud800", {"a": object()}, {1: 2}, uuid.UUID(int=5)],
    ids=["65 bits", "surrogate", "object", "int key", "uuid"],
)
async def test_a_value_bson_cannot_hold(opener: Opener, op: Any, value: object) -> None:
    opened = await opener.ready()
    with pytest.raises(errors.DocumentError) as caught:
        await opened.run(op(value))
    assert caught.value.__cause__ is not None
    assert "insert" not in opened.recorder.names


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (13, errors.ConfigurationError),
        (18, errors.ConfigurationError),
        (20, errors.TopologyError),
        (85, errors.ConfigurationError),
        (86, errors.ConfigurationError),
        (10334, errors.DocumentTooLargeError),
        (17419, errors.DocumentTooLargeError),
        (17420, errors.DocumentTooLargeError),
        (9999, errors.MnemongoError),
    ],
)
@pytest.mark.parametrize("command", ["aggregate", "insert"])
async def test_a_code_of_the_server(
    opener: Opener, code: int, kind: type[errors.MnemongoError], command: str
) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app, timeout=5)
    _ = await opened.run(sessions.create(KEY))
    op = entries.append(KEY, entry("e1", SECRET))
    opened.recorder.clear()
    with failing(opener.uri, command, errorCode=code, appName=app):
        error = await failure(opened, op, kind)
    assert isinstance(error.__cause__, driver.OperationFailure)
    assert error.__cause__.code == code
    assert opened.recorder.names.count(command) <= 2  # not tried again to the limit
    if kind is errors.MnemongoError:
        assert "9999" in str(error)


@pytest.mark.parametrize("code", [112, 50, 24, 189, 262])
async def test_a_passing_trouble_passes(opener: Opener, code: int) -> None:
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app)
    _ = await opened.run(sessions.create(KEY))
    with failing(opener.uri, "insert", times=2, errorCode=code, appName=app):
        _ = await opened.run(entries.append_many(KEY, [entry("e1"), entry("e2")]))
    with failing(opener.uri, "aggregate", times=2, errorCode=code, appName=app):
        assert len(await opened.run(entries.page(KEY))) == 2


@pytest.mark.bare
async def test_indexes_that_differ(opener: Opener, server_client: Client) -> None:
    events = server_client[opener.database]["events"]
    _ = events.create_index([("x", 1)], name="mnemongo_place")
    opened = opener()
    error = await failure(opened, setup.indexes(), errors.ConfigurationError)
    assert error.__cause__.code == 86
    events.drop_indexes()
    same = [("app_name", 1), ("user_id", 1), ("session_id", 1), ("revision", 1)]
    _ = events.create_index(same, name="another", unique=True)
    error = await failure(opened, setup.indexes(), errors.ConfigurationError)
    assert error.__cause__.code == 85
    assert "drop" in str(error)


async def test_a_transaction_number_the_client_cannot_have(opener: Opener) -> None:
    """An unknown command of a plan is a fault of ours, never swallowed."""
    opened = await opener.ready()

    @operation()
    def wrong() -> Plan[Any]:
        return (yield from find(finding(APP_STATES, {"$nonsense": SECRET}, limit=1)))

    error = await failure(opened, wrong(), errors.MnemongoError)
    assert error.__cause__.code == 2


# The table


UNITS = [
    (driver.ServerSelectionTimeoutError("x"), False, errors.UnavailableError),
    (driver.AutoReconnect("x"), False, errors.UnavailableError),
    (driver.AutoReconnect("x"), True, errors.OutcomeUnknownError),
    (driver.NetworkTimeout("x"), True, errors.OutcomeUnknownError),
    (driver.NotPrimaryError("x"), False, errors.UnavailableError),
    (driver.WaitQueueTimeoutError("x"), False, errors.UnavailableError),
    (driver.ExecutionTimeout("x", 50), False, errors.UnavailableError),
    (driver.OperationFailure("x", 112), False, errors.UnavailableError),
    (driver.OperationFailure("x", 13), True, errors.ConfigurationError),
    (driver.OperationFailure("x", None), False, errors.ConfigurationError),
    (driver.ConfigurationError("x"), False, errors.ConfigurationError),
    (driver.InvalidOperation("x"), False, errors.ConfigurationError),
    (DuplicateError(("_id",)), False, errors.UnavailableError),
    (DuplicateError(("_id",)), True, errors.OutcomeUnknownError),
]


@pytest.mark.parametrize(
    ("error", "written", "kind"), UNITS, ids=[f"{type(e).__name__}-{w}" for e, w, _ in UNITS]
)
def test_the_table(error: BaseException, written: bool, kind: type[errors.MnemongoError]) -> None:
    found = translated(error, "entries.append", may_be_written=written)
    assert type(found) is kind
    assert str(found).startswith("entries.append: ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (driver.DocumentTooLarge("x"), errors.DocumentTooLargeError),
        (bson.errors.InvalidDocument("x"), errors.DocumentError),
        (OverflowError("x"), errors.DocumentError),
        (RecursionError("x"), errors.DocumentError),
    ],
)
def test_what_cannot_be_encoded(error: Exception, kind: type[errors.MnemongoError]) -> None:
    assert isinstance(error, UNCONVERTIBLE)
    found = unconvertible(error, "entries.append")
    assert type(found) is kind
    assert str(found).startswith("entries.append: ")


def test_what_a_plan_is_told() -> None:
    single = driver.DuplicateKeyError("x", 11000, {"code": 11000, "keyPattern": {"a": 1, "b": 1}})
    told = refusal(single)
    assert isinstance(told, DuplicateError)
    assert (told.index, told.on_id) == (("a", "b"), False)
    many = driver.BulkWriteError({"writeErrors": [{"code": 11000, "keyPattern": {"_id": 1}}]})
    told = refusal(many)
    assert isinstance(told, DuplicateError)
    assert told.on_id
    assert isinstance(refusal(driver.WriteError("x", 66, {"code": 66})), RefusedError)
    assert refusal(driver.WriteError("x", 121, {"code": 121})) is None
    assert refusal(driver.BulkWriteError({"writeErrors": []})) is None


# Users, passwords, payloads


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with --auth, and its address without a user."""
    from mnemongo.local import start_mongod  # noqa: PLC0415

    directory = tmp_path_factory.mktemp("m")
    key_file = Path(directory) / "key"
    _ = key_file.write_text("c2VjcmV0c2VjcmV0c2VjcmV0")
    key_file.chmod(0o600)
    first = start_mongod(directory)
    client: Client = MongoClient(first.uri)
    with client:
        roles = {"root": "root", "reader": {"role": "read", "db": "x"}, "nobody": None}
        for user, role in roles.items():
            given = [role] if role else []
            _ = client.admin.command("createUser", user, pwd=PASSWORD, roles=given)
        Store(client, "x").setup()
    first.stop()
    second = start_mongod(directory, replica_set=None, arguments=["--auth", "--setParameter", "x"][:1])
    yield second.uri
    second.stop(force=True)


def with_user(uri: str, user: str, password: str = PASSWORD) -> str:
    return f"mongodb://{user}:{quote(password)}@{urlsplit(uri).netloc}/?authSource=admin"


@pytest.fixture
async def users(colour: str, guarded: str):
    made = Opener(colour, guarded, "x")

    def log_in(user: str, password: str = PASSWORD) -> Opened:
        opened = made(with_user(guarded, user, password), timeout=5)
        opened.store._transactions = False  # a standalone here: users and roles are the same
        return opened

    yield log_in
    await made.close()


async def test_a_user_without_privileges(users: Any) -> None:
    opened = users("nobody")
    for op in (sessions.get(KEY), entries.append(KEY, entry("e", SECRET), after=1 << 28), setup.indexes()):
        error = await failure(opened, op, errors.ConfigurationError)
        assert error.__cause__.code == 13
        assert "privilege" in str(error)


async def test_a_user_who_may_only_read(users: Any) -> None:
    opened = users("reader")
    assert await opened.run(sessions.get(KEY)) is None
    error = await failure(opened, sessions.create(KEY, state={"a": SECRET}), errors.ConfigurationError)
    assert error.__cause__.code == 13


async def test_a_wrong_password(users: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    opened = users("reader", "wr0ng-pa55")
    error = await failure(opened, sessions.get(KEY), errors.ConfigurationError)
    assert error.__cause__.code == 18
    assert "wr0ng" not in "".join(traceback.format_exception(error))
    assert not any("wr0ng" in record.getMessage() for record in caplog.records if "mnemongo" in record.name)


async def test_no_payload_in_an_error_or_a_log(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    """Refusals of every kind, with the payload in the entry: none of it in a text of ours."""
    caplog.set_level(logging.DEBUG, logger="mnemongo")
    app = uuid.uuid4().hex
    opened = await opener.ready(appname=app, timeout=0.5)
    _ = await opened.run(sessions.create(KEY, state={"a": SECRET}))
    stored = await opened.run(entries.append(KEY, entry("e1", SECRET)))
    caught: list[BaseException] = []

    async def refused(op: Any) -> None:
        with pytest.raises(errors.MnemongoError) as raised:
            _ = await opened.run(op)
        caught.append(raised.value)

    await refused(entries.append(KEY, entry("e1", SECRET + "2")))
    await refused(entries.append_many(KEY, [entry("e1", SECRET + "2"), entry("e2", SECRET)]))
    await refused(entries.append(KEY, entry("e3", SECRET), expected=stored.revision - 1))
    await refused(sessions.create(KEY, state={"b": SECRET}))
    for code in (13, 121, 112, 9999):
        with failing(opener.uri, "insert", errorCode=code, appName=app):
            await refused(entries.append(KEY, entry("e4", SECRET)))
            await refused(entries.append_many(KEY, [entry("e4", SECRET), entry("e5", SECRET)]))
    with pytest.raises(errors.DocumentError) as raised:
        _ = state.merge(KEY, {"a": {SECRET, SECRET + "2"}})
    caught.append(raised.value)
    for error in caught:
        facts = [str(error), repr(error), *map(repr, vars(error).values())]
        assert not any(SECRET in fact for fact in facts), facts
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("mnemongo")]
    assert not any(SECRET in text for text in texts)


async def test_no_password_in_an_error_or_a_repr(opener: Opener) -> None:
    uri = f"mongodb://ann:{PASSWORD}@127.0.0.1:1/"
    opened = opener(uri, timeout=0.3)
    error = await failure(opened, sessions.get(KEY), errors.UnavailableError)
    shown = "".join(traceback.format_exception(error)) + repr(opened.store) + repr(opened.store._settings)
    assert PASSWORD not in shown
