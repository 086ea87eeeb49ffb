"""What the operators of expressions compute from values, and where a server would fail to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

from mnemongo.testing import _values as values
from mnemongo.testing._errors import ServerError, UnsupportedError
from mnemongo.testing._values import is_number, nullish


def type_name(value: Any) -> str:
    """What ``$type`` calls the value."""
    if type(value) is int:
        return "int" if values.fits_int32(value) else "long"
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES: Mapping[type, str] = {
    values.Missing: "missing",
    type(None): "null",
    float: "double",
    str: "string",
    dict: "object",
    list: "array",
    bytes: "binData",
    bool: "bool",
    datetime: "date",
}


def total(operands: Iterable[Any]) -> Any:
    """``$add``: numbers, or numbers and one date."""
    numbers: list[Any] = []
    dates: list[datetime] = []
    for operand in operands:
        if nullish(operand):  # ends the sum: what follows is not even evaluated
            return None
        if isinstance(operand, datetime):
            dates.append(operand)
        else:
            numbers.append(_number(operand, 16554))
        if len(dates) > 1:
            raise ServerError(16612, "only one date can be added")
    return _later(dates[0], numbers) if dates else _sum(numbers)


def _number(value: Any, code: int) -> Any:
    if not is_number(value):
        raise ServerError(code, f"a number is needed, not {type_name(value)}")
    return value


def _sum(numbers: Sequence[Any]) -> Any:
    if all(type(number) is int for number in numbers):
        return _fitting(sum(numbers))
    if all(map(math.isfinite, numbers)):
        return math.fsum(numbers)
    return float(sum(numbers))


def _fitting(number: Any) -> Any:
    """A server goes on in floating point where 64 bits are too few."""
    return float(number) if type(number) is int and not values.fits_long(number) else number


def _later(date: datetime, numbers: Sequence[Any]) -> datetime:
    """The sum in whole milliseconds, halves towards the epoch (measured on 6.0; ``$subtract`` truncates)."""
    if not all(map(math.isfinite, numbers)):
        raise UnsupportedError("a date and a number that is not finite")
    exact = sum(map(Fraction, numbers), Fraction(values.milliseconds(date)))
    distance = math.ceil(abs(exact) - Fraction(1, 2))
    return values.moment_at(distance if exact > 0 else -distance)


def _whole(number: float) -> int:
    if not math.isfinite(number):
        raise UnsupportedError("a date and a number that is not finite")
    return math.trunc(number)


def subtract(one: Any, other: Any) -> Any:
    """``$subtract``: numbers, two dates, or a date and a number."""
    if nullish(one) or nullish(other):
        return None
    if not isinstance(one, datetime):
        return _fitting(_number(one, 14) - _number(other, 14))
    if isinstance(other, datetime):
        return values.milliseconds(one) - values.milliseconds(other)
    return values.moment_at(values.milliseconds(one) - _whole(_number(other, 14)))


def multiply(operands: Iterable[Any]) -> Any:
    """``$multiply``."""
    product: Any = 1
    for operand in operands:
        if nullish(operand):
            return None
        product = _fitting(product * _number(operand, 14))
    return product


def divide(one: Any, other: Any) -> Any:
    """``$divide``; never a whole number."""
    if nullish(one) or nullish(other):
        return None
    dividend, divisor = _number(one, 14), _number(other, 14)
    if divisor == 0:
        raise ServerError(2, "division by zero")
    return float(dividend) / float(divisor)


def merge(*operands: Any) -> dict[str, Any]:
    """``$mergeObjects`` of several operands."""
    if len(operands) == 1 and type(operands[0]) is list:
        raise UnsupportedError("$mergeObjects over a list")
    merged: dict[str, Any] = {}
    for operand in operands:
        if nullish(operand):
            continue
        if type(operand) is not dict:
            raise ServerError(40400, "$mergeObjects takes documents only")
        merged |= operand
    return merged


def to_long(value: Any) -> Any:
    """``$toLong``; of a date: milliseconds since the epoch."""
    if nullish(value):
        return None
    if isinstance(value, datetime):
        return values.milliseconds(value)
    if type(value) is str:
        raise UnsupportedError("$toLong of a string")
    if type(value) not in {bool, int, float} or not math.isfinite(value):
        raise ServerError(241, f"no long from {type_name(value)}")
    if not values.fits_long(whole := math.trunc(value)):
        raise ServerError(241, "the number does not fit a long")
    return whole


def floor(value: Any) -> Any:
    """``$floor``: the number's own type is kept."""
    if nullish(value):
        return None
    if type(value) is float:
        return float(math.floor(value)) if math.isfinite(value) else value
    if type(value) is not int:
        raise ServerError(28765, f"$floor of {type_name(value)}")
    return value


def shifted(operands: Iterable[Any]) -> Any:
    """``$dateAdd`` of a start and so many milliseconds."""
    found: list[Any] = []
    for operand in operands:
        if nullish(operand):
            return None
        found.append(operand)
    start, amount = found
    if not isinstance(start, datetime):
        raise ServerError(5166403, "startDate must be a date")
    if not is_number(amount) or not math.isfinite(amount) or amount != math.trunc(amount):
        raise ServerError(5166405, "the amount must be a whole number")
    return _later(start, [int(amount)])
