"""CUDA kernels of convolutions as products of matrices that are never in memory: a block copies tiles of both into shared memory.

The result has rows and columns, and is summed over a reduction:

    operation    rows                  columns           reduction                    first matrix      second matrix
    forward      samples, positions    filters           taps, channels of a group    windows of x      filters
    input        samples, positions    channels          taps, filters of a group     windows of dy     filters
    weight       filters               taps, channels    samples, positions           dy                windows of x

Groups are independent products.  A block has a tile of 64 x 64 results and iterates over the reduction in steps of 16.  The reduction of the
weight gradient is long and its result small, so several blocks share it.  Each writes its sums to scratch memory, and a second kernel adds
them in order.  No value is added by two blocks, so equal inputs give equal bits.

A thread reads 16 bytes of channels that are adjacent in memory, else single elements.  Sizes and strides are constants of the text.  Sums are in the
type of the arithmetic; results are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, DType, dtype_of
from jobflow.kernels.argument_block import address
from jobflow.kernels.cuda.kernel_form import WIDEST
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.windows import Window

THREADS = 256
#: rows and columns of a tile, rows and columns of a thread, and the step along the reduction
TILE, EACH, STEP = 64, 4, 16
#: blocks among which the reduction of a weight gradient is divided, and the shortest and longest part
BLOCKS, SHORTEST, LONGEST = 528, 512, 1 << 15

#: the indices of a matrix along one axis with their sizes, the outermost first
Indices = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ConvolutionLaunch:
    name: str
    blocks: int


@dataclass(frozen=True)
class _Operand:
    """A matrix in memory: the array, the strides of its indices in elements, and the elements that are read or written at once."""

    name: str
    array: Array
    #: index -> stride in elements
    steps: dict[str, int]
    #: the index of its channels, and the number of adjacent channels that are read or written at once
    channel: str
    vector: int
    #: the spatial indices that follow from the taps: those of the image, or of the result
    window: Literal["", "image", "result"] = ""

    def offset(self, ending: str) -> str:
        return " + ".join(f"{name} * {step}{ending}" for name, step in self.steps.items()) or "0"


class ConvolutionText:
    """The text of the kernels of an operation for arrays with these layouts; the output is the last array."""

    def __init__(self, op: ConvOp, arrays: Sequence[Array], name: str) -> None:
        self.op, self.name = op, name
        self.dtype: DType = dtype_of(arrays[-1].dtype)
        self.value, self.stored = value_type(self.dtype), stored_type(self.dtype)
        furthest = max(sum(abs(s) * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) for a in arrays)
        match op:
            case Conv():
                x, w, y = arrays
            case ConvGradInput():
                y, w, x = arrays
            case _:
                x, y, w = arrays
        self.window: Window = op.window(tuple(w.shape[2:]))
        self.image, self.pooled = tuple(x.shape[2:]), tuple(y.shape[2:])
        channels, filters = w.shape[1], w.shape[0] // op.groups
        taps = tuple((f"k{a}", n) for a, n in enumerate(w.shape[2:]))
        samples = ("n", x.shape[0])
        out = (samples, *((f"i{a}", n) for a, n in enumerate(self.pooled)))
        image = (samples, *((f"j{a}", n) for a, n in enumerate(self.image)))
        windows = _Operand("x", x, _steps(x, "n", ("c", "g", channels), "j"), "c", adjacent_channels(x, 1, channels), "image")
        gradient = _Operand("y", y, _steps(y, "n", ("o", "g", filters), "i"), "o", adjacent_channels(y, 1, filters))
        filter_ = _Operand("w", w, _filter_steps(w, filters), "c", adjacent_channels(w, 1, channels))
        self.rows: Indices
        self.columns: Indices
        self.reduction: Indices
        match op:
            case Conv():
                self.rows, self.columns, self.reduction = out, (("o", filters),), (*taps, ("c", channels))
                self.first, self.second, self.result = windows, filter_, gradient
            case ConvGradInput():
                spread = _Operand("y", y, gradient.steps, "o", gradient.vector, "result")
                self.rows, self.columns, self.reduction = image, (("c", channels),), (*taps, ("o", filters))
                self.first, self.second, self.result = spread, filter_, _Operand("x", x, windows.steps, "c", windows.vector)
            case ConvGradWeight():
                self.rows, self.columns, self.reduction = (("o", filters),), (*taps, ("c", channels)), out
                self.first, self.second, self.result = gradient, windows, filter_
        self.height, self.width, self.depth = (math.prod(n for _, n in each) for each in (self.rows, self.columns, self.reduction))
        self.tiles = -(-self.height // TILE), -(-self.width // TILE)
        self.part, self.parts = self._division()
        wide = max(furthest, self.scratch, *(a.size for a in arrays)) >= 1 << 30
        #: the type of indices, and the ending of their constants
        self.index, self.ending = ("long long", "LL") if wide else ("int", "")

    def _division(self) -> tuple[int, int]:
        """Return the length of a part of the reduction, and the number of parts."""
        if not isinstance(self.op, ConvGradWeight):
            return self.depth, 1
        length = -(-self.depth * math.prod(self.tiles) * self.op.groups // BLOCKS)
        length = -(-min(max(length, SHORTEST), LONGEST) // STEP) * STEP
        return length, max(-(-self.depth // length), 1)

    @property
    def scratch(self) -> int:
        """The number of sums in scratch memory."""
        return self.parts * self.op.groups * self.height * self.width if self.parts > 1 else 0

    def launches(self) -> list[ConvolutionLaunch]:
        first = ConvolutionLaunch(self.name, math.prod(self.tiles) * self.op.groups * self.parts)
        elements = self.op.groups * self.height * self.width
        return [first, *([ConvolutionLaunch(f"{self.name}_total", -(-elements // THREADS))] if self.parts > 1 else [])]

    def text(self) -> str:
        """Return the text of all kernels; their arguments are the addresses of the operands, the output, and scratch memory if there is any."""
        inputs = [self.first.name, self.second.name]
        order = {Conv: "xwy", ConvGradInput: "ywx", ConvGradWeight: "xyw"}[type(self.op)]
        pointers = [f"{'const ' if name in inputs else ''}{self.stored} *__restrict__ {name}" for name in order]
        pointers += [f"{self.value} *__restrict__ sums"] if self.parts > 1 else []
        kernels = [(self.name, self._product())] + ([(f"{self.name}_total", self._total())] if self.parts > 1 else [])
        texts = []
        for name, lines in kernels:
            head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    {", ".join(pointers)}) {{'
            texts.append("\n".join([head, *lines, "}"]))
        return with_functions("\n\n".join(texts) + "\n")

    # ---------------------------------------------------------------------------------------- the product

    def _product(self) -> Iterator[str]:
        index, (down, across) = self.index, self.tiles
        yield f"  static __shared__ {self.value} first[{STEP}][{TILE + EACH}], second[{STEP}][{TILE + EACH}];"
        yield f"  const int t = threadIdx.x, tx = t % {TILE // EACH} * {EACH}, ty = t / {TILE // EACH} * {EACH};"
        blocks = f"{self.launches()[0].blocks}{self.ending}"
        yield f"  for ({index} block = blockIdx.x; block < {blocks}; block += gridDim.x) {{"
        yield f"    const {index} left = block % {across} * {TILE}, above = block / {across} % {down} * {TILE};"
        yield f"    const {index} g = block / {across * down} % {self.op.groups}, part = block / {across * down * self.op.groups};"
        yield f"    const {index} begin = part * {self.part}, end = min(begin + {self.part}, ({index}){self.depth});"
        yield f"    {self.value} total[{EACH}][{EACH}] = {{}};"
        yield f"    for ({index} r0 = begin; r0 < end; r0 += {STEP}) {{"
        yield "      __syncthreads();"
        yield from self._tile(self.first, "first", "above", self.rows, self.height)
        yield from self._tile(self.second, "second", "left", self.columns, self.width)
        yield "      __syncthreads();"
        yield "#pragma unroll"
        yield f"      for (int r = 0; r < {STEP}; ++r) {{"
        yield f"        {self.value} p[{EACH}], q[{EACH}];"
        yield "#pragma unroll"
        yield f"        for (int i = 0; i < {EACH}; ++i) p[i] = first[r][ty + i], q[i] = second[r][tx + i];"
        yield "#pragma unroll"
        yield f"        for (int i = 0; i < {EACH}; ++i)"
        yield "#pragma unroll"
        yield f"          for (int j = 0; j < {EACH}; ++j) total[i][j] = total[i][j] + p[i] * q[j];"
        yield "      }"
        yield "    }"
        yield from self._write()
        yield "  }"

    def _tile(self, operand: _Operand, tile: str, start: str, free: Indices, size: int) -> Iterator[str]:
        """Print the copy of a tile into shared memory; elements beyond the matrix or outside of the image are 0."""
        vector, index = operand.vector, self.index
        along_reduction = vector > 1 and self.reduction[-1][0] == operand.channel
        along_free = vector > 1 and not along_reduction
        steps, lines = (STEP // vector if along_reduction else STEP), (TILE // vector if along_free else TILE)
        yield f"      for (int s = t; s < {steps * lines}; s += {THREADS}) {{"
        # adjacent threads read adjacent memory
        dr, df = (f"s / {lines}", f"s % {lines}") if along_free else (f"s % {steps}", f"s / {steps}")
        yield f"        const int dr = {dr}{_times(vector if along_reduction else 1)}, df = {df}{_times(vector if along_free else 1)};"
        yield f"        const {index} r = r0 + dr, f = {start} + df;"
        yield f"        Vector<{self.stored}, {vector}> elements = {{}};"
        yield f"        if (r < end && f < {size}) {{"
        yield from self._decoded("r", self.reduction, "          ")
        yield from self._decoded("f", free, "          ")
        yield from self._position(operand)
        yield f"          if ({self._condition(operand)}) elements = loaded<{vector}>({operand.name} + {operand.offset(self.ending)});"
        yield "        }"
        yield "#pragma unroll"
        at = f"{tile}[dr{' + v' if along_reduction else ''}][df{' + v' if along_free else ''}]"
        yield f"        for (int v = 0; v < {vector}; ++v) {at} = {from_memory('elements.at[v]', self.dtype)};"
        yield "      }"

    def _write(self) -> Iterator[str]:
        index, parts = self.index, self.parts > 1
        vector = EACH if not parts and self.result.vector > 1 and self.width % EACH == 0 else 1
        yield "#pragma unroll"
        yield f"    for (int i = 0; i < {EACH}; ++i) {{"
        yield f"      const {index} row = above + ty + i;"
        yield f"      if (row >= {self.height}) continue;"
        yield from self._decoded("row", self.rows, "      ")
        yield "#pragma unroll"
        yield f"      for (int j = 0; j < {EACH}; j += {vector}) {{"
        yield f"        const {index} column = left + tx + j;"
        yield f"        if (column >= {self.width}) continue;"
        if parts:
            yield f"        sums[((part * {self.op.groups} + g) * {self.height}{self.ending} + row) * {self.width} + column] = total[i][j];"
        else:
            yield from self._decoded("column", self.columns, "        ")
            yield f"        Vector<{self.stored}, {vector}> result;"
            yield f"        for (int v = 0; v < {vector}; ++v) result.at[v] = {to_memory('total[i][j + v]', self.dtype)};"
            yield f"        stored({self.result.name} + {self.result.offset(self.ending)}, result);"
        yield "      }"
        yield "    }"

    def _total(self) -> Iterator[str]:
        """Print the sum of the parts, in their order."""
        index, elements = self.index, self.op.groups * self.height * self.width
        yield f"  for ({index} e = ({index})blockIdx.x * {THREADS} + threadIdx.x; e < {elements}; e += ({index})gridDim.x * {THREADS}) {{"
        yield f"    {self.value} total = 0;"
        yield f"    for (int part = 0; part < {self.parts}; ++part) total = total + sums[part * {elements}{self.ending} + e];"
        yield from self._decoded("e", (("g", self.op.groups), *self.rows, *self.columns), "    ")
        yield f"    {self.result.name}[{self.result.offset(self.ending)}] = {to_memory('total', self.dtype)};"
        yield "  }"

    # ---------------------------------------------------------------------------------------- positions

    def _decoded(self, flat: str, indices: Indices, indent: str) -> Iterator[str]:
        """Print the indices of a flat index, the innermost first."""
        rest = flat
        for n, (name, size) in enumerate(reversed(indices)):
            if n == len(indices) - 1:
                yield f"{indent}const {self.index} {name} = {rest};"
            else:
                yield f"{indent}const {self.index} {name} = {rest} % {size}, past_{name} = {rest} / {size};"
                rest = f"past_{name}"

    def _position(self, operand: _Operand) -> Iterator[str]:
        """Print the spatial indices that follow from the taps."""
        for axis, (stride, (before, _), dilation) in enumerate(zip(self.op.strides, self.op.padding, self.op.dilations, strict=True)):
            if operand.window == "image":
                yield f"          const {self.index} j{axis} = i{axis} * {stride} + k{axis} * {dilation} - {before};"
            elif operand.window == "result":
                yield f"          const {self.index} d{axis} = j{axis} + {before} - k{axis} * {dilation}, i{axis} = d{axis} / {stride};"

    def _condition(self, operand: _Operand) -> str:
        """Return the condition for an element to exist: a tap inside the image, or a window that reads the element at this tap."""
        match operand.window:
            case "image":
                return " && ".join(f"j{a} >= 0 && j{a} < {n}" for a, n in enumerate(self.image))
            case "result":
                sizes = zip(self.op.strides, self.pooled, strict=True)
                return " && ".join(f"d{a} >= 0 && d{a} % {s} == 0 && i{a} < {n}" for a, (s, n) in enumerate(sizes))
        return "true"


def _times(n: int) -> str:
    return "" if n == 1 else f" * {n}"


def _steps(array: Array, sample: str, channel: tuple[str, str, int], position: str) -> dict[str, int]:
    """Return the strides of an image's indices; `channel` is the index in a group, the index of the group and the channels of a group."""
    size = array.dtype.itemsize
    inner, group, count = channel
    spatial = {f"{position}{axis}": step // size for axis, step in enumerate(array.strides[2:])}
    return {sample: array.strides[0] // size, inner: array.strides[1] // size, group: array.strides[1] // size * count, **spatial}


def _filter_steps(w: Array, filters: int) -> dict[str, int]:
    size = w.dtype.itemsize
    taps = {f"k{axis}": step // size for axis, step in enumerate(w.strides[2:])}
    return {"o": w.strides[0] // size, "g": w.strides[0] // size * filters, "c": w.strides[1] // size, **taps}


def adjacent_channels(array: Array, axis: int, channels: int) -> int:
    """Return the number of adjacent channels that a thread reads at once: 16 bytes, or one if channels are not adjacent and aligned."""
    vector = WIDEST // int(array.itemsize)
    others = [stride for k, (stride, n) in enumerate(zip(array.strides, array.shape, strict=True)) if k != axis and n > 1]
    dense = array.strides[axis] == array.itemsize and channels % vector == 0
    return vector if dense and address(array) % WIDEST == 0 and all(stride % WIDEST == 0 for stride in others) else 1
