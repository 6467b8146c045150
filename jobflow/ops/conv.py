"""Convolution over 1 to 3 spatial axes, channels first.

    y[n,o,i] = sum over c, k of  x[n,c, i*stride + k*dilation - before] w[o,c,k]        (cross-correlation; i, k are multi-indices)

The three ops are the partial derivatives of one trilinear form <y, conv(x, w)>, so the gradients of each op are the other two ops.
With `groups` > 1 the channels are divided into equal groups that are convolved separately: w is [o, c/groups, *kernel].

The reference kernels multiply matrices of windows (im2col). A target chooses its implementation by `algorithm` and by the logical sizes, which
`localize` preserves. The choice is independent of the sizes of a rank's shard. Therefore all layouts use the same implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.op import Grads, Op, Sample, apply, sample
from jobflow.ops.windows import Pads, Window, axis_values, explicit_padding, spread
from jobflow.ops.windows import same_padding as same_padding

#: "auto": the fastest algorithm with the rounding errors of a direct sum; "direct": a direct sum; "winograd": the fastest algorithm
Algorithm = Literal["auto", "direct", "winograd"]
#: shapes of x and w
Shapes = tuple[tuple[int, ...], tuple[int, ...]]

_AXES = "XYZ"


def _check_operand(what: str, name: str, t: TensorType, ndim: int) -> None:
    if t.ndim != ndim + 2:
        raise ShapeError(f"{what}: {name} {t} must have {ndim + 2} axes: 2 leading axes, and one for each of the {ndim} strides")
    if not t.dtype.is_float:
        raise DtypeError(f"{what}: {name} {t} must contain floating point numbers; cast it first")


class ConvOp(Op):
    """Base class of the convolution and its two gradients; `padding` is (before, after) per spatial axis."""

    abstract = True
    precision = "half"
    strides: tuple[int, ...]
    padding: Pads
    dilations: tuple[int, ...]
    groups: int = 1
    algorithm: Algorithm = "auto"
    #: the logical shapes, in the op of one rank's shard
    logical: Shapes | None = field(default=None, kw_only=True)

    unshown = frozenset({"logical"})

    def window(self, kernel: tuple[int, ...]) -> Window:
        return Window(kernel, self.strides, self.padding, self.dilations)

    #: returns the shapes of x and w from the shapes of inputs and outputs
    shapes: ClassVar[Callable[..., Shapes]]

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, logical=self.shapes([box.whole for box in inputs], [box.whole for box in outputs]))

    def _check(self, **operands: TensorType) -> None:
        for name, t in operands.items():
            _check_operand(self.word(), name, t, len(self.strides))
        (a, s), (b, t) = operands.items()
        if s.dtype is not t.dtype:
            raise DtypeError(f"{self.word()}: {a} {s} and {b} {t} differ in element type; cast one of them")

    def _check_groups(self, channels: int, filters: int, text: str) -> None:
        if channels % self.groups or filters % self.groups:
            raise ShapeError(f"{self.word()}: {text}: {channels} channels and {filters} filters must both be multiples of groups={self.groups}")

    def _columns(self, xp: Xp, x: Array, kernel: tuple[int, ...], out: tuple[int, ...]) -> Array:
        """Return the windows of x as columns of shape [n, groups, c/groups * prod(kernel), prod(out)]."""
        padded = xp.pad(x, ((0, 0), (0, 0), *self.padding))
        windows = _windows(xp, self.window(kernel), padded, out)
        return windows.reshape(x.shape[0], self.groups, x.shape[1] // self.groups * math.prod(kernel), math.prod(out))

    def _rule(self, spec: str) -> Rule:
        """Return the rule `spec` with one letter per spatial axis in place of H (axes of the image) and K (axes of the kernel).

        Channel axes are not split in grouped convolutions.
        """
        axes = _AXES[: len(self.strides)]
        if self.groups > 1:
            spec = spec.replace("c", "C").replace("o", "O")
        return Rule(spec.replace("H", axes).replace("K", axes), linear=((0,), (1,)))


def _windows(xp: Xp, window: Window, image: Array, out: tuple[int, ...]) -> Array:
    """Return the windows of a padded image [n, c, *spatial] as a view [n, c, *kernel, *out]."""
    along = image.strides[2:]
    strides = (*(d * n for d, n in zip(window.dilations, along, strict=True)), *(s * n for s, n in zip(window.strides, along, strict=True)))
    return xp.lib.stride_tricks.as_strided(image, (*image.shape[:2], *window.kernel, *out), (*image.strides[:2], *strides))


def _samples_last(a: Array) -> Array:
    """Transpose and reshape a [n, g, rows, positions] to [g, rows, n * positions]."""
    return a.transpose(1, 2, 0, 3).reshape(*a.shape[1:3], a.shape[0] * a.shape[3])


class Conv(ConvOp):
    """Convolution: y[n,o,i] = sum_ck x[n,c,i*stride+k*dilation-before] w[o,c,k], with x [n,c,*spatial] and w [o,c/groups,*kernel]."""

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        self._check(x=x, w=w)
        if x.shape[1] != w.shape[1] * self.groups:
            raise ShapeError(
                f"conv: x {x} has {x.shape[1]} channels, but w {w} expects {w.shape[1]}" + (f" * {self.groups} groups" if self.groups > 1 else "")
            )
        self._check_groups(x.shape[1], w.shape[0], f"x {x} and w {w}")
        return x.with_shape((x.shape[0], w.shape[0], *self.window(w.shape[2:]).out_sizes(f"conv: x {x} and w {w}", x.shape[2:])))

    def rule(self, x: TensorType, w: TensorType) -> Rule:
        return self._rule("ncH,ocK->noH")

    def kernel(self, xp: Xp, x: Array, w: Array, y: Array) -> None:
        filters = w.reshape(self.groups, w.shape[0] // self.groups, math.prod(w.shape[1:]))
        y[...] = xp.matmul(filters, self._columns(xp, x, w.shape[2:], y.shape[2:])).reshape(y.shape)

    def shapes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Shapes:
        return inputs[0], inputs[1]

    def grad(self, x: Any, w: Any, y: Any, dy: Any) -> Grads:
        spatial, kernel = x.tensor_type.shape[2:], w.tensor_type.shape[2:]
        return apply(self._input_gradient(spatial), dy, w), apply(self._weight_gradient(kernel), x, dy)

    def _input_gradient(self, spatial: tuple[int, ...]) -> ConvGradInput:
        return ConvGradInput(self.strides, self.padding, self.dilations, self.groups, self.algorithm, spatial)

    def _weight_gradient(self, kernel: tuple[int, ...]) -> ConvGradWeight:
        return ConvGradWeight(self.strides, self.padding, self.dilations, self.groups, self.algorithm, kernel)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, x, w, _ in _cases():
            yield sample(op, x, w)


class ConvGradInput(ConvOp):
    """Input gradient of Conv, with spatial sizes `spatial`; as a forward operation, the transposed convolution.

    dx[n,c,j] = sum of dy[n,o,i] w[o,c,k] over o and all i, k with i*stride+k*dilation-before == j.
    The channels of dy are the first axis of w, and the channels of dx the second.
    """

    spatial: tuple[int, ...] = ()

    def infer(self, dy: TensorType, w: TensorType) -> TensorType:
        self._check(dy=dy, w=w)
        if dy.shape[1] != w.shape[0]:
            raise ShapeError(f"convgradinput: dy {dy} has {dy.shape[1]} channels, but w {w} has {w.shape[0]} filters")
        self._check_groups(w.shape[1] * self.groups, w.shape[0], f"dy {dy} and w {w}")
        out = self.window(w.shape[2:]).out_sizes(f"convgradinput: dy {dy} and w {w}", self.spatial)
        if out != dy.shape[2:]:
            raise ShapeError(
                f"convgradinput: dy {dy} and w {w}: an image of {list(self.spatial)} requires dy of {list(out)}, not {list(dy.shape[2:])}"
            )
        return dy.with_shape((dy.shape[0], w.shape[1] * self.groups, *self.spatial))

    def rule(self, dy: TensorType, w: TensorType) -> Rule:
        return self._rule("noH,ocK->ncH")

    def kernel(self, xp: Xp, dy: Array, w: Array, dx: Array) -> None:
        """Insert stride - 1 zeros between the elements of dy, and convolve the result with the flipped w."""
        (o, c), kernel, axes = w.shape[:2], w.shape[2:], range(len(self.strides))
        reach = [spread(k, d) - 1 for k, d in zip(kernel, self.dilations, strict=True)]
        dilated = xp.zeros((*dy.shape[:2], *(size + r for size, r in zip(dx.shape[2:], reach, strict=True))), dy.dtype)
        sources, destinations = zip(*(self._between(a, dy.shape[2 + a], dilated.shape[2 + a], reach[a]) for a in axes), strict=True)
        dilated[:, :, *destinations] = dy[:, :, *sources]
        windows = _windows(xp, Window(kernel, (1,) * len(kernel), ((0, 0),) * len(kernel), self.dilations), dilated, dx.shape[2:])
        rows = o // self.groups * math.prod(kernel)
        flipped = w[(..., *(slice(None, None, -1),) * len(kernel))].reshape(self.groups, o // self.groups, c, *kernel).swapaxes(1, 2)
        columns = windows.reshape(dy.shape[0], self.groups, rows, math.prod(dx.shape[2:]))
        dx[...] = xp.matmul(flipped.reshape(self.groups, c, rows), columns).reshape(dx.shape)

    def _between(self, a: int, count: int, room: int, reach: int) -> tuple[slice, slice]:
        """Return the slice of dy along spatial axis `a`, and the slice of the zero-filled buffer that receives this slice of dy.

        `count` is the size of dy and `room` the size of the buffer along the axis. `reach` is the distance of the first and last tap of the kernel.
        The second slice has the stride of the convolution as its step. Elements of dy outside the buffer are not copied.
        """
        stride, first = self.strides[a], reach - self.padding[a][0]
        low, high = max(0, -(first // stride)), min(count, (room - 1 - first) // stride + 1)
        return slice(low, max(low, high)), slice(first + low * stride, max(first + low * stride, first + (high - 1) * stride + 1), stride)

    def shapes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Shapes:
        return outputs[0], inputs[1]

    def grad(self, dy: Any, w: Any, dx: Any, ddx: Any) -> Grads:
        conv_op = Conv(self.strides, self.padding, self.dilations, self.groups, self.algorithm)
        return apply(conv_op, ddx, w), apply(conv_op._weight_gradient(w.tensor_type.shape[2:]), ddx, dy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, x, w, dy in _cases():
            yield sample(op._input_gradient(x.shape[2:]), dy, w)


class ConvGradWeight(ConvOp):
    """Weight gradient of Conv: dw[o,c,k] = sum_ni x[n,c,i*stride+k*dilation-before] dy[n,o,i], with kernel sizes `kernel_sizes`."""

    kernel_sizes: tuple[int, ...] = ()

    def infer(self, x: TensorType, dy: TensorType) -> TensorType:
        self._check(x=x, dy=dy)
        if x.shape[0] != dy.shape[0]:
            raise ShapeError(f"convgradweight: x {x} and dy {dy} differ in batch size, {x.shape[0]} and {dy.shape[0]}")
        self._check_groups(x.shape[1], dy.shape[1], f"x {x} and dy {dy}")
        out = self.window(self.kernel_sizes).out_sizes(f"convgradweight: x {x} and dy {dy}", x.shape[2:])
        if out != dy.shape[2:]:
            raise ShapeError(
                f"convgradweight: x {x} and dy {dy}: a kernel of {list(self.kernel_sizes)} requires dy of {list(out)}, not {list(dy.shape[2:])}"
            )
        return x.with_shape((dy.shape[1], x.shape[1] // self.groups, *self.kernel_sizes))

    def rule(self, x: TensorType, dy: TensorType) -> Rule:
        return self._rule("ncH,noH->ocK")

    def kernel(self, xp: Xp, x: Array, dy: Array, dw: Array) -> None:
        columns = self._columns(xp, x, dw.shape[2:], dy.shape[2:])
        gradient = dy.reshape(dy.shape[0], self.groups, dy.shape[1] // self.groups, columns.shape[3])
        dw[...] = xp.matmul(_samples_last(gradient), _samples_last(columns).swapaxes(1, 2)).reshape(dw.shape)

    def shapes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Shapes:
        return inputs[0], outputs[0]

    def grad(self, x: Any, dy: Any, dw: Any, ddw: Any) -> Grads:
        conv_op = Conv(self.strides, self.padding, self.dilations, self.groups, self.algorithm)
        return apply(conv_op._input_gradient(x.tensor_type.shape[2:]), dy, ddw), apply(conv_op, x, ddw)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, x, w, dy in _cases():
            yield sample(op._weight_gradient(w.shape[2:]), x, dy)


def _cases() -> Iterator[tuple[Conv, Any, Any, Any]]:
    """Yield cases for the property tests: ops with float64 operands x, w and dy.

    Sizes are small, because the tests compute finite differences for every element.
    """
    shapes: tuple[tuple[Conv, tuple[int, ...], tuple[int, ...]], ...] = (
        (Conv((1,), ((1, 1),), (1,)), (3, 2, 5), (2, 2, 3)),
        (Conv((1, 1), ((2, 2), (2, 2)), (1, 1)), (2, 1, 4, 5), (3, 1, 5, 5)),
        (Conv((2, 1), ((1, 0), (0, 2)), (1, 2)), (2, 3, 5, 6), (2, 3, 3, 2)),
        (Conv((1, 1), ((0, 0), (0, 0)), (1, 1)), (3, 4, 3, 2), (2, 4, 1, 1)),
        (Conv((1, 2), ((1, 1), (1, 1)), (1, 1), groups=2), (2, 4, 3, 4), (6, 2, 2, 3)),
        (Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1, "winograd"), (3, 2, 4, 3), (2, 2, 3, 3)),
        (Conv((1, 1), ((2, 2), (2, 2)), (1, 1), 1, "winograd"), (2, 1, 5, 4), (2, 1, 5, 5)),
        (Conv((1, 1), ((2, 2), (1, 0)), (1, 1), 1, "winograd"), (2, 1, 3, 6), (2, 1, 5, 5)),
        (Conv((1, 2, 1), ((1, 0), (0, 1), (1, 1)), (1, 1, 1)), (2, 2, 2, 3, 3), (2, 2, 2, 2, 3)),
    )
    rng = np.random.default_rng(0)
    for op, x_shape, w_shape in shapes:
        out = op.window(w_shape[2:]).out_sizes("conv", x_shape[2:])
        yield op, rng.standard_normal(x_shape), rng.standard_normal(w_shape), rng.standard_normal((x_shape[0], w_shape[0], *out))


def conv(
    x: Tensor,
    w: Tensor,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "valid",
    dilations: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: Algorithm = "auto",
    name: str | None = None,
) -> Any:
    """Return the convolution of x [n,c,*spatial] with w [o,c/groups,*kernel], of shape [n,o,*out].

    `strides` and `dilations` are one int, or one per spatial axis. `padding` is a pair (before, after) per spatial axis, or a word that
    `explicit_padding` accepts. `algorithm` is "auto" (fastest with the rounding errors of a direct sum), "direct" or "winograd" (fastest).
    Raises ShapeError for invalid sizes or options.
    """
    return apply(conv_op(x.tensor_type, w.tensor_type, strides, padding, dilations, groups, algorithm), x, w, name=name)


def conv_op(
    x: TensorType,
    w: TensorType,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "valid",
    dilations: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: Algorithm = "auto",
) -> Conv:
    """Return the op that `conv` applies to operands of these logical types; raise ShapeError for invalid sizes or options."""
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3 or w.ndim != x.ndim:
        raise ShapeError(f"conv: x {x} and w {w} must have the same number of axes: 2 leading axes, and 1 to 3 spatial axes")
    strides, dilations = axis_values("conv", "strides", strides, ndim), axis_values("conv", "dilations", dilations, ndim)
    if groups < 1:
        raise ShapeError(f"conv: groups {groups} must be at least 1")
    if algorithm not in get_args(Algorithm):
        raise ShapeError(f'conv: algorithm "{algorithm}" is not one of "auto", "direct", "winograd"')
    return Conv(strides, explicit_padding("conv", padding, x.shape[2:], w.shape[2:], strides, dilations), dilations, groups, algorithm)


def conv_transpose(
    x: Tensor,
    w: Tensor,
    *,
    spatial: Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "valid",
    dilations: int | Sequence[int] = 1,
    groups: int = 1,
    algorithm: Algorithm = "auto",
    name: str | None = None,
) -> Any:
    """Return the transposed convolution of x [n,i,*] with w [i,o/groups,*kernel], of shape [n,o,*spatial].

    The operation is the input gradient of a `conv` from the sizes `spatial` to the sizes of x. Raises ShapeError if the result
    of that convolution has other sizes. "same" adds the larger padding before the elements, as in `conv`; "same_upper" adds it after them.
    """
    t, u = x.tensor_type, w.tensor_type
    ndim = t.ndim - 2
    if not 1 <= ndim <= 3 or u.ndim != t.ndim or len(spatial) != ndim:
        raise ShapeError(f"conv_transpose: x {t}, w {u} and spatial {list(spatial)} must have the same number of spatial axes, 1 to 3")
    image = TensorType((t.shape[0], u.shape[1] * groups, *spatial), t.dtype)
    op = conv_op(image, u, strides, padding, dilations, groups, algorithm)
    return apply(op._input_gradient(tuple(int(n) for n in spatial)), x, w, name=name)
