"""Entries of `op_types` for optimizer updates, which write variables at the end of the run and have no outputs.

    flow.user_op_builder("step").Op("momentum_update").Input("model", [w]).Input("model_diff", [g]).Input("learning_rate", [rate])
        .Input("momentum", [v]).Attr("beta", 0.9).Build().InferAndTryRun()

`model` and the slots are values of variables. The gradient is scale * scale_by_tensor * model_diff + l1 sign(model) + l2 model, where
`scale_by_tensor` is an optional input. With a nonzero `skip_if` no variable changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jobflow.core.scope as scope
import jobflow.legacy.arrays as arrays
import jobflow.legacy.math as math
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.types import Tensor, float64, int64
from jobflow.legacy.variables import assign, current_job, variable_of
from jobflow.ops.guarded_update import LossScaleUpdate
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, LarsUpdate, MomentumUpdate, OptimizerUpdate, RmsPropUpdate, SgdUpdate
from jobflow.ops.row_update import RowUpdate
from jobflow.ops.update import NewValues, rate_dtype


def _values(what: str, arguments: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the tensors `arguments`, values of variables, by the names of their variables.

    Raises: ArgumentError for a computed tensor; JobError in the mirrored view with several devices.
    """
    if scope.current().view == "mirrored" and current_job(what).placement.size > 1:
        raise JobError(f"{what} at {user_line()}: updates are not supported in the mirrored view; call it in the consistent view")
    names = [variable_of(x) for x in arguments]
    for name, x in zip(names, arguments, strict=True):
        if name is None:
            raise ArgumentError(f"{what} at {user_line()}: expected a variable, not the computed tensor {x}; pass a result of get_variable")
    return {str(name): x for name, x in zip(names, arguments, strict=True)}


def _rate(what: str, w: Tensor, learning_rate: Tensor | None, number: float) -> Tensor:
    """Return `learning_rate`, or `number` if it is None, with shape (1,) and the element type of the rate in updates of w."""
    dtype = rate_dtype(w.tensor_type.dtype)
    if learning_rate is None:
        return arrays.constant(number, dtype, (1,))
    return arrays.cast(_one(what, "learning_rate", learning_rate), dtype)


def _one(what: str, name: str, x: Tensor) -> Tensor:
    """Return the one-element tensor x with shape (1,); raise ArgumentError for another number of elements."""
    if x.tensor_type.size != 1:
        raise ArgumentError(f"{what} at {user_line()}: {name} {x.tensor_type} must have one element")
    return arrays.reshape(x, (1,))


def _write(what: str, op: Any, remaining: Sequence[Tensor], along: Sequence[Tensor], rate: Tensor, skip_if: Tensor | None) -> tuple[()]:
    """Assign the results of `op` to the variables `remaining` at the end of the run; with a nonzero `skip_if` the variables keep their values."""
    job, values = current_job(what), _values(what, remaining)
    step = [arrays.constant(0, int64, (1,))] if (op.op if isinstance(op, RowUpdate) else op).reads_step else []
    with job.updating(user_line()):
        result: Any = apply(NewValues(op), *values.values(), *along, rate, *step)
        result = result if isinstance(result, list | tuple) else [result]
        if skip_if is not None:
            moves = math.equal(_one(what, "skip_if", skip_if), 0)
            result = [arrays.where(moves, new, old) for new, old in zip(result, values.values(), strict=True)]
        for name, new in zip(values, result, strict=True):
            job.assign(name, new)
    return ()


def _gradient(what: str, w: Tensor, g: Tensor, by: Tensor | None, scale: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> Tensor:
    """Return scale * by * g + l1 sign(w) + l2 w; `by` has one element, or is None for the factor 1."""
    g = math.multiply(g, scale) if scale != 1 else g
    g = g if by is None else math.multiply(g, _one(what, "scale_by_tensor", by))
    g = math.add(g, math.multiply(math.sign(w), l1)) if l1 else g
    return math.add(g, math.multiply(w, l2)) if l2 else g


#: inputs of the gradient: one tensor, or rows with their indices; then optional inputs of the first
_WHOLE, _ROWS = ("model_diff",), ("model_diff_values", "model_diff_indices")
_MAY = ("learning_rate", "scale_by_tensor", "skip_if")
#: attributes of all updates with a gradient of one tensor
_OF_GRADIENTS = {"scale": 1.0, "l1": 0.0, "l2": 0.0}


def _update(
    word: str, remaining: str, op_of: Callable[..., OptimizerUpdate], own: Mapping[str, Any], spare: str = ""
) -> dict[str, Callable[..., Any]]:
    """Return the entry of the update type `word`, which writes `model` and its slots.

    `remaining` lists the required slots, and `spare` the optional slots. `op_of` creates the op from the attributes, which include `own`.
    """
    slots = remaining.split()
    along = _ROWS if word.startswith("indexed_slices") else _WHOLE
    may = [*spare.split(), *(_MAY if along is _WHOLE else _MAY[:1])]

    def row(*arguments: Any, learning_rate_val: float = 0.0, name: str | None = None, **attributes: Any) -> tuple[()]:
        of_gradient = {each: attributes.pop(each) for each in _OF_GRADIENTS if each in attributes}
        named = dict(zip(["model", *slots, *along, *may], arguments, strict=True))
        w, op = named["model"], op_of(**{"weight_decay": 0.0, **own, **attributes})
        variables = [w, *[named[slot] for slot in slots], *[named[slot] for slot in spare.split() if named[slot] is not None]]
        if len(variables) != op.count:
            raise ArgumentError(f"{word} at {user_line()}: with {attributes}, model and slots must be {op.count} variables, not {len(variables)}")
        rate = _rate(word, w, named["learning_rate"], learning_rate_val)
        if along is _ROWS:
            return _write(word, RowUpdate(op, lazy=True), variables, [named[each] for each in _ROWS], rate, None)
        return _write(word, op, variables, [_gradient(word, w, named["model_diff"], named["scale_by_tensor"], **of_gradient)], rate, named["skip_if"])

    needed = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("model", *slots, *along)]
    others = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in may]
    defaults = {"learning_rate_val": 0.0, "weight_decay": 0.0, **(_OF_GRADIENTS if along is _WHOLE else {}), **own, "name": None}
    attributes = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    row.__signature__ = inspect.Signature([*needed, *others, *attributes])  # type: ignore[attr-defined]
    return {f"{word} -> ": row}


def _corrected_rate(learning_rate: Any, train_step: Any, *, beta1: float = 0.9, beta2: float = 0.999) -> Tensor:
    """Return the bias-corrected learning rate lr sqrt(1 - beta2^t) / (1 - beta1^t), t = train_step + 1."""
    what = "adam_bias_correction_learning_rate"
    learning_rate, train_step = _one(what, "learning_rate", learning_rate), _one(what, "train_step", train_step)
    steps = arrays.cast(math.add(train_step, 1), float64)
    first, second = (math.subtract(1.0, math.pow(arrays.constant_like(steps, beta), steps)) for beta in (beta1, beta2))
    return math.multiply(learning_rate, arrays.cast(math.divide(math.sqrt(second), first), learning_rate.tensor_type.dtype))


def _assign(ref: Any, value: Any, *, name: str | None = None) -> tuple[()]:
    assign(ref, value)
    return ()


def _schedule_loss_scale(
    count_not_finite: Any, loss_scale: Any, good_step_counter: Any, *, increment_period: int = 2000, multiplier: float = 2.0, name: str | None = None
) -> tuple[()]:
    """Multiply `loss_scale` by `multiplier` after `increment_period` consecutive finite steps; divide it by `multiplier` after another step.

    A step is finite if `count_not_finite` is 0.
    """
    what = "dynamic_loss_scale_schedule"
    job, values = current_job(what), _values(what, [loss_scale, good_step_counter])
    with job.updating(user_line()):
        result: Any = apply(
            NewValues(LossScaleUpdate(increment_period, float(multiplier))), *values.values(), _one(what, "count_not_finite", count_not_finite)
        )
    for key, new in zip(values, result, strict=True):
        job.assign(key, new)
    return ()


_BETA = {"beta": 0.9}
_BETAS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

OP_TYPES_OF_UPDATES: Mapping[str, Callable[..., Any]] = {
    **{
        key: row
        for before in ("", "indexed_slices_")
        for key, row in (
            *_update(f"{before}sgd_update", "", SgdUpdate, {}).items(),
            *_update(f"{before}momentum_update", "momentum", MomentumUpdate, _BETA).items(),
            *_update(f"{before}adam_update", "m v", AdamUpdate, _BETAS).items(),
        )
    },
    **_update("lamb_update", "m v beta1_t beta2_t", LambUpdate, _BETAS | {"epsilon": 1e-6}),
    **_update(
        "rmsprop_update",
        "mean_square",
        lambda decay_rate, epsilon, centered, weight_decay: RmsPropUpdate(decay_rate, epsilon, centered),
        {"decay_rate": 0.99, "epsilon": 1e-8, "centered": False},
        "mean_gradient",
    ),
    **_update(
        "lars_update",
        "momentum",
        lambda momentum_beta, epsilon, lars_coefficient, weight_decay: LarsUpdate(momentum_beta, epsilon, lars_coefficient, weight_decay),
        {"momentum_beta": 0.9, "epsilon": 1e-9, "lars_coefficient": 1e-4},
    ),
    "adam_bias_correction_learning_rate -> out": _corrected_rate,
    "assign -> ": _assign,
    "dynamic_loss_scale_schedule -> ": _schedule_loss_scale,
}
