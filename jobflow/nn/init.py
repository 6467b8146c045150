"""In-place initialization of parameters.

Values depend on the seed, the number of previous random operations and the logical index, not on the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, did_you_mean, user_line
from jobflow.core.types import Array, float32, float64
from jobflow.expressions.error_function import erf
from jobflow.functional.creation import cut, number
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.nn_base import assign
from jobflow.functional.promotion import cast
from jobflow.functional.sampling import DRAW, generator_of
from jobflow.functional.tensor_class import Tensor
from jobflow.legacy.initializers import NONLINEARITIES, gain_of
from jobflow.legacy.initializers import fans as fans_of
from jobflow.ops.op import Op
from jobflow.ops.random_tensors import RandomNormal, RandomUniform
from jobflow.ops.source import Constant
from jobflow.tensors.backward import gradient_layout
from jobflow.tensors.gpus import as_numpy, write
from jobflow.tensors.run import source
from jobflow.tensors.state import Generator, running, state
from jobflow.tensors.tensor import own


def _check(what: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{what} at {user_line()}: the argument must be a tensor; got {type(tensor).__name__}")
    if tensor.traced is not None:
        raise JobError(f"{what} at {user_line()}: a tensor cannot be initialized while {running()} runs; initialize the tensor before")


def _filled(what: str, tensor: Tensor, op: Op, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with the output of `op`, and return the tensor."""
    _check(what, tensor)
    assign(state(), tensor, cast(source(op, tensor.layout, generator), tensor.dtype), what)
    return tensor


def _draw(what: str, tensor: Tensor, generator: Any, kind: Callable[..., Op], **numbers: float) -> Tensor:
    _check(what, tensor)
    inputs, dtype = generator_of(generator, tensor.layout), float32 if tensor.dtype.is_half else tensor.dtype
    op = kind(tuple(tensor.shape), dtype, DRAW, inputs.seed, **{word: float(number) for word, number in numbers.items()})
    return _filled(what, tensor, op, inputs)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill the tensor with samples of the uniform distribution on [a, b), and return the tensor."""
    return _draw("init.uniform_", tensor, generator, RandomUniform, low=a, high=b)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill the tensor with samples of the normal distribution N(mean, std^2), and return the tensor."""
    return _draw("init.normal_", tensor, generator, RandomNormal, mean=mean, std=std)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill the tensor with the number `val`, and return the tensor."""
    value = number(val, "init.constant_")
    return _filled("init.constant_", tensor, Constant(tuple(tensor.shape), tensor.dtype, value if tensor.dtype.is_float else int(value)))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill the tensor with zeros, and return the tensor."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill the tensor with ones, and return the tensor."""
    return constant_(tensor, 1.0)


def _written(what: str, tensor: Tensor, array: Array) -> Tensor:
    """Copy `array`, the logical value on every rank, into the tensor, and return the tensor."""
    array = np.ascontiguousarray(array, tensor.dtype.numpy)
    if tensor.layout is None:
        write(own(tensor, what), array)
        tensor.wrote()
    else:
        assign(state(), tensor, cut(what, array, tensor.layout), what)
    return tensor


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal and zeros elsewhere, and return the matrix.  Raises: ShapeError unless the tensor has two axes."""
    _check("init.eye_", tensor)
    if tensor.ndim != 2:
        raise ShapeError(f"init.eye_ at {user_line()}: the tensor must be a matrix; got {tensor.tensor_type}")
    return _written("init.eye_", tensor, np.eye(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill convolution weights [out, in, *kernel] with the identity convolution, for as many channels as possible, and return the weights.

    Raises: ShapeError for other numbers of axes, or unless `groups` divides `out`.
    """
    _check("init.dirac_", tensor)
    if not 3 <= tensor.ndim <= 5 or tensor.shape[0] % groups:
        raise ShapeError(
            f"init.dirac_ at {user_line()}: the tensor must be [out, in, *kernel] with out a multiple of groups={groups}; got {tensor.tensor_type}"
        )
    out = tensor.shape[0] // groups
    array = np.zeros(tensor.shape)
    for group in range(groups):
        for i in range(min(out, tensor.shape[1])):
            array[(group * out + i, i, *(k // 2 for k in tensor.shape[2:]))] = 1.0
    return _written("init.dirac_", tensor, array)


# -------------------------------------------------------------------- scaled by fan


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended gain for weights before an activation; their standard deviation is gain / sqrt(fan) (He et al. 2015).

    `param` is the negative slope of leaky_relu, 0.01 by default.  Raises: ArgumentError for an unknown activation.
    """
    if not isinstance(nonlinearity, str):
        raise DtypeError(f"calculate_gain at {user_line()}: nonlinearity must be a name such as 'relu'; got {type(nonlinearity).__name__}")
    if nonlinearity not in NONLINEARITIES:
        raise ArgumentError(f"calculate_gain at {user_line()}: unknown nonlinearity {nonlinearity!r}{did_you_mean(nonlinearity, NONLINEARITIES)}")
    return gain_of(nonlinearity, 0.01 if param is None else float(param))


def fans(what: str, tensor: Tensor) -> tuple[int, int]:
    """Return (fan_in, fan_out) of weights [out, in, *kernel].  Raises: ShapeError for fewer than two axes."""
    _check(what, tensor)
    if tensor.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: {tensor.tensor_type} must have at least the two axes [out, in, ...]")
    return fans_of(tensor.shape, "NCHW")


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Return (fan_in, fan_out) of weights, for initializers that programs define."""
    return fans("init._calculate_fan_in_and_fan_out", tensor)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill the tensor with samples of U[-a, a), a = gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), and return the tensor.

    Raises: ShapeError for a tensor with fewer than two axes.
    """
    bound = gain * math.sqrt(6.0 / sum(fans("init.xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill the tensor with samples of N(0, s^2), s = gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010), and return the tensor.

    Raises: ShapeError for a tensor with fewer than two axes.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans("init.xavier_normal_", tensor))), generator)


def _kaiming_std(what: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f'{what} at {user_line()}: mode must be "fan_in" or "fan_out"; got {mode!r}')
    fan = fans(what, tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Tensor:
    """Fill the tensor with samples of U[-b, b), b = gain * sqrt(3 / fan) (He et al. 2015), and return the tensor.

    `mode` selects the fan, "fan_in" or "fan_out"; `a` is the slope of leaky_relu, see `calculate_gain`.
    Raises: ShapeError for a tensor with fewer than two axes, ArgumentError for another mode or nonlinearity.
    """
    bound = math.sqrt(3.0) * _kaiming_std("init.kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Tensor:
    """Fill the tensor with samples of N(0, s^2), s = gain / sqrt(fan) (He et al. 2015), and return the tensor.

    `mode` selects the fan, "fan_in" or "fan_out"; `a` is the slope of leaky_relu, see `calculate_gain`.
    Raises: ShapeError for a tensor with fewer than two axes, ArgumentError for another mode or nonlinearity.
    """
    return normal_(tensor, 0.0, _kaiming_std("init.kaiming_normal_", tensor, a, mode, nonlinearity), generator)


# -------------------------------------------------------------------- other distributions


def _normal_share(x: Array) -> Array:
    """Return Phi(x), the cumulative distribution function of the normal distribution."""
    return (erf(np, x * math.sqrt(0.5)) + 1.0) * 0.5


def _normal_place(share: Array, low: float, high: float) -> Array:
    """Return the x in [low, high] with Phi(x) = share, by bisection."""
    below, above = np.full_like(share, low), np.full_like(share, high)
    for _ in range(48):
        middle = (below + above) * 0.5
        less = _normal_share(middle) < share
        below, above = np.where(less, middle, below), np.where(less, above, middle)
    return (below + above) * 0.5


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None) -> Tensor:
    """Fill the tensor with samples of N(mean, std^2) truncated to [a, b], and return the tensor.

    Raises: ArgumentError unless a < b and std > 0.
    """
    _check("init.trunc_normal_", tensor)
    if not a < b or std <= 0:
        raise ArgumentError(f"init.trunc_normal_ at {user_line()}: a must be less than b and std must be positive; got a={a}, b={b}, std={std}")
    inputs = generator_of(generator, tensor.layout)
    u = source(RandomUniform(tuple(tensor.shape), float64, DRAW, inputs.seed), tensor.layout and gradient_layout(tensor.layout), inputs)
    low, high = (min(max((bound - mean) / std, -9.0), 9.0) for bound in (a, b))
    first, last = _normal_share(np.array([low, high]))
    samples = np.clip(mean + std * _normal_place(first + (last - first) * as_numpy(u.array), low, high), a, b)
    write(u.array, samples)
    assign(state(), tensor, cast(u, tensor.dtype), "init.trunc_normal_")
    return tensor


def _values(tensor: Tensor, shape: tuple[int, ...], kind: type[RandomUniform] | type[RandomNormal], generator: Any) -> Array:
    """Return random numbers with the shape `shape` and the distribution `kind`; for a global tensor, they are equal on all ranks."""
    inputs = generator_of(generator, tensor.layout)
    return source(kind(shape, float64, DRAW, inputs.seed), None, inputs).array


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Fill the tensor, as a matrix [first axis, other axes], with orthogonal rows or columns of length `gain`, and return the tensor.

    The rows are orthogonal if there are fewer rows than columns, otherwise the columns. Every rank computes the whole matrix.
    Raises: ShapeError for a tensor with fewer than two axes.
    """
    _check("init.orthogonal_", tensor)
    if tensor.ndim < 2:
        raise ShapeError(f"init.orthogonal_ at {user_line()}: {tensor.tensor_type} must have at least two axes")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    samples = _values(tensor, (max(rows, columns), min(rows, columns)), RandomNormal, generator)
    q, r = np.linalg.qr(samples)
    q = q * np.sign(np.diag(r))
    return _written("init.orthogonal_", tensor, gain * (q.T if rows < columns else q).reshape(tensor.shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Fill a matrix with samples of N(0, std^2), set a fraction `sparsity` of each column to zero, and return the matrix.

    Every rank computes the whole matrix. Raises: ShapeError unless the tensor has two axes.
    """
    _check("init.sparse_", tensor)
    if tensor.ndim != 2:
        raise ShapeError(f"init.sparse_ at {user_line()}: the tensor must be a matrix; got {tensor.tensor_type}")
    array = std * _values(tensor, tuple(tensor.shape), RandomNormal, generator)
    order = np.argsort(_values(tensor, tuple(tensor.shape), RandomUniform, generator), axis=0, kind="stable")
    np.put_along_axis(array, order[: math.ceil(sparsity * tensor.shape[0])], 0.0, axis=0)
    return _written("init.sparse_", tensor, array)


# PyTorch's older names
uniform, normal, constant, eye, dirac = uniform_, normal_, constant_, eye_, dirac_
xavier_uniform, xavier_normal, kaiming_uniform, kaiming_normal = xavier_uniform_, xavier_normal_, kaiming_uniform_, kaiming_normal_
orthogonal, sparse = orthogonal_, sparse_

globals().update(all_of(__name__, globals(), __name__, of_tensors))
