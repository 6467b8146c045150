"""Products with an epilogue: operations that cublasLt computes in one call with the product before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, DType, TensorType, Xp, dtype_of, float32
from jobflow.kernels.region import MemberOutput, Region, RegionMember
from jobflow.ops.activation import GeluTanh
from jobflow.ops.arithmetic import Add
from jobflow.ops.matmul import AxisSum, BatchMatMul, BroadcastMatMul, MatMul, RowsMatMul
from jobflow.ops.op import Op, Precision, Sample, sample, types_tuple
from jobflow.ops.pointwise import ElementwiseGrad, sample_data
from jobflow.ops.scalar import Cast

T = TypeVar("T")
#: the matrix whose rows the same call sums, "" for none
Summed: TypeAlias = Literal["", "a", "b", "y"]
#: an activation after the product, or the derivative of one as a factor of the product
Gelu: TypeAlias = Literal["", "forward", "gradient"]
#: gradient of the approximation of GELU by tanh: its input and the gradient of its output -> the gradient of its input
GELU_GRADIENT = ElementwiseGrad(GeluTanh(), 0, 1, (0,))
#: the products of matrices, and of batches of matrices
PRODUCTS = (MatMul, BroadcastMatMul, RowsMatMul, BatchMatMul)


class EpilogueProduct(Op):
    """A matrix product and the operations after it, rounded once: y = f(a b + bias + addend).

    product   the operation that multiplies inputs a and b
    result    the element type of y; None for the type of a
    bias      True if a vector with the size of the last axis of y is added
    addend    True if a tensor of the type of y is added
    gelu      "forward": f is the approximation of GELU by tanh.  "gradient": y is a b times the derivative of f at the input `before`
    keeps     True if the second output is a b + bias, the input of f
    sums      the matrix whose rows the last output sums: y, or the factor a or b along the axis that the product sums

    Inputs are a, b, then bias, addend and before.  Bias and sums have the type of y.
    """

    product: Op
    result: DType | None = None
    bias: bool = False
    addend: bool = False
    gelu: Gelu = ""
    keeps: bool = False
    sums: Summed = ""

    precision: ClassVar[Precision] = "half"

    def __str__(self) -> str:
        parts = ("bias" * self.bias, "addend" * self.addend, f"gelu {self.gelu}" * bool(self.gelu), f"sums of {self.sums}" * bool(self.sums))
        result = "" if self.result is None else f" in {self.result.name}"
        return f"EpilogueProduct({self.product}{''.join(f' + {name}' for name in parts if name)}{result})"

    @property
    def in_place(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return {0: (2 + self.bias,)} if self.addend else {}

    def operands(self, inputs: Sequence[T]) -> dict[str, T]:
        """Return the inputs by name: a, b, bias, addend, before."""
        present = {"bias": self.bias, "addend": self.addend, "before": self.gelu == "gradient"}
        return dict(zip(["a", "b", *(name for name, there in present.items() if there)], inputs, strict=True))

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        named = self.operands(types)
        y = types_tuple(self.product.infer(named["a"], named["b"]))[0]
        y = y if self.result is None else y.with_dtype(self.result)
        for name, shape in (("bias", y.shape[-1:]), ("addend", y.shape), ("before", y.shape)):
            actual = named.get(name)
            if actual is None:
                continue
            if actual.dtype is not y.dtype:
                raise DtypeError(f"{self.word()}: {name} {actual} must have the element type of the result {y}; cast it")
            if actual.shape != shape:
                raise ShapeError(f"{self.word()}: {name} {actual} must have the shape {list(shape)} for the result {y}; reshape it")
        sums = (y.with_shape(y.shape[-2:-1] if self.sums == "a" else y.shape[-1:]),) if self.sums else ()
        return (y, *((y,) if self.keeps else ()), *sums)

    def rule(self, *types: TensorType) -> Rule:
        named = self.operands(types)
        factors, y = self.product.rule(named["a"], named["b"]).spec.upper().split("->")
        added = [y[-1:] if name == "bias" else y for name in named if name not in ("a", "b")]
        sums = [y[-2] if self.sums == "a" else y[-1]] if self.sums else []
        return Rule(f"{','.join([factors, *added])}->{','.join([y, *([y] if self.keeps else []), *sums])}")

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        count = len(arrays) - 1 - self.keeps - bool(self.sums)
        a, b, *added = arrays[:count]
        y, *others = arrays[count:]
        wide = dtype_of(y.dtype).arithmetic.numpy
        value = xp.empty(y.shape, wide)
        self.product.kernel(xp, xp.asarray(a, wide), xp.asarray(b, wide), value)
        self.after(dtype_of(y.dtype)).kernel(xp, value, *added, y, *others[: self.keeps])
        if self.sums:
            matrix = y if self.sums == "y" else (a, b)[self.sums == "b"]
            others[-1][...] = xp.sum(xp.asarray(matrix, wide), axis=self.summed(matrix.ndim))

    def summed(self, ndim: int) -> tuple[int, ...]:
        """Return the axes of the matrix `sums`, which has `ndim` axes, along which it is summed."""
        remaining = self.remaining_axis(ndim)
        return tuple(axis for axis in range(ndim) if axis != remaining)

    def remaining_axis(self, ndim: int) -> int:
        """Return the axis of the matrix `sums` that remains."""
        transposed = getattr(self.product, "transpose_a" if self.sums == "a" else "transpose_b", False)
        if self.sums == "y" or isinstance(self.product, RowsMatMul):
            return ndim - 1
        return ndim - 2 if transposed != (self.sums == "a") else ndim - 1

    def after(self, result: DType) -> Region:
        """Return the operations after the product, for a result of this type.

        The inputs are the product in the type of the arithmetic, then bias, addend and before.  The outputs are y and a b + bias.
        """
        return _after(result, self.bias, self.addend, self.gelu, self.keeps)

    def total(self, dtype: DType, matrix: TensorType, sums: DType) -> Region:
        """Return the operation that sums the rows of a matrix, for the last output."""
        reduce = AxisSum(self.remaining_axis(matrix.ndim))
        wide = matrix.with_dtype(dtype.arithmetic)
        members = (RegionMember(Cast(wide.dtype), (0,)), RegionMember(reduce, ((0, 0),)), RegionMember(Cast(sums), ((1, 0),)))
        return Region(members, ((2, 0),), space=reduce.index_space(wide))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        a, b, bias, rest = sample_data(1, 5, 4), sample_data(2, 4, 3), sample_data(3, 3), sample_data(4, 5, 3)
        yield sample(cls(MatMul(), bias=True), a, b, bias, differentiable=())
        yield sample(cls(MatMul(True, True), bias=True, addend=True), a.T, b.T, bias, rest, differentiable=())
        yield sample(cls(MatMul(False, True), bias=True, gelu="forward", keeps=True), a, b.T, bias, differentiable=())
        yield sample(cls(MatMul(), gelu="gradient", sums="y"), a, b, rest, differentiable=())
        yield sample(cls(MatMul(True), sums="b"), a.T, b, differentiable=())
        yield sample(cls(MatMul(True), sums="a"), a.T, b, differentiable=())
        yield sample(
            cls(BroadcastMatMul(True), bias=True, addend=True), sample_data(5, 2, 5, 4), b.T, bias, sample_data(6, 2, 5, 3), differentiable=()
        )
        yield sample(cls(RowsMatMul(), sums="b"), sample_data(5, 2, 5, 4), sample_data(6, 2, 5, 3), differentiable=())
        yield sample(cls(RowsMatMul(), sums="a"), sample_data(5, 2, 5, 4), sample_data(6, 2, 5, 3), differentiable=())
        yield sample(cls(MatMul(), float32), a.astype(np.float32), b.astype(np.float32), differentiable=())


@lru_cache(256)
def _after(result: DType, bias: bool, addend: bool, gelu: Gelu, keeps: bool) -> Region:
    members: list[RegionMember] = []

    def apply(op: Op, *reads: int | MemberOutput) -> MemberOutput:
        members.append(RegionMember(op, reads))
        return len(members) - 1, 0

    def wide(index: int) -> int | MemberOutput:
        return apply(Cast(result.arithmetic), index) if result.is_half else index

    value: int | MemberOutput = 0
    for index in range(1, 1 + bias + addend):  # a bias broadcasts along all axes but the last
        value = apply(Add(), value, wide(index))
    before = value
    if gelu == "gradient":
        value = apply(GELU_GRADIENT, wide(1 + bias + addend), value)
    elif gelu:
        value = apply(GeluTanh(), value)
    outputs = [apply(Cast(result), x) for x in ((value, before) if keeps else (value,))]
    return Region(tuple(members), tuple(outputs))
