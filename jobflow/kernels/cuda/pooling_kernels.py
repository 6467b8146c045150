"""Pooling on GPUs: one kernel per operation, with one thread per output element, or per 16 bytes of channels that are adjacent in memory.

Gradients are gathered: the thread of an image element iterates over the windows that contain it, so no element has two writers.  For adjacent
channels, `pooling_tiles` prints the gradient of the maximum.  Sizes and strides are constants of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_form import THREADS, WIDEST
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.pooling_tiles import TiledGradient, tiling
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, to_memory, value_type
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolPick
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
        blocks = pooling_blocks(op, placeholders(arrays), here.blocks)
        return [(KernelLaunch(function, arrays), ((blocks,), (THREADS,), addresses(placeholders(arrays))))]


def addresses(arrays: Sequence[Array]) -> tuple[object, ...]:
    return tuple(np.int64(a.__array_interface__["data"][0]) for a in arrays)


def channels_at_once(arrays: Sequence[Array]) -> int:
    """Return the number of adjacent channels that a thread computes: 16 bytes, or one if channels are not adjacent and aligned."""
    vector = WIDEST // int(arrays[0].itemsize)
    for a in arrays:
        others = [stride for axis, (stride, n) in enumerate(zip(a.strides, a.shape, strict=True)) if axis != 1 and n > 1]
        if a.shape[1] % vector or a.strides[1] != a.itemsize or address(a) % WIDEST or any(stride % WIDEST for stride in others):
            return 1
    return vector


def print_pooling(op: Op, arrays: Sequence[Array], name: str = NAME) -> str:
    """Print the kernel of an operation for arrays with these layouts; the output is the last array."""
    text = _Pooling(op, arrays)
    tiled = text.tiled()
    pointers = [f"{'const ' if k < len(arrays) - 1 else ''}{stored_type(text.dtype)} *__restrict__ {pointer}" for k, pointer in enumerate(text.names)]
    head = [f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(', f"    {', '.join(pointers)}) {{"]
    body = "\n".join([*head, *(text.lines() if tiled is None else [tiled.text()]), "}"]) + "\n"
    return with_functions(body)


def pooling_blocks(op: Op, arrays: Sequence[Array], most: int) -> int:
    """Return the number of blocks of a launch.  At most `most` blocks loop over outputs; tiles have one block each, so that no wave is half empty."""
    tiled = _Pooling(op, arrays).tiled()
    return min(-(-(int(arrays[-1].size) // channels_at_once(arrays)) // THREADS), most) if tiled is None else tiled.blocks


class _Pooling:
    def __init__(self, op: Op, arrays: Sequence[Array]) -> None:
        assert isinstance(op, MaxPool | MaxPoolGrad | MaxPoolPick | AvgPool | AvgPoolGrad)
        self.op, self.arrays = op, arrays
        self.window: Window = op.window
        self.dtype: DType = dtype_of(arrays[-1].dtype)
        self.value, self.vector = value_type(self.dtype), channels_at_once(arrays)
        self.axes = range(len(self.window.kernel))
        self.backward = isinstance(op, MaxPoolGrad | AvgPoolGrad)
        others = ["dy", "dx"] if self.backward else ["x", "y"]
        self.names = {MaxPoolGrad: ["x", "y", "dy", "dx"], MaxPoolPick: ["x", "y", "values", "picked"]}.get(type(op), others)
        image, pooled = (arrays[-1], arrays[-2]) if self.backward else (arrays[0], arrays[-1])
        self.image, self.pooled = tuple(image.shape[2:]), tuple(pooled.shape[2:])
        furthest = max(sum(abs(s) * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) for a in arrays)
        #: the type of indices, and the ending of their constants
        self.index, self.ending = ("int", "") if max(furthest, arrays[-1].size) < 1 << 30 else ("long long", "LL")

    def tiled(self) -> TiledGradient | None:
        """Return the text with tiles, if the operation is the gradient of a maximum and channels are adjacent."""
        if not isinstance(self.op, MaxPoolGrad) or self.vector == 1:
            return None
        tile = tiling(self.window, self.image, self.arrays[-1].shape[1], self.vector)
        return None if tile is None else TiledGradient(self.window, self.arrays, tile, self.vector, self.index)

    def lines(self) -> Iterator[str]:
        at = "j" if self.backward else "i"
        yield from self._output_index(at)
        start = literal(-math.inf if isinstance(self.op, MaxPool) else 0.0, self.dtype.arithmetic)
        yield f"    {self.value} value[{self.vector}];"
        yield from self._each(f"value[v] = {start};", "    ")
        if isinstance(self.op, AvgPool):
            yield "    int count = 0;"
        if isinstance(self.op, MaxPoolPick):
            yield self._load("largest", 1, "i")
            yield f"    bool searching[{self.vector}];  // no earlier tap has the maximum"
            yield from self._each("searching[v] = true;", "    ")
        for axis in self.axes:
            yield f"    for (int k{axis} = 0; k{axis} < {self.window.kernel[axis]}; ++k{axis}) {{"
            yield f"      {self._along_to_window(axis) if self.backward else self._along_to_image(axis, f'k{axis}', 'j')}"
        yield from self._tap()
        yield from ("    }" for _ in self.axes)
        result = f"value[v] / ({self.value})count" if isinstance(self.op, AvgPool) else "value[v]"
        yield f"    {self._vector_type} result;"
        yield from self._each(f"result.at[v] = {to_memory(result, self.dtype)};", "    ")
        yield f"    stored({self._address(len(self.arrays) - 1, at)}, result);"
        yield "  }"

    def _output_index(self, at: str) -> Iterator[str]:
        """Print the loop over outputs and the indices of an output; channels are innermost if a thread computes several."""
        shape, index = self.arrays[-1].shape, self.index
        rest_of_loop = f"output < {math.prod(shape) // self.vector}{self.ending}; output += ({index})gridDim.x * {THREADS}"
        yield f"  for ({index} output = ({index})blockIdx.x * {THREADS} + threadIdx.x; {rest_of_loop}) {{"
        yield f"    {index} rest = output;"
        channels = shape[1] // self.vector
        if self.vector > 1:
            yield f"    const {index} c = rest % {channels} * {self.vector}; rest /= {channels};"
        for axis in reversed(self.axes):
            yield f"    const {index} {at}{axis} = rest % {shape[2 + axis]}; rest /= {shape[2 + axis]};"
        yield f"    const {index} n = rest;" if self.vector > 1 else f"    const {index} c = rest % {channels}, n = rest / {channels};"

    def _each(self, statement: str, indent: str = "      ") -> Iterator[str]:
        """Print a statement for each channel v of the thread."""
        yield "#pragma unroll"
        yield f"{indent}for (int v = 0; v < {self.vector}; ++v) {statement}"

    def _tap(self) -> Iterator[str]:
        """Print the statements for one element of a window; the element is inside the image."""
        match self.op:
            case MaxPool():
                yield self._load("element", 0, "j")
                yield from self._each(f"value[v] = larger<{self.value}>(value[v], {self._of('element')});")
            case AvgPool():
                yield self._load("element", 0, "j")
                yield from self._each(f"value[v] = value[v] + {self._of('element')};")
                yield "      ++count;"
            case AvgPoolGrad():
                sizes = [
                    f"(min({self._first(a)} + {k}, {self.image[a]}{self.ending}) - max({self._first(a)}, 0{self.ending}))"
                    for a, k in enumerate(self.window.kernel)
                ]
                yield self._load("gradient", 0, "i")
                yield from self._each(f"value[v] = value[v] + {self._of('gradient')} / ({self.value})({' * '.join(sizes)});")
            case MaxPoolPick():
                yield self._load("element", 0, "j")
                yield f"      bool first[{self.vector}], some = false;"
                yield from self._each(f"first[v] = searching[v] && {self._of('element')} == {self._of('largest')}, some = some || first[v];")
                yield "      if (!some) continue;"
                yield self._load("one", 2, "j")
                yield from self._each(f"if (first[v]) value[v] = value[v] + {self._of('one')}, searching[v] = false;")
            case MaxPoolGrad():
                yield from self._tap_of_maximum()

    def _tap_of_maximum(self) -> Iterator[str]:
        """Print the addition of a window's gradient to its first maximum."""
        yield self._load("largest", 1, "i")
        yield self._load("element", 0, "j")
        yield f"      bool first[{self.vector}], some = false;  // no tap before this one has the maximum too"
        yield from self._each(f"first[v] = {self._of('element')} == {self._of('largest')}, some = some || first[v];")
        yield "      if (!some) continue;"
        yield f"      for (int m = 0; m < {self._flat()}; ++m) {{"
        size = 1
        for axis in reversed(self.axes):
            yield f"        const int m{axis} = m / {size} % {self.window.kernel[axis]};"
            yield f"        {self._along_to_image(axis, f'm{axis}', 'l')}"
            size *= self.window.kernel[axis]
        yield f"  {self._load('before', 0, 'l')}"
        yield from self._each(f"first[v] = first[v] && {self._of('before')} != {self._of('largest')};", "        ")
        yield "      }"
        yield self._load("gradient", 2, "i")
        yield from self._each(f"if (first[v]) value[v] = value[v] + {self._of('gradient')};")

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

    @property
    def _vector_type(self) -> str:
        return f"Vector<{stored_type(self.dtype)}, {self.vector}>"

    def _address(self, operand: int, at: str) -> str:
        """Return the C expression for the address of an operand's element, the first of the thread's channels."""
        size = self.dtype.itemsize
        steps = [stride // size for stride in self.arrays[operand].strides]
        indices = ["n", "c", *(f"{at}{axis}" for axis in self.axes)]
        terms = [f"{index} * {step}{self.ending}" for index, step in zip(indices, steps, strict=True)]
        return f"{self.names[operand]} + {' + '.join(terms)}"

    def _load(self, name: str, operand: int, at: str) -> str:
        return f"      const {self._vector_type} {name} = loaded<{self.vector}>({self._address(operand, at)});"

    def _of(self, name: str) -> str:
        return from_memory(f"{name}.at[v]", self.dtype)


for _op in (MaxPool, MaxPoolGrad, MaxPoolPick, AvgPool, AvgPoolGrad):
    register(_op, "cuda", "nvrtc", PoolingKernel())
