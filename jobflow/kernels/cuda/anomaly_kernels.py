"""The search for NaN and infinity in arrays of a GPU, by one launch for all arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jobflow.core.types import Array, bfloat16, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.ops.op import Call

THREADS = 256
#: elements of a part, which one block reads
PART = 1 << 15
#: a part is described by three words: its address, the number of elements, and the kind of its elements
_WORDS = 3
#: kinds of elements: bytes of an element, and 3 for bfloat16
_BFLOAT16 = 3
#: (kind, unsigned type, mask without the sign, bits of infinity)
_KINDS = (
    (8, "unsigned long long", "0x7fffffffffffffffULL", "0x7ff0000000000000ULL"),
    (4, "unsigned int", "0x7fffffffU", "0x7f800000U"),
    (2, "unsigned short", "0x7fff", "0x7c00"),
    (_BFLOAT16, "unsigned short", "0x7fff", "0x7f80"),
)
_HEAD = """extern "C" __global__ void __launch_bounds__({threads}) find_anomalies(
    const long long *parts, int count, long long *flags) {{
  bool nan = false, infinite = false;
  for (int part = blockIdx.x; part < count; part += gridDim.x) {{
    const long long address = parts[part * {words}], n = parts[part * {words} + 1], kind = parts[part * {words} + 2];
"""
_LOOP = """    if (kind == {kind}) {{
      const {type} *x = (const {type} *)address;
#pragma unroll 8
      for (long long i = threadIdx.x; i < n; i += {threads}) {{
        const {type} bits = x[i] & {mask};
        nan |= bits > {infinity};
        infinite |= bits == {infinity};
      }}
    }}
"""
_TAIL = """  }
  if (nan) flags[0] = 1;
  if (infinite) flags[1] = 1;
}
"""


def anomaly_search(index: int, arrays: Sequence[Array], flags: Array, constant: Callable[[Array], Array]) -> Call | None:
    """Return the launch on GPU `index` that writes 1 to `flags[0]` if an array contains NaN, and 1 to `flags[1]` if one contains infinity.

    `flags` are two int64 numbers; the launch leaves them unchanged otherwise.  `constant` copies a NumPy array to the GPU.  The result is None if
    there are no elements.
    """
    parts = [part for array in arrays for part in _parts(array)]
    if not parts:
        return None
    here = compiler(index)
    function = here.module(_text()).function("find_anomalies")
    arguments = (constant(np.array(parts, np.int64)), np.int32(len(parts)), flags)
    return KernelLaunch(function, (*arrays, arguments[0], flags)), ((min(len(parts), here.blocks),), (THREADS,), arguments)


def _text() -> str:
    loops = [_LOOP.format(kind=kind, type=type, mask=mask, infinity=infinity, threads=THREADS) for kind, type, mask, infinity in _KINDS]
    return "".join([_HEAD.format(threads=THREADS, words=_WORDS), *loops, _TAIL])


def _parts(array: Array) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of an array: contiguous runs of at most `PART` elements."""
    kind = _BFLOAT16 if dtype_of(array.dtype) is bfloat16 else array.dtype.itemsize
    address, size = int(array.data.ptr), array.dtype.itemsize
    count, starts = _runs(array)
    for start in starts if count else ():
        for first in range(0, count, PART):
            yield address + start + first * size, min(PART, count - first), kind


def _runs(array: Array) -> tuple[int, Iterator[int]]:
    """Return the number of elements of each contiguous run, and the offsets of the runs in bytes."""
    count = 1
    axes = sorted((abs(stride), n) for stride, n in zip(array.strides, array.shape, strict=True) if n != 1 and stride)
    offset = sum(stride * (n - 1) for stride, n in zip(array.strides, array.shape, strict=True) if stride < 0)
    while axes and axes[0][0] == count * array.dtype.itemsize:
        count *= axes.pop(0)[1]
    outer = itertools.product(*(range(0, stride * n, stride) for stride, n in axes))
    return count if array.size else 0, (offset + sum(position) for position in outer)
