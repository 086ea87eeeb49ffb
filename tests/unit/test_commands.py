"""Plans, operations and the drivers, without a server: ``drive`` and ``drive_async`` are one logic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import errors as driver

from mnemongo.commands import (
    Command,
    DuplicateError,
    FindEach,
    Operation,
    Pause,
    Plan,
    RefusedError,
    RequireTransaction,
    UpdateReply,
    create_index,
    delete_many,
    delete_one,
    find,
    find_each,
    find_one,
    find_one_and_update,
    finding,
    insert_many,
    insert_one,
    operation,
    pause,
    update_one,
)
from mnemongo.drive import check_transaction, drive, drive_async, pause_seconds
from mnemongo.errors import TransactionRequiredError

Drive = Callable[[Plan[Any], Callable[[Any], Any]], Any]


def drive_in_a_loop(plan: Plan[Any], execute: Callable[[Any], Any]) -> Any:
    async def executed(step: Any) -> Any:
        await asyncio.sleep(0)
        return execute(step)

    return asyncio.run(drive_async(plan, executed))


@pytest.fixture(params=[drive, drive_in_a_loop], ids=["blocking", "asyncio"])
def driven(request: pytest.FixtureRequest) -> Drive:
    run: Drive = request.param
    return run


@operation()
def tolerant(value: int) -> Plan[str]:
    """Insert, and tell what became of it."""
    try:
        yield from insert_one("c", {"_id": value})
    except DuplicateError as error:
        return f"duplicate in {error.index}"
    except RefusedError:
        return "refused"
    return "inserted"


def sent(plan: Plan[Any], *replies: Any) -> tuple[list[Any], Any]:
    """Step a plan through its replies: what it yielded, what it returned."""
    steps = [next(plan)]
    steps += [plan.send(reply) for reply in replies[:-1]]
    with pytest.raises(StopIteration) as end:
        _ = plan.send(replies[-1])
    return steps, end.value.value


def test_each_primitive_is_one_command() -> None:
    reply = UpdateReply(1, upserted=False)
    cases: list[tuple[Plan[Any], Any, Any]] = [
        (insert_one("c", {"a": 1}), Command("c", "insert_one", {"document": {"a": 1}}), None),
        (insert_many("c", [{"a": 1}]), Command("c", "insert_many", {"documents": [{"a": 1}]}), None),
        (find(finding("c", {"a": 1}, limit=2)), Command("c", "find", {"filter": {"a": 1}, "limit": 2}), [1]),
        (
            update_one("c", {"a": 1}, {"$set": {}}),
            Command("c", "update_one", {"filter": {"a": 1}, "update": {"$set": {}}, "upsert": False}),
            reply,
        ),
        (
            find_one_and_update("c", {"a": 1}, [], upsert=True),
            Command("c", "find_one_and_update", {"filter": {"a": 1}, "update": [], "upsert": True}),
            {"a": 1},
        ),
        (delete_one("c", {"a": 1}), Command("c", "delete_one", {"filter": {"a": 1}}), 1),
        (delete_many("c", {"a": 1}), Command("c", "delete_many", {"filter": {"a": 1}}), 3),
        (create_index("c", {"keys": []}), Command("c", "create_index", {"keys": []}), None),
        (pause(2), Pause(2), None),
    ]
    for plan, command, answer in cases:
        assert sent(plan, answer) == ([command], answer)


def test_finding_leaves_out_what_is_not_given() -> None:
    assert finding("c", {}).arguments == {"filter": {}}
    full = finding("c", {}, sort=(("a", 1),), limit=1, skip=2, projection={"a": 1})
    assert full.arguments == {
        "filter": {},
        "sort": (("a", 1),),
        "limit": 1,
        "skip": 2,
        "projection": {"a": 1},
    }


def test_find_one_takes_the_first() -> None:
    assert sent(find_one("c", {}), [{"a": 1}])[1] == {"a": 1}
    assert sent(find_one("c", {}), [])[1] is None


def test_find_each_is_one_step() -> None:
    one, two = finding("a", {}), finding("b", {})
    assert sent(find_each(one, two), [[], []]) == ([FindEach((one, two))], [[], []])


def test_an_operation_makes_fresh_plans() -> None:
    op = tolerant(1)
    assert isinstance(op, Operation)
    assert (op.name, op.atomic) == ("test_commands.tolerant", False)
    assert op.plan() is not op.plan()
    assert [sent(op.plan(), None)[1] for _ in range(3)] == ["inserted"] * 3


def test_an_atomic_operation_says_so_when_composed() -> None:
    @operation(atomic=True)
    def _inner() -> Plan[int]:
        yield from insert_one("c", {})
        return 5

    assert sent(iter(_inner()), None, None) == (
        [RequireTransaction("test_commands.inner"), Command("c", "insert_one", {"document": {}})],
        5,
    )
    assert sent(_inner().plan(), None)[1] == 5
    assert sent(iter(tolerant(1)), None)[1] == "inserted"
    check_transaction(RequireTransaction("x"), atomic=True)
    with pytest.raises(TransactionRequiredError, match="x is atomic"):
        check_transaction(RequireTransaction("x"), atomic=False)


def test_replies_come_back_and_the_result_out(driven: Drive) -> None:
    @operation()
    def adding() -> Plan[int]:
        one = yield Command("c", "find")
        two = yield Command("c", "find")
        return one + two

    replies = iter([3, 4])
    assert driven(adding().plan(), lambda _: next(replies)) == 7


def test_a_plan_without_commands(driven: Drive) -> None:
    @operation()
    def empty() -> Plan[str]:
        yield from ()
        return "nothing to do"

    assert driven(empty().plan(), lambda _: pytest.fail("nothing was to be sent")) == "nothing to do"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            driver.DuplicateKeyError("x", 11000, {"code": 11000, "keyPattern": {"a": 1}}),
            "duplicate in ('a',)",
        ),
        (driver.DuplicateKeyError("x", 11000, {"code": 11000}), "duplicate in ('_id',)"),
        (
            driver.BulkWriteError({"writeErrors": [{"code": 11000, "keyPattern": {"b": 1}}]}),
            "duplicate in ('b',)",
        ),
        (driver.WriteError("x", 66, {"code": 66}), "refused"),
    ],
    ids=["duplicate", "without-pattern", "bulk", "refused"],
)
def test_errors_a_plan_can_act_on(driven: Drive, error: Exception, told: str) -> None:
    def failing(_: Any) -> None:
        raise error

    assert driven(tolerant(1).plan(), failing) == told


@pytest.mark.parametrize(
    "error",
    [
        driver.AutoReconnect("x"),
        driver.WriteError("x", 121, {"code": 121}),
        driver.OperationFailure("x", 112, {"errorLabels": ["TransientTransactionError"]}),
        OverflowError("x"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_all_others_pass_untouched(driven: Drive, error: BaseException) -> None:
    def failing(_: Any) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        driven(tolerant(1).plan(), failing)
    assert caught.value is error


def test_an_error_a_plan_lets_out_keeps_its_cause(driven: Drive) -> None:
    cause = driver.DuplicateKeyError("x", 11000, {"code": 11000})

    def failing(_: Any) -> None:
        raise cause

    with pytest.raises(DuplicateError) as caught:
        driven(insert_one("c", {}), failing)
    assert caught.value.__cause__ is cause


def test_pauses_grow_and_are_bounded() -> None:
    for attempt, longest in ((1, 0.004), (3, 0.016), (10, 0.05), (10_000, 0.05)):
        drawn = [pause_seconds(attempt) for _ in range(200)]
        assert min(drawn) >= 0
        assert max(drawn) <= longest
        assert len(set(drawn)) > 100
