"""Functions of random numbers other than dropout: dropout that preserves mean and variance, random slopes, samples of classes."""

from __future__ import annotations

import math

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.signatures import variant
from jobflow.core.types import Tensor as Value
from jobflow.functional.in_place import check_writable, copy_for_gradient, form, written
from jobflow.functional.nn_activations import with_inplace
from jobflow.functional.nn_base import draw_for, flag, formula, real
from jobflow.functional.shapes import axis_of
from jobflow.functional.typed import Tensor
from jobflow.ops import activation as act
from jobflow.ops import elementwise as ew
from jobflow.ops import reduce as rd
from jobflow.ops import slices as sl
from jobflow.ops.index import one_hot
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import DropoutMask, RandomUniform
from jobflow.ops.softmax import softmax
from jobflow.tensors.device_copies import on_device_of
from jobflow.tensors.state import building_now

__all__ = ["alpha_dropout", "feature_alpha_dropout", "gumbel_softmax", "rrelu", "rrelu_"]

#: the negative of the limit of SELU at minus infinity
_LIMIT = 1.7580993408473766


def _uniform(x: Value, low: float, high: float) -> Value:
    """Return samples of U[low, high) with the type and placement of x."""
    key, seed, counter = draw_for(x)  # type: ignore[arg-type]
    if isinstance(x, Tensor) and isinstance(counter, Tensor) and x.layout is None and building_now() is None:
        counter = on_device_of(x, counter)  # it alone selects the device of the samples
    result: Value = apply(RandomUniform(x.tensor_type.shape, x.tensor_type.dtype, key, seed, low=low, high=high), counter)
    return result


@formula
def _alpha_dropped(x: Tensor, p: float, channels: bool) -> Value:
    """Return x with elements, or channels, set to the limit of SELU with probability p, then scaled and shifted to preserve mean and variance."""
    if p == 1.0:
        return ew.scale(x, 0.0)
    key, seed, counter = draw_for(x)
    rest = x.tensor_type.ndim - 2
    each = sl.slice_(x, (None, None, *(0,) * rest), (None, None, *(1,) * rest)) if channels else x
    mask = apply(DropoutMask(p, key, seed), each, counter)
    remaining = ew.cast(ew.greater(mask, ew.fill_like(mask, 0.0)), x.tensor_type.dtype)
    scale = 1.0 / math.sqrt((_LIMIT * _LIMIT * p + 1.0) * (1.0 - p))
    shift = ew.shift(ew.scale(ew.shift(remaining, -1.0), _LIMIT * scale), _LIMIT * scale * p)
    return ew.add(ew.multiply(x, ew.scale(remaining, scale)), shift)


def _alpha_dropout(channels: bool, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    what = "feature_alpha_dropout" if channels else "alpha_dropout"
    if not 0.0 <= real(what, "p", p) <= 1.0:
        raise ArgumentError(f"{what} at {user_line()}: p must be in [0, 1]; got {p}")
    inplace = flag(what, "inplace", inplace)
    if not flag(what, "training", training) or p == 0.0 or not input.tensor_type.size:
        return input
    if channels and input.tensor_type.ndim < 2:
        raise ShapeError(f"{what} at {user_line()}: input {input.tensor_type} must be [n, channels, ...]")
    if not inplace:
        return _alpha_dropped(input, float(p), channels)
    check_writable(input, f"{what}_")
    return written(input, f"{what}_", _alpha_dropped(copy_for_gradient(input), float(p), channels))


alpha_dropout = variant(
    _alpha_dropout,
    False,
    "alpha_dropout",
    "Set each element to -1.7581, the limit of SELU, with probability p, and preserve mean and variance (Klambauer et al. 2017).\n\n    The result "
    "is the input itself unless `training`.  Raises: ArgumentError for p outside [0, 1].\n    ",
)
feature_alpha_dropout = variant(
    _alpha_dropout,
    True,
    "feature_alpha_dropout",
    "Apply `alpha_dropout` to whole channels of `input` [n, c, ...].  Raises: ShapeError in training for an input with fewer than two axes.",
)


@with_inplace
def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Value:
    """Return `input` where input > 0, else slope * input, with a slope from U[lower, upper) per element (Xu et al. 2015).

    The slope is (lower + upper) / 2 unless `training`.  Raises: ArgumentError unless lower <= upper, both finite.
    """
    if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
        raise ArgumentError(f"rrelu at {user_line()}: lower {lower} and upper {upper} must be finite, and lower must not exceed upper")
    if not training:
        return act.leaky_relu(input, (lower + upper) / 2)
    slopes = _uniform(input, lower, upper)
    return ew.where(ew.greater(input, ew.fill_like(input, 0.0)), input, ew.multiply(input, slopes))


rrelu_ = form(rrelu)


@formula
def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Value:
    """Return samples of the Gumbel-softmax distribution, softmax((logits + g) / tau) along `dim` with Gumbel noise g (Jang et al. 2017).

    With `hard`, the result is 1 at the largest element and 0 elsewhere, with the gradient of the softmax.  `eps` has no effect, as in PyTorch.
    Raises: ArgumentError for tau = 0.
    """
    if not tau:
        raise ArgumentError(f"gumbel_softmax at {user_line()}: tau must not be 0")
    axis = axis_of("gumbel_softmax", dim, logits.tensor_type.ndim)
    exponential = ew.negate(ew.log(ew.shift(ew.negate(_uniform(logits, 0.0, 1.0)), 1.0)))
    noise = ew.negate(ew.log(ew.clip(exponential, 1e-30, None)))
    soft = softmax(ew.scale(ew.add(logits, noise), 1.0 / tau), axis)
    if not hard:
        return soft
    chosen = one_hot(rd.argmax(soft, axis), logits.tensor_type.shape[axis], dtype=soft.tensor_type.dtype, axis=axis)
    return ew.add(ew.subtract(chosen, ew.detach(soft)), soft)
