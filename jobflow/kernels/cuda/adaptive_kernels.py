"""Pooling to a requested output size on GPUs: one thread per output element, which adds up its window in every axis.

The windows of `ops.adaptive_pool` have unequal sizes.  A gradient is gathered: the thread of an image element adds up the windows that contain it.
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
from jobflow.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveAvgPoolGrad
from jobflow.ops.op import Binder, Call, Op

NAME = "adapted"


@dataclass(frozen=True)
class AdaptiveKernel:
    """An implementation by one kernel, printed for the sizes and strides of the arrays."""

    name: str = "adaptive pooling"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return "an operand has no elements" if any(0 in a.shape for a in (*inputs, *outputs)) else None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        arrays = [*inputs, *outputs]
        here, views = compiler(int(outputs[0].device.id)), placeholders(arrays)
        function = here.module(print_adaptive(op, views)).function(NAME)
        blocks = min(-(-int(outputs[0].size) // THREADS), here.blocks)
        return [(KernelLaunch(function, arrays), ((blocks,), (THREADS,), addresses(views)))]


def print_adaptive(op: Op, arrays: Sequence[Array], name: str = NAME) -> str:
    """Print the kernel of an operation; the arrays are its input and its output."""
    return with_functions("\n".join(_lines(op, arrays, name)) + "\n")


def _lines(op: Op, arrays: Sequence[Array], name: str) -> Iterator[str]:
    x, y = arrays
    dtype, axes = dtype_of(y.dtype), range(2, y.ndim)
    value, stored = value_type(dtype), stored_type(dtype)
    backward = isinstance(op, AdaptiveAvgPoolGrad)
    yield f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    const {stored} *x, {stored} *y) {{'
    yield f"  for (long long place = blockIdx.x * {THREADS}LL + threadIdx.x; place < {math.prod(y.shape)}LL; place += gridDim.x * {THREADS}LL) {{"
    yield "    long long rest = place;"
    for axis in sorted(range(y.ndim), key=lambda axis: (abs(y.strides[axis]), -axis)):  # adjacent threads write adjacent elements
        yield f"    const long long i{axis} = rest % {y.shape[axis]}LL; rest /= {y.shape[axis]}LL;"
    yield f"    {value} all = 0;"
    for axis in axes:
        # windows that contain element i are those from floor(i m / n) to ceil((i + 1) m / n), as are elements of a window
        n, m = x.shape[axis], y.shape[axis]
        yield f"    const long long first{axis} = i{axis} * {n} / {m}, last{axis} = ((i{axis} + 1) * {n} + {m - 1}) / {m};"
        yield f"    for (long long j{axis} = first{axis}; j{axis} < last{axis}; ++j{axis}) {{"
    element = from_memory(f"x[{_offset(x, 'i', 'j')}]", dtype)
    sizes = [_size(f"j{axis}", y.shape[axis], x.shape[axis]) if backward else f"(last{axis} - first{axis})" for axis in axes]
    yield f"      all = all + {element} / ({value})({' * '.join(sizes)});"
    yield from ("    }" for _ in axes)
    yield f"    y[{_offset(y, 'i', 'i')}] = {to_memory('all', dtype)};"
    yield "  }"
    yield "}"


def _size(i: str, n: int, m: int) -> str:
    """Return the C text for the size of window i of m windows of an axis of n elements."""
    return f"((({i} + 1) * {n} + {m - 1}) / {m} - {i} * {n} / {m})"


def _offset(array: Array, lead: str, spatial: str) -> str:
    steps = [stride // array.itemsize for stride in array.strides]
    return " + ".join(f"{lead if axis < 2 else spatial}{axis} * {step}LL" for axis, step in enumerate(steps))


for _op in (AdaptiveAvgPool, AdaptiveAvgPoolGrad):
    register(_op, "cuda", "nvrtc", AdaptiveKernel())
