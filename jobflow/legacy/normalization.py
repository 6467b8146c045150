"""Normalization functions: batch, layer, group and instance normalization, and moments."""

from __future__ import annotations

from collections.abc import Sequence

import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.filters import matches
from jobflow.core.layout import P
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor
from jobflow.engine.distribute import current_placement, is_local
from jobflow.legacy.initializers import constant_initializer
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.operands import counts
from jobflow.legacy.variables import current_job, get_variable, layer_name, variable_of
from jobflow.ops import batch_norm as bn
from jobflow.ops import elementwise as ew
from jobflow.ops import norm as nm
from jobflow.ops import shape as sh
from jobflow.ops.group_norm import group_norm
from jobflow.ops.layout_ops import to_global
from jobflow.ops.op import apply, normal_axis
from jobflow.ops.rounding import rounded_once
from jobflow.ops.update import MovingAverage


@rounded_once
def moments(x: Tensor, axes: Sequence[int], keepdims: bool = False, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of x over `axes`."""
    if not isinstance(axes, list | tuple):
        raise ArgumentError(f"moments at {user_line()}: axes must be a list of ints, not {axes!r}")
    return math.reduce_mean(x, axes, keepdims), math.reduce_variance(x, axes, keepdims, name)


def along_axis(what: str, x: Tensor, axis: int, **parameters: Tensor) -> dict[str, Tensor]:
    """Reshape each vector in `parameters` to broadcast along `axis` of x; other parameters are unchanged.

    Raises: ShapeError if a vector and the axis differ in size.
    """
    place = normal_axis(f"{what} at {user_line()}", axis, x.tensor_type.ndim)
    shape = tuple(n if i == place else 1 for i, n in enumerate(x.tensor_type.shape))
    fitted = {}
    for word, p in parameters.items():
        if p.tensor_type.ndim == 1 and p.tensor_type.size != shape[place]:
            raise ShapeError(f"{what} at {user_line()}: {word} {p.tensor_type} must have size {shape[place]}, like axis {axis} of x {x.tensor_type}")
        fitted[word] = sh.reshape(p, shape) if p.tensor_type.ndim == 1 and x.tensor_type.ndim > 1 else p
    return fitted


def batch_normalization(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    offset: Tensor | None = None,
    scale: Tensor | None = None,
    variance_epsilon: float = 1e-5,
    axis: int = 1,
    name: str | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + variance_epsilon) * scale + offset.

    `mean`, `variance`, `offset` and `scale` are vectors along `axis`. A `scale` of None means 1, and an `offset` of None means 0.
    """
    arguments = {"mean": mean, "variance": variance, "offset": offset, "scale": scale}
    fitted = along_axis("batch_normalization", x, axis, **{word: p for word, p in arguments.items() if p is not None})
    factor = ew.rsqrt(ew.shift(fitted["variance"], variance_epsilon))
    if "scale" in fitted:
        factor = ew.multiply(factor, fitted["scale"])
    centred = ew.subtract(x, fitted["mean"])
    if "offset" not in fitted:
        return ew.multiply(centred, factor, name=name)
    return ew.add(ew.multiply(centred, factor), fitted["offset"], name=name)


def normalized(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    beta: Tensor,
    axis: int,
    epsilon: float,
    momentum: float,
    moving: bool,
    name: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gamma (x - mean) / sqrt(variance + epsilon) + beta, and the mean and variance that this formula uses.

    With `moving`, the formula uses the mean and variance of the batch, which also update the variables `mean` and `variance`. Otherwise, or if the
    job has frozen `mean`, it uses these variables.
    """
    if not moving or matches(current_job("normalization").frozen, variable_of(mean) or ""):
        return bn.batch_norm_infer(x, gamma, beta, mean, variance, axis=axis, epsilon=epsilon, name=name), mean, variance
    y, batch_mean, batch_variance = bn.batch_norm_train(x, gamma, beta, axis=axis, epsilon=epsilon, name=name)
    count = x.tensor_type.size // x.tensor_type.shape[axis]
    _move(mean, batch_mean, momentum)
    _move(variance, ew.scale(batch_variance, count / max(count - 1, 1)), momentum)
    return y, batch_mean, batch_variance


def _move(moving: Tensor, batch: Tensor, momentum: float) -> None:
    """Set the variable `moving` to momentum * moving + (1 - momentum) * batch at the end of the run.

    In the mirrored view `batch` is averaged over devices. Raises ArgumentError if `moving` is a computed tensor.
    """
    key = variable_of(moving)
    if key is None:
        raise ArgumentError(
            f"normalization at {user_line()}: moving statistics must be variables, not the computed tensor {moving}; pass a result of get_variable"
        )
    job = current_job("batch_normalization")
    if is_local(batch):
        placement = current_placement("batch_normalization")
        batch = to_global(job.summand_of_mean(batch, placement.size), *(P,) * len(placement.mesh))
    with job.updating(user_line()):
        new: Tensor = apply(MovingAverage(momentum), job.variable(job.variables[key]), batch)
    job.assign(key, new)


def layer_norm(
    inputs: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Tensor:
    """Return gamma (inputs - mean) / sqrt(variance + epsilon) + beta, with mean and variance over the axes from `begin_norm_axis` on.

    gamma and beta have the sizes of the axes from `begin_params_axis` on. A gamma of None means 1, and a beta of None means 0.
    """
    what, t = "layer_norm", inputs.tensor_type
    begin, params = (normal_axis(f"{what} at {user_line()}", axis, t.ndim) for axis in (begin_norm_axis, begin_params_axis))
    for word, p in (("gamma", gamma), ("beta", beta)):
        if p is not None and p.tensor_type.shape != t.shape[params:]:
            raise ShapeError(
                f"{what} at {user_line()}: {word} {p.tensor_type} must have the shape {list(t.shape[params:])}, the last axes of inputs {t}"
            )
    return nm.layer_norm(inputs, gamma, beta, begin, epsilon, name=name)


def _grouped(x: Tensor, groups: int, eps: float, prefix: str, name: str | None, affine: bool) -> Tensor:
    """Normalize x [n, c, ...] in `groups` groups of channels; if affine, create variables `<name>_gamma` and `<name>_beta` of shape (1, c, 1)."""
    name = layer_name(current_job(prefix), prefix) if affine and not name else name or None
    gamma, beta = (
        get_variable(f"{name}_{word}", (1, x.tensor_type.shape[1], 1), x.tensor_type.dtype, constant_initializer(first), reuse=False)
        if affine
        else None
        for word, first in (("gamma", 1.0), ("beta", 0.0))
    )
    return group_norm(x, groups, gamma, beta, eps, name=name)


def _channels_first(what: str, x: Tensor, ndim: int | None) -> None:
    if x.tensor_type.ndim < 3 or (ndim is not None and x.tensor_type.ndim != ndim):
        raise ShapeError(f"{what} at {user_line()}: x {x.tensor_type} must have {ndim or 'at least 3'} axes: batch, channels and spatial axes")


def GroupNorm(x: Tensor, num_groups: int = 32, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Tensor:
    """Normalize x [n, c, ...] to mean 0 and variance 1 in each of `num_groups` groups of channels.

    If `affine`, multiply the result by gamma and add beta, which are variables with one element per channel.
    """
    _channels_first("GroupNorm", x, None)
    counts("GroupNorm", num_groups=num_groups)
    channels = x.tensor_type.shape[1]
    if channels % num_groups:
        raise ShapeError(f"GroupNorm at {user_line()}: the {channels} channels of x {x.tensor_type} must be divisible by num_groups {num_groups}")
    return _grouped(x, num_groups, eps, "GroupNorm", name, affine)


def _instance_norm(ndim: int, x: Tensor, eps: float = 1e-5, affine: bool = True, name: str | None = None) -> Tensor:
    what = f"InstanceNorm{ndim}d"
    _channels_first(what, x, ndim + 2)
    return _grouped(x, x.tensor_type.shape[1], eps, "InstanceNorm", name, affine)


_FIRST = "Normalize x [n,c,l] to mean 0 and variance 1 in each channel of each sample; then return gamma x + beta if affine."
InstanceNorm1d = variant(_instance_norm, 1, "InstanceNorm1d", _FIRST)
InstanceNorm2d = variant(_instance_norm, 2, "InstanceNorm2d", "Apply InstanceNorm1d to x [n,c,h,w].")
InstanceNorm3d = variant(_instance_norm, 3, "InstanceNorm3d", "Apply InstanceNorm1d to x [n,c,d,h,w].")


globals().update(all_of(__name__, globals(), __name__, of_jobs))
