"""Pooling on GPUs: one kernel per operation, with one thread per output element.

Gradients are gathered: the thread of an image element iterates over the windows that contain it, so no element has two writers.  Sizes and strides
are constants of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.kernel_text import functions_for
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, to_memory, value_type
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad
from jobflow.ops.windows import Window

NAME = "pooled"


@dataclass(frozen=True)
class PoolingKernel:
    """An implementation by one kernel, printed for the sizes and strides of the arrays."""

    name: str = "pooling"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        if not dtype_of(outputs[0].dtype).is_float:
            return f"elements of type {outputs[0].dtype} are not floats"
        return "an operand has no elements" if any(0 in a.shape for a in (*inputs, *outputs)) else None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        arrays = [*inputs, *outputs]
        here = compiler(int(outputs[0].device.id))
        function = here.module(print_pooling(op, placeholders(arrays))).function(NAME)
        blocks = min(-(-int(outputs[0].size) // THREADS), here.blocks)
        return [(KernelLaunch(function, arrays), ((blocks,), (THREADS,), addresses(placeholders(arrays))))]


def addresses(arrays: Sequence[Array]) -> tuple[object, ...]:
    return tuple(np.int64(a.__array_interface__["data"][0]) for a in arrays)


def print_pooling(op: Op, arrays: Sequence[Array], name: str = NAME) -> str:
    """Print the kernel of an operation for arrays with these layouts; the output is the last array."""
    text = _Pooling(op, arrays)
    pointers = [f"{'const ' if k < len(arrays) - 1 else ''}{stored_type(text.dtype)} *__restrict__ {pointer}" for k, pointer in enumerate(text.names)]
    head = [f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(', f"    {', '.join(pointers)}) {{"]
    body = "\n".join([*head, *text.lines(), "}"]) + "\n"
    return "\n\n".join([*functions_for(body), body])


class _Pooling:
    def __init__(self, op: Op, arrays: Sequence[Array]) -> None:
        assert isinstance(op, MaxPool | MaxPoolGrad | AvgPool | AvgPoolGrad)
        self.op, self.arrays = op, arrays
        self.window: Window = op.window
        self.dtype: DType = dtype_of(arrays[-1].dtype)
        self.value = value_type(self.dtype)
        self.axes = range(len(self.window.kernel))
        self.backward = isinstance(op, MaxPoolGrad | AvgPoolGrad)
        self.names = ["x", "y", "dy", "dx"] if isinstance(op, MaxPoolGrad) else ["dy", "dx"] if self.backward else ["x", "y"]
        image, pooled = (arrays[-1], arrays[-2]) if self.backward else (arrays[0], arrays[-1])
        self.image, self.pooled = tuple(image.shape[2:]), tuple(pooled.shape[2:])
        furthest = max(sum(abs(s) * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) for a in arrays)
        #: the type of indices, and the ending of their constants
        self.index, self.ending = ("int", "") if max(furthest, arrays[-1].size) < 1 << 30 else ("long long", "LL")

    def lines(self) -> Iterator[str]:
        shape = self.arrays[-1].shape
        at = "j" if self.backward else "i"
        places = f"place < {math.prod(shape)}{self.ending}; place += ({self.index})gridDim.x * {THREADS}"
        yield f"  for ({self.index} place = ({self.index})blockIdx.x * {THREADS} + threadIdx.x; {places}) {{"
        yield f"    {self.index} rest = place;"
        for axis in reversed(self.axes):
            yield f"    const {self.index} {at}{axis} = rest % {shape[2 + axis]}; rest /= {shape[2 + axis]};"
        yield f"    const {self.index} c = rest % {shape[1]}, n = rest / {shape[1]};"
        start = literal(-math.inf if isinstance(self.op, MaxPool) else 0.0, self.dtype.arithmetic)
        yield f"    {self.value} value = {start};"
        if isinstance(self.op, AvgPool):
            yield "    int count = 0;"
        for axis in self.axes:
            yield f"    for (int k{axis} = 0; k{axis} < {self.window.kernel[axis]}; ++k{axis}) {{"
            yield f"      {self._along_to_window(axis) if self.backward else self._along_to_image(axis, f'k{axis}', 'j')}"
        yield from self._tap()
        yield from ("    }" for _ in self.axes)
        result = f"value / ({self.value})count" if isinstance(self.op, AvgPool) else "value"
        yield f"    {self._element(len(self.arrays) - 1, at)} = {to_memory(result, self.dtype)};"
        yield "  }"

    def _tap(self) -> Iterator[str]:
        """Print the statements for one element of a window; the element is inside the image."""
        match self.op:
            case MaxPool():
                yield f"      value = larger<{self.value}>(value, {self._read(0, 'j')});"
            case AvgPool():
                yield f"      value = value + {self._read(0, 'j')};"
                yield "      ++count;"
            case AvgPoolGrad():
                sizes = [
                    f"(min({self._first(a)} + {k}, {self.image[a]}{self.ending}) - max({self._first(a)}, 0{self.ending}))"
                    for a, k in enumerate(self.window.kernel)
                ]
                yield f"      value = value + {self._read(0, 'i')} / ({self.value})({' * '.join(sizes)});"
            case MaxPoolGrad():
                yield f"      const {self.value} largest = {self._read(1, 'i')};"
                yield f"      if ({self._read(0, 'j')} != largest) continue;"
                yield "      bool first = true;  // no tap before this one has it too"
                yield f"      for (int m = 0; first && m < {self._flat()}; ++m) {{"
                size = 1
                for axis in reversed(self.axes):
                    yield f"        const int m{axis} = m / {size} % {self.window.kernel[axis]};"
                    yield f"        {self._along_to_image(axis, f'm{axis}', 'l')}"
                    size *= self.window.kernel[axis]
                yield f"        first = {self._read(0, 'l')} != largest;"
                yield "      }"
                yield f"      if (first) value = value + {self._read(2, 'i')};"

    def _flat(self) -> str:
        """Return the C expression for the flat index of a tap in its window, in row-major order."""
        text = "k0"
        for axis in self.axes[1:]:
            text = f"({text} * {self.window.kernel[axis]} + k{axis})"
        return text

    def _first(self, axis: int) -> str:
        """Return the C expression for the first position of a window along `axis`."""
        return f"(i{axis} * {self.window.strides[axis]}{self.ending} - {self.window.padding[axis][0]}{self.ending})"

    def _along_to_image(self, axis: int, tap: str, prefix: str) -> str:
        position = f"{prefix}{axis}"
        return f"const {self.index} {position} = {self._first(axis)} + {tap}; if ({position} < 0 || {position} >= {self.image[axis]}) continue;"

    def _along_to_window(self, axis: int) -> str:
        stride, before = self.window.strides[axis], self.window.padding[axis][0]
        inside = f"d{axis} < 0 || d{axis} % {stride} || d{axis} / {stride} >= {self.pooled[axis]}"
        return f"const {self.index} d{axis} = j{axis} + {before} - k{axis}; if ({inside}) continue; const {self.index} i{axis} = d{axis} / {stride};"

    def _element(self, operand: int, at: str) -> str:
        size = self.dtype.itemsize
        steps = [stride // size for stride in self.arrays[operand].strides]
        terms = [
            f"n * {steps[0]}{self.ending}",
            f"c * {steps[1]}{self.ending}",
            *(f"{at}{axis} * {steps[2 + axis]}{self.ending}" for axis in self.axes),
        ]
        return f"{self.names[operand]}[{' + '.join(terms)}]"

    def _read(self, operand: int, at: str) -> str:
        return from_memory(self._element(operand, at), self.dtype)


for _op in (MaxPool, MaxPoolGrad, AvgPool, AvgPoolGrad):
    register(_op, "cuda", "nvrtc", PoolingKernel())
