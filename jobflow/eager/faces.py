"""The two faces, and what happens to their functions where they meet: an answer, or an error in words of the caller.

    relu = of_jobs(relu)          takes tensors of the job whose body runs; of others, what its ops make of them at once or in nn.Graph.build
    sort = of_tensors(sort)       takes local and global tensors, at once or in nn.Graph.build, and tensors of the job whose body runs
    reshape = by_arguments(arrays.reshape)    one name of both: the arguments say which is meant

Which parameters are tensors is read from a function's annotations.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, update_wrapper, wraps
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import NOT_A_TENSOR, ArgumentError, DtypeError, JobError, JobflowError, ShapeError, user_line
from jobflow.core.types import Tensor, TensorType
from jobflow.eager.in_jobs import NOT_OF_THE_JOB, recorded
from jobflow.eager.parameters import Roles, described, tensors_of
from jobflow.eager.state import building_now
from jobflow.eager.tensor import Tensor as EagerTensor
from jobflow.engine.body import JobBody
from jobflow.engine.handle import Handle
from jobflow.engine.operators import TensorOperators

Function = TypeVar("Function", bound=Callable[..., Any])

#: where the functions of tensors are
TENSORS = "jobflow.functional"
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


def by_arguments(job: Function, ours: Any = (), theirs: Any = (), needs_dtype: bool = False) -> Function:
    """A name that both faces have: the job's function or that of tensors, as the arguments say.

    What only one of them takes decides: a keyword, a second argument of the types `ours` or `theirs`, a `dtype` without which the job's cannot be.
    Else a tensor of a job has the job's conventions, and one with numbers those of tensors; where there is no tensor, the body of a job decides.
    """
    word = job.__name__
    roles = Roles(word, job)

    @cache
    def tensors() -> Roles:
        return Roles(word, getattr(importlib.import_module(TENSORS), word))

    def said(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool | None:
        if len(arguments) > 1 and isinstance(arguments[1], (*ours, *theirs)):
            return isinstance(arguments[1], ours)
        if needs_dtype and "dtype" not in named and len(arguments) <= roles.places.index("dtype"):
            return False
        other = tensors() if named else roles
        only = [
            each
            for each in named
            if each != "input" and (each in roles.by_name) != (each in other.by_name) and (each == "name" or not other.open_ended)
        ]
        return only[0] in roles.by_name if only else None

    @wraps(job)
    def either(*arguments: Any, **named: Any) -> Any:
        if not named and arguments and arguments[0].__class__ is EagerTensor and not (len(arguments) > 1 and isinstance(arguments[1], ours)):
            return tensors().function(*arguments)
        jobs = said(arguments, named)
        if jobs is None:
            found = [value for _, value in roles.given(arguments, named) if is_tensor(value)]
            jobs = any(isinstance(value, TensorOperators) for value in found) if found else in_job()
        return job(*arguments, **named) if jobs else tensors().function(*arguments, **named)

    return _named(either, word, "jobflow.legacy.shared_names")


def _named(function: Any, word: str, module: str) -> Any:
    """The function, which can be found (by pickle, and in the documents) under this name in a module."""
    function.__name__ = function.__qualname__ = word
    function.__module__ = module
    return function


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor of either face."""
    return isinstance(getattr(x, "tensor_type", None), TensorType)


# -------------------------------------------------------------------- functions of tensors


def of_tensors(function: Function, word: str) -> Function:
    """The function, called with tensors, or with those of the job whose body runs; a DtypeError for arrays in their places."""
    if word in MADE:
        return _made(function)
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        by_place = roles.by_place
        for given, needed in zip(arguments, by_place, strict=False):
            if given.__class__ is not EagerTensor and (isinstance(given, TensorOperators) or (needed and not isinstance(given, EagerTensor))):
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
            return recorded(_body(roles, arguments, named), function, arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _made(function: Function) -> Function:
    """A function that makes tensors of nothing: in the body of a job, of the job."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        body = scope.current().interpreter
        return recorded(body, function, arguments, named) if isinstance(body, JobBody) else function(*arguments, **named)

    return called  # type: ignore[return-value]


def _checked(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether tensors of a job are among the arguments; DtypeError for what is not a tensor where one must be."""
    of_a_job = False
    for name, given in roles.given(arguments, named):
        if isinstance(given, TensorOperators):
            of_a_job = True
        elif not isinstance(given, EagerTensor) and roles.wrong(name, given, numbers=False):
            traces = building_now() is not None or in_job()
            remedy = "; give the job, or build, the array as an argument" if traces else "; make a tensor of it: flow.tensor(x)"
            instead = remedy if isinstance(given, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {described(given)}, not {roles.must_be(name)}{instead}")
    return of_a_job


def _body(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> JobBody:
    """The body of the job that runs, whose tensors the arguments are; JobError for others, and where none runs."""
    body = scope.current().interpreter
    for name, given in roles.given(arguments, named):
        if isinstance(given, TensorOperators) and not isinstance(body, JobBody):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.tensor_type} of a job whose body has ended")
        if is_tensor(given) and not isinstance(given, TensorOperators) and given.traced is None:
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.tensor_type} {NOT_OF_THE_JOB}")
    assert isinstance(body, JobBody)
    return body


def as_public(word: str, value: Any) -> Any:
    """What `jobflow.functional` has under this name: its functions as `of_tensors`."""
    return all_of(TENSORS, {word: value}, TENSORS, of_tensors).get(word, value)


def method(*names: str) -> Callable[[Function], Function]:
    """The function is also a method of Tensor: by its own name, or by these.  It is as public as the function if it takes further tensors."""

    def hang(function: Function) -> Function:
        several = tensors_of(function) > 1  # x.sort() is not called without a tensor
        for name in names or (function.__name__,):
            setattr(EagerTensor, name, as_public(name, function) if several else _by_any_name(function, name))
        return function

    return hang


def _by_any_name(function: Function, word: str) -> Function:
    """The function, whose parameters have further names too if it has parameters of which there are; see `Roles.renamed`."""
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


def attribute(name: str, setter: Callable[[Any, Any], None] | None = None) -> Callable[[Function], Function]:
    """The function is also a property of Tensor."""

    def hang(function: Function) -> Function:
        setattr(EagerTensor, name, property(function, setter))
        return function

    return hang


# -------------------------------------------------------------------- functions of jobs, as formulas of tensors


def spelled(function: Callable[..., Any], *tensors: str, **others: Any) -> Callable[..., Tensor]:
    """A function of tensors under other names: its first parameters, in order, are `tensors` ("x") and `others` with defaults (...: none)."""
    words = tensors or ("x",)
    signature, count, defaults = _signature(words, **others), len(words) + len(others), tuple(others.values())

    def call(*arguments: Any, **named: Any) -> Any:
        if named:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            arguments = bound.args
        return function(*arguments[:count], *defaults[max(len(arguments) - len(words), 0) :])

    call.__doc__, call.__module__ = function.__doc__, SPELLED
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


#: what further parameters take, by the type of their default
_KIND_OF_DEFAULT = {bool: "bool", int: "float", float: "float"}


@lru_cache(typed=True)
def _signature(words: tuple[str, ...], **others: Any) -> inspect.Signature:
    """Of a function with these parameters, tensors and others with their defaults, and a name; many have the same."""
    further = ((word, default, _KIND_OF_DEFAULT.get(type(default), inspect.Parameter.empty)) for word, default in others.items())
    given = [*((word, inspect.Parameter.empty, "Tensor") for word in words), *further]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(word, kind, default=inspect.Parameter.empty if default is ... else default, annotation=role)
            for word, default, role in (*given, ("name", None, "str | None"))
        ]
    )


#: stands for the module of what `spelled` gives, until `all_of` finds it
SPELLED = "jobflow.legacy.spelled"


def recording(function: Function, word: str) -> Function:
    """The function of the job face, a formula of tensors: of those of a job it is recorded in the body that runs, its last op under `name`."""
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return _in_job(roles, arguments, named)
        except JobflowError as error:
            inside, _, rest = str(error).partition(" at ")
            if inside != word and inside in importlib.import_module(TENSORS).__all__:
                raise type(error)(f"{word} at {rest}") from None
            _locate(error, word)
            raise

    return called  # type: ignore[return-value]


def _locate(error: JobflowError, word: str) -> None:
    """Say which function of the program, on which line, an error is about that an operation raised before it had a place there."""
    line, (operation, _, rest) = str(user_line()), str(error).partition(": ")
    if isinstance(error, ShapeError | DtypeError | ArgumentError) and operation.isidentifier() and line not in rest:
        error.args = (f"{word} at {line}: {rest}",)


def _in_job(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a function that is recorded makes of these arguments."""
    body, function = scope.current().interpreter, roles.function
    if body is None or hasattr(body, "takes_tensors") or building_now() is not None:
        return function(*arguments, **named) if hasattr(body, "takes_tensors") else _elsewhere(function, roles, "", arguments, named)
    at, name = roles.name
    name = named.pop("name", name)
    if named or not roles.least <= len(arguments) <= at:
        roles.bind(arguments, named)
        if len(arguments) > at:
            name, arguments = arguments[at], (*arguments[:at], None, *arguments[at + 1 :])
    if named or any(given.__class__ is not Handle for given in arguments):
        _check_in_job(roles, arguments, named)
    return recorded(body, function, arguments, named, name)


# -------------------------------------------------------------------- functions of jobs


def of_jobs(function: Function, word: str, others: Mapping[str, str] = MappingProxyType({})) -> Function:
    """The function, called with tensors of the job whose body runs.

    With other tensors its ops run at once, or are recorded in the graph that is being built; `others` names, by word, what they have
    in place of a function that needs a job, for its variables or its random numbers.
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
    """The function, called with arguments of the kinds that its parameters take; an ArgumentError for others."""
    roles = Roles(word, function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        roles.check_kinds(arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _check_in_job(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    roles.check_kinds(arguments, named)
    for name, given in roles.given(arguments, named):
        if isinstance(given, TensorOperators):
            continue
        if is_tensor(given):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.tensor_type} {NOT_OF_THE_JOB}")
        if roles.wrong(name, given, numbers=True):
            raise JobError(f"{roles.what} at {user_line()}: {name} is {described(given)}, not {roles.must_be(name)} of this job; {NOT_A_TENSOR}")


def _elsewhere(function: Callable[..., Any], roles: Roles, instead: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Outside of jobs: with the tensors that are there, or not at all."""
    given = list(roles.given(arguments, named))
    tensors = [value for _, value in given if is_tensor(value) and not isinstance(value, TensorOperators)]
    for name, value in given:
        if isinstance(value, TensorOperators):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {value.tensor_type} of a job whose body has ended")
        if roles.wrong(name, value, numbers=True) and not is_tensor(value) and not instead:
            there = "; make a tensor of it, flow.tensor(x)" if isinstance(value, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {described(value)}, not {roles.must_be(name)}{there}")
    roles.bind(arguments, named)
    roles.check_kinds(arguments, named)
    if instead or not tensors:
        raise JobError(
            f"{roles.what} at {user_line()} was called outside a job; call it in the body of a function decorated with global_function"
            f"{f'; tensors have {instead}' if instead else ''}"
        )
    with importlib.import_module("jobflow.functional.nn_base").composing(tensors[0]):
        return function(*arguments, **named)


# -------------------------------------------------------------------- all functions of a module


def all_of(module: str, functions: Mapping[str, Any], home: str | tuple[str, ...], wrap: Callable[..., Any], *more: Any) -> dict[str, Any]:
    """The public functions of a module, each wrapped under its name: those defined in `home`, or a module inside it."""
    return {
        word: _named(wrap(called_as(function, word), word, *more), word, module)
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
