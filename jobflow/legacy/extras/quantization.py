"""The namespace `flow.quantization`: values rounded to few bits, for quantization-aware training.

formula, scheme                 scale                                   zero point
"google", "symmetric"           largest |x| / (2^(bit - 1) - 1)         0
"google", "affine"              (max - min) / (2^bit - 1)               -round(min / scale)     where max = min: scale |min|
"cambricon", "symmetric"        floor(log2(largest |x|)) - (bit - 2)    0               the scale is 2^scale
"""

from __future__ import annotations

import functools
from typing import Any

import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, DtypeError, user_line
from jobflow.core.types import Tensor, bool_, int64
from jobflow.legacy.initializers import constant_initializer
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.layers import namespace
from jobflow.legacy.operands import counts
from jobflow.legacy.variables import assign, current_job, get_variable, layer_name, variable_of
from jobflow.ops import elementwise as ew
from jobflow.ops import shape as sh
from jobflow.ops.floating import exp2, log2
from jobflow.ops.pointwise import call
from jobflow.ops.quantize import fake_quantize
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.scalar import shift

__all__ = ["fake_quantization", "min_max_observer", "moving_average_min_max_observer"]


def _check(what: str, input: Tensor, bit: int, scheme: str, formula: str) -> None:
    counts(what, quantization_bit=bit)
    if not input.tensor_type.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: input {input.tensor_type} must be floating point; cast it with cast(x, jobflow.float32)")
    if not 2 <= bit <= 24 or (formula, scheme) not in (("google", "symmetric"), ("google", "affine"), ("cambricon", "symmetric")):
        raise ArgumentError(
            f"{what} at {user_line()}: the combination of quantization_bit {bit}, quantization_formula {formula!r} and quantization_scheme "
            f"{scheme!r} is not supported; "
            f'pass 2 to 24 bits, and the formula "google" (scheme "symmetric" or "affine") or "cambricon" ("symmetric")'
        )


def _described(least: Tensor, largest: Tensor, bit: int, scheme: str, formula: str) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point for values from `least` to `largest`; in a symmetric scheme `largest` is the largest |x|."""
    if scheme == "affine":
        width = ew.subtract(largest, least)
        scale = ew.where(ew.equal(width, ew.fill_like(width, 0.0)), math.abs(least), ew.scale(width, 1 / (2**bit - 1)))
        return scale, ew.negate(math.round(ew.multiply(least, ew.reciprocal_no_nan(scale))))
    if formula == "google":
        return ew.scale(largest, 1 / (2 ** (bit - 1) - 1)), ew.fill_like(largest, 0.0)
    return shift(math.floor(log2(largest)), float(2 - bit)), ew.fill_like(largest, 0.0)


def min_max_observer(
    input: Tensor,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    per_layer_quantization: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point for the minimum and maximum of `input`, each of shape (1,).

    Without `per_layer_quantization` both have one element per index of axis 0 of `input`.
    """
    _check("min_max_observer", input, quantization_bit, quantization_scheme, quantization_formula)
    t = input.tensor_type
    rows = sh.reshape(input, (1 if per_layer_quantization else t.shape[0], -1 if t.size else 0))
    affine = quantization_scheme == "affine"
    least, largest = math.reduce_min(rows, 1), math.reduce_max(rows if affine else math.abs(rows), 1)
    return _described(least, largest, quantization_bit, quantization_scheme, quantization_formula)


def moving_average_min_max_observer(
    input: Tensor,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    momentum: float = 0.95,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point, each of shape (1,), for moving averages of the minimum and maximum of `input`.

    Every run of a train job updates the averages, which are the variables `<name>-moving_max` and `<name>-moving_min`.
    The first run replaces their initial value 0. `<name>-current_train_step` counts the runs.
    A run of a predict job raises an error if the averages were neither updated nor loaded.
    """
    _check("moving_average_min_max_observer", input, quantization_bit, quantization_scheme, quantization_formula)
    job = current_job("moving_average_min_max_observer")
    none = constant_initializer(0)
    with namespace(name or layer_name(job, "MovingAverageMinMaxObserver")):
        variable = functools.partial(get_variable, shape=(1,), initializer=none, trainable=False, reuse=False)
        top, bottom = (variable(word, dtype=input.tensor_type.dtype) for word in ("moving_max", "moving_min"))
        step = variable("current_train_step", dtype=int64)
    if job.trainable:
        assign(step, shift(step, 1))
    return observed(input, top, bottom, step, quantization_bit, quantization_scheme, quantization_formula, momentum, job.trainable)


def observed(
    input: Tensor,
    top: Tensor,
    bottom: Tensor,
    step: Tensor,
    bit: int,
    scheme: str,
    formula: str,
    momentum: float,
    training: bool,
    until: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the scale and the zero point for the moving averages in `top` (maximum) and `bottom` (minimum), which are variables.

    If `training`, each of the first `until` runs updates the averages, or every run if `until` is None; `step` counts the runs.

    Raises: ArgumentError in a run without training, if the averages were neither updated nor loaded.
    """
    _check("moving_average_min_max_observer", input, bit, scheme, formula)
    if until is not None:
        counts("moving_average_min_max_observer", stop_update_after_iters=until)
    if not training:
        return _described(bottom, _require_averages(top, bottom, step), bit, scheme, formula)
    largest = math.reduce_max(input if scheme == "affine" else math.abs(input))
    least = math.reduce_min(input) if scheme == "affine" else ew.negate(largest)
    moved = []
    for before, now in ((top, largest), (bottom, least)):
        new = ew.where(ew.cast(math.equal(before, 0), bool_), now, ew.add(ew.scale(before, float(momentum)), ew.scale(now, 1 - float(momentum))))
        moved.append(new if until is None else ew.where(ew.cast(math.less(step, until), bool_), new, before))
    assign(top, moved[0])
    assign(bottom, moved[1])
    return _described(moved[1], moved[0], bit, scheme, formula)


def _require_averages(top: Tensor, bottom: Tensor, step: Tensor) -> Tensor:
    """Return `top`; raise an error in a run in which `top`, `bottom` and `step` are 0, because no run has updated the averages."""
    job: Any = current_job("moving_average_min_max_observer")
    names = ", ".join(repr(variable_of(x)) for x in (top, bottom, step))
    problem = f"is too small: {names} are 0; run a train job with the same layers first, or load its variables"
    visited = math.add_n([ew.cast(math.not_equal(x, 0), int64) for x in (top, bottom, step)])
    check = RuntimeAssertion(f"quantization in job {job.name!r}", "number of observed runs", low=1, problem=problem)
    return ew.multiply(top, ew.cast(ew.minimum(call(check, visited), ew.fill_like(visited, 1)), top.tensor_type.dtype))


def fake_quantization(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    name: str | None = None,
) -> Tensor:
    """Return `input` rounded to the values that `quantization_bit` bits represent with the scale and the zero point.

    The gradient of the input is the gradient of the output. `scale` and `zero_point` have one element, or one element per index of axis 0
    of the input.
    """
    _check("fake_quantization", input, quantization_bit, quantization_scheme, quantization_formula)
    if scale.tensor_type.size not in (1, input.tensor_type.shape[0]) or zero_point.tensor_type.size != scale.tensor_type.size:
        raise ArgumentError(
            f"fake_quantization at {user_line()}: scale {scale.tensor_type} and zero_point {zero_point.tensor_type} must have one element, "
            f"or one element per index of axis 0 of input {input.tensor_type}"
        )
    column = (scale.tensor_type.size, *[1] * (input.tensor_type.ndim - 1))
    scale, zero = sh.reshape(scale, column), sh.reshape(zero_point, column)
    top = 2 ** (quantization_bit - 1) - 1
    low, high = (0, 2**quantization_bit - 1) if quantization_scheme == "affine" else (-top - (quantization_formula == "google"), top)
    return fake_quantize(input, exp2(scale) if quantization_formula == "cambricon" else scale, zero, low, high, name=name)


#: equivalents for tensors outside of jobs
_OF_TENSORS = {"moving_average_min_max_observer": "flow.quantization.min_max_observer"}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _OF_TENSORS))
