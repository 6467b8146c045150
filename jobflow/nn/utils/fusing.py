"""Fusion of batch normalization into the preceding convolution or linear map, for evaluation."""

from __future__ import annotations

import copy
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional.creation import ones_like, zeros_like
from jobflow.functional.nn_base import flag, real
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter
from jobflow.tensors.state import gradients


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of a convolution that includes the batch normalization after it.

    `transpose` selects the weights of a transposed convolution, whose outputs are axis 1.
    """
    what = "fuse_conv_bn_weights"
    if conv_w.ndim < 3:
        raise ShapeError(f"{what} at {user_line()}: conv_w {conv_w.tensor_type} must be the weight of a convolution, with at least 3 axes")
    shape = [1] * conv_w.ndim
    shape[1 if flag(what, "transpose", transpose) else 0] = -1
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, shape)


def _fused(w: Tensor, b: Tensor | None, mean: Tensor, variance: Tensor, eps: float, gamma: Any, beta: Any, shape: list[int]) -> Any:
    eps = real("fusion of batch norm", "bn_eps", eps)
    with gradients(False):
        bias = zeros_like(mean) if b is None else b
        factor = (ones_like(mean) if gamma is None else gamma) * (variance + eps).rsqrt()
        shift = (bias - mean) * factor + (zeros_like(mean) if beta is None else beta)
        weight = (w * factor.reshape(shape)).to(w.dtype)
    needs = bool(w.requires_grad)
    return Parameter(weight.detach(), needs), Parameter(shift.detach().to(bias.dtype), needs if b is None else bool(b.requires_grad))


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor, bn_b: Tensor
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of a linear map that includes the batch normalization after it."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, [-1, 1])


def _fused_copy(what: str, module: Any, bn: Any, transpose: bool | None) -> Any:
    for name, each in (("the first module", module), ("bn", bn)):
        if not isinstance(each, Module):
            raise ArgumentError(f"{what} at {user_line()}: {name} must be an nn.Module; got {each!r}")
        if each.training:
            raise ArgumentError(f"{what} at {user_line()}: {type(each).__name__} is in training mode; call eval() first")
    if getattr(bn, "running_mean", None) is None or getattr(bn, "running_var", None) is None:
        raise ArgumentError(f"{what} at {user_line()}: bn {type(bn).__name__} has no running statistics; create it with track_running_stats=True")
    fused = copy.deepcopy(module)
    parts = fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    fused.weight, fused.bias = fuse_linear_bn_weights(*parts) if transpose is None else fuse_conv_bn_weights(*parts, transpose)
    return fused


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Module:
    """Return a copy of a convolution that includes the batch normalization after it.  Raises: ArgumentError unless both are in evaluation mode."""
    return _fused_copy("fuse_conv_bn_eval", conv, bn, flag("fuse_conv_bn_eval", "transpose", transpose))


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Module:
    """Return a copy of a linear map that includes the batch normalization after it.  Raises: ArgumentError unless both are in evaluation mode."""
    features, channels = getattr(linear, "out_features", None), getattr(bn, "num_features", None)
    if features is not None and channels not in (features, 1):
        raise ArgumentError(
            f"fuse_linear_bn_eval at {user_line()}: bn has {channels} features, but linear has {features} outputs; pass a bn with {features} features"
        )
    return _fused_copy("fuse_linear_bn_eval", linear, bn, None)
