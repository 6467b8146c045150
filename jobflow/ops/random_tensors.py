"""Random tensors: each element is a function of the seed, a key, the run counter, and its index in the logical tensor.

`key` is a stable name of the variable or of the op in the graph.  Ops for initial values of variables have no input and use run counter 0.
Other ops read the run counter, an int64 tensor of one element, and return different values in each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from jobflow.core.errors import ArgumentError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature, whole_box
from jobflow.core.types import Array, Tensor, TensorType, Xp, float32, float64, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.index_space import IndexSpace
from jobflow.expressions.language import Expression
from jobflow.ops.arithmetic import multiply
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, placed, sample
from jobflow.ops.source import Source

#: maximum number of repeated samples per element of a truncated normal, before it is clipped; about one in 10^11 is clipped
REDRAWS = 8


def _check_counter(what: str, counter: TensorType) -> None:
    if counter != TensorType((1,), int64):
        raise ShapeError(f"{what}: the run counter {counter} must be int64[1]")


def _stream(counter: Array) -> int:
    return int(counter[0])


def _flat_index(box: Box) -> Expression:
    """Return the flat index in the logical tensor of the element of a shard, which is the box `box` of the tensor."""
    axes = len(box.whole)
    strides = [math.prod(box.whole[i + 1 :]) for i in range(axes)]
    flat = f.constant(sum(map(math.prod, zip(box.start, strides, strict=True))), int64)
    for axis, stride in enumerate(strides):
        flat = f.index(axis - axes) * stride + flat
    return flat


class RandomSource(Source):
    """Base class of random sources.  `box` is the box of the logical tensor that the result contains; None for the whole tensor."""

    key: str
    seed: int = 0
    box: Box | None = None
    by_position = True

    def infer(self, *counter: TensorType) -> TensorType:
        for each in counter:
            _check_counter(self.word(), each)
        return TensorType(self.shape, self.dtype)

    def rule(self, *counter: TensorType) -> Rule:
        if not counter:
            return super().rule()
        axes = len(self.shape)
        return Rule(f"1->{LETTERS[:axes].upper()}", also=tuple(Signature((B,), (S(i),)) for i in range(axes)))

    def grad(self, *tensors: Tensor) -> tuple[Tensor, ...] | tuple[None, ...]:  # type: ignore[override]
        return (None,) * (len(tensors) - 2)

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, shape=outputs[0].shape, box=placed(self.box, outputs[0]))

    def fill(self, xp: Xp, *arrays: Array, words: type[philox.Stream] = philox.Stream) -> None:
        *counter, y = arrays
        y[...] = self.draw(philox.Drawn(self.stream(xp, counter, words), self.drawn_box())).reshape(self.shape)

    def drawn_box(self) -> Box:
        """Return the box of the logical tensor whose elements the op samples."""
        return whole_box(self.shape) if self.box is None else self.box

    def stream(self, xp: Xp, counter: Sequence[Array], words: type[philox.Stream] = philox.Stream) -> philox.Stream:
        return words(xp, philox.key_of(self.seed, self.key), _stream(counter[0]) if counter else 0)

    #: draw(drawn) -> the sampled elements, flat
    draw: ClassVar[Callable[..., Array]]
    #: sampled(words) -> the formula of an element; words(plane) are 32 random bits of the element, as int64
    sampled: ClassVar[Callable[..., Expression]]

    def expression(self, *counter: TensorType) -> tuple[Expression, ...]:
        """Return the formula of `draw`. A device reads the run counter from its memory, so the host does not wait."""
        stream = f.number(0, int64) if counter else f.constant(0, int64)
        flat, key = _flat_index(self.drawn_box()), philox.key_of(self.seed, self.key)
        value = self.sampled(lambda plane: f.philox(flat, stream, key, plane))
        return (f.cast(f.cast(value, self.dtype.arithmetic), self.dtype),)

    @classmethod
    def _cases(cls, op: Op) -> Iterator[Sample]:
        yield sample(op)
        yield sample(op, np.array([3]))


class RandomUniform(RandomSource):
    """Uniform random numbers: y ~ U[low, high)."""

    low: float = 0.0
    high: float = 1.0
    kernel = RandomSource.fill

    def draw(self, drawn: philox.Drawn) -> Array:
        u = drawn.unit(self.dtype.numpy)
        u *= u.dtype.type(self.high - self.low)
        u += u.dtype.type(self.low)
        return u

    def sampled(self, words: Callable[[int], Expression]) -> Expression:
        if self.dtype is float64:
            high, low = f.cast(words(0), float64) * 2.0**21, f.cast(f.right_shift(words(1), 11), float64)
            u = (high + low) * 2.0**-53
        else:
            u = f.cast(f.right_shift(words(0), 8), float32) * 2.0**-24
        return u * (self.high - self.low) + self.low

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from cls._cases(cls((5, 70), float64, "w", seed=1, low=-2.0, high=3.0))
        yield from cls._cases(cls((7,), float32, "w"))


def _normal(drawn: philox.Drawn, plane: int = 0) -> Array:
    """Return float64 samples of N(0, 1) by the Box-Muller transform, from the random words of `plane` and `plane + 1`."""
    xp = drawn.stream.xp
    u, v = ((words + 0.5) for words in (drawn.bits(plane), drawn.bits(plane + 1)))
    u *= 2.0**-32
    v *= 2.0**-32
    xp.sqrt(xp.multiply(xp.log(u, u), -2.0, u), u)
    u *= xp.cos(xp.multiply(v, 2.0 * math.pi, v), v)
    return u


def _normal_formula(words: Callable[[int], Expression], plane: int = 0) -> Expression:
    """Return the formula of `_normal`."""
    u, v = ((f.cast(words(plane + k), float64) + 0.5) * 2.0**-32 for k in range(2))
    return f.sqrt(f.log(u) * -2.0) * f.cos(v * (2.0 * math.pi))


class RandomNormal(RandomSource):
    """Normal random numbers: y ~ N(mean, std^2)."""

    mean: float = 0.0
    std: float = 1.0
    kernel = RandomSource.fill

    def draw(self, drawn: philox.Drawn) -> Array:
        z = _normal(drawn)
        z *= self.std
        z += self.mean
        return z

    def sampled(self, words: Callable[[int], Expression]) -> Expression:
        return _normal_formula(words) * self.std + self.mean

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from cls._cases(cls((6, 5), float64, "w", mean=1.0, std=2.0))


class TruncatedNormal(RandomSource):
    """Truncated normal random numbers: y ~ N(mean, std^2), sampled again at most REDRAWS times while |y - mean| > 2 std.

    The remaining elements outside this range are clipped to it.
    """

    mean: float = 0.0
    std: float = 1.0
    kernel = RandomSource.fill

    def draw(self, drawn: philox.Drawn) -> Array:
        z = _normal(drawn)
        xp, index = drawn.stream.xp, drawn.indices()
        for again in range(1, REDRAWS + 1):
            far = xp.flatnonzero(abs(z) > 2.0)
            if far.size:
                z[far] = _normal(replace(drawn, elements=index[far]), 2 * again)
        return xp.clip(z, -2.0, 2.0) * self.std + self.mean

    def sampled(self, words: Callable[[int], Expression]) -> Expression:
        z = _normal_formula(words)
        for again in range(1, REDRAWS + 1):
            z = f.where(f.absolute(z) > 2.0, _normal_formula(words, 2 * again), z)
        return f.clip(z, -2.0, 2.0) * self.std + self.mean

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from cls._cases(cls((9, 11), float64, "w", mean=1.0, std=0.1))


class RandomInt(RandomSource):
    """Uniform random integers in [low, high), each computed from 32 random bits."""

    low: int = 0
    high: int = 2
    kernel = RandomSource.fill

    def infer(self, *counter: TensorType) -> TensorType:
        if not 0 < self.high - self.low <= 1 << 32:
            raise ArgumentError(f"{self.word()}: [{self.low}, {self.high}) must contain 1 to 2**32 integers")
        return super().infer(*counter)

    def draw(self, drawn: philox.Drawn) -> Array:
        xp, word = drawn.stream.xp, drawn.bits().astype(np.uint64)
        return (word * xp.uint64(self.high - self.low) >> xp.uint64(32)).astype(xp.int64) + self.low

    def sampled(self, words: Callable[[int], Expression]) -> Expression:
        product = words(0) * (self.high - self.low)  # below 2^64, so the upper half is the same with and without a sign
        return f.bitwise_and(f.right_shift(product, 32), philox.MASK) + self.low

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from cls._cases(cls((6, 5), int32, "labels", low=-3, high=10))


class DropoutMask(Indexed):
    """Random mask in the type of x: 1 / (1 - rate) with probability 1 - rate, else 0.

    Inputs: x, for its type only, and the run counter.
    """

    precision = "any"
    rate: float
    key: str
    seed: int = 0
    box: Box | None = None
    by_position = True

    def infer(self, x: TensorType, counter: TensorType) -> TensorType:
        _check_counter("dropout", counter)
        if not 0 <= self.rate < 1:
            raise ArgumentError(f"dropout: rate {self.rate} must be in [0, 1)")
        return x

    def rule(self, x: TensorType, counter: TensorType) -> Rule:
        letters = LETTERS[: x.ndim]
        return Rule(f"{letters},1->{letters}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, box=placed(self.box, outputs[0]))

    def index_space(self, *types: TensorType) -> IndexSpace:
        axes = tuple(range(types[0].ndim))
        return IndexSpace(types[0].shape or (1,), (axes, (None,), axes))  # a scalar is a row of one element

    def expression(self, x: TensorType, counter: TensorType) -> tuple[Expression, ...]:  # type: ignore[override]
        box = whole_box(x.shape) if self.box is None else self.box
        drawn = f.philox(_flat_index(box), f.number(1, int64), philox.key_of(self.seed, self.key))
        keep = f.greater_equal(drawn, min(round(self.rate * 2.0**32), philox.MASK))
        return (f.cast(f.where(keep, f.constant(1.0 / (1.0 - self.rate), x.dtype.arithmetic), 0.0), x.dtype),)

    def kernel(self, xp: Xp, x: Array, counter: Array, mask: Array) -> None:
        """Compute the mask of `expression` with four random words per call of the generator."""
        box = whole_box(mask.shape) if self.box is None else self.box
        drawn = philox.Stream(xp, philox.key_of(self.seed, self.key), _stream(counter)).box_bits(box)
        keep = drawn >= xp.uint32(min(round(self.rate * 2.0**32), philox.MASK))
        xp.multiply(keep.reshape(mask.shape), mask.dtype.type(1.0 / (1.0 - self.rate)), mask)

    def grad(self, x: Tensor, counter: Tensor, mask: Tensor, dmask: Tensor) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rate in (0.0, 0.3):
            yield sample(cls(rate, "drop", 7), np.zeros((5, 40)), np.array([2]), differentiable=())
            yield sample(cls(rate, "drop", 7), np.zeros(()), np.array([3]), differentiable=())


def dropout(x: Tensor, rate: float, counter: Tensor, *, key: str, seed: int = 0, name: str | None = None) -> Tensor:
    """Set each element of x to zero with probability `rate`, and divide the remaining elements by 1 - rate.

    `counter` is the run counter, an int64 tensor of one element, and `key` a stable name of the op. Raises ArgumentError unless 0 <= rate < 1.
    """
    mask = apply(DropoutMask(rate, key, seed), x, counter)
    result: Tensor = multiply(x, mask, name=name)
    return result
