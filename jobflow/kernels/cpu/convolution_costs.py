"""Costs and errors of convolution algorithms on a CPU, which determine the choice among them.

The cost of an algorithm is a sum of calls, copies and multiply-adds.  A table lists their costs by class of machine and tier.  Its values
are fitted to the measured times of all algorithms (`benchmarks/conv_kernels.py --constants`).  Costs are estimated for logical shapes, not
for a rank's shard, so that all ranks choose the same algorithm.  Nothing is timed while a program is compiled.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.kernels.cpu.images import lifted_window, mirror
from jobflow.kernels.cpu.winograd import axes
from jobflow.kernels.machine_class import MachineClass, machine_class
from jobflow.kernels.target import Tier
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp, Shapes
from jobflow.ops.windows import Window

#: elements that fit a core's own cache, and taps of several filters that fit its first-level cache
_NEAR, _ROW = 1 << 18, 2048
#: samples in one vector of the transforms
_LANES = 16
#: axes, outputs per tile, size of filter -> the largest error of y and dx in float32, as a multiple of PyTorch's error, for sums over 32, 64, 128
#: and 256 channels, in both tiers (`benchmarks/conv_kernels.py --errors`).  Errors of dw are at most slightly above PyTorch's
ERRORS = {
    (1, 2, 3): (0.9, 1.6, 3.0, 3.4),
    (1, 4, 3): (2.2, 4.2, 5.5, 8.4),
    (1, 2, 5): (1.5, 2.9, 4.0, 5.6),
    (1, 3, 5): (2.6, 4.6, 5.7, 10.8),
    (1, 4, 5): (4.7, 9.1, 11.8, 13.5),
    (2, 2, 3): (0.8, 1.3, 1.8, 2.4),
    (2, 4, 3): (4.1, 5.6, 9.7, 12.2),
    (2, 2, 5): (1.8, 2.2, 3.9, 5.9),
    (2, 3, 5): (4.1, 5.9, 8.8, 14.2),
    (2, 4, 5): (9.5, 14.3, 26.2, 33.5),
}
#: largest error of the setting "auto", as a multiple of PyTorch's error
ALLOWED = 10.0

#: outputs per tile and axis
Tiles = Literal[2, 3, 4]
TILES: tuple[Tiles, ...] = (2, 3, 4)
#: Winograd's on such tiles, products with gathered windows, dx as a sum over taps, or compiled loops over the taps
Algorithm: TypeAlias = Tiles | Literal["im2col", "taps", "direct"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a convolution: samples, input and output channels, groups, spatial axes of the image and the output, and the window."""

    n: int
    c: int
    o: int
    groups: int
    spatial: tuple[int, ...]
    out: tuple[int, ...]
    window: Window

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    def turned(self, window: Window) -> Sizes:
        """Return the sizes of the convolution of dy that computes dx; `window` is the window of this convolution."""
        return Sizes(self.n, self.o, self.c, self.groups, self.out, self.spatial, window)


@dataclass(frozen=True)
class Costs:
    """Costs of calls and elements on one core, in nanoseconds.

    All costs are for float32:

        call                            a call of a function on arrays
        product, multiply, pack, write  a matrix product: once, per multiply-add, per element of its factors, per element of the result
        run, copy, add                  copying a contiguous run, copying an element, adding an element to another
        gather                          copying a single element
        far                             reading an element from beyond the core's own cache
        transform                       an element in one of Winograd's transforms
        sums, products, lone            a multiply-add in compiled loops over taps: of y and dx, of dw, and of all three with few filters
    """

    call: float
    product: float
    multiply: float
    pack: float
    write: float
    run: float
    copy: float
    add: float
    gather: float
    far: float
    transform: float
    sums: float = math.inf
    products: float = math.inf
    lone: float = math.inf

    def _of_product(self, m: float, k: float, n: float, times: float = 1) -> float:
        """Estimate the cost of `times` matrix products [m,k] @ [k,n]."""
        return times * (self.product + m * k * n * self.multiply + (m * k + k * n) * self.pack + m * n * self.write)

    def _of_stage(self, channels: int, spatial: tuple[int, ...], n: int, window: Window) -> float:
        """Estimate the cost of copying an image to padded phases of the strides; 0 without strides and padding."""
        strided = set(window.strides) != {1}
        if not strided and not any(map(any, window.padding)):
            return 0.0
        elements, run = channels * math.prod(spatial) * n, n if strided else n * spatial[-1]
        return (1 + math.prod(window.strides)) * self.call + elements * (self.copy + self.run / run)

    def _of_columns(self, s: Sizes) -> float:
        """Estimate the cost of copying the elements of all windows into the columns of a matrix, as for im2col."""
        elements = 0 if s.taps == 1 else s.c * s.taps * math.prod(s.out) * s.n
        return self._of_stage(s.c, s.spatial, s.n, s.window) + elements * (self.copy + self.run / (s.out[-1] * s.n))

    def _of_sums(self, s: Sizes) -> float:
        return self._of_columns(s) + self._of_product(s.o / s.groups, s.c / s.groups * s.taps, math.prod(s.out) * s.n, s.groups)

    def im2col(self, kind: type[ConvOp], s: Sizes) -> float:
        """Estimate the cost of products with gathered windows; dx is the convolution of dy with flipped filters."""
        if kind is ConvGradInput:
            window = mirror(s.window)
            assert window is not None
            return self._of_sums(s.turned(window)) + s.o * s.c / s.groups * s.taps * self.gather
        if kind is ConvGradWeight:
            return self._of_columns(s) + self._of_product(s.o / s.groups, math.prod(s.out) * s.n, s.c / s.groups * s.taps, s.groups)
        return self._of_sums(s)

    def taps(self, s: Sizes) -> float:
        """Estimate the cost of dx as the sum of each tap's contribution."""
        elements = s.c * s.taps * math.prod(s.out) * s.n if s.taps > 1 else 0
        added = elements * (self.add + self.run / (s.out[-1] * s.n)) + s.taps * self.call + self._of_stage(s.c, s.spatial, s.n, s.window)
        return added + self._of_product(s.c / s.groups * s.taps, s.o / s.groups, math.prod(s.out) * s.n, s.groups)

    def winograd(self, kind: type[ConvOp], s: Sizes, m: Tiles) -> float:
        """Estimate the cost of Winograd's F(m,r), which must apply to these sizes."""
        if kind is ConvGradInput:
            window = mirror(s.window)
            assert window is not None
            return self.winograd(Conv, s.turned(window), m)
        down, along = axes(m, lifted_window(s.window))
        out, points, filters = (1, *s.out)[-2:], down.t * along.t, s.o * s.c
        rows, group = -(-out[0] // down.m), along.group(out[1], points * (s.c + s.o) * s.n * 4)
        blocks, values = rows * -(-out[1] // (group * along.m)), points * rows * -(-out[1] // along.m) * (s.c + s.o)
        weights = filters * (points * (s.taps * self.multiply + self.write) + s.taps * self.pack)
        inner = (s.o, group * s.n, s.c) if kind is ConvGradWeight else (s.o, s.c, group * s.n)
        summed = points * filters * ((self.add if kind is ConvGradWeight else 0.0) + (self.far if points * filters > _NEAR else 0.0))
        each = 5 * self.call + self._of_product(*inner, points) + summed
        return weights + blocks * each + values * -(-s.n // _LANES) * _LANES * self.transform

    def direct(self, kind: type[ConvOp], s: Sizes) -> float:
        """Estimate the cost of a compiled loop over the taps."""
        results, summed, copies = s.o, s.c, self._of_stage(s.c, s.spatial, s.n, s.window)
        if kind is ConvGradInput:
            results, summed = s.c, s.o
            reach = Window(s.window.kernel, (1,) * len(s.out), tuple((k - 1, k - 1) for k in s.window.kernel), (1,) * len(s.out))
            copies = self._of_stage(s.o, s.out, s.n, reach) + (0.0 if set(s.window.strides) == {1} else copies)
        each = self.lone if results // s.groups < 4 else self.products if kind is ConvGradWeight else self.sums
        distant = 1.25 if summed // s.groups * s.taps > _ROW else 1.0
        return 2 * self.call + copies + distant * each * s.n * math.prod(s.out) * s.o * s.c / s.groups * s.taps


#: costs by class of machine and tier
COSTS: dict[tuple[MachineClass, Tier], Costs] = {
    ("avx2", "numpy"): Costs(
        call=891,
        product=5.69,
        multiply=0.0192,
        pack=0.306,
        write=0.152,
        run=9.11,
        copy=0.0351,
        add=0.505,
        gather=1.62,
        far=0.211,
        transform=0.371,
    ),
    ("avx2", "llvm"): Costs(
        call=898,
        product=0,
        multiply=0.0174,
        pack=0.18,
        write=0.124,
        run=8.15,
        copy=0.212,
        add=0.311,
        gather=1.64,
        far=0.19,
        transform=0.0874,
        sums=0.0231,
        products=0.0235,
        lone=0.0502,
    ),
    ("avx512", "numpy"): Costs(
        call=908,
        product=0,
        multiply=0.0164,
        pack=0.0486,
        write=0.0749,
        run=8.67,
        copy=0.276,
        add=0.55,
        gather=1.21,
        far=0.317,
        transform=0.347,
    ),
    ("avx512", "llvm"): Costs(
        call=993,
        product=0.589,
        multiply=0.0122,
        pack=0.0951,
        write=0.0322,
        run=8.13,
        copy=0.285,
        add=0.296,
        gather=1.25,
        far=0.189,
        transform=0.159,
        sums=0.0146,
        products=0.0193,
        lone=0.0369,
    ),
    ("amx", "llvm"): Costs(
        call=884,
        product=0,
        multiply=0.00936,
        pack=0.113,
        write=0.0378,
        run=8.5,
        copy=0.297,
        add=0.304,
        gather=2.17,
        far=0.242,
        transform=0.168,
        sums=0.0144,
        products=0.0187,
        lone=0.0352,
    ),
}
COSTS["amx", "numpy"] = COSTS["avx512", "numpy"]  # NumPy does not use the matrix registers


def sizes(op: ConvOp, shapes: Shapes) -> Sizes:
    """Return the sizes of a convolution from the logical shapes of x and w."""
    (n, c, *spatial), (o, _, *kernel) = shapes
    window = op.window(tuple(kernel))
    return Sizes(n, c, o, op.groups, tuple(spatial), window.out_sizes("conv", tuple(spatial)), window)


def error(along: tuple[int, ...], m: Tiles, channels: int) -> float:
    """Return the rounding error of Winograd convolutions with tiles of m outputs, as a multiple of PyTorch's error.

    `along` has the sizes of the filter, and `channels` is the number of channels that are summed.
    """
    table = ERRORS[len(along), m, along[0]]
    return next((factor for factor, most in zip(table, (32, 64, 128, 256), strict=True) if channels <= most), table[-1] * math.sqrt(channels / 256))


def unfit(op: ConvOp, s: Sizes, single: bool, algorithm: Algorithm) -> str | None:
    """Return the reason an algorithm cannot compute the operation, or None if it can."""
    window = s.window
    if isinstance(algorithm, str):
        none = algorithm == "im2col" and isinstance(op, ConvGradInput) and mirror(window) is None
        return f"dx is not a convolution of dy with strides {window.strides} and padding {window.padding}" if none else None
    return _unfit_for_tiles(op, s, single, algorithm)


def _unfit_for_tiles(op: ConvOp, s: Sizes, single: bool, m: Tiles) -> str | None:
    """Return the reason Winograd convolutions with tiles of m outputs cannot compute the operation, or None if they can."""
    window = s.window
    along = tuple(k for k in window.kernel if k > 1)
    if op.algorithm == "direct":
        return 'the setting "direct" excludes it'
    if len(window.kernel) > 2 or len(set(along)) != 1 or (len(along), m, along[0]) not in ERRORS:
        return f"there are no tiles of {m} outputs for a window of {window.kernel}"
    if op.groups > 1 or set(window.strides) != {1} or set(window.dilations) != {1}:
        return f"groups {op.groups}, strides {window.strides} and dilations {window.dilations} must all be 1"
    if mirror(window) is None:
        return f"padding {window.padding} exceeds the reach of the window"
    if op.algorithm == "auto" and not single:
        return 'float64 requires small errors; the setting "winograd" allows it'
    if op.algorithm == "auto" and error(along, m, max(s.c, s.o)) > ALLOWED:
        return f'its error is {error(along, m, max(s.c, s.o)):.0f} times that of PyTorch; the setting "winograd" allows it'
    return None


@lru_cache(4096)
def estimates(op: ConvOp, shapes: Shapes, single: bool, costs: Costs) -> dict[Algorithm, float]:
    """Estimate the cost in nanoseconds of each algorithm that applies to an operation; `shapes` are the logical shapes of x and w."""
    s, kind = sizes(op, shapes), type(op)
    costs_by_algorithm: dict[Algorithm, float] = {m: costs.winograd(kind, s, m) for m in TILES if unfit(op, s, single, m) is None}
    if unfit(op, s, single, "im2col") is None:
        costs_by_algorithm["im2col"] = costs.im2col(kind, s)
    if kind is ConvGradInput:
        costs_by_algorithm["taps"] = costs.taps(s)
    return costs_by_algorithm | {"direct": costs.direct(kind, s)}


def why_not(op: ConvOp, shapes: Shapes, single: bool, algorithm: Algorithm, tier: Tier) -> str | None:
    """Return the reason not to use an algorithm for these logical shapes of x and w, or None if it costs least."""
    costs = estimates(op, shapes, single, COSTS[machine_class(), tier])
    if algorithm not in costs:
        return unfit(op, sizes(op, shapes), single, algorithm)
    best = min(costs, key=costs.__getitem__)
    return None if best == algorithm else f"estimated at {costs[algorithm] / 1e6:.3g} ms, and {_named(best)} at {costs[best] / 1e6:.3g} ms"


def _named(algorithm: Algorithm) -> str:
    return algorithm if isinstance(algorithm, str) else f"tiles of {algorithm}"
