"""What the ways to compute a convolution cost on a CPU, and how much they err: the two tables that choices are made from.

Costs are made of products and copies, whose own costs are measured by `benchmarks/conv_kernels.py --constants`.  They are estimates for
logical shapes, whatever a rank holds of them, so that all ranks choose alike, and nothing is timed while a program is compiled.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from jobflow.core.dataclass import dataclass
from jobflow.kernels.cpu.images import lifted_window, mirror
from jobflow.kernels.cpu.winograd import Axis, axes
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp, Shapes
from jobflow.ops.windows import Window

#: nanoseconds on one core: per call of NumPy; per matrix product, multiplication, element packed and element written of float32; per
#: run of memory copied, element copied, element copied one by one, element added to another, and element from beyond the core's own cache;
#: per fused multiply-add of compiled loops: sums of several filters at a time, products, and either of one filter
COSTS = {
    "call": 1500.0,
    "product": 30.0,
    "multiply": 0.0155,
    "pack": 0.15,
    "write": 0.06,
    "run": 4.0,
    "copy": 0.4,
    "gather": 0.6,
    "add": 0.6,
    "far": 0.5,
    "sums": 0.0155,
    "products": 0.0205,
    "lone": 0.07,
}
#: elements that stay in a core's own cache, and taps of which several filters stay in its first one
_NEAR, _ROW = 1 << 18, 2048
#: axes, outputs per tile, size of filter -> the largest error of y and dx in float32, as a multiple of that of PyTorch's convolution, where
#: 32, 64, 128 and 256 channels are summed, in both tiers (`benchmarks/conv_kernels.py --errors`; dw errs less than PyTorch's, or hardly more)
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
    (2, 4, 5): (9.0, 14.3, 25.9, 33.5),
}
#: how many times as much as PyTorch's convolutions those may err that nobody asked for
ALLOWED = 10.0

#: outputs per tile and axis
Tiles = Literal[2, 3, 4]
TILES: tuple[Tiles, ...] = (2, 3, 4)


@dataclass(frozen=True)
class Sizes:
    """A convolution of n samples with windows that step along `out` positions of the image."""

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
        """The convolution that gives dx."""
        return Sizes(self.n, self.o, self.c, self.groups, self.out, self.spatial, window)


def _product(m: float, k: float, n: float, times: float = 1) -> float:
    """[m,k] @ [k,n]"""
    each = COSTS["product"] + m * k * n * COSTS["multiply"] + (m * k + k * n) * COSTS["pack"] + m * n * COSTS["write"]
    return times * each


def _columns(s: Sizes) -> float:
    """Gathering what windows see."""
    if s.taps == 1 and set(s.window.strides) == {1}:
        return 0.0
    elements = s.c * s.taps * math.prod(s.out) * s.n
    return 3 * COSTS["call"] + elements * (COSTS["copy"] + COSTS["run"] / (s.out[-1] * s.n))


def _im2col_sums(s: Sizes) -> float:
    return _columns(s) + _product(s.o / s.groups, s.c / s.groups * s.taps, math.prod(s.out) * s.n, s.groups)


def turning(s: Sizes) -> float:
    """dx as a convolution of dy; infinite where it is none."""
    window = mirror(s.window)
    return math.inf if window is None else _im2col_sums(s.turned(window)) + s.o * s.c / s.groups * s.taps * COSTS["gather"]


def scattering(s: Sizes) -> float:
    """dx as sums of what each tap adds."""
    elements = s.c * s.taps * math.prod(s.out) * s.n
    added = elements * (COSTS["add"] + COSTS["run"] / (s.out[-1] * s.n)) if s.taps > 1 else 0.0
    return added + s.taps * COSTS["call"] + _product(s.c / s.groups * s.taps, s.o / s.groups, math.prod(s.out) * s.n, s.groups)


def im2col(kind: type[ConvOp], s: Sizes) -> float:
    if kind is ConvGradInput:
        return min(turning(s), scattering(s))
    if kind is ConvGradWeight:
        return _columns(s) + _product(s.o / s.groups, math.prod(s.out) * s.n, s.c / s.groups * s.taps, s.groups)
    return _im2col_sums(s)


def winograd(kind: type[ConvOp], s: Sizes, m: Tiles) -> float:
    """By F(m,r); what fits it is asked before."""
    if kind is ConvGradInput:
        window = mirror(s.window)
        return math.inf if window is None else winograd(Conv, s.turned(window), m)
    down, along = axes(m, lifted_window(s.window))
    out = (1, *s.out)[-2:]
    rows, group = -(-out[0] // down.m), along.group(out[1], down.t * along.t * (s.c + s.o) * s.n * 4)
    blocks = rows * -(-out[1] // (group * along.m))
    points, columns = down.t * along.t, group * s.n
    weights = s.o * s.c * (points * (s.taps * COSTS["multiply"] + COSTS["write"]) + s.taps * COSTS["pack"])
    seen = _transforms(s.c, down, along, group, s.n, inverse=False)
    made = _transforms(s.o, down, along, group, s.n, inverse=True)
    inner = (s.o, columns, s.c) if kind is ConvGradWeight else (s.o, s.c, columns)
    summed = points * s.o * s.c * (COSTS["add"] if kind is ConvGradWeight else 0.0)
    summed += points * s.o * s.c * (COSTS["far"] if points * s.o * s.c > _NEAR else 0.0)
    return weights + blocks * (5 * COSTS["call"] + seen + made + _product(*inner, points) + summed)


def _transforms(channels: int, down: Axis, along: Axis, group: int, n: int, *, inverse: bool) -> float:
    """Of one block: along rows, then along columns, or the other way round."""
    positions = group * along.m if inverse else group * along.m + along.r - 1
    height = down.m if inverse else down.t
    return _product(down.t, height, positions * n, channels) + _product(along.t * group, positions, n, channels * down.t)


def sizes(op: ConvOp, shapes: Shapes) -> Sizes:
    """Of an op whose whole x and w have these shapes."""
    (n, c, *spatial), (o, _, *kernel) = shapes
    window = op.window(tuple(kernel))
    return Sizes(n, c, o, op.groups, tuple(spatial), window.out_sizes("conv", tuple(spatial)), window)


def error(along: tuple[int, ...], m: Tiles, channels: int) -> float:
    """That of tiles of m outputs along axes with filters of these sizes, as a multiple of PyTorch's."""
    table = ERRORS[len(along), m, along[0]]
    return next((found for found, most in zip(table, (32, 64, 128, 256), strict=True) if channels <= most), table[-1] * math.sqrt(channels / 256))


def unfit(op: ConvOp, s: Sizes, single: bool, m: Tiles) -> str | None:
    """Why Winograd convolutions on tiles of m outputs are not to be thought of."""
    window = s.window
    along = tuple(k for k in window.kernel if k > 1)
    if op.algorithm == "direct":
        return "the setting is direct"
    if len(window.kernel) > 2 or len(set(along)) != 1 or (len(along), m, along[0]) not in ERRORS:
        return f"there are no tiles of {m} outputs for a window of {window.kernel}"
    if op.groups > 1 or set(window.strides) != {1} or set(window.dilations) != {1}:
        return f"groups {op.groups}, strides {window.strides}, dilations {window.dilations}; it takes 1 only"
    if mirror(window) is None:
        return f"padding {window.padding} is wider than the window reaches"
    if op.algorithm == "auto" and not single:
        return "float64 is asked for where exactness matters; the setting winograd allows it"
    if op.algorithm == "auto" and error(along, m, max(s.c, s.o)) > ALLOWED:
        return f"it errs {error(along, m, max(s.c, s.o)):.0f} times as much as PyTorch; the setting winograd allows it"
    return None


@lru_cache(4096)
def estimates(op: ConvOp, shapes: Shapes, single: bool) -> dict[Tiles | None, float]:
    """What the Winograd convolutions that may be taken cost by tiles, and what im2col does (None), in nanoseconds."""
    s = sizes(op, shapes)
    found: dict[Tiles | None, float] = {m: winograd(type(op), s, m) for m in TILES if unfit(op, s, single, m) is None}
    return {None: im2col(type(op), s), **found}


def why_not(op: ConvOp, shapes: Shapes, single: bool, m: Tiles) -> str | None:
    """Why not to compute an op whose whole x and w have these shapes on tiles of m outputs; None if that costs least."""
    costs = estimates(op, shapes, single)
    if m not in costs:
        return unfit(op, sizes(op, shapes), single, m)
    best = min(costs, key=costs.__getitem__)
    other = "im2col" if best is None else f"tiles of {best}"
    return None if best == m else f"estimated at {costs[m] / 1e6:.3g} ms, and {other} at {costs[best] / 1e6:.3g} ms"


def direct(kind: type[ConvOp], s: Sizes) -> float:
    """By a compiled loop over the taps."""
    elements = s.n * max(s.c * math.prod(s.spatial), s.o * math.prod(s.out))
    made, summed = (s.c, s.o) if kind is ConvGradInput else (s.o, s.c)
    each = COSTS["lone" if made // s.groups < 4 else "products" if kind is ConvGradWeight else "sums"]
    distant = 1.25 if summed // s.groups * s.taps > _ROW else 1.0
    return 4 * COSTS["call"] + elements * COSTS["copy"] + distant * each * s.n * math.prod(s.out) * s.o * s.c / s.groups * s.taps


def why_not_direct(op: ConvOp, shapes: Shapes, single: bool) -> str | None:
    """Why not to compute an op by a compiled loop; None if that costs least."""
    cost, best = direct(type(op), sizes(op, shapes)), min(estimates(op, shapes, single).values())
    return None if cost <= best else f"estimated at {cost / 1e6:.3g} ms, and array functions at {best / 1e6:.3g} ms"
