"""Exact integer arithmetic, without detours through floats.

Comparisons with numbers out of range use their exact values; undefined results are errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from doors import gives, refuses

import jobflow as flow
from jobflow import typing as tp
from jobflow.core.errors import ArgumentError, DtypeError

BYTES = np.uint8([3, 0, 255])
BIG = np.array([2**62 + 1, -(2**62) - 1, 7, -7])


def test_disjoint_types_promote_to_the_smallest_common_type() -> None:
    gives(lambda x, y: x + y, [np.uint8([200]), np.int8([1])], np.int64([201]), dtype=flow.int16)
    gives(lambda x, y: x * y, [np.uint8([200]), np.int8([-1])], np.int64([-200]), dtype=flow.int16)
    gives(lambda x, y: flow.cat([x, y]), [np.uint8([200]), np.int8([-1])], np.int64([200, -1]), dtype=flow.int16)
    gives(lambda x: x.half() + x.bfloat16(), [np.float32([1.5])], np.float32([3.0]), dtype=flow.float32)
    assert flow.promote_types(flow.int8, flow.uint8) is flow.int16 and flow.promote_types(flow.bfloat16, flow.float16) is flow.float32
    assert flow.result_type(flow.ones(2, dtype=flow.uint8), flow.ones(2, dtype=flow.int8), flow.ones(2, dtype=flow.int64)) is flow.int64


def test_negative_numbers_with_unsigned_types() -> None:
    gives(lambda x: x - 1, [BYTES], BYTES - np.uint8(1), dtype=flow.uint8)
    gives(lambda x: 1 - x, [BYTES], np.uint8(1) - BYTES, dtype=flow.uint8)
    gives(lambda x: x.sub(3, alpha=2), [BYTES], BYTES - np.uint8(6), dtype=flow.uint8)
    gives(lambda x: x + -(2**63), [np.int64([1, -1])], np.int64([1 - 2**63, 2**63 - 1]))
    gives(lambda x: x - -(2**63), [np.int64([-1, -5])], np.int64([2**63 - 1, 2**63 - 5]))
    refuses(lambda x: x + 300, [BYTES], DtypeError, "test_exact_numbers.py:", "300", "0 to 255")
    refuses(lambda x: 300 - x, [BYTES], DtypeError, "300", "0 to 255")
    refuses(lambda x: x * -1, [BYTES], DtypeError, "-1", "0 to 255")
    refuses(lambda x: x + 2**63, [BIG], DtypeError, str(2**63))


FILLS = {
    "full_like": flow.full_like,
    "fill_": lambda x, number: x.clone().fill_(number),
    "masked_fill": lambda x, number: x.masked_fill(x > 0, number),
    "index_fill": lambda x, number: x.index_fill(0, (x[:1] * 0).long(), number),
    "scatter": lambda x, number: x.scatter(0, (x[:1] * 0).long(), number),
    "pad": lambda x, number: flow.nn.functional.pad(x, (1, 1), value=number),
}


@pytest.mark.parametrize("name", FILLS)
def test_fills_raise_for_numbers_out_of_range(name: str) -> None:
    fill = FILLS[name]
    for dtype, values in (
        (np.uint8, (300, -1, np.nan, np.inf)),
        (np.int64, (2**63, np.nan, -np.inf)),
        (np.float16, (7e4, -1e9)),
        (np.float32, (1e39,)),
    ):
        for number in values:
            refuses(lambda x, number=number: fill(x, number), [dtype([1, 2])], DtypeError, "test_exact_numbers.py:", "is out of range for")
    for dtype, number in ((np.uint8, 255), (np.float16, 65504.0), (np.float16, -np.inf), (np.float32, np.nan)):
        result = fill(flow.tensor(dtype([1, 2])), number)
        np.testing.assert_equal(result.numpy()[0], dtype(number))


RELATIONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal}


def relation(word: str, x: Any, y: Any) -> Any:
    return {"<": lambda: x < y, "<=": lambda: x <= y, ">": lambda: x > y, ">=": lambda: x >= y, "==": lambda: x == y, "!=": lambda: x != y}[word]()


@pytest.mark.parametrize("word", RELATIONS)
def test_comparisons_with_numbers_beyond_the_type(word: str) -> None:
    for number in (300, -1, 2**70, -(2**70), 2.5, -0.5, 254.5, 255.0, np.inf, -np.inf, np.nan):
        expected = [bool(RELATIONS[word](np.float64(x), np.float64(number))) for x in BYTES]
        gives(lambda x, number=number: relation(word, x, number), [BYTES], expected, dtype=flow.bool)
        mirrored = [bool(RELATIONS[word](np.float64(number), np.float64(x))) for x in BYTES]
        gives(lambda x, number=number: relation(word, number, x), [BYTES], mirrored, dtype=flow.bool)
    for number in (16777217.0, 16777216.5, 2.0**24):
        expected = [bool(RELATIONS[word](x, number)) for x in (16777216.0, 16777217.0)]
        gives(lambda x, number=number: relation(word, x, number), [np.int64([16777216, 16777217])], expected)
    halves = np.float16([1, -60000, np.inf, -np.inf, np.nan])
    for number, wide in ((70000, 7e4), (-70000.0, -7e4), (10**400, 1e308), (-(10**400), -1e308), (np.inf, np.inf), (np.nan, np.nan)):
        gives(lambda x, number=number: relation(word, x, number), [halves], RELATIONS[word](halves.astype(np.float64), wide))


def test_comparisons_in_a_job() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3,), dtype=flow.int32)) -> tp.Numpy:
        answers = [x < 2**40, x >= -(2**40), x == 2**40, x != 0.5, x <= 2.5, flow.math.less(x, 3.5), flow.math.greater(10**20, x)]
        return flow.stack(answers, axis=0)

    expected = [[1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert job(np.int32([1, 2, 7])).tolist() == expected


def test_division_of_integers_is_exact() -> None:
    divisor = np.array([3, 3, -2, 2])
    floored = [int(a) // int(b) for a, b in zip(BIG, divisor, strict=True)]
    truncated = [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(BIG, divisor, strict=True)]
    gives(lambda x, y: x // y, [BIG, divisor], floored, dtype=flow.int64)
    gives(lambda x, y: x.div(y, rounding_mode="floor"), [BIG, divisor], floored, dtype=flow.int64)
    gives(lambda x, y: x.div(y, rounding_mode="trunc"), [BIG, divisor], truncated, dtype=flow.int64)
    gives(lambda x: x.div(-2, rounding_mode="trunc"), [np.int32([7, -7, 8])], [-3, 3, -4], dtype=flow.int32)
    gives(lambda x: flow.div(x, 2.0, rounding_mode="trunc"), [np.int32([7, -7])], [3.0, -3.0], dtype=flow.float32)
    gives(lambda x, y: (x % y, x.fmod(y)), [BIG, divisor], BIG % divisor, np.fmod(BIG, divisor), dtype=flow.int64)
    gives(lambda x: x // 2, [np.uint8([255, 1])], [127, 0], dtype=flow.uint8)


def test_powers_of_integers_are_exact() -> None:
    gives(lambda x, y: x**y, [np.int64([3, -3, 7]), np.int64([39, 39, 0])], [3**39, -(3**39), 1], dtype=flow.int64)
    gives(lambda y: 3**y, [np.int64([39, 0])], [3**39, 1], dtype=flow.int64)
    gives(lambda x: x**3, [np.int64([2**20 + 1])], [(2**20 + 1) ** 3], dtype=flow.int64)
    refuses(lambda x, y: x**y, [np.int64([3, 2]), np.int64([1, -4])], ArgumentError, "-4", "[1]")
    refuses(lambda x: x**-1, [np.int64([3, 2])], DtypeError, "-1")


def test_floor_division_of_floats_matches_the_remainder() -> None:
    for x, y in ((1.0, 0.1), (-1.0, 0.1), (0.3, 0.1), (7.0, -2.0)):
        gives(lambda a, y=y: a // y, [np.float64([x])], [x // y], dtype=flow.float64)
        gives(lambda a: (a[0] // a[1], a[0] % a[1]), [np.float64([x, y])], x // y, x % y)
        gives(lambda a: a[0].div(a[1], rounding_mode="floor"), [np.float64([x, y])], x // y)
    gives(lambda x: x // 0, [np.float32([1, -1])], [np.inf, -np.inf])


@pytest.mark.parametrize("divisor", [0, 0.0])
def test_floats_divided_by_zero_are_infinite(divisor: float) -> None:
    gives(lambda x: x / divisor, [np.float32([1, -1, 0])], [np.inf, -np.inf, np.nan])
    gives(lambda x: 2.0 / x, [np.float32([0, 4])], [np.inf, 0.5])
    gives(lambda x, y: x / y, [np.float32([1, -1, 0]), np.zeros(3, np.float32)], [np.inf, -np.inf, np.nan])
    gives(lambda x: x.reciprocal(), [np.float32([0, 4])], [np.inf, 0.25])


def test_a_number_divided_by_zero_is_zero_in_a_job() -> None:
    """OneFlow 0.2 to 0.4 define the result as 0; a tensor divided by a tensor has the usual result."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3,)), y: tp.Numpy.Placeholder((3,))) -> tp.Numpy:
        return flow.stack([2.0 / x, flow.math.divide(2.0, x), x / 0, flow.math.divide(x, 0), y / x, flow.math.divide(y, x)], axis=0)

    output = job(np.float32([0, 4, -1]), np.float32([1, 1, 1]))
    assert output.tolist() == [[0, 0.5, -2], [0, 0.5, -2], [0, 0, 0], [0, 0, 0], [np.inf, 0.25, -1], [np.inf, 0.25, -1]]


@pytest.mark.parametrize("divide", ["//", "%", "fmod", "trunc"])
def test_integers_divided_by_zero_raise(divide: str) -> None:
    functions = {"//": lambda x, y: x // y, "%": lambda x, y: x % y, "fmod": flow.fmod, "trunc": lambda x, y: flow.div(x, y, rounding_mode="trunc")}
    function = functions[divide]
    refuses(function, [np.int64([1, 2, 3]), np.int64([1, 0, 2])], ArgumentError, "[1]", "0")
    refuses(lambda x: function(x, 0), [np.uint8([1, 2])], ArgumentError, "0")
    refuses(lambda x: function(5, x), [np.int32([4, 0])], ArgumentError, "[1]")
    with pytest.raises(ArgumentError):
        x = flow.tensor([1, 2])
        x //= 0
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("word", ["mod", "floordiv", "%", "//"])
def test_integers_divided_by_zero_raise_in_a_job(word: str) -> None:
    def op(x: Any, y: Any) -> Any:
        return x % y if word == "%" else x // y if word == "//" else getattr(flow.math, word)(x, y)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3,), dtype=flow.int32), y: tp.Numpy.Placeholder((3,), dtype=flow.int32)) -> tp.Numpy:
        return op(x, y)

    with pytest.raises(ArgumentError, match=r"test_exact_numbers.py:\d+.*\[1\]"):
        job(np.int32([1, 2, 3]), np.int32([1, 0, 2]))
    assert job(np.int32([7, -7, 9]), np.int32([2, 2, 3])).tolist() == ([1, 1, 0] if word in ("mod", "%") else [3, -4, 3])


def test_bounds_out_of_range_of_the_type() -> None:
    gives(lambda x: x.clamp(-5, 300), [BYTES], BYTES, dtype=flow.uint8)
    gives(lambda x: x.clamp(min=-5), [BYTES], BYTES, dtype=flow.uint8)
    gives(lambda x: x.clamp(max=0.5), [BYTES], [0.5, 0, 0.5], dtype=flow.float32)
    refuses(lambda x: x.clamp(min=300), [BYTES], DtypeError, "300", "0 to 255")


def test_values_out_of_range_raise() -> None:
    refuses(lambda x: flow.full_like(x, 300), [BYTES], DtypeError, "300")
    refuses(lambda x: x.masked_fill(x > 1, 300), [BYTES], DtypeError, "300")
    refuses(lambda x: flow.where(x > 1, x, 300), [BYTES], DtypeError, "300")
    refuses(lambda x: flow.full_like(x, float("nan")), [BYTES], DtypeError, "nan")
    gives(lambda x: x * 10**400, [np.float32([1, -1])], [np.inf, -np.inf])
