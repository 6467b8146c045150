"""Random tensors as compiled loops over lane indices: the tier "llvm" of CPUs.  The results are bit-equal to the tier "numpy".

A loop computes the elements of whole groups (`expressions/philox.py`).  The loop computes the words of a lane index in one or two planes, and an
element of each pair of words:

    lane index -> four words of plane 0, four of plane 1 -> four elements of float32

A normal number is computed in float64, as in NumPy, and rounded to float32.  The loop's logarithm and cosine may differ from the functions of
NumPy and the C library.  Each element therefore has a flag, set if such a difference could change its rounding.  This is possible for one element
in four million.  The operation itself computes the flagged elements, the rejected samples of a truncated normal, and incomplete groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from jobflow.core.types import Array, float32, float64, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.language import Expression
from jobflow.kernels import llvm
from jobflow.kernels.integer_functions import random_words
from jobflow.kernels.registry import implements
from jobflow.ops.op import Binder, Call
from jobflow.ops.random_tensors import RandomNormal, RandomSource, RandomUniform, TruncatedNormal

#: fewest elements; for fewer, compiling costs more than runs save
FEWEST = 4096
#: bounds of the difference between two libraries: relative to sqrt(-2 log(u)) std, and relative to the result for rounding; twice the actual errors
DIFFERENCE, ROUNDED = 2.0**-47, 2.0**-50

#: words of each plane -> the element, and a flag that is set if the operation has to compute it
Formula = Callable[..., tuple[Expression, ...]]


def _uniform(size: Expression, low: Expression, word: Expression, _: Expression) -> tuple[Expression, ...]:
    return (f.cast(f.right_shift(word, 8), float32) * 2.0**-24 * f.cast(size, float32) + f.cast(low, float32),)


def _normal(std: Expression, mean: Expression, first: Expression, second: Expression, furthest: float = math.inf) -> tuple[Expression, ...]:
    u, v = ((f.cast(word, float64) + 0.5) * 2.0**-32 for word in (first, second))
    radius = f.sqrt(-2.0 * f.log(u))
    z = radius * f.cos(2.0 * math.pi * v)
    y = z * std + mean
    margin = radius * f.absolute(std) * DIFFERENCE + f.absolute(y) * ROUNDED
    doubtful = f.not_equal(f.cast(y - margin, float32), f.cast(y + margin, float32))
    if furthest < math.inf:
        doubtful = f.logical_or(doubtful, f.absolute(z) > furthest)
    return f.cast(y, float32), doubtful


def _truncated(std: Expression, mean: Expression, first: Expression, second: Expression) -> tuple[Expression, ...]:
    return _normal(std, mean, first, second, furthest=2.0 - 1e-12)


@cache
def _outputs(formula: Formula | None, planes: int) -> tuple[Expression, ...]:
    """Return the expressions that a loop computes per lane index: the results of `formula`, or the four random words if `formula` is None.

    The inputs are the lane index, the stream, the two words of the key, the plane, and two parameters of the operation.
    """
    stream, first, second, plane = (f.number(k, int64) for k in range(1, 5))
    words = [random_words(f.element(0, int64), stream, (first, second), plane + k if k else plane) for k in range(planes)]
    if formula is None:
        return tuple(f.cast(word, int32) for word in words[0])
    parameters = [f.number(k, float64) for k in (5, 6)]
    results = [formula(*parameters, *pair) for pair in zip(words[0], words[-1], strict=True)]
    return tuple(y for kind in zip(*results, strict=True) for y in kind)


class CompiledStream(philox.Stream):
    """A random stream whose words a compiled loop computes."""

    def words(self, lanes: Array, plane: int) -> Array:
        scalars = [np.array(n, np.int64) for n in (self.stream, *self.key, plane)]
        words = np.empty((4, lanes.shape[0]), np.uint32)
        for call, arguments in llvm.bind(_outputs(None, 1), [lanes.view(np.int64), *scalars], list(words.view(np.int32))):
            call(*arguments)
        return words


def _refused(op: RandomSource, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    return None if outputs[0].size >= FEWEST else f"{outputs[0].size} elements; loops are compiled for at least {FEWEST}"


@implements(RandomSource, tier="llvm", refuses=_refused)
def compiled_random_words(op: RandomSource, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    def fill() -> None:
        outputs[0][...] = op.draw(philox.Drawn(op.stream(np, inputs, CompiledStream), op.drawn_box())).reshape(op.shape)

    return [(fill, ())]


def _refused_values(op: RandomSource, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
    (y,) = outputs
    if y.dtype != np.float32 or not y.flags.c_contiguous:
        return "a loop samples dense float32 only"
    starts, _ = philox.runs(op.drawn_box())
    return "the shard is not one contiguous range of the tensor" if starts.size != 1 else _refused(op, inputs, outputs)


@implements(RandomUniform, tier="llvm", rank=1, refuses=_refused_values)
def compiled_uniform(op: RandomUniform, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return _in_a_loop(op, _outputs(_uniform, 1), (op.high - op.low, op.low), inputs, outputs[0])


@implements(RandomNormal, tier="llvm", rank=1, refuses=_refused_values)
def compiled_normal(op: RandomNormal, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return _in_a_loop(op, _outputs(_normal, 2), (op.std, op.mean), inputs, outputs[0])


@implements(TruncatedNormal, tier="llvm", rank=1, refuses=_refused_values)
def compiled_truncated_normal(op: TruncatedNormal, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    return _in_a_loop(op, _outputs(_truncated, 2), (op.std, op.mean), inputs, outputs[0])


def _in_a_loop(op: RandomSource, outputs: Sequence[Expression], parameters: tuple[float, float], counter: Sequence[Array], y: Array) -> list[Call]:
    """Return the calls for whole groups by the loop, and for the remaining elements by the operation."""
    (start,), _ = philox.runs(op.drawn_box())
    flat, begin = y.reshape(-1), int(start)
    first, last = -(-begin // philox.GROUP), (begin + y.size) // philox.GROUP
    groups = slice(first * philox.GROUP - begin, last * philox.GROUP - begin)
    left = np.ones(y.size, np.bool_)
    left[groups] = False
    stream = counter[0].reshape(()) if counter else np.array(0)
    scalars = [stream, *map(np.array, (*philox.key_of(op.seed, op.key), 0)), *(np.array(n, np.float64) for n in parameters)]
    lanes = np.arange(first * philox.LANES, last * philox.LANES).reshape(-1, philox.LANES)
    parts = [part[groups].reshape(-1, 4, philox.LANES) for part in (flat, left)[: len(outputs) // 4]]
    calls = llvm.bind(outputs, [lanes, *scalars], [part[:, word] for part in parts for word in range(4)])

    def rest() -> None:
        index = np.flatnonzero(left)
        if index.size:
            words = philox.Stream if index.size < FEWEST else CompiledStream
            flat[index] = op.draw(philox.Drawn(op.stream(np, counter, words), (index + begin).astype(np.uint64)))

    return [*calls, (rest, ())]
