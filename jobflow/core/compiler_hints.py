"""The namespaces `flow._dynamo` and `flow.compiler`: PyTorch's hints for its compiler, which have no effect here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jobflow.core.scope as scope

#: settings of PyTorch's compiler; any attribute can be set
config = SimpleNamespace(suppress_errors=False, cache_size_limit=8, verbose=False)


def disable(fn: Any = None, recursive: bool = True, *, reason: Any = None) -> Any:
    """Return a function unchanged, as `@disable` or `@disable()`; compiled functions trace the function like any other."""
    return (lambda function: function) if fn is None else fn


def allow_in_graph(fn: Any) -> Any:
    """Return a function unchanged."""
    return fn


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function unchanged."""
    return fn


def mark_dynamic(t: Any, index: Any, *, min: int | None = None, max: int | None = None) -> None:
    """Do nothing; a compiled function is compiled once per shape."""


def mark_static(t: Any, index: Any = None) -> None:
    """Do nothing; a compiled function is compiled once per shape."""


def graph_break() -> None:
    """Do nothing."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing."""


def reset() -> None:
    """Do nothing; compiled functions remain valid."""


def is_compiling() -> bool:
    """Return True while a program is traced."""
    here = scope.current()
    return here.interpreter is not None or (here.root.eager is not None and here.root.eager.building is not None)


is_dynamo_compiling = is_compiling
