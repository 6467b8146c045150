"""The gradient of the maximum over windows as the text of a CUDA kernel, for channels that are adjacent in memory.

A block has a tile of the image and of its channels.  Its threads first determine the first maximum of each window that overlaps the tile, and keep
its tap in shared memory.  Then each thread adds the gradients of the windows whose first maximum is at its element, in the order of the taps.

    image    . . . . . . . .      a tile of 4 x 4 elements, windows of 3 x 3 with stride 2:
             . T T T T . . .      the windows that overlap it read 5 x 5 elements,
             . T T T T . . .      each of which is loaded by up to 4 windows
             . T T T T . . .
             . T T T T . . .
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from string import Template

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cuda.kernel_form import THREADS
from jobflow.kernels.cuda.primitives import from_memory, stored_type, to_memory, value_type
from jobflow.ops.windows import Window

#: vectors of channels of a block, and positions of its tile of the image
ACROSS, POSITIONS = 8, 256
#: bytes of shared memory, and taps that a byte can number; the last number is that of a window without a maximum
SHARED, MOST_TAPS = 32 << 10, 255
#: taps of a window, or windows of an element, that a thread loads at once
LOADS = 9
#: the type of a byte per channel of a vector
_BYTES = {8: "unsigned long long", 4: "unsigned int", 2: "unsigned short"}

_TEXT = Template("""  static __shared__ $BYTES taps[$WINDOWS][$ACROSS];
  const int tx = threadIdx.x % $ACROSS, ty = threadIdx.x / $ACROSS;
  for (int block = blockIdx.x; block < $BLOCKS; block += gridDim.x) {
    unsigned int rest = block;
    const int c = (rest % $GROUPS * $ACROSS + tx) * $N; rest /= $GROUPS;
$TILES
    const $I n = rest;
    for (int w = ty; w < $WINDOWS && c < $C; w += $DOWN) {
      unsigned int left = w;
$WINDOW
      int tap[$N];
#pragma unroll
      for (int v = 0; v < $N; ++v) tap[v] = $NONE;
      if ($INSIDE) {
        const Vector<$T, $N> largest = loaded<$N>($Y);
$UNROLL        for (int g = $BATCHES - 1; g >= 0; --g) {
          // taps outside the image are NaN, which equals no maximum; whole words, because a narrower value needs a register too
          uint4 words[$BATCH];
#pragma unroll
          for (int k = 0; k < $BATCH; ++k) {
            const int m = g * $BATCH + k;
$TAP
            words[k] = {~0u, ~0u, ~0u, ~0u};
            if ($THERE) words[k] = *(const uint4 *)($X);
          }
#pragma unroll
          for (int k = $BATCH - 1; k >= 0; --k) {
            const Vector<$T, $N> elements = loaded<$N>((const $T *)&words[k]);
#pragma unroll
            for (int v = 0; v < $N; ++v)
              if ($ELEMENT == $LARGEST) tap[v] = g * $BATCH + k;
          }
        }
      }
      $BYTES bytes = 0;
#pragma unroll
      for (int v = 0; v < $N; ++v) bytes |= ($BYTES)tap[v] << 8 * v;
      taps[w][tx] = bytes;
    }
    __syncthreads();
    for (int e = ty; e < $POSITIONS && c < $C; e += $DOWN) {
      unsigned int left = e;
$POSITION
      if ($IN_IMAGE) {
        $V value[$N] = {};
$UNROLL_OVER        for (int g = 0; g < $BATCHES_OVER; ++g) {
          uint4 words[$OVER];
          $BYTES others[$OVER];  // 0 in the bytes of channels whose first maximum is here
          bool there[$OVER];
#pragma unroll
          for (int k = 0; k < $OVER; ++k) {
            const int b = g * $OVER + k;
$GATHER
          }
#pragma unroll
          for (int k = 0; k < $OVER; ++k)
            if (there[k]) {
              const Vector<$T, $N> gradients = loaded<$N>((const $T *)&words[k]);
#pragma unroll
              for (int v = 0; v < $N; ++v)
                if ((others[k] >> 8 * v & 0xff) == 0) value[v] = value[v] + $GRADIENT;
            }
        }
        Vector<$T, $N> result;
#pragma unroll
        for (int v = 0; v < $N; ++v) result.at[v] = $RESULT;
        stored($DX, result);
      }
    }
    __syncthreads();
  }""")


@dataclass(frozen=True)
class Tiling:
    """The tile of a block: its extent along each axis of the image, and the windows along each axis that can overlap it."""

    extents: tuple[int, ...]
    windows: tuple[int, ...]
    #: vectors of channels
    across: int
    #: tiles of the image along each axis, and of the channels
    tiles: tuple[int, ...]
    groups: int


def tiling(window: Window, image: Sequence[int], channels: int, vector: int) -> Tiling | None:
    """Return the tile of a block, or None if a byte cannot number the taps, or the tile needs too much memory."""
    if math.prod(window.kernel) > MOST_TAPS:
        return None
    vectors = channels // vector
    across = min(ACROSS, 1 << (vectors - 1).bit_length())
    extents, elements = [1] * len(image), POSITIONS * (ACROSS // across)
    for _ in range(elements.bit_length() - 1):  # the shortest axis that is not covered yet becomes twice as long; of equal ones, the innermost
        free = [a for a, n in enumerate(image) if extents[a] < n]
        if not free:
            break
        extents[min(reversed(free), key=lambda a: extents[a])] *= 2
    # positions with equal residues modulo the stride are in the same number of windows, so a warp does not diverge
    extents = [-(-e // s) * s for e, s in zip(extents, window.strides, strict=True)]
    windows = [-(-(e + k - 1) // s) for e, k, s in zip(extents, window.kernel, window.strides, strict=True)]
    if math.prod(windows) * across * vector > SHARED:
        return None
    tiles = tuple(-(-n // e) for n, e in zip(image, extents, strict=True))
    return Tiling(tuple(extents), tuple(windows), across, tiles, -(-vectors // across))


class TiledGradient:
    """The body of the kernel for x, y, dy and dx, which have adjacent channels."""

    def __init__(self, window: Window, arrays: Sequence[Array], tile: Tiling, vector: int, index: str) -> None:
        self.window, self.arrays, self.tile, self.vector, self.index = window, arrays, tile, vector, index
        self.axes = range(len(window.kernel))
        self.image, self.pooled = tuple(arrays[3].shape[2:]), tuple(arrays[1].shape[2:])
        #: blocks without a loop
        self.blocks = int(arrays[3].shape[0]) * math.prod(tile.tiles) * tile.groups

    def text(self) -> str:
        window, tile, dtype = self.window, self.tile, dtype_of(self.arrays[3].dtype)
        taps = math.prod(window.kernel)
        over = math.prod(-(-k // s) for k, s in zip(window.kernel, window.strides, strict=True))
        batches, batches_over = -(-taps // LOADS), -(-over // LOADS)
        there = " && ".join(f"l{a} >= 0 && l{a} < {self.image[a]}" for a in self.axes)
        values: dict[str, object] = {
            "N": self.vector,
            "BYTES": _BYTES[self.vector],
            "T": stored_type(dtype),
            "V": value_type(dtype),
            "I": self.index,
            "C": self.arrays[3].shape[1],
            "ACROSS": tile.across,
            "DOWN": THREADS // tile.across,
            "BLOCKS": self.blocks,
            "GROUPS": tile.groups,
            "WINDOWS": math.prod(tile.windows),
            "POSITIONS": math.prod(tile.extents),
            "NONE": MOST_TAPS,
            "TILES": _lines(self._tiles(), 4),
            "WINDOW": _lines(self._window(), 6),
            "INSIDE": " && ".join(f"i{a} >= 0 && i{a} < {self.pooled[a]}" for a in self.axes),
            "BATCHES": batches,
            "BATCH": -(-taps // batches),
            "UNROLL": "" if batches == 1 else "#pragma unroll 1\n",
            "TAP": _lines(self._tap(), 12),
            "THERE": there if taps % batches == 0 else f"m < {taps} && {there}",
            "ELEMENT": from_memory("elements.at[v]", dtype),
            "LARGEST": from_memory("largest.at[v]", dtype),
            "POSITION": _lines(self._position(), 6),
            "IN_IMAGE": " && ".join(f"j{a} < {self.image[a]}" for a in self.axes),
            "OVER": -(-over // batches_over),
            "BATCHES_OVER": batches_over,
            "UNROLL_OVER": "" if batches_over == 1 else "#pragma unroll 1\n",
            "GATHER": _lines(self._gather("" if over % batches_over == 0 else f"b < {over} && "), 12),
            "GRADIENT": from_memory("gradients.at[v]", dtype),
            "RESULT": to_memory("value[v]", dtype),
            "X": self._address(0, "l"),
            "Y": self._address(1, "i"),
            "DX": self._address(3, "j"),
        }
        return _TEXT.substitute(values)

    def _tiles(self) -> Iterator[str]:
        """Print the first position of the tile along each axis, and the first window that can overlap it."""
        for a in reversed(self.axes):
            s, before, reach = self.window.strides[a], self.window.padding[a][0], self.window.kernel[a] - 1
            yield f"const int from{a} = rest % {self.tile.tiles[a]} * {self.tile.extents[a]}; rest /= {self.tile.tiles[a]};"
            # the quotient of a negative number is rounded towards zero, so it is computed `reach` windows later
            yield f"const int first{a} = (from{a} + {before - reach + s - 1 + reach * s}) / {s} - {reach};"

    def _window(self) -> Iterator[str]:
        for a in reversed(self.axes):
            yield f"const int w{a} = left % {self.tile.windows[a]}, i{a} = first{a} + w{a}; left /= {self.tile.windows[a]};"

    def _tap(self) -> Iterator[str]:
        """Print the position of tap m of a window along each axis."""
        size = 1
        for a in reversed(self.axes):
            s, before, k = self.window.strides[a], self.window.padding[a][0], self.window.kernel[a]
            yield f"const int l{a} = i{a} * {s} - {before} + m / {size} % {k};"
            size *= k

    def _position(self) -> Iterator[str]:
        for a in reversed(self.axes):
            e, s = self.tile.extents[a], self.window.strides[a]
            position = f"left % {e}" if s == 1 else f"left % {e} % {e // s} * {s} + left % {e} / {e // s}"
            yield f"const int j{a} = from{a} + {position}; left /= {e};"

    def _gather(self, exists: str) -> Iterator[str]:
        """Print the loads of the taps and gradients of the windows at an element, from the last window to the first.

        `exists` is the condition that window b exists, if batches have unequal sizes.
        """
        flat_window, flat_tap, size = "0", "0", 1
        for a in reversed(self.axes):
            k, s, before = self.window.kernel[a], self.window.strides[a], self.window.padding[a][0]
            back = f"b / {size} % {-(-k // s)}"
            yield f"const unsigned int p{a} = j{a} + {before}U;"
            yield f"const int i{a} = (int)(p{a} / {s}) - {back}, k{a} = (int)(p{a} % {s}) + {back} * {s};"
            size *= -(-k // s)
        for a in self.axes:
            flat_window = f"({flat_window} * {self.tile.windows[a]} + i{a} - first{a})"
            flat_tap = f"({flat_tap} * {self.window.kernel[a]} + k{a})"
        inside = (f"k{a} < {self.window.kernel[a]} && i{a} >= 0 && i{a} < {self.pooled[a]}" for a in self.axes)
        yield f"there[k] = {exists}{' && '.join(inside)};"
        kind = _BYTES[self.vector]
        ones = f"({kind})0x{'01' * self.vector}{'ULL' if self.vector == 8 else ''}"
        yield "if (there[k]) {"
        yield f"  words[k] = *(const uint4 *)({self._address(2, 'i')});"
        yield f"  others[k] = taps[{flat_window}][tx] ^ ({kind})({flat_tap}) * {ones};"
        yield "}"

    def _address(self, operand: int, at: str) -> str:
        """Return the C expression for the address of the thread's channels at a position."""
        array = self.arrays[operand]
        steps = [stride // int(array.itemsize) for stride in array.strides]
        indices = ["n", "c", *(f"{at}{a}" for a in self.axes)]
        terms = [f"({self.index}){index} * {step}" for index, step in zip(indices, steps, strict=True)]
        return f"{('x', 'y', 'dy', 'dx')[operand]} + {' + '.join(terms)}"


def _lines(lines: Iterator[str], indent: int) -> str:
    return "\n".join(line if line.startswith("#") else " " * indent + line for line in lines)
