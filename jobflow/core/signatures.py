"""Variants of functions, with a fixed first argument or other defaults, and generated constructors of option classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import BoundArguments, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

First = TypeVar("First")
P = ParamSpec("P")
Result = TypeVar("Result")


def variant(function: Callable[Concatenate[First, P], Result], first: First, name: str, doc: str, /, **defaults: Any) -> Callable[P, Result]:
    """Return `function` with a fixed first argument, and with a different name, docstring and defaults."""
    whole = signature(function)
    parameters = [each.replace(default=defaults.get(each.name, each.default)) for each in list(whole.parameters.values())[1:]]
    own = whole.replace(parameters=parameters)

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> Result:
        try:
            if not defaults:
                return function(first, *arguments, **named)
            bound = _bound(name, own, arguments, named)
            bound.apply_defaults()
            return function(first, *bound.args, **bound.kwargs)
        except TypeError:
            _bound(name, own, arguments, named)  # raises an error about the arguments if they do not match
            raise

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    vars(call)["__signature__"] = own
    del vars(call)["__wrapped__"]
    call.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": own.return_annotation}
    return call


def _bound(name: str, own: Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> BoundArguments:
    try:
        return own.bind(*arguments, **named)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None


def take_fields(cls: type) -> tuple[str, ...]:
    """Add a dataclass constructor to a class; return the names of its fields.

    Class attributes with defaults are removed, because they would hide attributes of instances.
    """
    decorated: Any = dataclass(eq=False, repr=False)(cls)
    for name in vars(decorated).keys() & signature(decorated.__init__).parameters.keys():
        delattr(decorated, name)
    return tuple(each.name for each in fields(decorated))
