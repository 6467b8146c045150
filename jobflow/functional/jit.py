"""The namespace `flow.jit`: PyTorch's TorchScript as identity, with one notice; `flow.compile` compiles functions and modules."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.notices import notice


def _unchanged(what: str, obj: Any) -> Any:
    if not callable(obj):
        raise ArgumentError(f"jit.{what} at {user_line()}: pass a function, a class or a module; got {obj!r}")
    notice(f"jit.{what} returns its argument unchanged; use flow.compile for speed")
    return obj


def script(obj: Any, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None, example_inputs: Any = None) -> Any:
    """Return a function, class or module unchanged, with one notice."""
    return _unchanged("script", obj)


def trace(func: Any, example_inputs: Any = None, *arguments: Any, **options: Any) -> Any:
    """Return a function or module unchanged, with one notice."""
    return _unchanged("trace", func)


def freeze(mod: Any, preserved_attrs: Any = None, optimize_numerics: bool = True) -> Any:
    """Return a module unchanged, with one notice."""
    return _unchanged("freeze", mod)


def optimize_for_inference(mod: Any, other_methods: Any = None) -> Any:
    """Return a module unchanged, with one notice."""
    return _unchanged("optimize_for_inference", mod)


def script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function unchanged."""
    return fn


def export(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function unchanged."""
    return fn


def interface(obj: Any) -> Any:
    """Return a class unchanged."""
    return obj


def _decorator(argument: Any) -> Any:
    """Return a function unchanged; for another argument, return a decorator that returns functions unchanged."""
    return argument if callable(argument) else lambda fn: fn


def ignore(drop: Any = False, **options: Any) -> Any:
    """Return a function unchanged, as `@ignore` or `@ignore(drop=True)`."""
    return _decorator(drop)


def unused(fn: Any = None) -> Any:
    """Return a function unchanged."""
    return _decorator(fn)


def is_scripting() -> bool:
    """Return False: code is never compiled by TorchScript."""
    return False


def is_tracing() -> bool:
    """Return False: code is never traced by TorchScript."""
    return False


def annotate(the_type: Any, the_value: Any) -> Any:
    """Return `the_value` unchanged."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Return True if the object is an instance of the type or types."""
    import builtins  # the name of this function hides the builtin

    return builtins.isinstance(obj, target_type)


class ScriptModule:
    """The class of modules of TorchScript, which does not exist; no object is an instance."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise JobError(f"jit.ScriptModule at {user_line()}: there are no modules of TorchScript; derive the class from nn.Module")


class ScriptFunction:
    """The class of functions of TorchScript, which does not exist; no object is an instance."""


class optimized_execution:
    """A `with` block without effect."""

    def __init__(self, should_optimize: bool) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class fuser(optimized_execution):
    """A `with` block without effect."""

    def __init__(self, name: str) -> None:
        super().__init__(True)


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Raise JobError, because programs of TorchScript are not supported."""
    raise JobError(
        f"jit.save at {user_line()}: programs of TorchScript are not supported; use flow.save(module.state_dict(), path), or export to ONNX"
    )


def load(f: Any, map_location: Any = None, _extra_files: Any = None) -> Any:
    """Raise JobError, because programs of TorchScript are not supported."""
    raise JobError(f"jit.load at {user_line()}: programs of TorchScript are not supported; create the module in Python and load its state_dict()")
