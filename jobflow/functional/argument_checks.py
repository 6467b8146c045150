"""Checks of the arguments of functions by their annotations, for arguments other than tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from jobflow.core.errors import ArgumentError, user_line
from jobflow.tensors.parameters import Roles

P = ParamSpec("P")
R = TypeVar("R")


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function to raise ArgumentError for an argument whose type does not match its annotation.

    Annotations such as `int`, `float | None`, `Sequence[int]` and `DType` are checked; see `jobflow.tensors.argument_kinds`.
    """
    roles: Roles | None = None

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        nonlocal roles
        if roles is None:
            roles = Roles(function.__name__, function)
        if named or len(arguments) > 1:
            check: Any = roles.check_kinds
            check(arguments, named)
        return function(*arguments, **named)

    return call


#: numbers of elements and of axes, and indices, are below this bound
_BOUND = 2**31


def check_size(what: str, name: str, *values: int) -> None:
    """Raise ArgumentError if an argument `name`, a size or an offset, is too large for a tensor."""
    for value in values:
        if abs(value) >= _BOUND:
            raise ArgumentError(f"{what} at {user_line()}: {name}={value} is too large; pass a number below {_BOUND}")
