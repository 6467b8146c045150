"""Mean and variance of each channel on GPUs: one kernel that reads x once, and a small one that combines its parts.

A block has a part of the rows and a tile of channels.  A thread computes the mean and the sum of squared differences of a few rows in registers.  It
combines them with those of its earlier rows (Chan, Golub and LeVeque 1979).  All elements are relative to the first element of their channel.  So
large means neither cancel nor lose digits.  Threads and parts are combined in order, so equal inputs give equal bits.

A thread reads 16 bytes of channels that are adjacent in memory, else single elements.  Sizes and strides are constants of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import Template

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.convolution_tiles import adjacent_channels
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_text import with_functions
from jobflow.kernels.cuda.launches import KernelLaunch, refused_arrays
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.primitives import from_memory, literal, stored_type, value_type
from jobflow.kernels.registry import register
from jobflow.ops.batch_norm import BatchMoments
from jobflow.ops.op import Binder, Call, Op

NAME = "moments"
THREADS = 256
#: rows that a thread reads at once, and the most vectors of channels of a block
ROWS, ACROSS = 4, 8
#: blocks among which the rows are divided
BLOCKS = 528
#: channels of a block of the second kernel, and the threads that share a channel
CHANNELS, LANES = 8, 32

_COMBINED = """static __device__ void combined($V &n, $V &mean, $V &squares, $V count, $V other, $V more) {
  if (count == 0) return;
  const $V total = n + count, share = count / total, away = other - mean;
  mean = mean + away * share;
  squares = squares + (more + away * away * (n * share));
  n = total;
}
"""

_PARTS = Template("""
  static __shared__ $V means[$DOWN][$WIDTH], sums[$DOWN][$WIDTH], counts[$DOWN];
  const int tx = threadIdx.x % $ACROSS, ty = threadIdx.x / $ACROSS;
  for (int block = blockIdx.x; block < $BLOCKS; block += gridDim.x) {
    const $I part = block / $TILES, c = block % $TILES * $WIDTH + tx * $N;
    const $I begin = part * $PART, end = min(begin + $PART, ($I)$ROWS_IN_ALL);
    $V n = 0, mean[$N] = {}, squares[$N] = {}, base[$N] = {};
    if (c < $C) {
      const Vector<$T, $N> elements = loaded<$N>(x0 + c * $STEP);
#pragma unroll
      for (int v = 0; v < $N; ++v) base[v] = $ELEMENT;
    }
    if (c < $C)
      for ($I first = begin + ty; first < end; first += $DOWN * $ROWS) {
        $V x[$ROWS][$N];
        int count = 0;
#pragma unroll
        for (int r = 0; r < $ROWS; ++r) {
          const $I row = first + r * $DOWN;
          Vector<$T, $N> elements = {};
          if (row < end) {
$INDICES
            elements = loaded<$N>(x0 + $OFFSET);
            ++count;
          }
#pragma unroll
          for (int v = 0; v < $N; ++v) x[r][v] = $ELEMENT - base[v];
        }
        const $V share = ($V)1 / ($V)count, before = n;
#pragma unroll
        for (int v = 0; v < $N; ++v) {
          $V total = 0, square = 0, own = before;
#pragma unroll
          for (int r = 0; r < $ROWS; ++r) total = total + (r < count ? x[r][v] : ($V)0);
          const $V middle = total * share;
#pragma unroll
          for (int r = 0; r < $ROWS; ++r) {
            const $V away = r < count ? x[r][v] - middle : ($V)0;
            square = square + away * away;
          }
          combined(own, mean[v], squares[v], ($V)count, middle, square);
          n = own;
        }
      }
#pragma unroll
    for (int v = 0; v < $N; ++v) means[ty][tx * $N + v] = mean[v], sums[ty][tx * $N + v] = squares[v];
    if (tx == 0) counts[ty] = n;
    __syncthreads();
    const int k = threadIdx.x;
    if (k < $WIDTH && block % $TILES * $WIDTH + k < $C) {
      $V own = 0, middle = 0, square = 0;
      for (int y = 0; y < $DOWN; ++y) combined(own, middle, square, counts[y], means[y][k], sums[y][k]);
      parts[(part * 2) * ($I)$C + block % $TILES * $WIDTH + k] = middle;
      parts[(part * 2 + 1) * ($I)$C + block % $TILES * $WIDTH + k] = square;
    }
    __syncthreads();
  }
""")

_TOTALS = Template("""
  static __shared__ $V means[$LANES][$CHANNELS], sums[$LANES][$CHANNELS], counts[$LANES];
  const int tx = threadIdx.x % $CHANNELS, lane = threadIdx.x / $CHANNELS;
  for (int left = blockIdx.x * $CHANNELS; left < $C; left += gridDim.x * $CHANNELS) {
    const int c = left + tx;
    const int begin = min(lane * $SHARE, $PARTS), end = min(begin + $SHARE, $PARTS);
    $V n = 0, mean = 0, square = 0;
    for (int part = begin; part < end && c < $C; ++part) {
      const $I rows = min(($I)$PART, $ROWS_IN_ALL - part * ($I)$PART);
      combined(n, mean, square, ($V)rows, parts[(part * 2) * ($I)$C + c], parts[(part * 2 + 1) * ($I)$C + c]);
    }
    means[lane][tx] = mean, sums[lane][tx] = square;
    if (tx == 0) counts[lane] = n;
    __syncthreads();
    if (lane == 0 && c < $C) {
      $V own = 0, middle = 0, total = 0;
      for (int y = 0; y < $LANES; ++y) combined(own, middle, total, counts[y], means[y][tx], sums[y][tx]);
      const $V variance = total * $SHARE_OF_ROW;
      const Vector<$T, 1> elements = loaded<1>(x0 + c * $STEP);
      const int v = 0;
      y0[c * $Y0] = $ELEMENT + middle, y1[c * $Y1] = variance, y2[c * $Y2] = variance * $CORRECTION;
    }
    __syncthreads();
  }
""")


class MomentsText:
    """The texts of both kernels for arrays of these layouts: x, and the three results."""

    def __init__(self, op: BatchMoments, arrays: Sequence[Array], name: str) -> None:
        self.name = name
        x, *results = arrays
        dtype, size = dtype_of(x.dtype), int(x.itemsize)
        channels = x.shape[op.axis]
        rows = [(n, step // size) for axis, (n, step) in enumerate(zip(x.shape, x.strides, strict=True)) if axis != op.axis]
        step = x.strides[op.axis] // size
        vector = adjacent_channels(x, op.axis, channels)
        # if channels are not adjacent, the threads of a warp read adjacent rows
        across = 1 if step != 1 else min(ACROSS, 1 << max(-(-channels // vector) - 1, 0).bit_length())
        down, width = THREADS // across, across * vector
        count, tiles = math.prod(n for n, _ in rows), -(-channels // width)
        least = down * ROWS
        part = -(-max(-(-count * tiles // BLOCKS), 1) // least) * least
        parts = max(-(-count // part), 1)
        wide = max(sum(abs(s) * (n - 1) for n, s in (*rows, (channels, step))), x.size) >= 1 << 30
        #: numbers in scratch memory, and blocks of both launches
        self.scratch = 2 * parts * channels
        self.blocks = parts * tiles, -(-channels // CHANNELS)
        kind = value_type(dtype)
        self.kind, self.stored = kind, stored_type(dtype)
        indices, offset = _indices(rows, "long long" if wide else "int")
        values: dict[str, object] = {
            "V": kind,
            "T": self.stored,
            "I": "long long" if wide else "int",
            "N": vector,
            "C": channels,
            "WIDTH": width,
            "DOWN": down,
            "ACROSS": across,
            "BLOCKS": parts * tiles,
            "TILES": tiles,
            "PART": part,
            "PARTS": parts,
            "ROWS": ROWS,
            "ROWS_IN_ALL": count,
            "INDICES": indices,
            "OFFSET": f"{offset} + c * {step}",
            "STEP": step,
            "ELEMENT": from_memory("elements.at[v]", dtype),
            "CHANNELS": CHANNELS,
            "LANES": LANES,
            "SHARE": -(-parts // LANES),
            "SHARE_OF_ROW": literal(1.0 / max(count, 1), dtype.arithmetic),
            **{f"Y{k}": y.strides[0] // int(y.itemsize) for k, y in enumerate(results)},
            "CORRECTION": literal(op.correction, dtype.arithmetic),
        }
        self.bodies = [template.substitute(values) for template in (_PARTS, _TOTALS)]

    def text(self) -> str:
        results = ", ".join(f"{self.kind} *__restrict__ y{k}" for k in range(3))
        parameters = f"const {self.stored} *__restrict__ x0, {results}, {self.kind} *__restrict__ parts"
        kernels = [
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(\n    {parameters}) {{{body}}}\n'
            for name, body in zip((self.name, f"{self.name}_total"), self.bodies, strict=True)
        ]
        return with_functions(_COMBINED.replace("$V", self.kind) + "\n" + "\n".join(kernels))


def _indices(rows: Sequence[tuple[int, int]], index: str) -> tuple[str, str]:
    """Return the lines that compute the indices of a row along the axes that are not channels, and the text of its offset."""
    merged: list[tuple[int, int]] = []
    for n, step in rows:
        if n == 1:
            continue
        if merged and merged[-1][1] == step * n:
            merged[-1] = merged[-1][0] * n, step
        else:
            merged.append((n, step))
    lines, rest = [], "row"
    for axis in reversed(range(1, len(merged))):
        lines.append(f"            const {index} rest{axis} = {rest} / {merged[axis][0]}, i{axis} = {rest} - rest{axis} * {merged[axis][0]};")
        rest = f"rest{axis}"
    terms = [f"{rest if axis == 0 else f'i{axis}'} * {step}" for axis, (_, step) in enumerate(merged)]
    return "\n".join(lines), " + ".join(terms) or "0"


@dataclass(frozen=True)
class MomentsKernel:
    """An implementation by two kernels, printed for the sizes and strides of the arrays."""

    name: str = "printed moments"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return refused_arrays((*inputs, *outputs))

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, BatchMoments)
        here = compiler(int(outputs[0].device.id))
        text = MomentsText(op, placeholders([*inputs, *outputs]), NAME)
        arrays = [*inputs, *outputs, device.scratch((text.scratch,), dtype_of(outputs[0].dtype))]
        module, pointers = here.module(text.text()), addresses(placeholders(arrays))
        return [
            (KernelLaunch(module.function(name), arrays), ((min(blocks, here.blocks),), (THREADS,), pointers))
            for name, blocks in zip((NAME, f"{NAME}_total"), text.blocks, strict=True)
        ]


register(BatchMoments, "cuda", "nvrtc", MomentsKernel())
