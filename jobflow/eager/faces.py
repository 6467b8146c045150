"""The two faces, and what happens to their functions where they meet: an answer, or an error in words of the caller.

    relu = of_jobs(relu)          takes tensors of the job whose body runs; of others, what its ops make of them at once or in nn.Graph.build
    sort = of_tensors(sort)       takes local and global tensors, at once or in nn.Graph.build
    reshape = by_face(arrays.reshape)       in the body of a job that one, elsewhere `jobflow.functional.reshape`

Which parameters are tensors is read from a function's annotations.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import update_wrapper, wraps
from numbers import Real
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import NOT_A_TENSOR, DtypeError, JobError, user_line
from jobflow.core.types import TensorType
from jobflow.engine.operators import TensorOperators

Function = TypeVar("Function", bound=Callable[..., Any])

#: where the functions of tensors are
TENSORS = "jobflow.functional"
#: where the functions of jobs are, and how programs call them
OF_JOBS = {
    "jobflow.legacy.arrays": "flow",
    "jobflow.legacy.math": "flow.math",
    "jobflow.legacy.activations": "flow.nn",
    "jobflow.legacy.convolution": "flow.nn",
}
#: what has another name there
OTHER_NAMES = {
    "all": "math.reduce_all",
    "any": "math.reduce_any",
    "amax": "math.reduce_max",
    "amin": "math.reduce_min",
    "broadcast_to": "expand",
    "cat": "concat",
    "div": "math.divide",
    "eq": "math.equal",
    "ge": "math.greater_equal",
    "gt": "math.greater",
    "le": "math.less_equal",
    "log_softmax": "nn.logsoftmax",
    "logsumexp": "math.reduce_logsumexp",
    "lt": "math.less",
    "max": "math.reduce_max",
    "mean": "math.reduce_mean",
    "min": "math.reduce_min",
    "mul": "math.multiply",
    "ne": "math.not_equal",
    "neg": "math.negative",
    "permute": "transpose",
    "prod": "math.reduce_prod",
    "silu": "nn.swish",
    "std": "math.reduce_std",
    "sub": "math.subtract",
    "sum": "math.reduce_sum",
    "unsqueeze": "expand_dims",
    "var": "math.reduce_variance",
}
#: functions whose result has as many elements as the numbers say
UNKNOWN_SIZE = ("argwhere", "masked_select", "nonzero", "unique")
MASKS = "how many elements it has is known only when it runs; use a mask: where(condition, x, y)"


def in_job() -> bool:
    """True in the body of a job function, False elsewhere, also while nn.Graph.build runs."""
    here = scope.current()
    return here.interpreter is not None and (here.root.eager is None or here.root.eager.building is None)


def by_face(job: Function, word: str) -> Function:
    """`job` in the body of a job; elsewhere the function of tensors of this name."""

    @wraps(job)
    def either(*arguments: Any, **named: Any) -> Any:
        if in_job():
            return job(*arguments, **named)
        return getattr(importlib.import_module(TENSORS), word)(*arguments, **named)

    made: Function = _named(either, word, "jobflow.legacy.shared_names")
    return made


def _named(function: Any, word: str, module: str) -> Any:
    """The function, which can be found (by pickle, and in the documents) under this name in a module."""
    function.__name__ = function.__qualname__ = word
    function.__module__ = module
    return function


# -------------------------------------------------------------------- what a function is called with


class Roles:
    """Which parameters of a function are tensors, and which are sequences of them."""

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = list(self.signature.parameters.values())
        self.what = what
        #: "tensor", "optional", "tensors", "operand" (a tensor or a number), or ""
        self.by_name = {each.name: _role(each.annotation) for each in parameters}
        self.places = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        self.rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "")

    def __bool__(self) -> bool:
        """False if no parameter is a tensor."""
        return any(self.by_name.values())

    def bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """TypeError where Python would not call the function with these."""
        try:
            self.signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{self.what}() {error}") from None

    def given(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """(name, value) of every argument; a sequence, where no tensor must be, as its elements."""
        names = (*self.places, *[self.rest] * (len(arguments) - len(self.places)))
        for name, value in (*zip(names, arguments, strict=False), *named.items()):
            if isinstance(value, list | tuple) and self.by_name.get(name, "") in ("", "tensors"):
                yield from ((f"{name}[{i}]", element) for i, element in enumerate(value))
            else:
                yield name, value

    def wrong(self, name: str, value: Any, numbers: bool) -> bool:
        """Whether this argument, which is no tensor, cannot be what it is; `numbers`: nor an operand that is no number."""
        word, _, element = name.partition("[")
        role = self.by_name.get(word, "")
        if element:
            return role == "tensors"
        if role == "operand":
            return numbers and not isinstance(value, Real)
        if role == "tensors":
            return value is not None and (isinstance(value, np.ndarray) or not isinstance(value, Iterable))
        return role == "tensor" or (role == "optional" and value is not None)

    def must_be(self, name: str) -> str:
        return "a sequence of tensors" if self.by_name.get(name) == "tensors" else "a tensor"


#: what the annotation of a parameter says of its arguments
_ROLES = {
    "Tensor": "tensor",
    "Tensor | None": "optional",
    "Sequence[Tensor]": "tensors",
    "Sequence[Tensor] | None": "tensors",
    "Iterable[Tensor]": "tensors",
    "Tensor | Iterable[Tensor]": "tensors",
    "Operand": "operand",
    "Operand | None": "operand",
}


def _role(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _ROLES.get(text, "")


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor of either face."""
    return isinstance(getattr(x, "type", None), TensorType)


def _array(x: Any) -> str:
    return f"a NumPy array {x.dtype}[{','.join(map(str, x.shape))}]"


def _told(x: Any) -> str:
    """What was given, in few words."""
    if isinstance(x, np.ndarray):
        return _array(x)
    text = repr(x)
    return f"{text if len(text) < 60 else text[:56] + ' ...'} of type {type(x).__name__}"


# -------------------------------------------------------------------- functions of tensors


def of_tensors(function: Function, word: str, tensor: type) -> Function:
    """The function, called with tensors of class `tensor`; a DtypeError for arrays in their places, a JobError for tensors of a job."""
    roles = Roles(word, function)
    must = {name: role not in ("", "operand") for name, role in roles.by_name.items()}
    by_place = tuple(must[name] for name in roles.places)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        for given, needed in zip(arguments, by_place, strict=False):
            if given.__class__ is not tensor and (isinstance(given, TensorOperators) or (needed and not isinstance(given, tensor))):
                _check(roles, tensor, arguments, named)
                break
        else:
            if len(arguments) > len(by_place) or (named and any(must.get(name) or is_tensor(given) for name, given in named.items())):
                _check(roles, tensor, arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _check(roles: Roles, tensor: type, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    for name, given in roles.given(arguments, named):
        if isinstance(given, TensorOperators):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {given.type} of a job, {_in_jobs(roles.what)}")
        if not isinstance(given, tensor) and roles.wrong(name, given, numbers=False):
            instead = "; make a tensor of it: flow.tensor(x)" if isinstance(given, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {_told(given)}, not {roles.must_be(name)}{instead}")


def _in_jobs(word: str) -> str:
    """What the body of a job has in the place of a function of tensors."""
    if word in UNKNOWN_SIZE:
        return f"which {word} does not take: {MASKS}"
    takes = f"and {word} takes local and global tensors only"
    for home, face in OF_JOBS.items():
        if isinstance(getattr(importlib.import_module(home), word, None), FunctionType):
            return f"{takes}; in the body of a job use {face}.{word}"
    if word in OTHER_NAMES:
        return f"{takes}; in the body of a job use flow.{OTHER_NAMES[word]}"
    return f"{takes}; the functions of jobs are those of flow.math, flow.nn and flow.layers; or call {word} on what the job returns"


# -------------------------------------------------------------------- functions of jobs


def of_jobs(function: Function, word: str, others: Mapping[str, str] = MappingProxyType({})) -> Function:
    """The function, called with tensors of the job whose body runs.

    With other tensors its ops run at once, or are recorded in the graph that is being built; `others` names, by word, what they have
    in place of a function that needs a job, for its variables or its random numbers.
    """
    roles, instead = Roles(word, function), others.get(word, "")
    if not roles:
        return function

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        here = scope.current()
        building = None if here.root.eager is None else here.root.eager.building
        if here.interpreter is None or (building is not None and building.tracer is here.interpreter):
            return _elsewhere(function, roles, instead, arguments, named)
        if not hasattr(here.interpreter, "takes_tensors"):
            _check_in_job(roles, arguments, named)
        return function(*arguments, **named)

    return called  # type: ignore[return-value]


def _check_in_job(roles: Roles, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    for name, given in roles.given(arguments, named):
        if isinstance(given, TensorOperators):
            continue
        if is_tensor(given):
            raise JobError(
                f"{roles.what} at {user_line()}: {name} is a tensor {given.type} with numbers, none of this job; "
                "give the job its array as an argument, or make it a variable (get_variable)"
            )
        if roles.wrong(name, given, numbers=True):
            raise JobError(f"{roles.what} at {user_line()}: {name} is {_told(given)}, not {roles.must_be(name)} of this job; {NOT_A_TENSOR}")


def _elsewhere(function: Callable[..., Any], roles: Roles, instead: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Outside of jobs: with the tensors that are there, or not at all."""
    given = list(roles.given(arguments, named))
    tensors = [value for _, value in given if is_tensor(value) and not isinstance(value, TensorOperators)]
    for name, value in given:
        if isinstance(value, TensorOperators):
            raise JobError(f"{roles.what} at {user_line()}: {name} is a tensor {value.type} of a job whose body does not run any more")
        if roles.wrong(name, value, numbers=True) and not is_tensor(value) and not instead:
            there = "; make a tensor of it, flow.tensor(x)" if isinstance(value, np.ndarray) else ""
            raise DtypeError(f"{roles.what} at {user_line()}: {name} is {_told(value)}, not {roles.must_be(name)}{there}")
    roles.bind(arguments, named)
    if instead or not tensors:
        raise JobError(
            f"{roles.what} at {user_line()} was called outside a job; call it in the body of a function decorated with global_function"
            f"{f'; tensors have {instead}' if instead else ''}"
        )
    with importlib.import_module("jobflow.functional.nn_base").composing(tensors[0]):
        return function(*arguments, **named)


# -------------------------------------------------------------------- all functions of a module


def all_of(module: str, functions: Mapping[str, Any], home: str, wrap: Callable[..., Any], *more: Any) -> dict[str, Any]:
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
