"""Precision, ties, bits, errors and blocks of elementwise operations; tests/laws/function_table.py has their values."""

from __future__ import annotations

import math
from typing import Any

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ConfigError, DtypeError, JobError, ShapeError
from jobflow.core.types import bool_, float32, float64, int32
from jobflow.kernels import registry
from jobflow.kernels.cpu.blocks import blocks, memory_order
from jobflow.kernels.target import CPU
from jobflow.ops import activation
from jobflow.ops import elementwise as ew
from jobflow.ops.op import Op, types_tuple
from jobflow.ops.pointwise import ElementwiseGrad

Array = Any


pytestmark = pytest.mark.usefixtures("at_once")


def tensor(*values: Any, dtype: Any = np.float64) -> laws.Result:
    return laws.Result(np.array(values, dtype))


def bound(op: Op, *inputs: Array) -> Array:
    """Return the first output of the bound calls."""
    return every_bound(op, *inputs)[0]


def every_bound(op: Op, *inputs: Array) -> Any:
    """Return the outputs of the bound calls."""
    outputs = laws.empties(types_tuple(op.infer(*map(laws.type_of, inputs))), fill=0)
    for function, arguments in registry.bind(op, CPU, laws.Bench(), inputs, outputs):
        function(*arguments)
    return outputs


# Functions against the standard library ------------------------------------------------------------------------------

POINTS = np.concatenate([np.linspace(-6.5, 6.5, 2001), 10.0 ** np.linspace(-300, 1.3, 300), [0.0, np.inf, -np.inf]])


def test_erf_has_the_precision_of_float64() -> None:
    ours, theirs = ew.erf(laws.Result(POINTS)).array, np.array([math.erf(x) for x in POINTS])
    assert np.all(np.abs(ours - theirs) <= 1e-15 * np.abs(theirs))


def test_erfc_has_the_precision_of_float64_where_it_is_small() -> None:
    points = POINTS[np.abs(POINTS) < 26]
    ours, theirs = ew.erfc(laws.Result(points)).array, np.array([math.erfc(x) for x in points])
    assert np.all(np.abs(ours - theirs) <= 2e-15 * theirs)


def test_fast_erf_of_float32() -> None:
    x = np.linspace(-30, 30, 200_003, dtype=np.float32)
    assert np.abs(bound(ew.Erf(), x) - np.array([math.erf(float(v)) for v in x])).max() <= 2e-7


def test_gelu_of_float32_is_exact_to_rounding() -> None:
    x = np.linspace(-12, 12, 150_001, dtype=np.float32)
    exact = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in map(float, x)])
    assert np.abs(bound(activation.Gelu(), x) - exact).max() <= 2e-6
    slope = np.array([math.erfc(-v / math.sqrt(2)) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi) for v in map(float, x)])
    assert np.abs(every_bound(activation.Gelu(), x)[1] - slope).max() <= 1e-6


def test_functions_do_not_warn_at_extremes() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([-1e4, -100, 0, 100, 1e4], dtype)
        assert np.isfinite(bound(activation.Sigmoid(), x)).all()
        assert np.isfinite(bound(activation.Softplus(), x)).all()
        assert np.isfinite(bound(activation.Elu(), x)).all()


def test_gradient_of_ties_goes_to_the_second() -> None:
    x, y, d = tensor(1.0, 2.0), tensor(1.0, 1.0), tensor(10.0, 10.0)
    for op, first in ((ew.Maximum(), [0, 10]), (ew.Minimum(), [0, 0])):
        dx, dy = op.grad(x, y, x, d)
        assert (dx.array.tolist(), dy.array.tolist()) == (first, [10 - v for v in first])


def test_gradient_of_an_exponent_is_zero_for_a_base_of_zero() -> None:
    x, y = tensor(0.0, 2.0), tensor(2.0, 2.0)
    _, dy = ew.Power().grad(x, y, ew.power(x, y), tensor(1.0, 1.0))
    np.testing.assert_allclose(dy.array, [0, 4 * math.log(2)])


def test_selection_keeps_every_bit() -> None:
    x, y = np.array([np.nan, np.inf, -0.0, 1.0]), np.array([1.0, np.nan, 2.0, -np.inf])
    for dtype in (np.float16, np.float32, np.float64):
        for condition in (np.array([True, True, True, True]), np.array([False] * 4)):
            z = bound(ew.Where(), condition, x.astype(dtype), y.astype(dtype))
            assert z.tobytes() == (x if condition[0] else y).astype(dtype).tobytes()
    assert bound(ew.Where(), np.array([True, False]), np.array([False, False]), np.array([True, True])).tolist() == [False, True]


def test_cast_to_the_same_type_is_the_tensor_itself() -> None:
    x = tensor(1.0)
    assert ew.cast(x, float64) is x
    assert ew.cast(x, float32).tensor_type.dtype is float32


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: ew.add(tensor(1.0), tensor(1, dtype=np.int32)), DtypeError, ["add", "float64[1]", "int32[1]", "cast"]),
        (lambda: ew.add(tensor(1.0, 2.0), tensor(1.0, 2.0, 3.0)), ShapeError, ["add", "float64[2]", "float64[3]"]),
        (lambda: ew.exp(tensor(1, dtype=np.int32)), DtypeError, ["exp", "int32[1]", "floating point", "cast"]),
        (lambda: ew.divide(tensor(1, dtype=np.int32), tensor(1, dtype=np.int32)), DtypeError, ["divide", "int32[1]"]),
        (lambda: ew.where(tensor(1.0), tensor(1.0), tensor(1.0)), DtypeError, ["where", "condition", "float64[1]", "bool"]),
        (lambda: ew.clip(tensor(1.0)), ConfigError, ["clip", "minimum", "maximum"]),
        (lambda: ew.scale(tensor(1, dtype=np.int32), 0.5), DtypeError, ["scale", "0.5", "int32[1]", "cast"]),
        (lambda: ew.logical_and(tensor(1.0), tensor(1.0)), DtypeError, ["logicaland", "float64[1]"]),
    ],
)
def test_errors_name_the_operands(call: Any, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


# Operators ------------------------------------------------------------------------------------------------------------


def test_numbers_take_the_element_type_of_the_tensor() -> None:
    assert (tensor(1.0, dtype=np.float32) * 2.5).dtype is float32
    assert (tensor(1, dtype=np.int32) + 2).dtype is int32
    assert (tensor(1.0) > 0).dtype is bool_
    with pytest.raises(DtypeError, match=r"int32\[1\]"):
        tensor(1, dtype=np.int32) * 0.5


def test_division_by_zero_numbers_gives_zeros() -> None:
    assert (tensor(3.0) / 0).array.tolist() == [0.0]
    assert (1 / tensor(0.0, 2.0)).array.tolist() == [0.0, 0.5]


def test_equality_is_elementwise_for_tensors_and_numbers_only() -> None:
    x, y = tensor(1.0, 2.0), tensor(1.0, 3.0)
    assert (x == y).array.tolist() == [True, False] and (x != y).array.tolist() == [False, True]
    assert (x == "x") is False and (x != None) is True and len({x, y}) == 2  # noqa: E711
    with scope.using(interpreter=None):
        assert (x == y) is False and (x != y) is True


def test_truth_value_of_a_tensor_raises() -> None:
    x, y = tensor(1.0), tensor(1.0)
    with pytest.raises(JobError, match="where"):
        bool(x > y)


@pytest.mark.parametrize("other", ["1", None, np.ones(3), [1.0]])
def test_operands_of_other_types_raise(other: Any) -> None:
    for combine in (lambda: tensor(1.0) + other, lambda: other * tensor(1.0), lambda: tensor(1.0) < other):
        with pytest.raises((TypeError, JobError)):  # a list times a tensor uses the tensor as a count
            combine()


# Blocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [laws.plain, laws.innermost, laws.strided], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(7, 5, 11), (1, 400), (400, 1), (3,), (), (0, 4)])
def test_blocks_cover_every_element_once(order: Any, shape: tuple[int, ...]) -> None:
    x, y = order(np.zeros(shape)), order(np.ones(shape))
    for a, b in blocks((x, y), elements=30):
        assert a.shape == b.shape and a.size <= 30
        a += b
    assert np.array_equal(x, np.ones(shape))


def test_blocks_of_arrays_in_different_orders() -> None:
    x, y = np.zeros((9, 8)), laws.innermost(np.arange(72.0).reshape(9, 8))
    for a, b in blocks((x, y), elements=16):
        a += b
    assert np.array_equal(x, np.arange(72.0).reshape(9, 8))


def test_memory_order() -> None:
    assert memory_order(np.empty((2, 3, 4)).transpose(1, 2, 0)) == [2, 0, 1]


@pytest.mark.parametrize("op", [activation.Gelu(), activation.GeluTanh(), activation.Sigmoid(), activation.Relu(), ew.Erf()], ids=str)
def test_chains_of_several_blocks(op: Op) -> None:
    x = np.random.default_rng(0).normal(size=(300, 700)).astype(np.float32) * 3  # three blocks and a rest
    for a in (x, laws.innermost(x), x[::2, ::3]):
        np.testing.assert_allclose(bound(op, a), laws.run(op, [a])[0], atol=2e-6)


@pytest.mark.parametrize("op", [activation.GeluTanh(), activation.Sigmoid(), activation.Silu(), activation.Tanh(), activation.Relu()], ids=str)
def test_gradients_of_several_blocks(op: Op) -> None:
    random = np.random.default_rng(0)
    x, d = (random.normal(size=(300, 700)).astype(np.float32) for _ in range(2))
    gradient = ElementwiseGrad(op, 0, 1, (0,) if isinstance(op, activation.GeluTanh | activation.Silu) else (1,))
    for a in (d, laws.innermost(d)):
        np.testing.assert_allclose(bound(gradient, x, a), laws.run(gradient, [x, a])[0], atol=3e-6)


def test_scratch_is_shared_by_blocks() -> None:
    requested: list[tuple[int, ...]] = []

    class Counting(laws.Bench):
        def scratch(self, shape: tuple[int, ...], dtype: Any) -> Array:
            requested.append(shape)
            return super().scratch(shape, dtype)

    x = np.zeros((1000, 1000), np.float32)
    registry.bind(ew.Erf(), CPU, Counting(), [x], [np.empty_like(x)])
    assert requested == [(1, 62500)]


def test_integers_and_numbers_beyond_their_type() -> None:
    x = np.array([250, 255, 3], np.uint8)
    assert laws.run(ew.Shift(-4), [x])[0].tolist() == [246, 251, 255]
    assert laws.run(ew.Scale(-1), [x])[0].tolist() == [6, 1, 253]
    assert laws.run(ew.Clip(-9, 252), [x])[0].tolist() == [250, 252, 3]
    with pytest.raises(DtypeError, match=r"the exponent -1 of uint8\[3\] is out of range for integers; cast"):
        laws.run(ew.ScalarPower(-1), [x])
