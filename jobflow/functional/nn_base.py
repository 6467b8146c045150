"""Helpers of the `nn` functions for composition of operations, random numbers and argument checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, JobflowError, ShapeError, did_you_mean, user_line
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Tensor as Value
from jobflow.core.types import TensorType, int64
from jobflow.functional import promotion
from jobflow.functional.promotion import rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops import reduce as rd
from jobflow.ops.op import Op
from jobflow.tensors.convert import convert, empty
from jobflow.tensors.gpus import anchor_of, placed, write
from jobflow.tensors.run import Running, run, source, with_line
from jobflow.tensors.state import EagerState, state
from jobflow.tensors.tensor import own

P = ParamSpec("P")
#: added to a norm before a division, as in PyTorch
EPSILON = 1e-6
#: reductions of elementwise losses
REDUCTIONS = ("mean", "sum", "none")
#: one number for all spatial axes, or one per axis
Sizes = int | Sequence[int]


class Composing:
    """The interpreter of composed functions during tracing, which records each operation separately."""

    takes_tensors = True

    def __init__(self, outer: scope.Interpreter | None, placement: Placement | None) -> None:
        self.outer = outer
        self.placement = placement

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[Tensor, ...]:
        with scope.using(interpreter=self.outer):
            where = self.placement
            outputs = run(op, *inputs) if inputs else source(op, None if where is None else Layout(where, (B,) * len(where.mesh)))
        return outputs if isinstance(outputs, tuple) else (outputs,)


def _scope_for(x: Tensor) -> scope.Scope | None:
    """Return a scope in which functions of `jobflow.ops` accept tensors with the placement of x, or None if the current scope is sufficient."""
    now = scope.current()
    if hasattr(now.interpreter, "takes_tensors"):
        return None
    here: EagerState = now.root.eager or state()
    placement: Any = None if x.layout is None else x.layout.placement
    if now.interpreter is not None or here.building is not None:
        return replace(now, interpreter=Composing(now.interpreter, placement))
    if here.gpus:
        placement = anchor_of(x)
    cached = here.composing.get((placement, here.grad_enabled))
    if cached is None or cached[0] is not now:
        cached = here.composing[placement, here.grad_enabled] = now, replace(now, interpreter=Running(here, placement, here.grad_enabled))
    return cached[1]


@contextmanager
def composing(x: Tensor) -> Iterator[None]:
    """Enter a scope in which functions of `jobflow.ops` accept tensors with the placement of x."""
    prepared = _scope_for(x)
    if prepared is None:
        yield
        return
    token = scope.enter(prepared)
    try:
        yield
    finally:
        scope.leave(token)


def real(what: str, name: str, value: Any) -> float:
    """Return a number argument as a float; raise ArgumentError for other values."""
    if not isinstance(value, int | float | np.number):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be a number; got {value!r}")
    return float(value)


def whole(what: str, name: str, value: Any) -> int:
    """Return an integer argument as an int; raise ArgumentError for other values."""
    if not isinstance(value, int | np.integer):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be an int; got {value!r}")
    return int(value)


def flag(what: str, name: str, value: Any) -> bool:
    """Return a flag argument as a bool; raise ArgumentError for values other than bools, numbers and None."""
    if value is not None and not isinstance(value, bool | np.bool_ | int | float):
        raise ArgumentError(f"{what} at {user_line()}: {name} must be True or False; got {value!r}")
    return bool(value)


#: annotation of a parameter -> the check of its arguments
_CHECKS: dict[Any, Callable[[str, str, Any], object]] = {"float": real, "int": whole, "bool": flag, "bool | None": flag}


def composed(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """Wrap a composition of `jobflow.ops` functions to accept eager and traced tensors; its first argument must be a tensor."""

    parameters = signature(function).parameters
    name = next(iter(parameters))
    checks = {each.name: (i, _CHECKS[each.annotation]) for i, each in enumerate(parameters.values()) if each.annotation in _CHECKS}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        first = args[0] if args else kwargs.get(name)
        if not isinstance(first, Tensor):
            raise JobError(f"{function.__name__} at {user_line()}: the first argument must be a tensor; got {type(first).__name__}")
        for word, (i, check) in checks.items():
            if i < len(args) or word in kwargs:
                check(function.__name__.strip("_"), word, args[i] if i < len(args) else kwargs[word])
        prepared = _scope_for(first)
        token = None if prepared is None else scope.enter(prepared)
        try:
            result = function(*args, **kwargs)
        except JobflowError as error:
            raise with_line(error, function=function.__name__.strip("_")) from None
        finally:
            if token is not None:
                scope.leave(token)
        assert isinstance(result, Tensor | tuple)  # functions such as max_pool2d(return_indices=True) return several tensors
        return result

    return call


def formula(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """Wrap a function as `composed` does, and compute two-byte floats in float32 with a single rounding of the result."""
    return rounded_once(composed(function))


def one_type(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Wrap a function to cast all tensor arguments to their common type, if that is a floating point type."""
    return _of_common_type(function, integers_as_floats=False)


def one_float_type(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Wrap a function to cast all tensor arguments to their common type, or to the default element type if the common type has no fractions."""
    return _of_common_type(function, integers_as_floats=True)


def _of_common_type(function: Callable[P, Tensor], integers_as_floats: bool) -> Callable[P, Tensor]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if not tensors:
            return function(*args, **kwargs)
        first = tensors[0].tensor_type.dtype
        equal = all(x.tensor_type.dtype is first for x in tensors)
        if equal and (first.is_float or not integers_as_floats):
            return function(*args, **kwargs)
        dtype = first if equal else promotion.result_type(*tensors)
        if not dtype.is_float:
            if not integers_as_floats:
                return function(*args, **kwargs)
            dtype = state().default_dtype

        def fitted(x: Any) -> Any:
            return promotion.cast(x, dtype) if isinstance(x, Tensor) else x

        same: Any = function
        result: Tensor = same(*map(fitted, args), **{name: fitted(x) for name, x in kwargs.items()})
        return result

    return call


def draw_for(x: Tensor) -> tuple[str, int, Value]:
    """Return the key, the seed and the counter of the next random operation; the counter is a tensor on the placement of x."""
    here = state()
    if here.building is not None:
        return here.building.draw_for(x)
    type = TensorType((1,), int64)
    if x.layout is None:
        local = here.local_generator
        return "draw", local.seed, Tensor.new(type, None, np.array([local.next()]))
    generator, where = here.global_generator, x.layout.placement
    number = np.array([generator.next()])
    layout = Layout(where, (B,) * len(where.mesh))
    counter = Tensor.new(type, layout, placed(here, number, layout) if here.rank.index in where.ranks else empty(type))
    counter._provenance = generator.draws
    return "draw", generator.seed, counter


def assign(here: EagerState, x: Tensor, value: Tensor, what: str) -> None:
    """Overwrite x with `value`, converted to the layout of x, without recording a gradient."""
    if here.building is not None:
        here.building.write(x, value)
        return
    array = value.array
    if x.layout is not None and value.layout != x.layout:
        array = convert(here, value, x.layout, "an assignment")
    write(own(x, what), array)
    x._provenance = value._provenance
    x.wrote()


def sizes(what: str, name: str, argument: Any, count: int, least: float = -math.inf) -> tuple[int, ...]:
    """Return one int per spatial axis, from one int for all axes or one per axis; raise ShapeError for other values or values below `least`."""
    result = tuple(argument) if isinstance(argument, Sequence | np.ndarray) else (argument,)
    result = result * count if len(result) == 1 else result
    if len(result) != count or not all(isinstance(n, int | np.integer) for n in result):
        raise ShapeError(f"{what} at {user_line()}: {name} must be one int, or {count} ints; got {argument!r}")
    if min(result, default=least) < least:
        raise ShapeError(f"{what} at {user_line()}: {name} {argument!r} must be at least {least}")
    if max(result, default=0) >= 2**31:
        raise ShapeError(f"{what} at {user_line()}: {name} {argument!r} must be below 2**31")
    return tuple(int(n) for n in result)


def shape_of_rows(what: str, argument: Any) -> tuple[int, ...]:
    """Return the `normalized_shape` of a norm as a tuple, from one int or several; raise ShapeError for other values."""
    result = tuple(argument) if isinstance(argument, Sequence | np.ndarray) else (argument,)
    if not all(isinstance(n, int | np.integer) for n in result):
        raise ShapeError(f"{what} at {user_line()}: normalized_shape must be an int or a sequence of ints; got {argument!r}")
    return tuple(int(n) for n in result)


def one_of(what: str, name: str, value: str, legal: Sequence[str]) -> str:
    """Return `value`; raise ConfigError unless it is one of the `legal` values."""
    if not isinstance(value, str) or value not in legal:
        raise ConfigError(f"{what} at {user_line()}: {name} {value!r} is not one of {', '.join(legal)}{did_you_mean(str(value), legal)}")
    return value


def chosen_reduction(what: str, size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return the reduction of a loss; PyTorch's older arguments `size_average` and `reduce` replace `reduction` if one of them is not None.

    Raises: ArgumentError unless they are bools or None.
    """
    for name, value in (("size_average", size_average), ("reduce", reduce)):
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f'{what} at {user_line()}: {name} must be True, False or None; got {value!r}; pass reduction="mean", "sum" or "none"')
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def reduced(what: str, loss: Value, reduction: str) -> Value:
    """Return elementwise losses, their mean or their sum, as `reduction` selects.

    Raises: ConfigError for an unknown reduction, DtypeError for the mean of integers.
    """
    one_of(what, "reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return loss
    if reduction == "mean" and not loss.tensor_type.dtype.is_float:
        raise DtypeError(f"{what} at {user_line()}: the losses {loss.tensor_type} of integers have no mean; cast input and target with .float()")
    return rd.reduce_mean(loss) if reduction == "mean" else rd.reduce_sum(loss)
