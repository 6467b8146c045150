"""Sorts along an axis on GPUs: a bitonic sort of each line in shared memory, for lines of up to 2,048 elements.

A block sorts a line of pairs (element, index).  Equal elements are ordered by their index, so the sort is stable; NaN is larger than all numbers.
Sizes and strides are constants of the text.  Longer lines are sorted by CuPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_text import THREADS, with_functions
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.sort import Ordering, Sort, TopK

NAME = "sorted"
#: longest line; values and indices of a line take 24 KiB of shared memory in float64
LONGEST = 2048


@dataclass(frozen=True)
class SortKernel:
    """An implementation by one kernel, with one block per line."""

    name: str = "sort"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, Ordering)
        n = inputs[0].shape[op.axis]
        if n > LONGEST:
            return f"{n} elements along the axis; a block sorts at most {LONGEST}"
        return "an operand has no elements" if any(0 in a.shape for a in (*inputs, *outputs)) else None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, Ordering)
        arrays = [*inputs, *outputs]
        here, views = compiler(int(outputs[0].device.id)), placeholders(arrays)
        function = here.module(print_sort(op, views)).function(NAME)
        lines = int(inputs[0].size) // inputs[0].shape[op.axis]
        return [(KernelLaunch(function, arrays), ((min(lines, here.blocks),), (THREADS,), addresses(views)))]


def print_sort(op: Ordering, arrays: Sequence[Array], name: str = NAME) -> str:
    """Print the kernel of a sort; the arrays are x, the values and the indices."""
    return with_functions("\n".join(_lines(op, arrays, name)) + "\n")


def _lines(op: Ordering, arrays: Sequence[Array], name: str) -> Iterator[str]:
    x, values, _ = arrays
    dtype, shape, axis = dtype_of(x.dtype), x.shape, op.axis
    value, n, count = value_type(dtype), x.shape[axis], values.shape[axis]
    size = 1 << max(n - 1, 1).bit_length()
    descending = (isinstance(op, Sort) and op.descending) or (isinstance(op, TopK) and op.largest)
    others = [i for i in range(len(shape)) if i != axis]
    yield "// True if the pair (a, i) is before (b, j); a negative index marks a pair behind the end of the line"
    yield f"static __device__ bool {name}_before({value} a, int i, {value} b, int j) {{"
    yield "  if (i < 0 || j < 0) return j < 0 && i >= 0;"
    yield "  const bool a_nan = a != a, b_nan = b != b;"
    yield f"  if (a_nan || b_nan) return a_nan && b_nan ? i < j : {'a_nan' if descending else 'b_nan'};"
    yield f"  return a == b ? i < j : {'a > b' if descending else 'a < b'};"
    yield "}"
    stored = stored_type(dtype)
    yield f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    const {stored} *x, {stored} *values, long long *indices) {{'
    yield f"  static __shared__ {value} line[{size}];"
    yield f"  static __shared__ int places[{size}];"
    yield f"  for (long long at = blockIdx.x; at < {math.prod(shape[i] for i in others)}LL; at += gridDim.x) {{"
    yield "    long long rest = at;"
    for i in reversed(others):
        yield f"    const long long i{i} = rest % {shape[i]}LL; rest /= {shape[i]}LL;"
    for pointer, a in zip(("x", "values", "indices"), arrays, strict=True):
        terms = ["0LL", *(f"i{i} * {a.strides[i] // a.itemsize}LL" for i in others)]
        yield f"    const long long at_{pointer} = {' + '.join(terms)}, step_{pointer} = {a.strides[axis] // a.itemsize}LL;"
    yield f"    for (int k = threadIdx.x; k < {size}; k += {THREADS}) {{"
    yield f"      places[k] = k < {n} ? k : -1;"
    yield f"      if (k < {n}) line[k] = {from_memory('x[at_x + k * step_x]', dtype)};"
    yield "    }"
    yield f"    for (int run = 2; run <= {size}; run *= 2) for (int far = run / 2; far > 0; far /= 2) {{"
    yield "      __syncthreads();"
    yield f"      for (int pair = threadIdx.x; pair < {size // 2}; pair += {THREADS}) {{"
    yield "        const int i = 2 * pair - (pair & (far - 1)), j = i + far;"
    yield f"        const bool first = {name}_before(line[i], places[i], line[j], places[j]);"
    yield "        if (first != ((i & run) == 0)) {"
    yield f"          const {value} a = line[i]; line[i] = line[j]; line[j] = a;"
    yield "          const int p = places[i]; places[i] = places[j]; places[j] = p;"
    yield "        }"
    yield "      }"
    yield "    }"
    yield "    __syncthreads();"
    yield f"    for (int k = threadIdx.x; k < {count}; k += {THREADS}) {{"
    yield f"      values[at_values + k * step_values] = {to_memory('line[k]', dtype)};"
    yield "      indices[at_indices + k * step_indices] = places[k];"
    yield "    }"
    yield "    __syncthreads();"
    yield "  }"
    yield "}"


register(Ordering, "cuda", "nvrtc", SortKernel())
