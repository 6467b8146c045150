"""Structures of the arguments and results of graphs and modules: tensors in nested lists, tuples and dicts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import JobError, user_line
from jobflow.tensors.tensor import TensorBase


def leaves(x: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the tensors in nested lists, tuples and dicts, with names such as "input.0.key" that begin with `name`.

    None is skipped.  Raises: JobError for any other object.
    """
    if isinstance(x, TensorBase):
        yield name, x
    elif isinstance(x, list | tuple):
        for i, one in enumerate(x):
            yield from leaves(one, f"{name}.{i}")
    elif isinstance(x, dict):
        for key, one in x.items():
            yield from leaves(one, f"{name}.{key}")
    elif x is not None:
        what = f"nn.Graph at {user_line()}: {name} is"
        if isinstance(x, np.ndarray):
            raise JobError(f"{what} a NumPy array {x.dtype}{list(x.shape)}, not a tensor; convert it: flow.tensor(x)")
        raise JobError(f"{what} {x!r}; build takes and returns tensors and None, in lists, tuples and dicts")


def form(x: Any) -> Any:
    """Return a key for the structure of x, equal for equal nesting; a leaf is True for a tensor and False otherwise."""
    if isinstance(x, list | tuple):
        return type(x).__name__, tuple(map(form, x))
    if isinstance(x, dict):
        return "dict", tuple((key, form(one)) for key, one in x.items())
    return isinstance(x, TensorBase)


def filled(x: Any, tensors: Iterator[Any]) -> Any:
    """Return x with its tensors replaced, in order, by the elements of `tensors`."""
    return replaced(x, TensorBase, lambda _: next(tensors))


def replaced(x: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return x with every object of the class `kind` replaced by change(object), also in nested lists, tuples, dicts and dataclasses."""
    if isinstance(x, kind):
        return change(x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(replaced(one, kind, change) for one in x))
    if isinstance(x, list | tuple):
        return type(x)(replaced(one, kind, change) for one in x)
    if isinstance(x, dict):
        return x | {key: replaced(one, kind, change) for key, one in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        before = {field.name: getattr(x, field.name) for field in dataclasses.fields(x) if hasattr(x, field.name)}
        now = {name: replaced(one, kind, change) for name, one in before.items()}
        if any(now[name] is not one for name, one in before.items()):
            x = copy.copy(x)
            for name, one in now.items():
                object.__setattr__(x, name, one)
    return x
