"""Decorators of the job API: argument check, alias with renamed parameters, and dispatch by arguments.

* `of_jobs(function, word)` checks the arguments of a job function. Tensors outside of jobs are computed eagerly, or traced by nn.Graph.build.
* `traced(alias(functional.sqrt), "sqrt")` is a tensor function with the job API's parameter names, traced into the current job body.
* `by_arguments(arrays.reshape)` is one name of both APIs. The arguments select between them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, wraps
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

import jobflow.core.scope as scope
import jobflow.functional as functional
from jobflow.core.errors import NOT_A_TENSOR, ArgumentError, DtypeError, JobError, JobflowError, ShapeError, user_line
from jobflow.core.types import Tensor
from jobflow.engine.operators import TensorOperators
from jobflow.functional.dispatch import all_of as all_of
from jobflow.functional.dispatch import in_job, named_in
from jobflow.functional.dispatch import is_tensor as is_tensor
from jobflow.functional.nn_base import composing
from jobflow.functional.tensor_class import Tensor as EagerTensor
from jobflow.tensors.parameters import Roles, described, tensors_of
from jobflow.tensors.state import building_now

Function = TypeVar("Function", bound=Callable[..., Any])


def by_arguments(job: Function, ours: Any = (), theirs: Any = (), needs_dtype: bool = False) -> Function:
    """Return a function that calls either the job function `job` or the tensor function of the same name, depending on the arguments.

    A second argument of a type in `ours` selects the job function, and of a type in `theirs` the tensor function. If the job function
    `needs_dtype`, a call without `dtype` selects the tensor function. A keyword that only one function accepts selects this function.
    Otherwise the tensors among the arguments decide. Without tensors, a call in the body of a job selects the job function.
    """
    word = job.__name__
    roles = Roles(word, job)

    @cache
    def tensors() -> Roles:
        return Roles(word, getattr(functional, word))

    def selected(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool | None:
        if len(arguments) > 1 and isinstance(arguments[1], (*ours, *theirs)):
            return isinstance(arguments[1], ours)
        if needs_dtype and "dtype" not in named and len(arguments) <= roles.places.index("dtype"):
            return False
        other = tensors() if named else roles
        only = [
            each for each in named if each != "input" and (each in roles.names) != (each in other.names) and (each == "name" or not other.open_ended)
        ]
        return only[0] in roles.names if only else None

    @wraps(job)
    def either(*arguments: Any, **named: Any) -> Any:
        if not named and arguments and arguments[0].__class__ is EagerTensor and not (len(arguments) > 1 and isinstance(arguments[1], ours)):
            return tensors().function(*arguments)
        jobs = selected(arguments, named)
        if jobs is None:
            operands = list(_tensors_in((*arguments, *named.values())))
            jobs = any(isinstance(x, TensorOperators) for x in operands) if operands else in_job()
        return job(*arguments, **named) if jobs else tensors().function(*arguments, **named)

    return named_in(either, word, "jobflow.legacy.shared_names")


def _tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among `values` and in lists and tuples among them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from filter(is_tensor, value)
        elif is_tensor(value):
            yield value


# -------------------------------------------------------------------- job functions defined by tensor functions


def alias(function: Callable[..., Any], *tensors: str, **others: Any) -> Callable[..., Tensor]:
    """Return `function` with other parameter names: the operands `tensors`, then `others` with their defaults (`...` means required)."""
    words = tensors or ("x",)
    signature, count, defaults = _signature(words, **others), len(words) + len(others), tuple(others.values())

    def call(*arguments: Any, **named: Any) -> Any:
        if named:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            arguments = bound.args
        return function(*arguments[:count], *defaults[max(len(arguments) - len(words), 0) :])

    call.__doc__, call.__module__ = function.__doc__, ALIAS
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


#: annotations of further parameters, by type of their default
_KIND_OF_DEFAULT = {bool: "bool", int: "float", float: "float"}


@lru_cache(typed=True)
def _signature(words: tuple[str, ...], **others: Any) -> inspect.Signature:
    """Return a cached signature with the tensor parameters `words`, `others` with their defaults, and `name`."""
    further = ((word, default, _KIND_OF_DEFAULT.get(type(default), inspect.Parameter.empty)) for word, default in others.items())
    arguments = [*((word, inspect.Parameter.empty, "Tensor") for word in words), *further]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(word, kind, default=inspect.Parameter.empty if default is ... else default, annotation=role)
            for word, default, role in (*arguments, ("name", None, "str | None"))
        ]
    )


#: placeholder for the module of an alias, which `all_of` replaces
ALIAS = "jobflow.legacy.alias"


def traced(function: Function, word: str) -> Function:
    """Return a tensor function as a job function: its calls are traced into the current job body, with `name` for the last operation."""
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return _in_job(roles, arguments, named)
        except JobflowError as error:
            inside, _, rest = str(error).partition(" at ")
            if inside != word and inside in dir(functional):
                raise type(error)(f"{word} at {rest}") from None
            _locate(error, word)
            raise

    return called  # type: ignore[return-value]


def _locate(error: JobflowError, word: str) -> None:
    """Add the user's function and line to an error that an operation raised without a location."""
    line, (operation, _, rest) = str(user_line()), str(error).partition(": ")
    if isinstance(error, ShapeError | DtypeError | ArgumentError) and operation.isidentifier() and line not in rest:
        error.args = (f"{word} at {line}: {rest}",)


def _in_job(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Trace the function into the current job body; outside of jobs, call it with tensors."""
    body, function = scope.current().interpreter, roles.function
    if body is None or hasattr(body, "takes_tensors") or building_now() is not None:
        return function(*arguments, **named) if hasattr(body, "takes_tensors") else _elsewhere(function, roles, "", arguments, named)
    from jobflow.engine.job_tensor import JobTensor  # eager tensors need no jobs
    from jobflow.tensors.job_recorder import recorded

    at, name = roles.name
    name = named.pop("name", name)
    if named or not roles.least <= len(arguments) <= at:
        roles.bind(arguments, named)
        if len(arguments) > at:
            name, arguments = arguments[at], (*arguments[:at], None, *arguments[at + 1 :])
    if named or any(passed.__class__ is not JobTensor for passed in arguments):
        _check_in_job(roles, arguments, named)
    return recorded(body, function, arguments, named, name)


# -------------------------------------------------------------------- job functions


def of_jobs(function: Function, word: str, others: Mapping[str, str] = MappingProxyType({})) -> Function:
    """Return the function with a check that its tensors belong to the job being traced, or to no job.

    Tensors outside of jobs are computed eagerly, or traced by nn.Graph.build. `others` maps each function that needs a job, for variables or
    random numbers, to the name of its equivalent for tensors.
    """
    if not tensors_of(function):
        return of_kinds(function, word)
    roles, instead = Roles(word, function), others.get(word, "")

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        here = scope.current()
        if hasattr(here.interpreter, "takes_tensors"):
            return function(*arguments, **named)
        building = None if here.root.eager is None else here.root.eager.building
        if here.interpreter is None or (building is not None and building.tracer is here.interpreter):
            return _elsewhere(function, roles, instead, arguments, named)
        _check_in_job(roles, arguments, named)
        try:
            return function(*arguments, **named)
        except JobflowError as error:
            _locate(error, word)
            raise

    return called  # type: ignore[return-value]


def of_kinds(function: Function, word: str) -> Function:
    """Return the function with a check of argument types, which raises ArgumentError."""
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        roles.check_kinds(arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _check_in_job(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    from jobflow.tensors.job_recorder import NOT_OF_THE_JOB

    roles.check_kinds(arguments, named)
    for name, passed in roles.named_arguments(arguments, named):
        if isinstance(passed, TensorOperators):
            continue
        if is_tensor(passed):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {passed.tensor_type} {NOT_OF_THE_JOB}")
        if roles.wrong(name, passed, numbers_only=True):
            raise JobError(f"{roles.what} at {user_line()}: {name} is {described(passed)}, not {roles.must_be(name)} of this job; {NOT_A_TENSOR}")


def _elsewhere(function: Callable[..., Any], roles: Roles, instead: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call `function` with tensors outside of jobs.

    Raises: DtypeError for an operand of another type; JobError without tensors, for a tensor of a job, and if `instead` names an equivalent.
    """
    passed = list(roles.named_arguments(arguments, named))
    tensors = [value for _, value in passed if is_tensor(value) and not isinstance(value, TensorOperators)]
    for name, value in passed:
        if isinstance(value, TensorOperators):
            raise JobError(
                f"{roles.what} at {user_line()}: {name} is a tensor {value.tensor_type} of a job whose body has ended; return it from the job"
            )
        if roles.wrong(name, value, numbers_only=True) and not is_tensor(value) and not instead:
            there = "; pass flow.tensor(x)" if isinstance(value, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {described(value)}, not {roles.must_be(name)}{there}")
    roles.bind(arguments, named)
    roles.check_kinds(arguments, named)
    if instead or not tensors:
        raise JobError(
            f"{roles.what} at {user_line()}: called outside a job; call it in the body of a function decorated with global_function"
            f"{f', or for tensors use {instead}' if instead else ''}"
        )
    with composing(tensors[0]):
        return function(*arguments, **named)
