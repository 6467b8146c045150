"""Dispatch of the public functions, with argument checks and with tracing of calls on tensors of a job.

sort = of_tensors(sort, "sort")     accepts eager tensors, tensors of nn.Graph.build, and tensors of the job being traced
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper, wraps
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import DtypeError, JobError, user_line
from jobflow.core.types import TensorType, Typed
from jobflow.functional import out_arguments
from jobflow.tensors.parameters import Roles, described, tensors_of
from jobflow.tensors.run_values import HostValue
from jobflow.tensors.state import building_now
from jobflow.tensors.tensor import TensorBase

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")

#: the package that defines the functions of tensors
TENSORS = "jobflow.functional"
#: classes that operators accept as the other operand
OPERANDS = (TensorBase, int, float, np.generic, np.ndarray, HostValue)


def in_job() -> bool:
    """Return True in the body of a job function; False elsewhere, and while nn.Graph.build runs."""
    here = scope.current()
    return here.interpreter is not None and (here.root.eager is None or here.root.eager.building is None)


def is_tensor(x: Any) -> bool:
    """Return True for eager tensors and for tensors of a job."""
    return isinstance(getattr(x, "tensor_type", None), TensorType)


class NotDense:
    """Base class of sparse tensors, whose method `apply_function` runs the functions of tensors."""

    __slots__ = ()

    def apply_function(self, what: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of the function `what` for these arguments, one of which is this object; raise JobError for other functions."""
        raise NotImplementedError


# -------------------------------------------------------------------- functions of tensors


def of_tensors(function: Function, word: str) -> Function:
    """Wrap a function with argument checks, and record calls with tensors of a job in the body being traced."""
    if _creates(function):
        return _factory(function)
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        by_place, new, is_plain = roles.by_place, TensorBase.new, True
        for argument, needed in zip(arguments, by_place, strict=False):
            if argument.__class__ is not new and (isinstance(argument, Typed | NotDense) or (needed and not isinstance(argument, TensorBase))):
                is_plain = False
                break
        if is_plain and len(arguments) == len(by_place) and not named:
            return function(*arguments)
        if named and not named.keys() <= roles.keywords:
            if "out" in named and word in out_arguments.NAMES and "out" not in roles.keywords:
                return out_arguments.write_result(word, called, arguments, named)
            arguments, named = roles.renamed(arguments, named)
        if is_plain and len(arguments) <= len(by_place) and not any(roles.must.get(name) or is_tensor(each) for name, each in named.items()):
            return function(*arguments, **named)
        if len(arguments) > len(by_place):
            arguments, named = roles.reordered(arguments, named)
        for argument in (*arguments, *named.values()):
            if isinstance(argument, NotDense):
                return argument.apply_function(roles.what, arguments, named)
        if _has_job_tensors(roles, arguments, named):
            return _recorded(roles, arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _creates(function: Callable[..., Any]) -> bool:
    """Return True for a factory function, which has creation options (dtype, placement, ...) and no tensor parameters."""
    return bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS) and not tensors_of(function)


def _factory(function: Function) -> Function:
    """Wrap a function that creates tensors; in the body of a job, it returns a tensor of the job."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if "out" in named and function.__name__ in out_arguments.NAMES:
            return out_arguments.write_result(function.__name__, called, arguments, named, creates=True)
        body = scope.current().interpreter
        if body is None or hasattr(body, "takes_tensors"):
            return function(*arguments, **named)
        from jobflow.tensors import job_recorder  # not imported by programs without jobs

        return job_recorder.recorded(body, function, arguments, named) if job_recorder.is_body(body) else function(*arguments, **named)

    return called  # type: ignore[return-value]


def _has_job_tensors(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return True if tensors of a job are among the arguments; raise DtypeError for a non-tensor argument of a tensor parameter."""
    of_a_job = False
    for name, argument in roles.named_arguments(arguments, named):
        if isinstance(argument, Typed):
            of_a_job = True
        elif not isinstance(argument, TensorBase) and roles.wrong(name, argument, numbers_only=False):
            traces = building_now() is not None or in_job()
            remedy = "; pass the array to the job, or to build, as an argument" if traces else "; convert it: flow.tensor(x)"
            advice = remedy if isinstance(argument, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {described(argument)}, not {roles.must_be(name)}{advice}")
    return of_a_job


def _recorded(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Record the call in the body being traced; raise JobError for an eager tensor, or for a tensor of a job whose tracing has ended."""
    return record_call(roles.what, roles.function, arguments, named, roles.named_arguments(arguments, named))


def record_call(
    what: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any] = MappingProxyType({}),
    names: Iterable[tuple[str, Any]] | None = None,
) -> Any:
    """Record the call of a function in the body of the job being traced; `names` are the arguments with their names, for messages.

    Raises: JobError for an eager tensor, or for a tensor of a job whose tracing has ended.
    """
    from jobflow.tensors import job_recorder  # not imported by programs without jobs

    body = scope.current().interpreter
    for name, argument in enumerated(arguments) if names is None else names:
        if isinstance(argument, Typed) and not job_recorder.is_body(body):
            raise JobError(
                f"{what} at {user_line()}: {name} is a tensor {argument.tensor_type} of a job whose tracing has ended; return its value from the job"
            )
        if is_tensor(argument) and not isinstance(argument, Typed) and argument.traced is None:
            raise JobError(f"{what} at {user_line()}: {name} is a tensor {argument.tensor_type} {job_recorder.NOT_OF_THE_JOB}")
    return job_recorder.recorded(body, function, arguments, named)


def enumerated(arguments: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the arguments of a call with names for messages: "argument 0", ..."""
    return [(f"argument {i}", argument) for i, argument in enumerate(arguments)]


def as_public(word: str, value: Any) -> Any:
    """Return the public object `word`: a function wrapped by `of_tensors`, or another object unchanged."""
    return all_of(TENSORS, {word: value}, TENSORS, of_tensors).get(word, value)


# -------------------------------------------------------------------- methods


def method(function: Function, word: str = "") -> Function:
    """Return a function as a method named `word` that accepts parameter aliases.

    The arguments are checked if the function has several tensor parameters.
    """
    word = word or function.__name__
    return as_public(word, function) if tensors_of(function) > 1 else _by_any_name(function, word)


def _by_any_name(function: Function, word: str) -> Function:
    """Wrap a function so that it also accepts NumPy's names of its parameters (`Roles.renamed`)."""
    code = getattr(function, "__code__", None)
    if code is None or not (code.co_flags & inspect.CO_VARARGS or "dim" in code.co_varnames[: code.co_argcount]):
        return function
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if named and not named.keys() <= roles.keywords:
            arguments, named = roles.renamed(arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def operator(function: Callable[..., Result]) -> Callable[[Any, Any], Result]:
    """Return a function of two operands as an operator, such as `__add__`.

    The operator returns NotImplemented unless the other operand is a tensor, a number or an array.
    """

    @wraps(function)
    def call(x: Any, other: Any) -> Any:
        return function(x, other) if isinstance(other, OPERANDS) else NotImplemented

    return call


def reflected(function: Callable[..., Result]) -> Callable[[Any, Any], Result]:
    """Return a function of two operands as a reflected operator, such as `__radd__`, with the tensor as right operand."""

    @wraps(function)
    def call(x: Any, other: Any) -> Any:
        return function(other, x) if isinstance(other, OPERANDS) else NotImplemented

    return call


if TYPE_CHECKING:

    class attribute(Generic[Result]):
        """A property with the return type of its getter as static type."""

        def __init__(self, get: Callable[[Any], Result], set: Callable[[Any, Any], None] | None = None) -> None: ...
        def __get__(self, x: Any, kind: Any = None) -> Result: ...
        def __set__(self, x: Any, value: Any) -> None: ...

else:
    attribute = property


# -------------------------------------------------------------------- all functions of a module


def all_of(module: str, functions: Mapping[str, Any], package: str | tuple[str, ...], wrap: Callable[..., Any], *more: Any) -> dict[str, Any]:
    """Return the public functions among `functions` by name, wrapped by `wrap(function, name, *more)` and named as members of `module`.

    Functions defined outside of `package` are omitted.
    """
    return {
        word: named_in(wrap(called_as(function, word), word, *more), word, module)
        for word, function in functions.items()
        if not word.startswith("_") and isinstance(function, FunctionType) and function.__module__.startswith(package)
    }


def called_as(function: FunctionType, word: str) -> FunctionType:
    """Return a copy of the function with the name `word`, which Python's errors about its arguments then use."""
    if function.__qualname__ == word:
        return function
    copy = FunctionType(function.__code__, function.__globals__, word, function.__defaults__, function.__closure__)
    copy.__qualname__, copy.__kwdefaults__ = word, function.__kwdefaults__
    update_wrapper(copy, function, assigned=("__module__", "__doc__", "__annotations__"))
    return copy


def named_in(function: Any, word: str, module: str) -> Any:
    """Set the name and the module of a function, for pickle and the documentation, and return the function."""
    function.__name__ = function.__qualname__ = word
    function.__module__ = module
    return function
