"""What the functions of `nn` share: composition of operations, random numbers, checks of arguments."""

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
from jobflow.core.errors import ArgumentError, ConfigError, JobError, JobflowError, ShapeError, did_you_mean, user_line
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Tensor as Value
from jobflow.core.types import TensorType, int64
from jobflow.eager.convert import convert, empty
from jobflow.eager.run import Running, run, source, with_line
from jobflow.eager.state import EagerState, state
from jobflow.eager.tensor import own
from jobflow.functional import promotion
from jobflow.functional.promotion import rounded_once
from jobflow.functional.typed import Tensor
from jobflow.ops import reduce as rd
from jobflow.ops.op import Op

P = ParamSpec("P")
#: what PyTorch adds to a norm before it divides
EPSILON = 1e-6
#: what losses of elements are made to
REDUCTIONS = ("mean", "sum", "none")
#: one number for all spatial axes, or one for each
Sizes = int | Sequence[int]


class Composing:
    """The interpreter, while a graph is built, of a function composed of ops' functions: each op is recorded as it would be alone."""

    takes_tensors = True

    def __init__(self, outer: scope.Interpreter | None, placement: Placement | None) -> None:
        self.outer = outer
        self.placement = placement

    def apply(self, op: Op, inputs: Sequence[Any], name: str | None = None) -> tuple[Tensor, ...]:
        with scope.using(interpreter=self.outer):
            where = self.placement
            made = run(op, *inputs) if inputs else source(op, None if where is None else Layout(where, (B,) * len(where.mesh)))
        return made if isinstance(made, tuple) else (made,)


def _scope_for(x: Tensor) -> scope.Scope | None:
    """The scope in which functions of ops may be called with tensors that lie where x does; None for the present one."""
    now = scope.current()
    if hasattr(now.interpreter, "takes_tensors"):
        return None
    here: EagerState = now.root.eager or state()
    placement = None if x.layout is None else x.layout.placement
    if now.interpreter is not None or here.building is not None:
        return replace(now, interpreter=Composing(now.interpreter, placement))
    kept = here.composing.get((placement, here.grad_enabled))
    if kept is None or kept[0] is not now:
        kept = here.composing[placement, here.grad_enabled] = now, replace(now, interpreter=Running(here, placement, here.grad_enabled))
    return kept[1]


@contextmanager
def composing(x: Tensor) -> Iterator[None]:
    """Inside, functions of `jobflow.ops` may be called with tensors that lie where x does."""
    prepared = _scope_for(x)
    if prepared is None:
        yield
        return
    token = scope.enter(prepared)
    try:
        yield
    finally:
        scope.leave(token)


def real(what: str, name: str, given: Any) -> float:
    """A number among the arguments; ArgumentError for anything else."""
    if not isinstance(given, int | float | np.number):
        raise ArgumentError(f"{what} at {user_line()}: {name} is a number; got {given!r}")
    return float(given)


def whole(what: str, name: str, given: Any) -> int:
    """An int among the arguments; ArgumentError for anything else."""
    if not isinstance(given, int | np.integer):
        raise ArgumentError(f"{what} at {user_line()}: {name} is an int; got {given!r}")
    return int(given)


#: what an argument is held to that is annotated so
_CHECKS: dict[Any, Callable[[str, str, Any], object]] = {"float": real, "int": whole}


def composed(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """A function that calls functions of `jobflow.ops`, as one that anybody may call; its first argument is a tensor."""

    parameters = signature(function).parameters
    name = next(iter(parameters))
    checks = {each.name: (i, _CHECKS[each.annotation]) for i, each in enumerate(parameters.values()) if each.annotation in _CHECKS}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        first = args[0] if args else kwargs.get(name)
        if not isinstance(first, Tensor):
            raise JobError(f"{function.__name__} at {user_line()}: the first argument is a tensor, not {type(first).__name__}")
        for word, (i, check) in checks.items():
            if i < len(args) or word in kwargs:
                check(function.__name__.strip("_"), word, args[i] if i < len(args) else kwargs[word])
        prepared = _scope_for(first)
        token = None if prepared is None else scope.enter(prepared)
        try:
            made = function(*args, **kwargs)
        except JobflowError as error:
            raise with_line(error) from None
        finally:
            if token is not None:
                scope.leave(token)
        assert isinstance(made, Tensor)
        return made

    return call


def formula(function: Callable[P, Value]) -> Callable[P, Tensor]:
    """A composed function of halves that are rounded once, at its end."""
    return rounded_once(composed(function))


def one_type(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A function that is called with all of its tensors in the type that they have together, if that is of floats."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if not given or all(x.tensor_type.dtype is given[0].tensor_type.dtype for x in given):
            return function(*args, **kwargs)
        dtype = promotion.result_type(*given)
        if not dtype.is_float:
            return function(*args, **kwargs)

        def fitted(x: Any) -> Any:
            return promotion.cast(x, dtype) if isinstance(x, Tensor) else x

        same: Any = function
        made: Tensor = same(*map(fitted, args), **{name: fitted(x) for name, x in kwargs.items()})
        return made

    return call


def draw_for(x: Tensor) -> tuple[str, int, Value]:
    """Key, seed and counter of the next draw, for numbers beside x."""
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
    made = Tensor.new(type, layout, number if here.rank.index in where.ranks else empty(type))
    made.origin = generator.draws
    return "draw", generator.seed, made


def assign(here: EagerState, x: Tensor, made: Tensor, what: str) -> None:
    """The numbers of `made` are those of x from now on, as x lies; gradients know nothing of it."""
    if here.building is not None:
        here.building.write(x, made)
        return
    array = made.array
    if x.layout is not None and made.layout != x.layout:
        array = convert(here, made, x.layout, "an assignment")
    own(x, what)[...] = array
    x.origin = made.origin
    x.wrote()


def sizes(what: str, name: str, given: Any, count: int, least: float = -math.inf) -> tuple[int, ...]:
    """One int per spatial axis, from one for all or one for each."""
    found = tuple(given) if isinstance(given, Sequence | np.ndarray) else (given,) * count
    if len(found) != count or not all(isinstance(n, int | np.integer) for n in found):
        raise ShapeError(f"{what} at {user_line()}: {name} takes one int, or {count}; got {given!r}")
    if min(found, default=least) < least:
        raise ShapeError(f"{what} at {user_line()}: {name} {given!r} must be at least {least}")
    return tuple(int(n) for n in found)


def shape_of_rows(what: str, given: Any) -> tuple[int, ...]:
    """The `normalized_shape` of a norm, from one int or several."""
    found = tuple(given) if isinstance(given, Sequence | np.ndarray) else (given,)
    if not all(isinstance(n, int | np.integer) for n in found):
        raise ShapeError(f"{what} at {user_line()}: normalized_shape takes one int, or several; got {given!r}")
    return tuple(int(n) for n in found)


def one_of(what: str, name: str, given: str, legal: Sequence[str]) -> str:
    """ConfigError unless `given` is one of the words."""
    if given not in legal:
        raise ConfigError(f"{what} at {user_line()}: {name} {given!r} is not one of {', '.join(legal)}{did_you_mean(str(given), legal)}")
    return given


def reduced(what: str, loss: Value, reduction: str) -> Value:
    """The elements, their mean or their sum."""
    one_of(what, "reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return loss
    return rd.reduce_mean(loss) if reduction == "mean" else rd.reduce_sum(loss)
