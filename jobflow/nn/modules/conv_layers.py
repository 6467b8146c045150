"""Convolutions as modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, user_line
from jobflow.eager.tensor import Tensor
from jobflow.functional import nn_conv as F
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import Sizes, one_of, sizes
from jobflow.functional.nn_shapes import pad
from jobflow.nn import init
from jobflow.nn.modules.option_modules import WithSettings
from jobflow.nn.parameter import Parameter

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(WithSettings):
    """What convolutions share: weight and bias, and attributes of one number per spatial axis."""

    spatial: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: str | Sizes,
        output_padding: Sizes,
        dilation: Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{what} at {user_line()}: in_channels {in_channels} and out_channels {out_channels} are multiples of groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.padding_mode = one_of(what, "padding_mode", padding_mode, tuple(_MODES))
        self.kernel_size = sizes(what, "kernel_size", kernel_size, self.spatial)
        self.stride, self.dilation = (sizes(what, name, given, self.spatial) for name, given in (("stride", stride), ("dilation", dilation)))
        self.padding = padding if isinstance(padding, str) else sizes(what, "padding", padding, self.spatial)
        self.output_padding = sizes(what, "output_padding", output_padding, self.spatial)
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(empty(first, second // groups, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U[-b, b) with b = 1 / sqrt(what an output sees)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan, _ = init.fans(type(self).__name__, self.weight)
            bound = 1 / math.sqrt(fan) if fan else 0.0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        zeros, ones = (0,) * self.spatial, (1,) * self.spatial
        for name, usual in (("padding", zeros), ("output_padding", zeros), ("dilation", ones), ("groups", 1), ("padding_mode", "zeros")):
            if getattr(self, name) != usual:
                shown.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(shown) + ("" if self.bias is not None else ", bias=False")


class _Convolution(_Conv):
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: str | Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode, device, dtype)
        F.pairs(type(self).__name__, self.padding, self.kernel_size, self.stride, self.dilation)  # errors belong here, not to the first call

    def forward(self, input: Tensor) -> Tensor:
        padding: str | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            around = F.pairs(type(self).__name__, padding, self.kernel_size, self.stride, self.dilation)
            input = pad(input, [n for pair in reversed(around) for n in pair], _MODES[self.padding_mode])
            padding = (0,) * self.spatial
        return type(self).function(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Convolution, spatial=1, function=F.conv1d):
    """Convolution of [n, in, l] with weights [out, in / groups, k]; `padding` may be "same" or "valid"."""


class Conv2d(_Convolution, spatial=2, function=F.conv2d):
    """Convolution of [n, in, h, w] with weights [out, in / groups, kh, kw]; `padding` may be "same" or "valid"."""


class Conv3d(_Convolution, spatial=3, function=F.conv3d):
    """Convolution of [n, in, d, h, w] with weights [out, in / groups, kd, kh, kw]; `padding` may be "same" or "valid"."""


class _Transposed(_Conv):
    function: ClassVar[Callable[..., Tensor]]
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        one_of(type(self).__name__, "padding_mode", padding_mode, ("zeros",))
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


class ConvTranspose1d(_Transposed, spatial=1, function=F.conv_transpose1d):
    """The transpose of Conv1d; weights are [in, out / groups, k]."""


class ConvTranspose2d(_Transposed, spatial=2, function=F.conv_transpose2d):
    """The transpose of Conv2d; weights are [in, out / groups, kh, kw]."""


class ConvTranspose3d(_Transposed, spatial=3, function=F.conv_transpose3d):
    """The transpose of Conv3d; weights are [in, out / groups, kd, kh, kw]."""
