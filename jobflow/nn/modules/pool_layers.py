"""Modules for pooling, padding and image resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jobflow.core.errors import ShapeError, user_line
from jobflow.functional import nn_pool as F
from jobflow.functional import nn_resize as resize
from jobflow.functional import nn_shapes as shapes
from jobflow.functional import nn_windows as windows
from jobflow.functional.nn_base import Sizes, sizes
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.option_modules import OfOne, WithSettings

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d",
    "AvgPool2d", "AvgPool3d", "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "Fold", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
    "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
    "ReplicationPad3d", "Unfold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class _Windows(OfOne, shared=True):
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stride = self.kernel_size if self.stride is None else self.stride


class _MaxPool(_Windows, shared=True):
    dilation: Sizes = 1
    return_indices: bool = False
    ceil_mode: bool = False

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._options().items() if name != "return_indices")


class MaxPool1d(_MaxPool, function=F.max_pool1d):
    """The maximum of each window of [n, c, l]; the stride is `kernel_size` by default."""


class MaxPool2d(_MaxPool, function=F.max_pool2d):
    """The maximum of each window of [n, c, h, w]; the stride is `kernel_size` by default.

    Examples:
        >>> nn.MaxPool2d(2)(flow.randn(8, 16, 32, 32)).shape
        jobflow.Size([8, 16, 16, 16])
    """


class MaxPool3d(_MaxPool, function=F.max_pool3d):
    """The maximum of each window of [n, c, d, h, w]; the stride is `kernel_size` by default."""


class AvgPool1d(_Windows, function=F.avg_pool1d):
    """The mean of each window of [n, c, l]; padded zeros count unless `count_include_pad=False`."""

    ceil_mode: bool = False
    count_include_pad: bool = True


class AvgPool2d(AvgPool1d, function=F.avg_pool2d):
    """The mean of each window of [n, c, h, w]; `divisor_override` replaces the number of elements as the divisor."""

    divisor_override: int | None = None


class AvgPool3d(AvgPool2d, function=F.avg_pool3d):
    """The mean of each window of [n, c, d, h, w]; `divisor_override` replaces the number of elements as the divisor."""


class _LPPool(OfOne, shared=True):
    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None = None
    ceil_mode: bool = False


class LPPool1d(_LPPool, function=F.lp_pool1d):
    """The p-norm of each window of [n, c, l], with p = `norm_type`; the stride is `kernel_size` by default."""


class LPPool2d(_LPPool, function=F.lp_pool2d):
    """The p-norm of each window of [n, c, h, w], with p = `norm_type`; the stride is `kernel_size` by default."""


class LPPool3d(_LPPool, function=F.lp_pool3d):
    """The p-norm of each window of [n, c, d, h, w], with p = `norm_type`; the stride is `kernel_size` by default."""


class _MaxUnpool(_Windows, shared=True):
    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:  # type: ignore[override]
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool, function=windows.max_unpool1d):
    """The inverse of MaxPool1d: zeros with the elements at the positions that the pool returned."""


class MaxUnpool2d(_MaxUnpool, function=windows.max_unpool2d):
    """The inverse of MaxPool2d: zeros with the elements at the positions that the pool returned."""


class MaxUnpool3d(_MaxUnpool, function=windows.max_unpool3d):
    """The inverse of MaxPool3d: zeros with the elements at the positions that the pool returned."""


class Unfold(OfOne, function=windows.unfold):
    """The windows of images [n, c, h, w] as columns, [n, c * taps, windows]."""

    kernel_size: Sizes
    dilation: Sizes = 1
    padding: Sizes = 0
    stride: Sizes = 1


class Fold(OfOne, function=windows.fold):
    """Images of `output_size` with the sums of the windows in the columns [n, c * taps, windows], the adjoint of Unfold."""

    output_size: Sizes
    kernel_size: Sizes
    dilation: Sizes = 1
    padding: Sizes = 0
    stride: Sizes = 1


class _Adaptive(OfOne, shared=True):
    output_size: F.Outputs


class AdaptiveAvgPool1d(_Adaptive, function=F.adaptive_avg_pool1d):
    """The means of `output_size` windows that cover the last axis."""


class AdaptiveAvgPool2d(_Adaptive, function=F.adaptive_avg_pool2d):
    """The means of windows that cover the last two axes; `output_size` has the numbers of windows, None for the size of the axis."""


class AdaptiveAvgPool3d(_Adaptive, function=F.adaptive_avg_pool3d):
    """The means of windows that cover the last three axes; `output_size` has the numbers of windows, None for the size of the axis."""


class _AdaptiveMax(_Adaptive, shared=True):
    return_indices: bool = False


class AdaptiveMaxPool1d(_AdaptiveMax, function=F.adaptive_max_pool1d):
    """The maxima of `output_size` windows that cover the last axis."""


class AdaptiveMaxPool2d(_AdaptiveMax, function=F.adaptive_max_pool2d):
    """The maxima of windows that cover the last two axes; `output_size` has the numbers of windows, None for the size of the axis."""


class AdaptiveMaxPool3d(_AdaptiveMax, function=F.adaptive_max_pool3d):
    """The maxima of windows that cover the last three axes; `output_size` has the numbers of windows, None for the size of the axis."""


class Upsample(OfOne, function=resize.interpolate):
    """Images [n, c, ...] resized to `size`, or by `scale_factor`, with the interpolation `mode`; see nn.functional.interpolate."""

    size: Sizes | None = None
    scale_factor: float | Sequence[float] | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None


class UpsamplingNearest2d(Upsample):
    """Images [n, c, h, w] resized to `size` or by `scale_factor`, with nearest-neighbour interpolation."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Images [n, c, h, w] resized to `size` or by `scale_factor`, with bilinear interpolation that preserves the corner pixels."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(OfOne, function=shapes.pixel_shuffle):
    """A rearrangement of channels into pixels, [..., c * r^2, h, w] -> [..., c, h * r, w * r] with r = upscale_factor."""

    job_functions = "jobflow.legacy.convolution"
    upscale_factor: int


class PixelUnshuffle(OfOne, function=shapes.pixel_unshuffle):
    """A rearrangement of pixels into channels, [..., c, h * r, w * r] -> [..., c * r^2, h, w] with r = downscale_factor."""

    downscale_factor: int


class ChannelShuffle(OfOne, function=shapes.channel_shuffle):
    """An exchange of the channels of `groups` groups: channel j of group i becomes channel i of group j."""

    groups: int


# -------------------------------------------------------------------- borders


class _Border(WithSettings):
    """Base class of padding: `padding` is one width for all sides, or widths (before, after) for the last axis, then for the axis before it."""

    spatial: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = sizes(type(self).__name__, "padding", padding, 2 * self.spatial)
        self.value = 0.0

    def forward(self, input: Tensor) -> Tensor:
        if self.mode != "constant" and input.ndim not in (self.spatial + 1, self.spatial + 2):
            raise ShapeError(
                f"{type(self).__name__} at {user_line()}: input {input.tensor_type} must have {self.spatial + 1} or {self.spatial + 2} axes, "
                f"[n, c, ...] or [c, ...]"
            )
        return shapes.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantBorder(_Border):
    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantBorder, spatial=1):
    """Padding of the last axis with `value`."""


class ConstantPad2d(_ConstantBorder, spatial=2):
    """Padding of the last two axes with `value`."""


class ConstantPad3d(_ConstantBorder, spatial=3):
    """Padding of the last three axes with `value`."""


class ZeroPad1d(_Border, spatial=1):
    """Padding of the last axis with zeros."""


class ZeroPad2d(_Border, spatial=2):
    """Padding of the last two axes with zeros."""


class ReflectionPad1d(_Border, spatial=1, mode="reflect"):
    """Padding of the last axis with mirrored elements, without repetition of the edge."""


class ReflectionPad2d(_Border, spatial=2, mode="reflect"):
    """Padding of the last two axes with mirrored elements, without repetition of the edge."""


class ReplicationPad1d(_Border, spatial=1, mode="replicate"):
    """Padding of the last axis by repetition of the edge."""


class ReplicationPad2d(_Border, spatial=2, mode="replicate"):
    """Padding of the last two axes by repetition of the edge."""


class CircularPad1d(_Border, spatial=1, mode="circular"):
    """Padding of the last axis with the elements of the opposite end."""


class CircularPad2d(_Border, spatial=2, mode="circular"):
    """Padding of the last two axes with the elements of the opposite end."""


class CircularPad3d(_Border, spatial=3, mode="circular"):
    """Padding of the last three axes with the elements of the opposite end."""


class ZeroPad3d(_Border, spatial=3):
    """Padding of the last three axes with zeros."""


class ReflectionPad3d(_Border, spatial=3, mode="reflect"):
    """Padding of the last three axes with mirrored elements, without repetition of the edge."""


class ReplicationPad3d(_Border, spatial=3, mode="replicate"):
    """Padding of the last three axes by repetition of the edge."""


check_layers(globals())
