"""Wrappers of job functions with the input and attribute names of an operation type.

    named_as(image.decode, "in=images_bytes_buffer", "data_type=dtype")

This wrapper has the input `in`, and the attributes `data_type` and `color_space` with the defaults of the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def named_as(function: Callable[..., Any], inputs: str = "", renamed: str = "", unread: str = "") -> Callable[..., Any]:
    """Return a wrapper of `function` whose parameters are the inputs and attributes of an operation type.

    `inputs` and `renamed` contain words "name=parameter", for inputs and for attributes. Every other parameter is an attribute of the same name.
    Attributes in `unread` have no effect, except `has_<name>`: unless it is true, the attribute <name> is ignored. A seed of -1 means no seed.
    """
    parameters = inspect.signature(function).parameters
    accepted = {name: parameter or name for name, _, parameter in (each.partition("=") for each in inputs.split())}
    others = {parameter: name for name, _, parameter in (each.partition("=") for each in renamed.split())}
    own = {others.get(p, p): p for p in parameters if p not in accepted.values() and p != "name"}
    switches = [word for word in unread.split() if word.startswith("has_")]

    def row(*arguments: Any, name: str | None = None, **attributes: Any) -> Any:
        read = dict(attributes)
        for word in switches:
            if not read.get(word, False):
                read.pop(word.removeprefix("has_"), None)
        named = {own[word]: value for word, value in read.items() if word in own and not (word.endswith("seed") and value == -1)}
        further = {} if name is None else {"name": name}
        return function(**dict(zip(accepted.values(), arguments, strict=True)), **named, **further)

    def parameter(name: str, default: Any, kind: Any = inspect.Parameter.KEYWORD_ONLY) -> inspect.Parameter:
        return inspect.Parameter(name, kind, default=default)

    row.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(parameter("in_" if n == "in" else n, parameters[p].default, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n, p in accepted.items()),
            *(parameter(n, parameters[p].default) for n, p in own.items()),
            *(parameter(word, None) for word in unread.split()),
            parameter("name", None),
        ]
    )
    return row
