"""Bounds, odd values, types and casts of functions of one tensor; tests/laws/function_table.py has their numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from everywhere import compare
from ranks import on_ranks, with_ranks

from jobflow.core.errors import ArgumentError, DtypeError
from jobflow.core.layout import P, S
from jobflow.core.types import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from jobflow.engine.placements import placement
from jobflow.functional import casting, classes, nn_activations
from jobflow.functional.creation import arange, ones, tensor

RANDOM = np.random.default_rng(6)
ANY, POSITIVE, UNIT = (RANDOM.uniform(*interval, (4, 6)) for interval in ((-2, 2), (0.5, 2), (-0.9, 0.9)))
WHOLE = RANDOM.integers(-5, 5, (4, 6))


@pytest.mark.parametrize("n", [1, 2])
def test_bounds_and_classification_of_values(n: int) -> None:
    odd = np.array([[1.0, math.nan, -2.0], [math.inf, -math.inf, 0.0]])
    cases: list[Any] = [
        (lambda x: x.clamp(-0.5, 1), lambda x: np.clip(x, -0.5, 1), (ANY,)),
        (lambda x: x.clip(min=0.25), lambda x: np.clip(x, 0.25, None), (ANY,)),
        (lambda x: x.clamp(max=0.25), lambda x: np.clip(x, None, 0.25), (ANY,)),
        (lambda x: x.clamp(-2, 3), lambda x: np.clip(x, -2, 3), (WHOLE,)),
        (lambda x: x.clamp(-1.5, 3).double(), lambda x: np.clip(x, -1.5, 3), (WHOLE,)),
        (lambda x, low, high: x.clamp(low, high), np.clip, (ANY, UNIT, UNIT + 1)),
        (lambda x: x.clamp_min(0), lambda x: np.maximum(x, 0), (ANY,)),
        (lambda x: x.clamp_max(0), lambda x: np.minimum(x, 0), (ANY,)),
        (lambda x: x.round(decimals=1), lambda x: np.round(x, 1), (ANY,)),
        (lambda x: x.abs(), np.abs, (WHOLE,)),
        (lambda x: x.floor(), lambda x: x, (WHOLE,)),
    ]
    compare(n, cases)

    def program(rank: int) -> None:
        here = placement("cpu", range(n))
        for x in (tensor(odd), tensor(odd, placement=here, sbp=S(0))):
            for name in ("isnan", "isinf", "isfinite"):
                np.testing.assert_array_equal(getattr(x, name)().numpy(), getattr(np, name)(odd))
            np.testing.assert_array_equal(x.nan_to_num(5.0).numpy(), np.nan_to_num(odd, nan=5.0))
            np.testing.assert_array_equal(x.nan_to_num(posinf=1.0, neginf=2.0).numpy(), np.nan_to_num(odd, posinf=1.0, neginf=2.0))
        assert not bool(arange(3).isnan().any()) and bool(arange(3).isfinite().all()) and not bool(arange(3).isinf().any())

    on_ranks(n, program)


@with_ranks(1)
def test_functions_with_float_results_cast_integers() -> None:
    x = arange(1, 4)
    assert x.sqrt().dtype is float32 and x.exp().dtype is float32 and x.log2().dtype is float32
    assert x.abs().dtype is int64 and x.square().dtype is int64 and x.floor() is x and x.clamp(0.5, 2).dtype is float32
    with pytest.raises(ArgumentError, match="min and max are both None"):
        x.clamp()


@with_ranks(1)
def test_in_place() -> None:
    for name in ("exp_", "sqrt_", "abs_", "sigmoid_", "relu_", "tanh_", "floor_", "neg_", "reciprocal_", "round_"):
        x = tensor(POSITIVE)
        expected = getattr(x, name[:-1])()
        assert getattr(x, name)() is x
        np.testing.assert_array_equal(x.numpy(), expected.numpy())
    x = tensor(ANY)
    assert x.clamp_(-1, 1) is x and float(x.max()) <= 1
    with pytest.raises(DtypeError, match="cannot hold"):
        arange(3).sqrt_()


@with_ranks(1, 2)
def test_casts(n: int) -> None:
    here = placement("cpu", range(n))
    x = tensor(ANY, placement=here, sbp=S(1))
    for name, dtype in {"float": float32, "half": float16, "int": int32, "long": int64, "bool": bool_, "double": float64}.items():
        y = getattr(x, name)()
        assert y.dtype is dtype and (n == 1 or y.sbp == (S(1),))
        np.testing.assert_array_equal(y.numpy(), ANY.astype(dtype.numpy))
    assert x.double() is x and x.to(float32).dtype is float32 and x.type_as(arange(2)).dtype is int64 and x.cast(np.uint8).dtype is uint8
    assert casting.is_tensor(x) and casting.is_floating_point(x) and not x.long().is_floating_point()
    assert casting.promote_types(int64, float16) is float16 and casting.can_cast(int64, float16) and not casting.can_cast(float32, int64)
    w = ones(2, requires_grad=True)
    w.double().sum().backward()
    assert w.grad.dtype is float32 and not ones(2, requires_grad=True).long().requires_grad
    assert casting.finfo(float16).max == 65504 and casting.iinfo(uint8).max == 255 and casting.finfo(bfloat16).bits == 16
    for wrong in (lambda: casting.finfo(int64), lambda: casting.iinfo(float32)):
        with pytest.raises(DtypeError, match=r"is not an? .* type; use"):
            wrong()
    with pytest.raises(DtypeError, match="element type such as"):
        x.to("float7")
    with pytest.raises(DtypeError, match="floating point type"):
        casting.set_default_dtype(int64)


@pytest.mark.parametrize(("name", "dtype"), casting.CLASSES.items())
def test_type_names_the_class_of_a_tensor_and_converts_to_one(name: str, dtype: DType) -> None:
    x = arange(3)
    spellings = (dtype, f"jobflow.{name}", getattr(classes, name), dtype.name)
    assert {x.type(each).dtype for each in spellings} == {dtype} and x.type(dtype).type() == f"jobflow.{name}"
    assert x.type(int64) is x
    with pytest.raises(DtypeError, match=r"type at test_elementwise.py:[0-9]+: 'jobflow.QTensor' is not an element type"):
        x.type("jobflow.QTensor")


def test_addends_are_summed_before_they_are_rounded() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        x = tensor([0.75, 1.5]).to_global(placement=here, sbp=P)
        y = x.long()
        return y.numpy().tolist(), y.sbp == (P,), x.bool().tolist(), x.double().sbp

    assert on_ranks(2, program) == [([1, 3], False, [True, True], (P,))] * 2


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("function", [nn_activations.silu, nn_activations.quick_gelu])
def test_silu_and_its_gradient_vanish_for_large_negative_numbers(function: Any, dtype: DType) -> None:
    x = tensor([-1e37, -3e38, -5000.0], dtype=dtype, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert np.abs(y.numpy()).max() < 1e-30 and np.abs(x.grad.numpy()).max() < 1e-30
