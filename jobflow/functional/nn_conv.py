"""Convolution and transposed convolution over 1 to 3 spatial axes."""

from __future__ import annotations

from jobflow.core.errors import ShapeError, counted, user_line
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor as Value
from jobflow.functional.nn_base import Sizes, composed, sizes
from jobflow.functional.typed import Tensor
from jobflow.ops import conv as cv
from jobflow.ops import shape as sh
from jobflow.ops import slices as sl
from jobflow.ops.matmul import BiasAdd
from jobflow.ops.op import apply

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def batched(what: str, x: Tensor, spatial: int) -> Value:
    """Return x with a batch axis of size 1 in front, or x itself if it has a batch axis.

    Raises: ShapeError unless x is [channels, ...] or [n, channels, ...] with `spatial` spatial axes.
    """
    if x.tensor_type.ndim == spatial + 1:
        return sh.expand_dims(x, 0)
    if x.tensor_type.ndim != spatial + 2:
        axes = f"{spatial} spatial {'axis' if spatial == 1 else 'axes'}"
        raise ShapeError(f"{what} at {user_line()}: input {x.tensor_type} must be [n, channels, ...] or [channels, ...] with {axes}")
    return x


def unbatched(y: Value, like: Tensor) -> Value:
    return y if y.tensor_type.ndim == like.tensor_type.ndim else sh.squeeze(y, (0,))


def check_channels(what: str, channels: int, whose: str, **vectors: Tensor | None) -> None:
    """Raise ShapeError unless each argument in `vectors` is None or a vector with `channels` elements."""
    for name, p in vectors.items():
        if p is not None and p.tensor_type.shape != (channels,):
            raise ShapeError(f"{what} at {user_line()}: {name} {p.tensor_type} must have one element for each of the {channels} channels of {whose}")


def _biased(what: str, y: Value, bias: Tensor | None) -> Value:
    if bias is None:
        return y
    check_channels(what, y.tensor_type.shape[1], "the output", bias=bias)
    return apply(BiasAdd(1), y, bias)


def pairs(
    what: str, padding: str | Sizes, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Return the padding (before, after) per spatial axis; for "same", an odd total has its extra element after the axis.

    Raises: ShapeError for negative or invalid padding, or for "same" with another stride than 1.
    """
    if not isinstance(padding, str):
        each = sizes(what, "padding", padding, len(kernel))
        if min(each, default=0) < 0:
            raise ShapeError(f"{what} at {user_line()}: padding {padding} must not be negative")
        return tuple((n, n) for n in each)
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding != "same":
        raise ShapeError(f'{what} at {user_line()}: padding {padding!r} must be "same", "valid", an int or a list of ints')
    if set(strides) != {1}:
        raise ShapeError(f'{what} at {user_line()}: padding="same" needs stride 1; got {list(strides)}')
    totals = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def _parse_arguments(
    what: str, input: Tensor, weight: Tensor, stride: Sizes, dilation: Sizes, spatial: int, channels: str
) -> tuple[Value, tuple[int, ...], tuple[int, ...]]:
    """Return the input with a batch axis, and the strides and dilations per spatial axis.

    Raises: ShapeError unless input, weight, strides and dilations have `spatial` spatial axes.
    """
    x = batched(what, input, spatial)
    if weight.tensor_type.ndim != spatial + 2:
        kernel = counted(spatial, "kernel size")
        raise ShapeError(f"{what} at {user_line()}: weight {weight.tensor_type} must be [{channels} / groups, *kernel] with {kernel}")
    return x, sizes(what, "stride", stride, spatial, 1), sizes(what, "dilation", dilation, spatial, 1)


def _conv(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Value:
    what = f"conv{spatial}d"
    x, strides, dilations = _parse_arguments(what, input, weight, stride, dilation, spatial, "out, in")
    around = pairs(what, padding, weight.tensor_type.shape[2:], strides, dilations)
    y = cv.conv(x, weight, strides=strides, padding=around, dilations=dilations, groups=groups)
    return unbatched(_biased(what, y, bias), input)


_CONV = """Return y[n, o, i] = sum over c, k of input[n, c, i * stride + k * dilation - padding] * weight[o, c, k], plus bias[o].

    Shapes: input [n, c, l] or [c, l], weight [o, c / groups, k], bias [o].  `padding` is a number, "valid" (none) or "same" (the output is as
    long as the input, stride 1 only).  Raises: ShapeError for arguments that do not match.
    """
conv1d = composed(variant(_conv, 1, "conv1d", _CONV))
conv2d = composed(variant(_conv, 2, "conv2d", "Return the convolution of images [n, c, h, w] with weights [o, c / groups, kh, kw]; see `conv1d`."))
conv3d = composed(
    variant(_conv, 3, "conv3d", "Return the convolution of volumes [n, c, d, h, w] with weights [o, c / groups, kd, kh, kw]; see `conv1d`.")
)


def _conv_transpose(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Value:
    what = f"conv_transpose{spatial}d"
    x, strides, dilations = _parse_arguments(what, input, weight, stride, dilation, spatial, "in, out")
    around, extra = sizes(what, "padding", padding, spatial), sizes(what, "output_padding", output_padding, spatial)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise ShapeError(
            f"{what} at {user_line()}: output_padding {list(extra)} must be smaller than stride {list(strides)} or dilation {list(dilations)}"
        )
    shape = zip(x.tensor_type.shape[2:], weight.tensor_type.shape[2:], strides, around, extra, dilations, strict=True)
    out = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in shape)
    if min(out) < 1:
        raise ShapeError(
            f"{what} at {user_line()}: input {x.tensor_type} and weight {weight.tensor_type} result in an output of shape {list(out)}; enlarge "
            "the input"
        )
    appended = [e // s for e, s in zip(extra, strides, strict=True)]  # the same output as of an input with zeros appended
    if any(appended):
        x = sl.pad(x, [(0, 0), (0, 0), *((0, n) for n in appended)])
    y = cv.conv_transpose(x, weight, spatial=out, strides=strides, padding=tuple((p, p) for p in around), dilations=dilations, groups=groups)
    return unbatched(_biased(what, y, bias), input)


_TRANSPOSE = """Return y[n, o, j] = sum of input[n, c, i] * weight[c, o, k] over i * stride + k * dilation - padding == j, plus bias[o].

    The operation is the transpose of `conv1d` as a linear map.  Shapes: input [n, c, l] or [c, l], weight [c, o / groups, k], bias [o].  An axis of
    size l becomes (l - 1) * stride - 2 * padding + dilation * (k - 1) + output_padding + 1.
    Raises: ShapeError for arguments that do not match.
    """
conv_transpose1d = composed(variant(_conv_transpose, 1, "conv_transpose1d", _TRANSPOSE))
conv_transpose2d = composed(
    variant(
        _conv_transpose,
        2,
        "conv_transpose2d",
        "Return the transposed convolution of images [n, c, h, w] with weights [c, o / groups, kh, kw]; see `conv_transpose1d`.",
    )
)
conv_transpose3d = composed(
    variant(_conv_transpose, 3, "conv_transpose3d", "Return the transposed convolution of volumes [n, c, d, h, w]; see `conv_transpose1d`.")
)
