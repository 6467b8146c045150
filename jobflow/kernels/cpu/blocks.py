"""Blocks of long elementwise chains that stay in the L2 cache, and the addition of partial results of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from jobflow.core.types import Array, dtype_of
from jobflow.ops.op import Binder, Call

#: elements per block: 256 KiB of float32, so that an operand, a result and a temporary fit 1 MiB of L2
BLOCK = 64 * 1024
#: elements that are added sequentially in sums of more than SHORT; without partial sums, 30,000 times 0.1 would be 3000.1 in float32
RUN = 128
SHORT = 2048


def memory_order(x: Array) -> list[int]:
    """Return the axes of x, from the longest stride to the shortest."""
    return sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))


def blocks(arrays: Sequence[Array], elements: int = BLOCK) -> Iterator[tuple[Array, ...]]:
    """Yield views, each of about `elements` elements or fewer, that together cover arrays of one shape in memory order.

    Arrays that are dense in the same order of axes are cut as vectors.  Other arrays are cut along the outermost axis in memory.  If one index of
    that axis has too many elements, these arrays are also cut along the next axis.
    """
    turned: Sequence[Array] = arrays
    if not arrays[0].flags.c_contiguous:
        order = memory_order(arrays[0])
        turned = [a.transpose(order) for a in arrays]
    if all(a.flags.c_contiguous for a in turned):
        turned = [a.reshape(-1) for a in turned]
    yield from _cut(turned, elements)


def _cut(arrays: Sequence[Array], elements: int) -> Iterator[tuple[Array, ...]]:
    shape = arrays[0].shape
    axis = next((i for i, n in enumerate(shape) if n > 1), None)
    if math.prod(shape) <= elements or axis is None:
        yield tuple(arrays)
        return
    step = max(1, elements * shape[axis] // math.prod(shape))
    for start in range(0, shape[axis], step):
        at = (slice(None),) * axis + (slice(start, start + step),)
        yield from _cut([a[at] for a in arrays], elements)


def lead_sum_calls(device: Binder, x: Array, y: Array) -> list[Call]:
    """Return the calls for y[k] = sum_i x[i,k] on a dense matrix x."""
    n, m = x.shape
    if n <= SHORT:
        return [(np.dot if y.flags.c_contiguous else np.matmul, (np.ones(n, x.dtype), x, y))]
    whole, rest = divmod(n, RUN)
    ones, part = np.ones(RUN, x.dtype), device.scratch((whole + bool(rest), m), dtype_of(x.dtype))
    calls: list[Call] = [(np.matmul, (ones, x[: whole * RUN].reshape(whole, RUN, m), part[:whole]))]
    if rest:
        calls.append((np.dot, (ones[:rest], x[whole * RUN :], part[whole])))
    return [*calls, (np.add.reduce, (part, 0, np.float64, y))]
