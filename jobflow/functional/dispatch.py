"""Public functions of tensors: arguments are checked, and tensors of a job are recorded in its body.

sort = of_tensors(sort, "sort")     takes local and global tensors, at once or in nn.Graph.build, and tensors of the job whose body runs
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import update_wrapper, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import DtypeError, JobError, user_line
from jobflow.core.types import TensorType, Typed
from jobflow.eager.parameters import Roles, described, tensors_of
from jobflow.eager.state import building_now
from jobflow.eager.tensor import TensorBase

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")

#: where the functions of tensors are
TENSORS = "jobflow.functional"
#: classes of the other operand of an operator
OPERANDS = (TensorBase, int, float, np.generic, np.ndarray)
#: functions that make tensors of shapes and numbers: of the job in whose body they are called
MADE = frozenset(
    {
        "arange",
        "as_tensor",
        "empty",
        "eye",
        "full",
        "linspace",
        "logspace",
        "normal",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
        "tensor",
        "zeros",
    }
)


def in_job() -> bool:
    """True in the body of a job function, False elsewhere, also while nn.Graph.build runs."""
    here = scope.current()
    return here.interpreter is not None and (here.root.eager is None or here.root.eager.building is None)


def is_tensor(x: Any) -> bool:
    """True for tensors, and for tensors of a job."""
    return isinstance(getattr(x, "tensor_type", None), TensorType)


# -------------------------------------------------------------------- functions of tensors


def of_tensors(function: Function, word: str) -> Function:
    """Return the function with a check of its arguments; with tensors of a job it is recorded in the body that runs."""
    if word in MADE:
        return _made(function)
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        by_place, new = roles.by_place, TensorBase.new
        for given, needed in zip(arguments, by_place, strict=False):
            if given.__class__ is not new and (isinstance(given, Typed) or (needed and not isinstance(given, TensorBase))):
                break
        else:
            if len(arguments) == len(by_place) and not named:
                return function(*arguments)
            if named and not named.keys() <= roles.keywords:
                arguments, named = roles.renamed(arguments, named)
            if len(arguments) <= len(by_place) and not any(roles.must.get(name) or is_tensor(given) for name, given in named.items()):
                return function(*arguments, **named)
        if named and not named.keys() <= roles.keywords:
            arguments, named = roles.renamed(arguments, named)
        if _checked(roles, arguments, named):
            return _recorded(roles, arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _made(function: Function) -> Function:
    """Return a function without tensors among its arguments; in the body of a job, its result is a tensor of the job."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        body = scope.current().interpreter
        if body is None or hasattr(body, "takes_tensors"):
            return function(*arguments, **named)
        from jobflow.eager import in_jobs  # programs without jobs do not need it

        return in_jobs.recorded(body, function, arguments, named) if in_jobs.is_body(body) else function(*arguments, **named)

    return called  # type: ignore[return-value]


def _checked(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Raise DtypeError for arguments that must be tensors; True if tensors of a job are among the arguments."""
    of_a_job = False
    for name, given in roles.given(arguments, named):
        if isinstance(given, Typed):
            of_a_job = True
        elif not isinstance(given, TensorBase) and roles.wrong(name, given, numbers=False):
            traces = building_now() is not None or in_job()
            remedy = "; give the job, or build, the array as an argument" if traces else "; make a tensor of it: flow.tensor(x)"
            instead = remedy if isinstance(given, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {described(given)}, not {roles.must_be(name)}{instead}")
    return of_a_job


def _recorded(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Record the function in the body of the job that runs; JobError if a tensor belongs to another job, or to none."""
    from jobflow.eager import in_jobs  # programs without jobs do not need it

    body = scope.current().interpreter
    for name, given in roles.given(arguments, named):
        if isinstance(given, Typed) and not in_jobs.is_body(body):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.tensor_type} of a job whose body has ended")
        if is_tensor(given) and not isinstance(given, Typed) and given.traced is None:
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.tensor_type} {in_jobs.NOT_OF_THE_JOB}")
    return in_jobs.recorded(body, roles.function, arguments, named)


def as_public(word: str, value: Any) -> Any:
    """Return the public object of this name: functions with `of_tensors`, other objects unchanged."""
    return all_of(TENSORS, {word: value}, TENSORS, of_tensors).get(word, value)


# -------------------------------------------------------------------- methods


def method(function: Function, word: str = "") -> Function:
    """Return a function as a method, also called `word`: with further names of parameters, and argument checks if it takes several tensors."""
    word = word or function.__name__
    return as_public(word, function) if tensors_of(function) > 1 else _by_any_name(function, word)


def _by_any_name(function: Function, word: str) -> Function:
    """Return the function; if it has a parameter that NumPy names otherwise, it accepts both names (`Roles.renamed`)."""
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
    """Return a function of two operands as an operator, which leaves other objects to Python."""

    @wraps(function)
    def call(x: Any, other: Any) -> Any:
        return function(x, other) if isinstance(other, OPERANDS) else NotImplemented

    return call


def reflected(function: Callable[..., Result]) -> Callable[[Any, Any], Result]:
    """Return the operator for a tensor on the right side."""

    @wraps(function)
    def call(x: Any, other: Any) -> Any:
        return function(other, x) if isinstance(other, OPERANDS) else NotImplemented

    return call


if TYPE_CHECKING:

    class attribute(Generic[Result]):
        """A property whose type is that of its function."""

        def __init__(self, get: Callable[[Any], Result], set: Callable[[Any, Any], None] | None = None) -> None: ...
        def __get__(self, x: Any, kind: Any = None) -> Result: ...
        def __set__(self, x: Any, value: Any) -> None: ...

else:
    attribute = property


# -------------------------------------------------------------------- all functions of a module


def all_of(module: str, functions: Mapping[str, Any], home: str | tuple[str, ...], wrap: Callable[..., Any], *more: Any) -> dict[str, Any]:
    """The public functions of a module, each wrapped under its name: those defined in `home`, or a module inside it."""
    return {
        word: named_in(wrap(called_as(function, word), word, *more), word, module)
        for word, function in functions.items()
        if not word.startswith("_") and isinstance(function, FunctionType) and function.__module__.startswith(home)
    }


def called_as(function: FunctionType, word: str) -> FunctionType:
    """The function as Python's own messages call it by this name."""
    if function.__qualname__ == word:
        return function
    copy = FunctionType(function.__code__, function.__globals__, word, function.__defaults__, function.__closure__)
    copy.__qualname__, copy.__kwdefaults__ = word, function.__kwdefaults__
    update_wrapper(copy, function, assigned=("__module__", "__doc__", "__annotations__"))
    return copy


def named_in(function: Any, word: str, module: str) -> Any:
    """The function, which can be found (by pickle, and in the documents) under this name in a module."""
    function.__name__ = function.__qualname__ = word
    function.__module__ = module
    return function
