"""Half precision: all ops compute in float32 and round once, and satisfy the laws to the precision of the type."""

from __future__ import annotations

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import DtypeError
from jobflow.core.layout import MAX, MIN
from jobflow.core.types import DType, TensorType, bfloat16, dtype_of, float16, float32, float64, type_of
from jobflow.kernels import half, registry
from jobflow.kernels.target import CPU
from jobflow.ops.op import Op, Sample, types_tuple
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.ops.scalar import Cast
from jobflow.ops.source import Constant

HALVES = (float16, bfloat16)
#: difference between 1 and the next larger value
EPSILON = {float16: 2.0**-10, bfloat16: 2.0**-7}
#: ops of every precision class and family
NAMES = [
    "MatMul", "BatchMatMul", "Conv", "BiasAdd", "Add", "Multiply", "Divide", "Relu", "Gelu",
    "Sigmoid", "Tanh", "Softmax", "CausalSoftmax", "LayerNorm", "ReduceSum", "ReduceMax", "SquareSum", "SparseSoftmaxCrossEntropy",
    "MaxPool", "AvgPool", "Gather", "Concat", "Transpose", "Reshape", "Where", "Equal", "DropoutMask",
    "CountNotFinite", "Scale", "Clip", "SgdUpdate", "AdamUpdate", "Pad",
]  # fmt: skip
SAMPLES = [sample for cls in laws.concrete_ops() if cls.__name__ in NAMES for sample in list(cls.samples())[:2]]


def test_every_name_is_an_op() -> None:
    assert {type(sample.op).__name__ for sample in SAMPLES} == set(NAMES)


def narrow(sample: Sample, dtype: DType) -> list[np.ndarray]:
    return [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in sample.arrays]


def single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if half.is_half(array) else array


def bound(op: Op, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of the bound calls; updates overwrite their inputs."""
    outputs = laws.empties(types_tuple(op.infer(*map(type_of, arrays))), fill=1)
    outputs = [arrays[op.alias[i]] if i in op.alias else y for i, y in enumerate(outputs)]
    with np.errstate(all="ignore"):
        for function, arguments in registry.bind(op, CPU, laws.Bench(), arrays, outputs):
            function(*arguments)
    return outputs


def fits(sample: Sample, dtype: DType) -> bool:
    """Return False for samples with an attribute of another type."""
    try:
        sample.op.infer(*map(type_of, narrow(sample, dtype)))
    except DtypeError:
        return False
    return True


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_computed_in_float32_and_rounded_once(sample: Sample, dtype: DType) -> None:
    if not fits(sample, dtype):
        pytest.skip("an attribute of the op names another element type")
    arrays = narrow(sample, dtype)
    wide = bound(sample.op, [single(a) for a in arrays])
    fixed = [type.dtype.numpy for type in types_tuple(sample.op.infer(*map(type_of, [single(a) for a in arrays])))] if sample.op.reads_half else None
    for i, (ours, theirs) in enumerate(zip(bound(sample.op, arrays), wide, strict=True)):
        assert ours.dtype == (fixed[i] if fixed else dtype.numpy if theirs.dtype.kind == "f" else theirs.dtype)
        assert np.array_equal(single(ours), single(theirs.astype(ours.dtype)), equal_nan=theirs.dtype.kind == "f")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sample", [s for s in SAMPLES if laws.has_gradient(s.op) and s.differentiable is None], ids=str)
def test_gradients_equal_float64_up_to_a_few_bits(sample: Sample, dtype: DType) -> None:
    arrays = narrow(sample, dtype)
    wide = [a.astype(np.float64) if half.is_half(a) else a for a in arrays]
    ours, theirs = (gradients(sample, each) for each in (arrays, wide))
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == dtype.numpy
            assert np.max(np.abs(a.astype(float) - b), initial=0.0) <= 8 * EPSILON[dtype] * laws.magnitude(b, *wide)


class Bound:
    """An interpreter that runs every op with the calls that an executor would bind."""

    def apply(self, op: Op, inputs: list[laws.Result], name: str | None) -> tuple[laws.Result, ...]:
        return tuple(map(laws.Result, bound(op, [x.array for x in inputs])))


def gradients(sample: Sample, arrays: list[np.ndarray]) -> list[np.ndarray | None]:
    outputs = bound(sample.op, arrays)
    ones = [np.ones_like(y) if dtype_of(y.dtype).is_float else None for y in outputs]
    with scope.using(interpreter=Bound()):
        tensors = [laws.Result(a) for a in [*arrays, *outputs]]
        grads = sample.op.grad(*tensors, *(None if one is None else laws.Result(one) for one in ones))
    return [None if g is None else g.array for g in grads]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_long_sums_are_rounded_once(dtype: DType) -> None:
    ones = np.ones((1, 5000), dtype.numpy)
    (product,) = bound(next(s.op for s in SAMPLES if type(s.op).__name__ == "MatMul" and not s.op.transpose_a), [ones, ones.T.copy()])
    assert abs(float(product[0, 0]) - 5000) <= 5000 * EPSILON[dtype], "sums of halves would stop at 2048 and 256"


def test_half_precision_updates_overwrite_their_variable() -> None:
    w = np.array([1.0, 2.0], bfloat16.numpy)
    (new,) = bound(SgdUpdate(), [w, np.array([0.5, 0.5], bfloat16.numpy), np.array([1.0], np.float32)])
    assert new is w and w.tolist() == [0.5, 1.5]


def test_casts_round_to_the_nearest() -> None:
    x = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e30, -1e39], np.float64)
    (y,) = bound(Cast(bfloat16), [x])
    assert y.astype(float).tolist()[:2] == [1.0, 1 + 2.0**-6] and 0.99e30 < float(y[2]) < 1.01e30 and float(y[3]) == -np.inf
    (z,) = bound(Cast(float16), [x])
    assert z.astype(float).tolist()[2:] == [np.inf, -np.inf]
    (back,) = bound(Cast(float64), [y])
    assert back.dtype == np.float64


def test_sources_support_half_precision() -> None:
    y = np.zeros(3, bfloat16.numpy)
    half.run(Constant((3,), bfloat16, 0.1), (), (y,))
    assert y.astype(float).tolist() == [float(np.float32(0.1).astype(bfloat16.numpy))] * 3


def test_the_element_type() -> None:
    assert bfloat16.itemsize == 2 and bfloat16.is_float and bfloat16.is_half and not float32.is_half and not bfloat16.is_integer
    assert dtype_of(bfloat16.numpy) is bfloat16 and dtype_of("bfloat16") is bfloat16
    assert str(TensorType((2,), bfloat16)) == "bfloat16[2]" and bfloat16.arithmetic is float32 and float64.arithmetic is float64
    assert bfloat16.number(1e39) == np.inf and bfloat16.number(3e38) == 3e38
    assert MAX.identity(bfloat16.numpy) == -np.inf and MIN.identity(float16.numpy) == np.inf


def test_bfloat16_without_its_package_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(DtypeError, match=r"bfloat16 needs the package ml_dtypes: pip install 'jobflow-sbp\[half\]', or use float16"):
        _ = DType("bfloat16").numpy
