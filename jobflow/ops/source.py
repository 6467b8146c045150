"""Ops without inputs: arguments of a job, variables at the start of a run, constants, ranges."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from jobflow.core.errors import PlanError
from jobflow.core.layout import Box, Rule, Sbp
from jobflow.core.types import Array, DType, Tensor, TensorType, Xp, dtype_of, float32, float64, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.ops.op import LETTERS, DeviceKinds, Op, Sample, apply, sample


class Source(Op):
    """Base class of tensors that depend on attributes only.  Any axis may be split; a rank computes only its box."""

    loops_on: ClassVar[DeviceKinds] = ("cuda",)
    shape: tuple[int, ...]
    dtype: DType
    unshown: ClassVar[frozenset[str]] = frozenset({"shape", "dtype"})

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def rule(self) -> Rule:
        return Rule(f"->{LETTERS[: len(self.shape)]}")

    def index_space(self, *inputs: TensorType) -> IndexSpace:
        return IndexSpace(self.shape or (1,), (*((None,) * x.ndim for x in inputs), tuple(range(len(self.shape)))))

    def grad(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return ()

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return self if outputs[0].is_whole else replace(self, shape=outputs[0].shape)


class External(Source):
    """A tensor, named `key`, that the executor provides, such as an argument or a variable; the op has no kernel."""

    key: str
    external: ClassVar[bool] = True

    def kernel(self, xp: Xp, y: Array) -> None:
        raise PlanError(f"{self.word()} {self.key!r} is provided by the executor and has no kernel")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((4, 3), float32, "x"))


class Input(External):
    """An argument of the job or of a microbatch. Axis 0 is split among the ranks, unless `split` is False."""

    split: bool = True
    #: in a microbatch: (argument, first row, row after the last)
    part: tuple[str, int, int] | None = None
    #: the layout of the argument per mesh dimension, if the ranks have it already
    sbp: tuple[Sbp, ...] | None = None
    unshown: ClassVar[frozenset[str]] = frozenset({"shape", "dtype", "part", "sbp"})

    @property
    def argument(self) -> str:
        """The name of the job's argument, also for a microbatch of it."""
        return self.key if self.part is None else self.part[0]

    def rows(self, start: int, stop: int) -> Input:
        """Return the input for a microbatch: the rows from `start` to `stop` (exclusive) of this argument."""
        return replace(self, shape=(stop - start, *self.shape[1:]), key=f"{self.key}[{start}:{stop}]", part=(self.key, start, stop))


class ReadVariable(External):
    """The value of a variable at the beginning of the run."""


class Constant(Source):
    """Tensor filled with `value`."""

    value: float | int | bool = 0

    def kernel(self, xp: Xp, y: Array) -> None:
        y[...] = self.value

    def expression(self, *types: TensorType) -> tuple[Expression, ...]:
        return (f.constant(self.value, self.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((5, 3), float64, 0.1))
        yield sample(cls((), int32, 7))
        yield sample(cls((0, 3), float32, 1.0))


class Literal(Source):
    """Tensor with the elements of a constant array; `content` is the base 64 encoding of the array's bytes in C order."""

    content: str
    unshown: ClassVar[frozenset[str]] = frozenset({"shape", "dtype", "content"})

    @classmethod
    def of(cls, array: Array) -> Literal:
        return cls(array.shape, dtype_of(array.dtype), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode())

    @property
    def array(self) -> Array:
        return np.frombuffer(base64.b64decode(self.content), self.dtype.numpy).reshape(self.shape)

    def kernel(self, xp: Xp, y: Array) -> None:
        y[...] = xp.asarray(self.array)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return self if outputs[0].is_whole else Literal.of(self.array[outputs[0].slices])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls.of(np.arange(12.0).reshape(4, 3) ** 2))
        yield sample(cls.of(np.array(7, np.int32)))
        yield sample(cls.of(np.zeros((0, 2), np.float32)))


class Arange(Source):
    """Arithmetic progression: y[i] = start + (offset + i) * delta; `offset` is the first index of a rank's shard."""

    start: float | int = 0
    delta: float | int = 1
    offset: int = 0

    def kernel(self, xp: Xp, y: Array) -> None:
        index = xp.arange(self.offset, self.offset + self.shape[0], dtype=xp.int64)
        y[...] = index * self.delta + self.start

    def expression(self, *types: TensorType) -> tuple[Expression, ...]:
        product = _times(f.index(-1) + self.offset, self.delta)
        whole = product.dtype is int64 and isinstance(self.start, int)
        total = product + self.start if whole else f.cast(product, float64) + float(self.start)
        return (f.cast(f.cast(total, self.dtype.arithmetic), self.dtype),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        ((start, stop),) = outputs[0].spans
        return replace(self, shape=(stop - start,), offset=self.offset + start)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((7,), int64, 3, 2))
        yield sample(cls((5,), float64, 0.5, -0.1))


def _times(index: Expression, delta: float) -> Expression:
    return index * delta if isinstance(delta, int) else f.cast(index, float64) * delta


class Linspace(Source):
    """Elements offset + i of `steps` equidistant values from start to end.

    Values are computed from the nearer end, so start and end are exact.
    """

    start: float
    end: float
    steps: int
    offset: int = 0

    def kernel(self, xp: Xp, y: Array) -> None:
        index = xp.arange(self.offset, self.offset + self.shape[0], dtype=xp.int64)
        delta = (self.end - self.start) / max(self.steps - 1, 1)
        forward, backward = self.start + index * delta, self.end - (self.steps - 1 - index) * delta
        y[...] = xp.where(index < max(self.steps // 2, 1), forward, backward)

    def expression(self, *types: TensorType) -> tuple[Expression, ...]:
        index, delta = f.index(-1) + self.offset, (self.end - self.start) / max(self.steps - 1, 1)
        forward = self.start + f.cast(index, float64) * delta
        backward = self.end - f.cast((self.steps - 1) - index, float64) * delta
        value = f.where(index < max(self.steps // 2, 1), forward, backward)
        return (f.cast(f.cast(value, self.dtype.arithmetic), self.dtype),)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        ((start, stop),) = outputs[0].spans
        return replace(self, shape=(stop - start,), offset=self.offset + start)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((7,), float64, 0.1, 0.7, 7))
        yield sample(cls((1,), float32, 0.5, 2.0, 1))
        yield sample(cls((4,), int64, -3.0, 3.0, 4))


def constant(value: float | bool, shape: tuple[int, ...], dtype: DType, *, name: str | None = None) -> Tensor:
    """Return a tensor of this shape and element type filled with `value`."""
    result: Tensor = apply(Constant(tuple(shape), dtype, value), name=name)
    return result


def arange(start: int, limit: int, delta: int = 1, *, dtype: DType = int64, name: str | None = None) -> Tensor:
    """Return the vector start, start + delta, ... up to but not including `limit`; the vector is empty if `limit` is not beyond `start`."""
    count = max(0, -(-(limit - start) // delta))
    result: Tensor = apply(Arange((count,), dtype, start, delta), name=name)
    return result
