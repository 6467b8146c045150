"""Convolution and pooling in the conventions of the job API.

If padding "SAME" requires an odd number of elements, the extra element precedes the image ("SAME_LOWER"). In `compat_conv2d` the extra element
follows the image ("SAME_UPPER"). Explicit padding is a list with one entry per axis of `data_format`. An entry is an int for both sides, or a pair
(before, after). The entries for batch and channels must be zero. Channels-last images are transposed internally.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from jobflow.core.errors import ArgumentError, JobError, ShapeError, did_you_mean, user_line
from jobflow.core.notices import notice
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.operands import counts
from jobflow.legacy.variables import current_job
from jobflow.ops import conv as cv
from jobflow.ops import pool as pl
from jobflow.ops import shape as sh
from jobflow.ops.windows import axis_values

Sizes: TypeAlias = int | Sequence[int]
Padding: TypeAlias = str | Sequence[int | Sequence[int]]

FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def channels_last(what: str, data_format: str, ndim: int) -> bool:
    """Return True for a channels-last data format and False for channels first; raise ArgumentError for another format."""
    legal = (FIRST[ndim], LAST[ndim])
    if data_format not in legal:
        raise ArgumentError(
            f"{what} at {user_line()}: data_format {data_format!r} is not {legal[0]} or {legal[1]}{did_you_mean(str(data_format), legal)}"
        )
    return data_format == legal[1]


def to_first(x: Tensor, last: bool, name: str | None = None) -> Tensor:
    """Return x, transposed from channels last to channels first if `last`; x contains images or weights."""
    n = x.tensor_type.ndim
    return sh.transpose(x, (0, n - 1, *range(1, n - 1)), name=name) if last else x


def to_last(x: Tensor, last: bool, name: str | None = None) -> Tensor:
    """Return the images x, transposed from channels first to channels last if `last`."""
    n = x.tensor_type.ndim
    return sh.transpose(x, (0, *range(2, n), 1), name=name) if last else x


def pads(what: str, padding: Padding, ndim: int, last: bool) -> str | list[tuple[int, int]]:
    """Return `padding` as a lower-case string, or as a list of one pair (before, after) per spatial axis.

    Raises: ArgumentError for another form, and for padding of the batch or channels.
    """
    if isinstance(padding, str):
        word = padding.upper()
        legal = ("SAME", "SAME_LOWER", "SAME_UPPER", "VALID")
        if word not in legal:
            raise ArgumentError(f'{what} at {user_line()}: padding "{padding}" is not one of {", ".join(legal)}{did_you_mean(word, legal)}')
        return word.lower()
    if not isinstance(padding, list | tuple) or len(padding) != ndim + 2:
        raise ArgumentError(
            f'{what} at {user_line()}: padding {padding!r} must be a string such as "SAME", or a list with an entry for each of the {ndim + 2} axes'
        )
    pairs = [_pair(what, entry) for entry in padding]
    still = (pairs[0], pairs[-1] if last else pairs[1])
    if any(pair != (0, 0) for pair in still):
        raise ArgumentError(f"{what} at {user_line()}: padding {padding!r} must be 0 for batch and channels")
    return pairs[1:-1] if last else pairs[2:]


def _pair(what: str, entry: int | Sequence[int]) -> tuple[int, int]:
    both = (entry, entry) if isinstance(entry, int) else tuple(entry)
    if len(both) != 2 or any(not isinstance(n, int) or n < 0 for n in both):
        raise ArgumentError(f"{what} at {user_line()}: padding entry {entry!r} must be a non-negative int for both sides, or (before, after)")
    return both[0], both[1]


def _conv(
    what: str,
    input: Tensor,
    filters: Tensor,
    strides: Sizes,
    padding: Padding,
    data_format: str = "",
    dilations: Sizes | None = None,
    groups: int = 1,
    name: str | None = None,
) -> Tensor:
    ndim = int(what[-2])
    last = channels_last(what, data_format, ndim)
    if input.tensor_type.ndim != ndim + 2 or filters.tensor_type.ndim != ndim + 2:
        raise ShapeError(f"{what} at {user_line()}: input {input.tensor_type} and filters {filters.tensor_type} must have {ndim + 2} axes each")
    if what == "compat_conv2d" and isinstance(padding, str) and padding.upper() == "SAME":
        padding = "SAME_UPPER"
    y: Tensor = cv.conv(
        to_first(input, last),
        to_first(filters, last),
        strides=strides,
        padding=pads(what, padding, ndim, last),
        dilations=1 if dilations is None else dilations,
        groups=groups,
        algorithm=cast(cv.Algorithm, current_job(what).conv_algorithm),
        name=name,
    )
    return to_last(y, last)


_CONV1D = "Compute the cross-correlation of input [n,c,w] with filters [f,c/groups,k]; NWC: [n,w,c] with [f,k,c/groups]."
_CONV2D = "Compute the cross-correlation of input [n,c,h,w] with filters [f,c/groups,kh,kw]; NHWC: [n,h,w,c] with [f,kh,kw,c/groups]."
_CONV3D = "Compute the cross-correlation of input [n,c,d,h,w] with filters [f,c/groups,kd,kh,kw]; NDHWC: channels last in both."
_COMPAT = 'Compute conv2d with an odd padding element of "SAME" after the image.'
conv1d = variant(_conv, "conv1d", "conv1d", _CONV1D, data_format="NCW")
conv2d = variant(_conv, "conv2d", "conv2d", _CONV2D, data_format="NCHW")
conv3d = variant(_conv, "conv3d", "conv3d", _CONV3D, data_format="NCDHW")
compat_conv2d = variant(_conv, "compat_conv2d", "compat_conv2d", _COMPAT, data_format="NCHW")


def _transposed_sizes(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: str | Sequence[tuple[int, int]]) -> list[range]:
    """Return, per spatial axis, the range of image sizes for which a convolution results in `sizes`.

    `kernel` lists the sizes of the dilated kernel.
    """
    ranges = []
    for axis, (size, span, stride) in enumerate(zip(sizes, kernel, strides, strict=True)):
        around = 0 if isinstance(padding, str) else sum(padding[axis])
        least = (size - 1) * stride + (1 if isinstance(padding, str) and padding != "valid" else span - around)
        ranges.append(range(max(1, least), least + stride))
    return ranges


def conv2d_transpose(
    value: Tensor | None = None,
    filter: Tensor | None = None,
    output_shape: Sequence[int] | None = None,
    strides: Sizes | None = None,
    padding: str = "VALID",
    data_format: str = "NCHW",
    name: str | None = None,
    input: Tensor | None = None,
    filters: Tensor | None = None,
    dilations: Sizes | None = None,
) -> Tensor:
    """Return the transposed convolution of `value` [n,i,h,w] with `filter` [i,o,kh,kw]; for NHWC of [n,h,w,i] with [i,kh,kw,o].

    The result is the gradient of the input of conv2d for the output gradient `value`, and has the shape `output_shape`.
    "SAME" adds an odd padding element after the image.
    The filter determines the channels. Another number of channels in `output_shape`, as in OneFlow before 0.3.4, causes a notice.
    `input` and `filters` are aliases of `value` and `filter`.
    """
    what = "conv2d_transpose"
    x, w = _either(what, "value", value, "input", input), _either(what, "filter", filter, "filters", filters)
    last = channels_last(what, data_format, 2)
    if strides is None or not isinstance(output_shape, list | tuple) or len(output_shape) != 4:
        raise ArgumentError(f"{what} at {user_line()}: pass strides and an output_shape of 4 entries, not {strides!r}, {output_shape!r}")
    first, weight = to_first(x, last), to_first(w, last)
    n, o, h, width = (output_shape[i] for i in ((0, 3, 1, 2) if last else (0, 1, 2, 3)))
    if n != first.tensor_type.shape[0]:
        batch = f"a batch of {n}, but value {x.tensor_type} has {first.tensor_type.shape[0]}"
        raise ShapeError(f"{what} at {user_line()}: output_shape {list(output_shape)} has {batch}")
    if o != weight.tensor_type.shape[1]:
        notice(
            f"{what} at {user_line()}: output_shape {list(output_shape)} has {o} channels; "
            f"the result has {weight.tensor_type.shape[1]}, the number of channels of filter {w.tensor_type}"
        )
    word = pads(what, padding, 2, last)
    rates = axis_values(what, "dilations", 1 if dilations is None else dilations, 2)
    kernel = [(size - 1) * rate + 1 for size, rate in zip(weight.tensor_type.shape[2:], rates, strict=True)]
    sizes = _transposed_sizes(first.tensor_type.shape[2:], kernel, axis_values(what, "strides", strides, 2), word)
    for axis, size, possible in zip("hw", (h, width), sizes, strict=True):
        if size not in possible:
            listed = str(possible[0]) if len(possible) == 1 else f"{possible[0]} to {possible[-1]}"
            raise ShapeError(
                f"{what} at {user_line()}: output_shape {list(output_shape)} has {size} elements along {axis}; value {x.tensor_type} and filter "
                f"{w.tensor_type} with strides {strides} and padding {padding!r} result in {listed}"
            )
    y: Tensor = cv.conv_transpose(
        first,
        weight,
        spatial=(h, width),
        strides=strides,
        padding="same_upper" if word == "same" else word,
        dilations=rates,
        algorithm=cast(cv.Algorithm, current_job(what).conv_algorithm),
        name=name,
    )
    return to_last(y, last)


def torch_conv2d_transpose(
    value: Tensor | None = None,
    filter: Tensor | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sizes | None = None,
    padding_needed: Sequence[int] | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
    input: Tensor | None = None,
    filters: Tensor | None = None,
    dilations: Sizes | None = None,
) -> Tensor:
    """Return the transposed convolution of `value` [n,i,h,w] with `filter` [i,o,kh,kw], with the output size of PyTorch.

    For an input size s and a filter size k along a spatial axis, the output size is as follows:

        (s - 1) stride - padding_needed + dilation (k - 1) + 1 + output_padding

    `padding_needed` is the padding of both sides together. If it is odd, the larger half follows the image.
    For NHWC the shapes are [n,h,w,i] and [i,kh,kw,o]. `input` and `filters` are aliases of `value` and `filter`.
    """
    what = "torch_conv2d_transpose"
    x, w = _either(what, "value", value, "input", input), _either(what, "filter", filter, "filters", filters)
    return transposed(what, x, w, 2, output_padding, strides, padding_needed, data_format, dilations, 1, name)


def transposed(
    what: str,
    x: Tensor,
    w: Tensor,
    ndim: int,
    output_padding: Sequence[int] | None,
    strides: Sizes | None,
    padding_needed: Sequence[int] | None,
    data_format: str,
    dilations: Sizes | None,
    groups: int,
    name: str | None,
) -> Tensor:
    """Return the transposed convolution of x with the filter w [i, o / groups, *kernel] over `ndim` spatial axes; see `torch_conv2d_transpose`."""
    if x.tensor_type.ndim != ndim + 2 or w.tensor_type.ndim != ndim + 2:
        raise ShapeError(f"{what} at {user_line()}: value {x.tensor_type} and filter {w.tensor_type} must have {ndim + 2} axes each")
    last = channels_last(what, data_format, ndim)
    first, weight = to_first(x, last), to_first(w, last)
    needed, behind = ([0] * ndim if arguments is None else [int(n) for n in arguments] for arguments in (padding_needed, output_padding))
    if len(needed) != ndim or len(behind) != ndim or min(*needed, *behind) < 0:
        raise ArgumentError(
            f"{what} at {user_line()}: padding_needed {padding_needed!r} and output_padding {output_padding!r} must have {ndim} non-negative "
            f"entries each"
        )
    steps, apart = axis_values(what, "strides", strides or 1, ndim), axis_values(what, "dilations", dilations or 1, ndim)
    spatial = [
        (n - 1) * step - pad + gap * (k - 1) + 1 + more
        for n, step, pad, gap, k, more in zip(first.tensor_type.shape[2:], steps, needed, apart, weight.tensor_type.shape[2:], behind, strict=True)
    ]
    y: Tensor = cv.conv_transpose(
        first,
        weight,
        spatial=spatial,
        strides=steps,
        padding=[(pad // 2, pad - pad // 2) for pad in needed],
        dilations=apart,
        groups=groups,
        algorithm=cast(cv.Algorithm, current_job(what).conv_algorithm),
        name=name,
    )
    return to_last(y, last)


def _either(what: str, one: str, a: Tensor | None, other: str, b: Tensor | None) -> Tensor:
    """Return a or b, the arguments named `one` and `other`; raise ArgumentError unless exactly one of them is passed."""
    if (a is None) == (b is None):
        both = "neither" if a is None else "both"
        raise ArgumentError(f"{what} at {user_line()}: pass exactly one of {one} and {other}, not {both}")
    return a if a is not None else b  # type: ignore[return-value]


def _pool(
    what: str,
    input: Tensor,
    ksize: Sizes,
    strides: Sizes,
    padding: Padding,
    data_format: str = "",
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    ndim, pool = int(what[-2]), pl.max_pool if what.startswith("max") else pl.avg_pool
    last = channels_last(what, data_format, ndim)
    if input.tensor_type.ndim != ndim + 2:
        raise ShapeError(f"{what} at {user_line()}: input {input.tensor_type} must have {ndim + 2} axes")
    pairs = pads(what, padding, ndim, last)
    y: Tensor = pool(to_first(input, last), ksize, strides, pairs, ceil_mode=bool(ceil_mode) and not isinstance(pairs, str), name=name)
    return to_last(y, last)


_MAX = "Return the maximum of each window, without its padding.  `ceil_mode` applies to explicit padding only."
_AVERAGE = "Return the mean of each window, without its padding.  `ceil_mode` applies to explicit padding only."
max_pool2d = variant(_pool, "max_pool2d", "max_pool2d", _MAX, data_format="NCHW")
avg_pool2d = variant(_pool, "avg_pool2d", "avg_pool2d", _AVERAGE, data_format="NCHW")
max_pool_1d = variant(_pool, "max_pool_1d", "max_pool_1d", "Compute max_pool2d along one spatial axis.", data_format="NCW")
avg_pool_1d = variant(_pool, "avg_pool_1d", "avg_pool_1d", "Compute avg_pool2d along one spatial axis.", data_format="NCW")
max_pool3d = variant(_pool, "max_pool3d", "max_pool3d", "Compute max_pool2d over three spatial axes.", data_format="NCDHW")
avg_pool3d = variant(_pool, "avg_pool3d", "avg_pool3d", "Compute avg_pool2d over three spatial axes.", data_format="NCDHW")


def _no_pool(what: str, input: Tensor, ksize: Sizes, strides: Sizes, padding: Padding, data_format: str = "", name: str | None = None) -> Tensor:
    raise JobError(f"{what} at {user_line()}: the function is not available; add an axis of size 1 with expand_dims and use {what.replace('1', '2')}")


_NEVER = "Raise JobError, as in OneFlow 0.4; use {} with an axis of size 1."
max_pool1d = variant(_no_pool, "max_pool1d", "max_pool1d", _NEVER.format("max_pool2d"), data_format="NWC")
avg_pool1d = variant(_no_pool, "avg_pool1d", "avg_pool1d", _NEVER.format("avg_pool2d"), data_format="NCW")


def PixelShuffle(input: Tensor, upscale_factor: int, name: str | None = None) -> Tensor:
    """Rearrange [n, c r^2, h, w] to [n, c, h r, w r] with r = upscale_factor. Groups of r^2 channels become r x r positions."""
    return PixelShufflev2(input, upscale_factor, upscale_factor, name)


def PixelShufflev2(input: Tensor, h_upscale_factor: int, w_upscale_factor: int, name: str | None = None) -> Tensor:
    """Apply PixelShuffle with separate factors for height and width."""
    tall, wide, t = h_upscale_factor, w_upscale_factor, input.tensor_type
    counts("PixelShuffle", h_upscale_factor=tall, w_upscale_factor=wide)
    if t.ndim != 4 or t.shape[1] % (tall * wide):
        raise ShapeError(f"PixelShuffle at {user_line()}: input {t} must be [n, c, h, w] with a multiple of {tall} * {wide} channels")
    n, c, h, w = t.shape
    apart = sh.reshape(input, (n, c // (tall * wide), tall, wide, h, w))
    return sh.reshape(sh.transpose(apart, (0, 1, 4, 2, 5, 3)), (n, c // (tall * wide), h * tall, w * wide), name=name)


globals().update(all_of(__name__, globals(), __name__, of_jobs))
