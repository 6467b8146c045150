"""Entries of `op_types` for convolutions, pooling and upsampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jobflow.legacy.activations as nn
import jobflow.legacy.convolution as convolution
import jobflow.legacy.elements as elements
from jobflow.core.errors import ArgumentError, ShapeError, user_line

Row = Callable[..., Any]


def _sides(before: Sequence[int], after: Sequence[int], data_format: str) -> list[Any]:
    """Return one padding pair (before, after) per axis, with (0, 0) for batch and channels.

    Raises: ArgumentError if the lists `before` and `after` differ in length.
    """
    if len(before) != len(after):
        raise ArgumentError(
            f"padding at {user_line()}: padding_before {list(before)} and padding_after {list(after)} must have one entry per spatial axis"
        )
    pairs = list(zip(before, after, strict=True))
    last = (len(data_format) != 0 and data_format.upper().endswith("C")) or data_format == "channels_last"
    return [(0, 0), *pairs, (0, 0)] if last else [(0, 0), (0, 0), *pairs]


def _format(data_format: str, ndim: int) -> str:
    """Return the name of `data_format` in job functions, for example "NCHW" for "channels_first" and 2 spatial axes; keep other names."""
    if data_format not in ("channels_first", "channels_last"):
        return data_format
    axes = "DHW"[3 - ndim :]
    return f"N{axes}C" if data_format == "channels_last" else f"NC{axes}"


def _conv(ndim: int) -> Row:
    function = (convolution.conv1d, convolution.conv2d, convolution.conv3d)[ndim - 1]

    def conv(
        in_: Any,
        weight: Any,
        bias: Any = None,
        *,
        filters: int | None = None,
        padding_before: Sequence[int] = (0,) * ndim,
        data_format: str = "channels_first",
        kernel_size: Any = None,
        strides: Any = (1,) * ndim,
        dilation_rate: Any = (1,) * ndim,
        groups: int = 1,
        name: str | None = None,
    ) -> Any:
        arguments = _format(data_format, ndim)
        own = None if bias is not None else name
        _fits(f"conv{ndim}d", weight, ndim, 0, 1, data_format, filters, kernel_size)
        y = function(in_, weight, list(strides), _sides(padding_before, padding_before, arguments), arguments, list(dilation_rate), groups, own)
        return y if bias is None else nn.bias_add(y, bias, arguments, name)

    return conv


def _fits(what: str, weight: Any, ndim: int, axis: int, groups: int, data_format: str, filters: int | None, kernel_size: Any) -> None:
    """Raise ShapeError unless `weight` has `ndim` spatial axes of the sizes `kernel_size`, and `filters` / `groups` entries along `axis`.

    A `filters` or `kernel_size` of None is not compared.
    """
    shape = weight.tensor_type.shape
    kernel = shape[1:-1] if data_format == "channels_last" else shape[2:]
    fits = len(shape) == ndim + 2 and filters in (None, shape[axis] * groups) and (kernel_size is None or tuple(kernel_size) == kernel)
    if not fits:
        raise ShapeError(
            f"{what} at {user_line()}: weight {weight.tensor_type} does not fit {ndim} spatial axes, {filters=}, {kernel_size=} and {groups=}"
        )


def _deconv(ndim: int) -> Row:
    what = f"deconv{ndim}d"

    def deconv(
        in_: Any,
        weight: Any,
        *,
        filters: int | None = None,
        padding_before: Sequence[int] = (0,) * ndim,
        data_format: str = "channels_first",
        kernel_size: Any = None,
        output_padding: Sequence[int] = (0,) * ndim,
        strides: Any = (1,) * ndim,
        dilation_rate: Any = (1,) * ndim,
        groups: int = 1,
        name: str | None = None,
    ) -> Any:
        needed, arguments = [2 * n for n in padding_before], _format(data_format, ndim)
        _fits(what, weight, ndim, -1 if data_format == "channels_last" else 1, groups, data_format, filters, kernel_size)
        return convolution.transposed(what, in_, weight, ndim, output_padding, strides, needed, arguments, dilation_rate, groups, name)

    return deconv


def _pool(function: Row, ndim: int) -> Row:
    def pool(
        x: Any,
        *,
        padding: str = "valid",
        padding_before: Sequence[int] = (0,) * ndim,
        padding_after: Sequence[int] = (0,) * ndim,
        data_format: str = "channels_first",
        pool_size: Any,
        strides: Any,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> Any:
        arguments = _format(data_format, ndim)
        pairs: Any = _sides(padding_before, padding_after, arguments) if padding.lower() == "customized" else padding.upper()
        return function(x, list(pool_size), list(strides), pairs, arguments, ceil_mode, name)

    return pool


def _pools(word: str) -> dict[str, Row]:
    functions = {1: f"{word}_pool_1d", 2: f"{word}_pool2d", 3: f"{word}_pool3d"}
    return {f"{word}_pool_{n}d -> y": _pool(getattr(convolution, function), n) for n, function in functions.items()}


OP_TYPES_OF_IMAGES: Mapping[str, Row] = {
    **{f"conv{n}d -> out": _conv(n) for n in (1, 2, 3)},
    **{f"deconv{n}d -> out": _deconv(n) for n in (1, 2, 3)},
    **_pools("max"),
    **_pools("avg"),
    "upsample -> y": lambda x, *, height_scale, width_scale, align_corners=False, data_format="channels_first", interpolation="nearest": (
        elements.upsample_2d(x, (height_scale, width_scale), align_corners, _format(data_format, 2), interpolation)
    ),
}
