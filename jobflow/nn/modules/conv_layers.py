"""Convolution modules."""

from __future__ import annotations

import math
from dataclasses import InitVar
from typing import Any, ClassVar

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional import nn_conv as F
from jobflow.functional.creation import empty
from jobflow.functional.nn_base import Sizes, flag, one_of, sizes, whole
from jobflow.functional.nn_shapes import pad
from jobflow.functional.tensor_class import Tensor
from jobflow.nn import init
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.option_modules import WithOptions
from jobflow.nn.parameter import Parameter

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(WithOptions, shared=True):
    """Base class of convolutions, with weight and bias; kernel_size, stride and padding are one number, or one number per spatial axis."""

    spatial: ClassVar[int]
    transposed: ClassVar[bool] = False
    modes: ClassVar[tuple[str, ...]] = tuple(_MODES)
    in_channels: int
    out_channels: int
    kernel_size: Sizes
    stride: Sizes = 1
    padding: str | Sizes = 0

    def _make(self, bias: bool, device: Any, dtype: Any) -> None:
        """Check the options and create the parameters.

        Raises: ConfigError for an unknown `padding_mode`; ArgumentError unless `groups` divides both numbers of channels.
        """
        super().__post_init__()
        what = type(self).__name__
        channels = whole(what, "in_channels", self.in_channels), whole(what, "out_channels", self.out_channels)
        groups, bias = whole(what, "groups", self.groups), flag(what, "bias", bias)
        one_of(what, "padding_mode", self.padding_mode, self.modes)
        if groups < 1 or any(n % groups for n in channels):
            raise ArgumentError(
                f"{what} at {user_line()}: in_channels {channels[0]} and out_channels {channels[1]} must be multiples of groups={groups}"
            )
        passed = {name: getattr(self, name, 0) for name in ("kernel_size", "stride", "padding", "dilation", "output_padding")}
        each = {name: size if isinstance(size, str) else sizes(what, name, size, self.spatial) for name, size in passed.items()}
        vars(self).update(each)
        first, second = channels if self.transposed else channels[::-1]
        self.weight = Parameter(empty(first, second // groups, *each["kernel_size"], device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(self.out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weight and bias with samples of U[-b, b), b = 1 / sqrt(fan_in)."""
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


class _Convolution(_Conv, shared=True):
    dilation: Sizes = 1
    groups: int = 1
    bias: InitVar[bool] = True
    padding_mode: str = "zeros"
    device: InitVar[Any] = None
    dtype: InitVar[Any] = None

    def __post_init__(self, bias: bool, device: Any, dtype: Any) -> None:
        self._make(bias, device, dtype)
        self._around()  # report errors here rather than at the first call

    def _around(self) -> tuple[tuple[int, int], ...]:
        """Return the padding (before, after) of each spatial axis."""
        options: Any = self  # its options now have one number per axis
        return F.pairs(type(self).__name__, options.padding, options.kernel_size, options.stride, options.dilation)

    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = pad(input, [n for pair in reversed(self._around()) for n in pair], _MODES[self.padding_mode])
            padding = (0,) * self.spatial
        return type(self).function(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Convolution, spatial=1, function=F.conv1d):
    """Convolution of [n, in, l] with weights [out, in / groups, k]; `padding` may be "same" or "valid"."""


class Conv2d(_Convolution, spatial=2, function=F.conv2d):
    """Convolution of [n, in, h, w] with weights [out, in / groups, kh, kw]; `padding` may be "same" or "valid".

    Examples:
        >>> layer = nn.Conv2d(3, 16, kernel_size=3, padding="same")
        >>> layer(flow.randn(8, 3, 32, 32)).shape
        jobflow.Size([8, 16, 32, 32])
    """


class Conv3d(_Convolution, spatial=3, function=F.conv3d):
    """Convolution of [n, in, d, h, w] with weights [out, in / groups, kd, kh, kw]; `padding` may be "same" or "valid"."""


class _Transposed(_Conv, shared=True):
    transposed = True
    modes = ("zeros",)
    output_padding: Sizes = 0
    groups: int = 1
    bias: InitVar[bool] = True
    dilation: Sizes = 1
    padding_mode: str = "zeros"
    device: InitVar[Any] = None
    dtype: InitVar[Any] = None

    def __post_init__(self, bias: bool, device: Any, dtype: Any) -> None:
        self._make(bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


class ConvTranspose1d(_Transposed, spatial=1, function=F.conv_transpose1d):
    """Transposed convolution of [n, in, l], the gradient of Conv1d for its input, with weights [in, out / groups, k]."""


class ConvTranspose2d(_Transposed, spatial=2, function=F.conv_transpose2d):
    """Transposed convolution of [n, in, h, w], the gradient of Conv2d for its input, with weights [in, out / groups, kh, kw]."""


class ConvTranspose3d(_Transposed, spatial=3, function=F.conv_transpose3d):
    """Transposed convolution of [n, in, d, h, w], the gradient of Conv3d for its input, with weights [in, out / groups, kd, kh, kw]."""


check_layers(globals())
