"""Mean and variance of each channel on GPUs: one kernel that reads x once, and a small one that combines its parts.

A block has a part of the rows and a tile of channels.  A thread adds the differences of its rows from its first row, and their squares.  So large
means neither cancel nor lose digits.  Cancellation in a thread is bounded by its number of rows, because its variance contains the first row.
Threads, and then parts, are combined pairwise (Chan, Golub and LeVeque 1979), relative to the first element of their channel.  The order is fixed,
so equal inputs give equal bits.

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
#: rows that a thread reads at once, the most rows of a thread, and the most vectors of channels of a block
ROWS, MOST_ROWS, ACROSS = 4, 256, 8
#: blocks of a multiprocessor, so that the loads of all rows precede their first use; and blocks among which the rows are divided, one wave on an
#: H100, unless threads have too many rows
RESIDENT, BLOCKS = 4, 528
#: parts from which on more threads of the second kernel share a channel, and the parts that a thread reads at once
MANY_PARTS, PARTS_AT_ONCE = 256, 8

_COMBINED = """static __device__ void combined($V &mean, $V &squares, $V n, $V count, $V other, $V more) {  // n and then count elements
  if (count == 0) return;
  const $V share = count / (n + count), away = other - mean;
  mean = mean + away * share;
  squares = squares + (more + away * away * (n * share));
}
"""

_PARTS = Template("""
  static __shared__ $V means[$DOWN][$WIDTH], sums[$DOWN][$WIDTH];
  const int tx = threadIdx.x % $ACROSS, ty = threadIdx.x / $ACROSS;
  for (int block = blockIdx.x; block < $BLOCKS; block += gridDim.x) {
    const $I part = block / $TILES, c = block % $TILES * $WIDTH + tx * $N;
    const $I begin = part * $PART, end = min(begin + $PART, ($I)$ROWS_IN_ALL);
    // the number of rows of every `step`-th thread, beginning with thread y
    const auto rows = [begin, end](int y, int step) { return ($V)((end - begin - y + step - 1) / step); };
    if (c < $C && begin + ty < end) {
      $V near[$N], total[$N] = {}, square[$N] = {};
      const Vector<$T, $N> bases = loaded<$N>(x0 + c * $STEP);
      {
        const $I row = begin + ty;
$INDICES
        const Vector<$T, $N> elements = loaded<$N>(x0 + $OFFSET);
#pragma unroll
        for (int v = 0; v < $N; ++v) near[v] = $ELEMENT;
      }
      $I first = begin + ty;
      for (; first + $LAST < end; first += $AT_ONCE) {
        Vector<$T, $N> several[$ROWS];
#pragma unroll
        for (int r = 0; r < $ROWS; ++r) {
          const $I row = first + r * $DOWN;
$INDICES
          several[r] = loaded<$N>(x0 + $OFFSET);
        }
#pragma unroll
        for (int r = 0; r < $ROWS; ++r)
#pragma unroll
          for (int v = 0; v < $N; ++v) {
            const $V away = $EACH - near[v];
            total[v] = total[v] + away;
            square[v] = square[v] + away * away;
          }
      }
      for (; first < end; first += $DOWN) {
        const $I row = first;
$INDICES
        const Vector<$T, $N> elements = loaded<$N>(x0 + $OFFSET);
#pragma unroll
        for (int v = 0; v < $N; ++v) {
          const $V away = $ELEMENT - near[v];
          total[v] = total[v] + away;
          square[v] = square[v] + away * away;
        }
      }
      const $V share = ($V)1 / rows(ty, $DOWN);
#pragma unroll
      for (int v = 0; v < $N; ++v) {
        const $V middle = total[v] * share, squares = square[v] - total[v] * middle;
        means[ty][tx * $N + v] = (near[v] - $BASE) + middle;
        sums[ty][tx * $N + v] = squares < 0 ? ($V)0 : squares;
      }
    }
#pragma unroll
    for (int half = $DOWN / 2; half > 0; half /= 2) {
      __syncthreads();
      for (int e = threadIdx.x; e < half * $WIDTH; e += $THREADS) {
        const int y = e / $WIDTH, k = e % $WIDTH;
        if (begin + y + half < end)
          combined(means[y][k], sums[y][k], rows(y, 2 * half), rows(y + half, 2 * half), means[y + half][k], sums[y + half][k]);
      }
    }
    __syncthreads();
    const int k = threadIdx.x;
    if (k < $WIDTH && block % $TILES * $WIDTH + k < $C) {
      parts[(part * 2) * ($I)$C + block % $TILES * $WIDTH + k] = means[0][k];
      parts[(part * 2 + 1) * ($I)$C + block % $TILES * $WIDTH + k] = sums[0][k];
    }
    __syncthreads();
  }
""")

_TOTALS = Template("""
  static __shared__ $V means[$LANES][$CHANNELS], sums[$LANES][$CHANNELS];
  const int tx = threadIdx.x % $CHANNELS, lane = threadIdx.x / $CHANNELS;
  // the number of rows of every `step`-th part, beginning with part y
  const auto rows = [](int y, int step) {
    return ($V)(($PARTS - y + step - 1) / step * ($I)$PART - (($PARTS - 1) % step == y ? ($I)$ABSENT : 0));
  };
  for (int left = blockIdx.x * $CHANNELS; left < $C; left += gridDim.x * $CHANNELS) {
    const int c = left + tx;
    $V mean = 0, square = 0, base = 0;
    if (c < $C && lane < $PARTS) {
      const Vector<$T, 1> elements = loaded<1>(x0 + c * $STEP);
      const int v = 0;
      base = $ELEMENT;
      $V n = 0;
      for (int first = lane; first < $PARTS; first += $LANES * $PARTS_AT_ONCE) {
        $V middles[$PARTS_AT_ONCE], squares[$PARTS_AT_ONCE];
#pragma unroll
        for (int p = 0; p < $PARTS_AT_ONCE; ++p) {
          const int part = first + p * $LANES;
          if (part < $PARTS) middles[p] = parts[(part * 2) * ($I)$C + c], squares[p] = parts[(part * 2 + 1) * ($I)$C + c];
        }
#pragma unroll
        for (int p = 0; p < $PARTS_AT_ONCE; ++p) {
          const int part = first + p * $LANES;
          const $V count = part < $PARTS ? ($V)($PART - (part == $PARTS - 1 ? ($I)$ABSENT : 0)) : ($V)0;
          combined(mean, square, n, count, middles[p], squares[p]);
          n = n + count;
        }
      }
    }
    means[lane][tx] = mean, sums[lane][tx] = square;
#pragma unroll
    for (int half = $LANES / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half && lane + half < $PARTS)
        combined(means[lane][tx], sums[lane][tx], rows(lane, 2 * half), rows(lane + half, 2 * half), means[lane + half][tx], sums[lane + half][tx]);
    }
    if (lane == 0 && c < $C) {
      const $V variance = sums[0][tx] * $SHARE_OF_ROW;
      y0[c * $Y0] = base + means[0][tx], y1[c * $Y1] = variance, y2[c * $Y2] = variance * $CORRECTION;
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
        part = min(-(-count // max(BLOCKS // tiles, 1) // least) * least, down * MOST_ROWS)
        parts = max(-(-count // part), 1)
        wide = max(sum(abs(s) * (n - 1) for n, s in (*rows, (channels, step))), x.size) >= 1 << 30
        #: numbers in scratch memory, and blocks of both launches
        self.scratch = 2 * parts * channels
        lanes = 64 if parts > MANY_PARTS else 32
        self.blocks = parts * tiles, -(-channels // (THREADS // lanes))
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
            "EACH": from_memory("several[r].at[v]", dtype),
            "BASE": from_memory("bases.at[v]", dtype),
            "THREADS": THREADS,
            "LAST": (ROWS - 1) * down,
            "AT_ONCE": least,
            "PARTS_AT_ONCE": PARTS_AT_ONCE,
            "ABSENT": parts * part - count,
            "CHANNELS": THREADS // lanes,
            "LANES": lanes,
            "SHARE_OF_ROW": literal(1.0 / max(count, 1), dtype.arithmetic),
            **{f"Y{k}": y.strides[0] // int(y.itemsize) for k, y in enumerate(results)},
            "CORRECTION": literal(op.correction, dtype.arithmetic),
        }
        self.bodies = [template.substitute(values) for template in (_PARTS, _TOTALS)]

    def text(self) -> str:
        """Return the text of both kernels."""
        return self._with_functions(self._kernels())

    def parts(self) -> list[str]:
        """Return a text for each of both kernels."""
        return [self._with_functions([kernel]) for kernel in self._kernels()]

    def _kernels(self) -> list[str]:
        results = ", ".join(f"{self.kind} *__restrict__ y{k}" for k in range(3))
        parameters = f"const {self.stored} *__restrict__ x0, {results}, {self.kind} *__restrict__ parts"
        names, bounds = (self.name, f"{self.name}_total"), (f"{THREADS}, {RESIDENT}", str(THREADS))
        return [
            f'extern "C" __global__ void __launch_bounds__({bound}) {name}(\n    {parameters}) {{{body}}}\n'
            for name, bound, body in zip(names, bounds, self.bodies, strict=True)
        ]

    def _with_functions(self, kernels: Sequence[str]) -> str:
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
