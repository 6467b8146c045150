"""The signature of a job function: its parameters and result, parsed once from the annotations, and the conversion of a call's arguments."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, SourceLine, user_line
from jobflow.core.notices import notice
from jobflow.core.types import TensorType, bfloat16, hides_elements
from jobflow.typing.annotations import Declared, FixedTensorDef, Placeholder
from jobflow.typing.lazy import Lazy
from jobflow.typing.results import Results, Returned, read_return

#: One array of a call: its name (``x``, or ``x[0]`` inside a tuple), its declaration, and the array (a list of them if per device).
Bound = tuple[str, Declared, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a job; `tree` is a `Declared`, or a tuple, list or dict of such trees."""

    name: str
    tree: Any


@dataclass(frozen=True)
class JobSignature:
    """The name, parameters and results of the job function defined at `where`."""

    name: str
    where: SourceLine
    parameters: tuple[Parameter, ...]
    returned: Returned
    #: True if arguments are not converted to the declared element types
    exact: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any]) -> JobSignature:
        """Read the annotations of `function`; raise JobError if jobs do not accept them."""
        name = getattr(function, "__name__", repr(function))
        code = getattr(function, "__code__", None)
        where = SourceLine(code.co_filename, code.co_firstlineno) if code is not None else user_line()
        if not inspect.isfunction(function):
            raise JobError(
                f"global_function at {user_line()}: a job must be a Python function; got {function!r}; write an annotated function that calls it"
            )
        signature = inspect.signature(function)
        parameters = tuple(_parameter(function, parameter, f"job {name} ({where})") for parameter in signature.parameters.values())
        annotation = _evaluated(function, signature.return_annotation, f"job {name} ({where}): the return annotation")
        missing = annotation is inspect.Signature.empty
        return cls(name, where, parameters, read_return(annotation, missing, f"job {name} ({where})"))

    def placeholders(self) -> list[tuple[str, Declared]]:
        """Return the name (``x``, or ``x[0]`` inside a tuple) and the declaration of each array argument, in order."""
        return [leaf for parameter in self.parameters for leaf in _leaves(parameter.name, parameter.tree)]

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """Return the arguments of the job's body: `values`, one per placeholder, in the nesting of the parameters."""
        rest = iter(values)
        return [_nested(parameter.tree, rest) for parameter in self.parameters]

    def bind(self, args: Sequence[Any], devices: int = 1) -> list[Bound]:
        """Check the arguments of a call, and return (name, declaration, value) for each array argument, in order.

        Arrays of another element type are converted to the declared type, or rejected if the signature is `exact`.  A per-device argument must have
        `devices` arrays.
        Raises: ArgumentError (also a ValueError and an AssertionError) for arguments that do not match the declaration.
        """
        if len(args) != len(self.parameters):
            raise ArgumentError(self._wrong_number(len(args)))
        bound: list[Bound] = []
        for parameter, value in zip(self.parameters, args, strict=True):
            tree = parameter.tree
            if type(tree) is Declared and not tree.per_device and _fits(value, tree.type):  # nearly every call
                bound.append((parameter.name, tree, value))
            else:
                self._bind(parameter.name, tree, value, devices, bound)
        return bound

    def results(self, returned: Any) -> Results:
        """Return the tensors in the body's result `returned` and their nesting; raise JobError if they do not match the return annotation."""
        return self.returned.results(returned, f"job {self.name} ({self.where})")

    def _bind(self, path: str, tree: Any, value: Any, devices: int, bound: list[Bound]) -> None:
        if isinstance(tree, Declared):
            bound.append((path, tree, self._per_device(path, tree, value, devices) if tree.per_device else self._array(path, tree, value)))
        elif isinstance(tree, dict):
            if not isinstance(value, dict) or value.keys() != tree.keys():
                raise self._error(path, f"is {_kind(value)}; the job declares a dict with the keys {sorted(tree)}", "")
            for key, branch in tree.items():
                self._bind(f"{path}[{key!r}]", branch, value[key], devices, bound)
        else:
            if not isinstance(value, list | tuple):
                raise self._error(path, f"is {_kind(value)}; the job declares a tuple of length {len(tree)}", "Pass a tuple or a list.")
            if len(value) != len(tree):
                raise self._error(path, f"has {len(value)} element{'s' * (len(value) != 1)}; the job declares {len(tree)}", "")
            for i, (branch, element) in enumerate(zip(tree, value, strict=True)):
                self._bind(f"{path}[{i}]", branch, element, devices, bound)

    def _array(self, path: str, declared: Declared, value: Any) -> Any:
        """Return the array `value`, converted to the declared element type; raise ArgumentError if it is not an array of the declared shape."""
        want = declared.type
        if not isinstance(value, np.ndarray | Lazy):
            raise self._error(path, f"is {_kind(value)}; the job declares {declared}", _instead_of_array(value))
        if value.shape != want.shape:
            raise self._error(path, f"{_is_array(value)}; the job declares {declared}", _reshaping(path, value, want))
        return self._converted(path, declared, value)

    def _per_device(self, path: str, declared: Declared, value: Any, devices: int) -> list[Any]:
        """Return `value`, a list or tuple of `devices` entries, as a list of converted entries; raise ArgumentError for other values."""
        if not isinstance(value, list | tuple):
            example = f", for example np.array_split({path}, {devices})" if isinstance(value, np.ndarray) else ""
            advice = f"Pass a list with one entry per device{example}."
            raise self._error(path, f"is {_kind(value)}; the job declares a list of one array per device, {declared}", advice)
        if len(value) != devices:
            what = f"has {len(value)} array{'s' * (len(value) != 1)}; the job runs on {devices} device{'s' * (devices != 1)}"
            raise self._error(path, what, "Pass a list with one entry per device.")
        if declared.nested:
            return [self._listed(f"{path}[{i}]", declared, own) for i, own in enumerate(value)]
        return [self._piece(f"{path}[{i}]", declared, piece) for i, piece in enumerate(value)]

    def _listed(self, path: str, declared: Declared, value: Any) -> list[Any]:
        """Return the arrays of one device from `value`, a list of arrays of shape (1, ...), without this first axis.

        Raises ArgumentError for other values.
        """
        count, *sizes = declared.type.shape
        if not isinstance(value, list | tuple) or len(value) != count:
            shown = f"has {len(value)} element{'s' * (len(value) != 1)}" if isinstance(value, list | tuple) else f"is {_kind(value)}"
            raise self._error(path, f"{shown}; the job declares {declared}", f"Pass a list of {count} arrays of shape (1, ...).")
        one = replace(declared, type=declared.type.with_shape((1, *sizes)))
        pieces = [np.asarray(self._piece(f"{path}[{i}]", one, piece)) for i, piece in enumerate(value)]
        for i, piece in enumerate(pieces):
            if len(piece) != 1:
                raise self._error(f"{path}[{i}]", f"{_is_array(piece)}; the job declares {declared}", "Pass arrays with a first axis of length 1.")
        return [piece[0] for piece in pieces]

    def _piece(self, path: str, declared: Declared, value: Any) -> Any:
        want = declared.type
        if not isinstance(value, np.ndarray | Lazy):
            raise self._error(path, f"is {_kind(value)}; the job declares {declared}", _instead_of_array(value))
        if len(value.shape) != want.ndim or math.prod(value.shape) > want.size:
            advice = f"Pass as many axes as declared, and at most {want.size} elements."
            raise self._error(path, f"{_is_array(value)}; the job declares at most {declared}", advice)
        return self._converted(path, declared, value)

    def _converted(self, path: str, declared: Declared, value: Any) -> Any:
        """Convert `value` to the declared element type; raise ArgumentError if a number would change, apart from rounding to floats.

        Also raise ArgumentError if elements are masked.  Lazy arrays, and all arrays if the signature is `exact`, must have the declared type.
        """
        want = declared.type.dtype.numpy
        if hides_elements(value):
            raise self._error(
                path, f"has masked elements; the job declares {declared}", f"Pass {path}.filled(number), and the mask as another argument."
            )
        if value.dtype == want:
            return value
        if self.exact:
            advice = f"An eager job does not convert arguments; pass {path}.astype(np.{want}), or declare another dtype."
            raise self._error(path, f"{_is_array(value)}; the job declares {declared}", advice)
        if isinstance(value, Lazy):
            raise self._error(path, f"{_is_array(value)} that is read lazily; the job declares {declared}", "Declare the element type of the file.")
        if value.dtype.kind not in "biuf" and value.dtype.name != bfloat16.name:
            raise self._error(path, f"has elements of type {value.dtype}; the job declares {declared}", "Pass an array of numbers.")
        with np.errstate(over="ignore", invalid="ignore"):
            converted = value.astype(want)
        if want.kind in "biu" and not _same_numbers(value, converted):
            advice = f"Pass integers in the range of {declared.type.dtype.name}, or declare another dtype."
            raise self._error(
                path, f"is {value.dtype} with numbers that {declared.type.dtype.name} cannot represent; the job declares {declared}", advice
            )
        return converted

    def _error(self, path: str, what: str, advice: str) -> ArgumentError:
        parameter = path.partition("[")[0]
        return ArgumentError(f'{self.name}({parameter}=...) at {user_line()}: argument "{path}" {what}.{" " if advice else ""}{advice}')

    def _wrong_number(self, count: int) -> str:
        names = ", ".join(parameter.name for parameter in self.parameters)
        takes = f"takes {len(self.parameters)} ({names})" if names else "takes none"
        return f"{self.name}(...) at {user_line()}: wrong number of arguments, {count}; the job {takes} ({self.where}). Pass them by position."


def _fits(value: Any, want: TensorType) -> bool:
    return type(value) is np.ndarray and value.shape == want.shape and value.dtype == want.dtype.numpy


def _same_numbers(before: Any, after: Any) -> bool:
    if before.dtype.kind == "b" or np.can_cast(before.dtype, after.dtype, "safe"):
        return True
    low, high = (0, 1) if after.dtype.kind == "b" else (np.iinfo(after.dtype).min, np.iinfo(after.dtype).max)
    if before.dtype.kind in "iu":
        return before.size == 0 or bool(low <= int(before.min()) and int(before.max()) <= high)
    return bool(np.all((before >= low) & (before < float(high) + 1.0) & (before == np.trunc(before))))  # false for NaN and infinities


def _is_array(value: Any) -> str:
    text = f"is {_type_name(value)}"
    return text + ", which is empty" if 0 in value.shape else text


def _type_name(value: Any) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _kind(value: Any) -> str:
    return _type_name(value) if isinstance(value, np.ndarray | Lazy) else f"a {type(value).__name__}"


def _instead_of_array(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(piece, np.ndarray) for piece in value):
        return "Pass one numpy.ndarray, for example np.concatenate of the list; lists are for ListNumpy.Placeholder."
    return "Pass a numpy.ndarray, for example np.array(...)."


def _reshaping(path: str, value: Any, want: TensorType) -> str:
    shape = ", ".join(map(str, want.shape)) + ("," if want.ndim == 1 else "")
    size = math.prod(value.shape)
    if size == want.size and isinstance(value, np.ndarray):
        return f"Pass {path}.reshape({shape or '()'})."
    if len(value.shape) == want.ndim and value.shape[1:] == want.shape[1:]:
        return f"Pass {want.shape[0]} rows, or declare the placeholder with {value.shape[0]}." if size else f"Pass {want.shape[0]} rows."
    return f"Pass an array of shape ({shape})."


def _parameter(function: Callable[..., Any], parameter: inspect.Parameter, what: str) -> Parameter:
    where = f'{what}: parameter "{parameter.name}"'
    if parameter.kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise JobError(
            f"{where} is {parameter.kind.description}; jobs are called by position with a fixed number of arguments; declare positional parameters"
        )
    annotation = _evaluated(function, parameter.annotation, f"{where}: the annotation")
    if annotation is inspect.Parameter.empty:
        if parameter.default is inspect.Parameter.empty:
            if parameter.name in ("self", "cls"):
                raise JobError(
                    f"{where} has no annotation, because a method cannot be a job; declare the job in a method, as a function of arrays only"
                )
            raise JobError(f"{where} has no annotation; write {parameter.name}: tp.Numpy.Placeholder(shape, dtype)")
        notice("FixedTensorDef and MirroredTensorDef are old names; write tp.Numpy.Placeholder or tp.ListNumpy.Placeholder as annotation")
        return Parameter(parameter.name, _old_tree(parameter.default, where))
    if parameter.default is not inspect.Parameter.empty:
        raise JobError(f"{where} has an annotation and a default value; remove the default, because every call must pass all arguments")
    return Parameter(parameter.name, _tree(annotation, where))


def _evaluated(function: Callable[..., Any], annotation: Any, what: str) -> Any:
    """Return `annotation`; if it is a string (`from __future__ import annotations`), evaluate it in the scope of `function`.

    Raises JobError if the evaluation fails; `what` is the description of the annotation in messages.
    """
    if not isinstance(annotation, str):
        return annotation
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is not function.__globals__:
        frame = frame.f_back
    try:
        return eval(_located(annotation, function), function.__globals__, frame.f_locals if frame is not None else {})
    except Exception as error:
        advice = "Its names must be defined where the job is decorated"
        raise JobError(f"{what} {annotation!r} cannot be evaluated: {error}. {advice}") from error


def _located(annotation: str, function: Callable[..., Any]) -> CodeType:
    """Compile `annotation` as an expression at the first line of `function`, so that errors in declarations show this line."""
    place = inspect.unwrap(function).__code__
    tree = ast.parse(annotation, mode="eval")
    return compile(ast.increment_lineno(tree, place.co_firstlineno - 1), place.co_filename, "eval")


def _tree(annotation: Any, where: str) -> Any:
    if isinstance(annotation, Placeholder):
        return annotation.declared
    if getattr(annotation, "__origin__", None) is tuple:
        arms = annotation.__args__
        if not arms or Ellipsis in arms:
            raise JobError(f"{where}: Tuple must list its elements, e.g. Tuple[tp.Numpy.Placeholder((4,)), tp.Numpy.Placeholder((4, 2))]")
        return tuple(_tree(arm, where) for arm in arms)
    named = annotation.__name__ if isinstance(annotation, type) else repr(annotation)
    raise JobError(
        f"{where} is annotated {named}; write tp.Numpy.Placeholder(shape, dtype), tp.ListNumpy.Placeholder(shape, dtype) or a Tuple of them"
    )


def _old_tree(default: Any, where: str) -> Any:
    if isinstance(default, FixedTensorDef):
        return default.declared
    if isinstance(default, list | tuple) and default:
        return type(default)([_old_tree(element, where) for element in default])
    if isinstance(default, dict) and default:
        return {key: _old_tree(element, where) for key, element in default.items()}
    raise JobError(f"{where} has the default value {default!r}; write tp.Numpy.Placeholder(shape, dtype) as its annotation")


def _leaves(path: str, tree: Any) -> Iterator[tuple[str, Declared]]:
    if isinstance(tree, Declared):
        yield path, tree
    elif isinstance(tree, dict):
        for key, branch in tree.items():
            yield from _leaves(f"{path}[{key!r}]", branch)
    else:
        for i, branch in enumerate(tree):
            yield from _leaves(f"{path}[{i}]", branch)


def _nested(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, Declared):
        return next(values)
    if isinstance(tree, dict):
        return {key: _nested(branch, values) for key, branch in tree.items()}
    return type(tree)([_nested(branch, values) for branch in tree])
