"""Pooling, borders, and images of other sizes, as modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_pool as F
from jobflow.functional import nn_shapes as shapes
from jobflow.functional.nn_base import Sizes, sizes
from jobflow.nn.modules.module import Module


class _Shown(Module):
    """function(x, *options); the options are attributes."""

    function: ClassVar[Callable[..., Tensor]]
    options: ClassVar[tuple[str, ...]]

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, **{name: getattr(self, name) for name in self.options})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.options)


class _MaxPool(_Shown):
    options = ("kernel_size", "stride", "padding", "ceil_mode")

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, *, ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.ceil_mode = kernel_size, padding, ceil_mode
        self.stride = kernel_size if stride is None else stride


class MaxPool1d(_MaxPool):
    """The largest of each window of [n, c, l]."""

    function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest of each window of [n, c, h, w]."""

    function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest of each window of [n, c, d, h, w]."""

    function = staticmethod(F.max_pool3d)


class AvgPool1d(_Shown):
    """The mean of each window of [n, c, l]; zeros of the padding count unless `count_include_pad=False`."""

    function = staticmethod(F.avg_pool1d)
    options: ClassVar[tuple[str, ...]] = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.ceil_mode, self.count_include_pad = kernel_size, padding, ceil_mode, count_include_pad
        self.stride = kernel_size if stride is None else stride


class AvgPool2d(AvgPool1d):
    """The mean of each window of [n, c, h, w]; `divisor_override` is what sums are divided by instead."""

    function = staticmethod(F.avg_pool2d)
    options = (*AvgPool1d.options, "divisor_override")

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override


class AvgPool3d(AvgPool2d):
    """The mean of each window of [n, c, d, h, w]."""

    function = staticmethod(F.avg_pool3d)


class _Adaptive(_Shown):
    options = ("output_size",)

    def __init__(self, output_size: F.Outputs) -> None:
        super().__init__()
        self.output_size = output_size


class AdaptiveAvgPool1d(_Adaptive):
    """Means of windows that fill the last axis, `output_size` of them."""

    function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """Means of windows that fill the image; None keeps an axis."""

    function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """Means of windows that fill the volume; None keeps an axis."""

    function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_Adaptive):
    """The largest of windows that fill the last axis."""

    function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_Adaptive):
    """The largest of windows that fill the image."""

    function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_Adaptive):
    """The largest of windows that fill the volume."""

    function = staticmethod(F.adaptive_max_pool3d)


class Upsample(_Shown):
    """Images of another size, by `size` or `scale_factor`; see nn.functional.interpolate."""

    function = staticmethod(shapes.interpolate)
    options = ("size", "scale_factor", "mode", "align_corners")

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners


class UpsamplingNearest2d(Upsample):
    """Upsample by the nearest pixel."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Upsample between pixels, the outermost of which keep their places."""

    def __init__(self, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(_Shown):
    """[..., c r r, h, w] -> [..., c, h r, w r]"""

    function = staticmethod(shapes.pixel_shuffle)
    options = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(_Shown):
    """[..., c, h r, w r] -> [..., c r r, h, w]"""

    function = staticmethod(shapes.pixel_unshuffle)
    options = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


# -------------------------------------------------------------------- borders


class _Border(Module):
    """Borders of the last axes: one number for all, or (before, after) for the last axis, then the one before it ..."""

    spatial: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = sizes(type(self).__name__, "padding", padding, 2 * self.spatial)
        self.value = 0.0

    def forward(self, input: Tensor) -> Tensor:
        return shapes.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantBorder(_Border):
    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantBorder):
    """Borders of one value."""

    spatial = 1


class ConstantPad2d(_ConstantBorder):
    """Borders of one value around images."""

    spatial = 2


class ConstantPad3d(_ConstantBorder):
    """Borders of one value around volumes."""

    spatial = 3


class ZeroPad1d(_Border):
    """Borders of zeros."""

    spatial = 1


class ZeroPad2d(_Border):
    """Borders of zeros around images."""

    spatial = 2


class ReflectionPad1d(_Border):
    """Borders mirrored at the edge, which is not repeated."""

    spatial, mode = 1, "reflect"


class ReflectionPad2d(_Border):
    """Borders of images mirrored at the edge, which is not repeated."""

    spatial, mode = 2, "reflect"


class ReplicationPad1d(_Border):
    """Borders that repeat the edge."""

    spatial, mode = 1, "replicate"


class ReplicationPad2d(_Border):
    """Borders of images that repeat the edge."""

    spatial, mode = 2, "replicate"
