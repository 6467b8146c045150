"""Layers: operations with variables. A second layer with the same name in a job raises an error.

dense                 <name>-weight (units, in), <name>-bias; ops <name>-matmul, <name>-bias_add, <name>-activation
conv1d, conv2d, ...   <name>-weight, <name>-bias; ops <name>, <name>-bias_add, <name>-activation
batch_normalization   <name>-gamma, <name>-beta, <name>-moving_mean, <name>-moving_variance
layer_norm            <name>-gamma, <name>-beta
prelu                 <name>-alpha
categorical_ordinal_encoder   <name>-Table, <name>-Size
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import jobflow.core.scope as scope
import jobflow.engine.distribute as distribute
import jobflow.legacy.activations as activations
import jobflow.legacy.convolution as convolution
import jobflow.legacy.ids as ids
import jobflow.legacy.normalization as normalization
from jobflow.core.errors import ArgumentError, DtypeError, ShapeError, user_line
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor, int32, int64
from jobflow.engine.distribute import Distribute
from jobflow.legacy.arrays import constant
from jobflow.legacy.convolution import Padding, Sizes, channels_last
from jobflow.legacy.elements import upsample_2d as upsample_2d
from jobflow.legacy.initializers import Initializer, constant_initializer, xavier_uniform_initializer
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.operands import counts
from jobflow.legacy.regularizers import Regularizer
from jobflow.legacy.variables import current_job, get_variable, layer_name
from jobflow.ops import activation as ac
from jobflow.ops import elementwise as ew
from jobflow.ops import matmul as la
from jobflow.ops import norm
from jobflow.ops import reduce as rd
from jobflow.ops import shape as sh
from jobflow.ops.op import apply, normal_axis

#: Called as activation(x, name="...").
Activation: TypeAlias = Callable[..., Tensor]


def dense(
    inputs: Tensor,
    units: int,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = "Dense",
    model_distribute: Distribute = distribute.broadcast(),  # noqa: B008 - a singleton
) -> Tensor:
    """Return activation(inputs W^T + bias) over the last axis, with W of shape (units, in).

    Weight and bias are zeros by default. `model_distribute` is broadcast(), auto() or split(0). With split(0) the units are split over
    the devices, and inputs must be a matrix.

    Examples:
        >>> import jobflow.typing as tp
        >>> @flow.global_function()
        ... def scores(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        ...     return flow.layers.dense(x, 10, activation=flow.nn.relu, name="scores")
        ...
        >>> scores(np.zeros((8, 4), np.float32)).shape
        (8, 10)
    """
    shape = inputs.tensor_type.shape
    _check_dense(name, shape, model_distribute)
    kernel, bias = kernel_initializer or constant_initializer(0), bias_initializer or constant_initializer(0)
    with namespace(name or layer_name(current_job("dense"), "Dense")):
        weight = _parameter("weight", (units, shape[-1]), inputs, kernel, kernel_regularizer, trainable, model_distribute)
        y = la.matmul(inputs, weight, transpose_b=True, name="matmul")
        if use_bias:
            added = _parameter("bias", (units,), inputs, bias, bias_regularizer, trainable, model_distribute)
            y = la.bias_add(y, added, len(shape) - 1, name="bias_add")
        return y if activation is None else activation(y, name="activation")


def _check_dense(name: str, shape: tuple[int, ...], model_distribute: Distribute) -> None:
    if len(shape) < 2:
        raise ShapeError(f'dense at {user_line()} (layer "{name}"): inputs of shape {list(shape)} must have at least 2 axes')
    _check_distribute("dense", name, model_distribute)
    if model_distribute is distribute.split(0) and len(shape) != 2:
        raise ShapeError(f'dense at {user_line()} (layer "{name}"): split(0) requires inputs of 2 axes, not of shape {list(shape)}; flatten them')


def _check_distribute(what: str, name: str, target: Distribute) -> None:
    legal = (distribute.broadcast(), distribute.auto(), distribute.split(0))
    if not any(target is one for one in legal):
        raise ArgumentError(f'{what} at {user_line()} (layer "{name}"): model_distribute {target!r} must be broadcast(), auto() or split(0)')


def namespace(name: str) -> AbstractContextManager[scope.Scope]:
    """Return a context manager that prefixes names in its block with `name` and a hyphen."""
    return scope.using(namespace=(*scope.current().namespace, name))


def _parameter(
    name: str,
    shape: Sequence[int],
    like: Tensor,
    initializer: Initializer,
    regularizer: Regularizer | None,
    trainable: bool,
    model_distribute: Distribute | None = None,
) -> Tensor:
    """Return a new variable with the element type of `like`; raise an error if `like` is not floating point or the name is in use."""
    if not like.tensor_type.dtype.is_float:
        layer = "-".join(scope.current().namespace)
        raise DtypeError(
            f'{user_line()} (layer "{layer}"): the inputs {like.tensor_type} must be floating point numbers, because the {name} has the type of '
            f"the inputs; cast them with cast(x, jobflow.float32)"
        )
    return get_variable(name, shape, like.tensor_type.dtype, initializer, regularizer, trainable, distribute=model_distribute, reuse=False)


def _conv(
    ndim: int,
    inputs: Tensor,
    filters: int,
    kernel_size: Sizes = 1,
    strides: Sizes = 1,
    padding: Padding = "VALID",
    data_format: str = "",
    dilation_rate: Sizes | None = None,
    groups: int = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    bias_initializer: Initializer | None = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    trainable: bool = True,
    name: str = "",
    weight_name: str | None = None,
    bias_name: str | None = None,
) -> Tensor:
    what = f"conv{ndim}d"
    own = name or layer_name(current_job(what), what.capitalize())
    shape = _weight_shape(ndim, own, inputs, filters, kernel_size, data_format, groups)
    first = kernel_initializer or xavier_uniform_initializer(data_format)
    weight = _parameter(weight_name or f"{own}-weight", shape, inputs, first, kernel_regularizer, trainable)
    convolve = (convolution.conv1d, convolution.conv2d, convolution.conv3d)[ndim - 1]
    y: Tensor = convolve(inputs, weight, strides, padding, data_format, dilation_rate, groups, own)
    if use_bias:
        first = bias_initializer or constant_initializer(0)
        bias = _parameter(bias_name or f"{own}-bias", (filters,), inputs, first, bias_regularizer, trainable)
        y = activations.bias_add(y, bias, data_format, name=f"{own}-bias_add")
    return y if activation is None else activation(y, name=f"{own}-activation")


def _weight_shape(ndim: int, name: str, inputs: Tensor, filters: int, kernel_size: Sizes, data_format: str, groups: int) -> tuple[int, ...]:
    """Return the shape (filters, channels / groups, *kernel), or (filters, *kernel, channels) for channels last.

    Raises: ShapeError for wrong axes or kernel sizes, and if `groups` does not divide channels and filters; ArgumentError for groups with
    channels last.
    """
    where = f'conv{ndim}d at {user_line()} (layer "{name}")'
    last = channels_last(where, data_format, ndim)
    kernel = (kernel_size,) * ndim if isinstance(kernel_size, int) else tuple(kernel_size)
    if inputs.tensor_type.ndim != ndim + 2:
        raise ShapeError(f"{where}: inputs {inputs.tensor_type} must have {ndim + 2} axes in the order {data_format}")
    if len(kernel) != ndim:
        raise ShapeError(f"{where}: kernel_size {kernel_size} must be an int or a list of {ndim} ints")
    channels = inputs.tensor_type.shape[-1 if last else 1]
    if groups < 1 or channels % groups or filters % groups:
        raise ShapeError(f"{where}: {channels} channels and {filters} filters must be divisible by groups {groups}")
    if last and groups > 1:
        raise ArgumentError(f"{where}: groups {groups} requires channels first, not {data_format}")
    return (filters, *kernel, channels) if last else (filters, channels // groups, *kernel)


_CONV = "Return activation(conv{0}d(inputs, W) + bias).  W is initialized by xavier_uniform, bias by zeros."
conv1d = variant(_conv, 1, "conv1d", _CONV.format(1), data_format="NCW", name="Conv1d")
conv2d = variant(_conv, 2, "conv2d", _CONV.format(2), data_format="NCHW", name="Conv2d")
conv3d = variant(_conv, 3, "conv3d", _CONV.format(3), data_format="NCDHW", name="Conv3d")


def batch_normalization(
    inputs: Tensor,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = "BatchNorm",
    gamma_name: str | None = None,
    beta_name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
) -> Tensor:
    """Return gamma (inputs - mean) / sqrt(variance + epsilon) + beta, with batch statistics over all axes but `axis` in train jobs.

    A train job updates the moving statistics at the end of the run: momentum * moving + (1 - momentum) * batch, with the unbiased variance.
    Predict jobs, training=False and trainable=False use the moving statistics. Statistics cover the whole logical batch. In the mirrored
    view they cover the batch of a device, and their mean over devices updates the moving statistics.
    """
    own = name or layer_name(current_job("batch_normalization"), "BatchNorm")
    wide = ew.cast(inputs, inputs.tensor_type.dtype.arithmetic)
    place = normal_axis(f'batch_normalization at {user_line()} (layer "{own}")', axis, inputs.tensor_type.ndim)
    moving = trainable and training and current_job("batch_normalization").trainable
    mean, variance = (
        _channel_vector(arguments or f"{own}-{word}", wide, place, initializer or constant_initializer(first), None, False)
        for word, arguments, initializer, first in (
            ("moving_mean", moving_mean_name, moving_mean_initializer, 0),
            ("moving_variance", moving_variance_name, moving_variance_initializer, 1),
        )
    )
    gamma, beta = (
        _channel_vector(arguments or f"{own}-{word}", wide, place, initializer or constant_initializer(first), regularizer, trainable)
        if target
        else constant(first, wide.tensor_type.dtype, (wide.tensor_type.shape[place],))
        for target, word, arguments, initializer, regularizer, first in (
            (scale, "gamma", gamma_name, gamma_initializer, gamma_regularizer, 1),
            (center, "beta", beta_name, beta_initializer, beta_regularizer, 0),
        )
    )
    y = normalization.normalized(wide, mean, variance, gamma, beta, place, epsilon, momentum, moving, own)[0]
    return y if wide is inputs else ew.cast(y, inputs.tensor_type.dtype)


def _channel_vector(name: str, x: Tensor, axis: int, initializer: Initializer, regularizer: Regularizer | None, trainable: bool) -> Tensor:
    """Return a new variable `name` with one element per index of `axis` of x."""
    return _parameter(name, (x.tensor_type.shape[axis],), x, initializer, regularizer, trainable)


def batch_normalization_relu(
    inputs: Tensor,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = "BatchNorm",
) -> Tensor:
    """Return relu(batch_normalization(inputs, ...)) with the same parameters."""
    return activations.relu(batch_normalization(**locals()))


def batch_normalization_add_relu(
    inputs: Tensor,
    addend: Tensor | None = None,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 0.001,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Initializer | None = None,
    gamma_initializer: Initializer | None = None,
    beta_regularizer: Regularizer | None = None,
    gamma_regularizer: Regularizer | None = None,
    moving_mean_initializer: Initializer | None = None,
    moving_variance_initializer: Initializer | None = None,
    trainable: bool = True,
    training: bool = True,
    name: str = "BatchNorm",
    gamma_name: str | None = None,
    beta_name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
) -> Tensor:
    """Return relu(batch_normalization(inputs, ...) + addend), or without an addend relu(batch_normalization(inputs, ...))."""
    y = batch_normalization(**{parameter: arguments for parameter, arguments in locals().items() if parameter != "addend"})
    return activations.relu(y if addend is None else ew.add(y, addend))


def layer_norm(
    inputs: Tensor,
    center: bool = True,
    scale: bool = True,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-5,
    name: str = "LayerNorm",
) -> Tensor:
    """Return gamma (inputs - mean) / sqrt(variance + epsilon) + beta, with mean and variance over the axes from `begin_norm_axis` on.

    gamma, if `scale`, and beta, if `center`, are variables with the sizes of the axes from `begin_params_axis` on.
    """
    own = name or layer_name(current_job("layer_norm"), "LayerNorm")
    begin = normal_axis(f'layer_norm at {user_line()} (layer "{own}")', begin_params_axis, inputs.tensor_type.ndim)
    beta, gamma = (
        _parameter(f"{own}-{word}", inputs.tensor_type.shape[begin:], inputs, constant_initializer(first), None, trainable) if target else None
        for target, word, first in ((center, "beta", 0), (scale, "gamma", 1))
    )
    return normalization.layer_norm(inputs, gamma, beta, begin_norm_axis, begin_params_axis, epsilon, own)


def layer_norm_grad(dy: Tensor, x: Tensor, mean: Tensor, inv_variance: Tensor, begin_norm_axis: int = 1, name: str = "LayerNormGrad") -> Tensor:
    """Return the gradient of x in y = (x - mean) inv_variance, for the gradient dy of y.

    `mean` and `inv_variance` = 1 / sqrt(variance + epsilon) are statistics of x over the axes from `begin_norm_axis` on.
    """
    begin = normal_axis(f"layer_norm_grad at {user_line()}", begin_norm_axis, x.tensor_type.ndim)
    rows = x.tensor_type.shape[:begin]
    if (
        dy.tensor_type != x.tensor_type
        or mean.tensor_type.dtype is not x.tensor_type.dtype
        or mean.tensor_type != inv_variance.tensor_type
        or mean.tensor_type.size != math.prod(rows)
    ):
        raise ShapeError(
            f"layer_norm_grad at {user_line()}: dy {dy.tensor_type} must have the type of x {x.tensor_type}, and mean {mean.tensor_type} and "
            f"inv_variance {inv_variance.tensor_type} one number per index of the axes before begin_norm_axis {begin_norm_axis}"
        )
    ones = constant(1, x.tensor_type.dtype, x.tensor_type.shape[begin:])
    return apply(norm.LayerNormGrad(begin), dy, x, ones, sh.reshape(mean, rows), sh.reshape(inv_variance, rows))[0]


def layer_norm_param_grad(
    dy: Tensor, norm: Tensor, gamma: Tensor, begin_params_axis: int = -1, name: str = "LayerNormParamGrad"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of norm, beta and gamma in y = gamma norm + beta, for the gradient dy of y.

    The shape of gamma and beta consists of the axes from begin_params_axis on.
    """
    begin = normal_axis(f"layer_norm_param_grad at {user_line()}", begin_params_axis, norm.tensor_type.ndim)
    if dy.tensor_type != norm.tensor_type or gamma.tensor_type.shape != norm.tensor_type.shape[begin:]:
        raise ShapeError(
            f"layer_norm_param_grad at {user_line()}: dy {dy.tensor_type} must have the type of norm {norm.tensor_type}, "
            f"and gamma {gamma.tensor_type} the shape of the last axes of norm"
        )
    above = range(begin)
    return ew.multiply(dy, gamma), rd.reduce_sum(dy, tuple(above)), rd.reduce_sum(ew.multiply(dy, norm), tuple(above))


def categorical_ordinal_encoder(
    input_tensor: Tensor, capacity: int, hash_precomputed: bool = True, name: str = "CategoricalOrdinalEncoder"
) -> Tensor:
    """Return a number 1, 2, 3 ... for each id in `input_tensor`, int32 or int64, in the order of first occurrence in this run and earlier runs.

    `hash_precomputed` must be True. A run with more than `capacity` distinct ids raises ArgumentError.
    """
    own = name or layer_name(current_job("categorical_ordinal_encoder"), "CategoricalOrdinalEncoder")
    counts("categorical_ordinal_encoder", capacity=capacity)
    if input_tensor.tensor_type.dtype not in (int32, int64):
        raise DtypeError(f'categorical_ordinal_encoder at {user_line()} (layer "{own}"): ids {input_tensor.tensor_type} must be int32 or int64')
    none, kind = constant_initializer(0, input_tensor.tensor_type.dtype), input_tensor.tensor_type.dtype
    table, size = (
        get_variable(f"{own}-{word}", (length,), kind, none, trainable=False, reuse=False) for word, length in (("Table", 2 * capacity), ("Size", 1))
    )
    return ids.categorical_ordinal_encode(table, size, input_tensor, hash_precomputed, own)


def prelu(
    inputs: Tensor,
    alpha_initializer: Initializer | None = None,
    alpha_regularizer: Regularizer | None = None,
    shared_axes: Sequence[int] | None = None,
    trainable: bool = True,
    name: str = "PRelu",
    model_distribute: Distribute = distribute.broadcast(),  # noqa: B008 - a singleton
) -> Tensor:
    """Return the inputs where they are positive, and alpha times the inputs elsewhere.

    The variable alpha has the shape of a sample, with size 1 at `shared_axes`, and is initially zero.
    """
    own = name or layer_name(current_job("prelu"), "PRelu")
    shape = list(inputs.tensor_type.shape[1:])
    axes = () if shared_axes is None else shared_axes
    for axis in axes if isinstance(axes, list | tuple) else ("",):
        if not isinstance(axis, int) or not 1 <= axis < inputs.tensor_type.ndim:
            raise ArgumentError(
                f'prelu at {user_line()} (layer "{own}"): shared_axes {axes!r} must be a list of axes in [1, {inputs.tensor_type.ndim})'
            )
        shape[axis - 1] = 1
    alpha = _parameter(f"{own}-alpha", shape, inputs, alpha_initializer or constant_initializer(0), alpha_regularizer, trainable, model_distribute)
    return ac.prelu(inputs, alpha, name=own)


#: equivalents for tensors outside of jobs
_MODULES = {
    "dense": "flow.nn.Linear",
    "conv1d": "flow.nn.Conv1d",
    "conv2d": "flow.nn.Conv2d",
    "conv3d": "flow.nn.Conv3d",
    "batch_normalization": "flow.nn.BatchNorm2d",
    "batch_normalization_relu": "flow.nn.BatchNorm2d and flow.relu",
    "batch_normalization_add_relu": "flow.nn.BatchNorm2d and flow.relu",
    "layer_norm": "flow.nn.LayerNorm",
    "categorical_ordinal_encoder": "a dictionary",
    "prelu": "flow.nn.PReLU",
}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _MODULES))
