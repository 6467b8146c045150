"""The `dataclass` of the standard library at a twentieth of its cost: importing jobflow defines some 370 classes with it.

The library generates and compiles six functions for each class.  This module generates a function at its first use; most are never used.
Functions that need not be fast are shared by all classes.  The fields are the library's: `fields`, `replace`, `asdict`, patterns and type
checkers work unchanged.  `order` is not supported.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, slots=False, weakref_slot=False):
        if cls is None:
            return partial(dataclass, repr=repr, eq=eq, frozen=frozen, slots=slots, weakref_slot=weakref_slot)
        cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise the library would read the parameters of `__init__`
        _here.making = True
        try:
            cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot)
        finally:
            _here.making = False
        own = vars(cls)
        hashes = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
        if "__init__" not in own:
            cls.__init__ = _LazyMethod(cls, "__init__", partial(_init, frozen))
        if repr and "__repr__" not in own:
            cls.__repr__ = _repr
        if eq and "__eq__" not in own:
            cls.__eq__ = _LazyMethod(cls, "__eq__", _eq)
        if eq and not hashes:
            cls.__hash__ = _LazyMethod(cls, "__hash__", _hash) if frozen else None
        if frozen and cls.__setattr__ is not Frozen.__setattr__:
            cls.__setattr__, cls.__delattr__ = Frozen.__setattr__, Frozen.__delattr__
        if frozen:
            cls.__dataclass_params__ = _FrozenParameters(cls.__dataclass_params__)
        if frozen and slots:
            cls.__getstate__, cls.__setstate__ = _state, _set_state
        return cls


class Frozen:
    """A mixin class that rejects assignments to attributes and their deletion."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


class _Here(threading.local):
    """A flag per thread: True while this module defines a class."""

    making = False


_here = _Here()


class _FrozenParameters:
    """A descriptor of `__dataclass_params__`: unchanged while this module defines a class, otherwise with frozen=True.

    The standard library reads `frozen` to check that frozen classes derive only from frozen classes.
    """

    def __init__(self, of_library: Any) -> None:
        self.of_library, self.frozen = of_library, copy(of_library)
        self.frozen.frozen = True

    def __get__(self, instance: object, owner: type) -> Any:
        return self.of_library if _here.making else self.frozen


class _LazyMethod:
    """A placeholder for a method, which replaces itself by the generated method at the first lookup.

    A lookup is a call of the method, a read of the signature, or an access by a derived class.
    """

    def __init__(self, cls: type, name: str, write: Callable[[Any], Callable[..., Any]]) -> None:
        self.cls, self.name, self.write = cls, name, write

    def __get__(self, instance: Any, owner: type) -> Any:
        method = self.write(self.cls)
        method.__module__, method.__qualname__ = self.cls.__module__, f"{self.cls.__qualname__}.{self.name}"
        setattr(self.cls, self.name, method)  # concurrent threads generate equal methods
        return method if instance is None else method.__get__(instance, owner)


class _FactoryPlaceholder:
    """Placeholder for `default_factory` in signatures."""

    def __repr__(self) -> str:
        return "<factory>"


_ANEW = _FactoryPlaceholder()


def _function(head: str, lines: Iterable[str], names: dict[str, Any]) -> Callable[..., Any]:
    names["__name__"] = __name__  # identifies frames of the function as jobflow's
    exec(f"def function({head}):\n " + "\n ".join(lines), names)
    function: Callable[..., Any] = names["function"]
    return function


def _init(frozen: bool, cls: Any) -> Callable[..., None]:
    """Generate `__init__`, for example `def __init__(self, x, *, z=_ANEW): self.x = x; self.z = factory() if z is _ANEW else z`.

    With `frozen`, the assignments bypass `Frozen.__setattr__`.
    """
    names: dict[str, Any] = {"__name__": cls.__module__, "_ANEW": _ANEW, "_put": object.__setattr__}
    parameters, lines = ["self"], []
    real = fields(cls)
    passed = [f for f in cls.__dataclass_fields__.values() if f not in real and "InitVar" in str(f.type)]
    init_fields = sorted((f for f in cls.__dataclass_fields__.values() if f in real or f in passed), key=lambda f: bool(f.kw_only))
    for f in init_fields:
        has_factory, name = f.default_factory is not MISSING, f.name
        default, value = f"default_{name}", name if f.init else f"default_{name}()"
        names[default] = f.default_factory if has_factory else f.default
        if f.init and f.kw_only and "*" not in parameters:
            parameters.append("*")
        if f.init and has_factory:
            parameters.append(f"{name}=_ANEW")
            value = f"{default}() if {name} is _ANEW else {name}"
        elif f.init:
            parameters.append(name if f.default is MISSING else f"{name}={default}")
        if f not in passed and (f.init or has_factory):
            lines.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(f"self.__post_init__({', '.join(f.name for f in passed)})")
    function = _function(", ".join(parameters), lines or ["pass"], names)
    function.__name__ = "__init__"
    function.__annotations__ = {f.name: f.type for f in init_fields if f.init} | {"return": None}
    return function


def _values(cls: Any, of: str) -> str:
    return f"({''.join(f'{of}.{f.name}, ' for f in fields(cls) if f.compare)})"


def _eq(cls: type) -> Callable[..., Any]:
    same = f"{_values(cls, 'self')} == {_values(cls, 'other')}"
    return _function("self, other", [f"return {same} if other.__class__ is self.__class__ else NotImplemented"], {})


def _hash(cls: type) -> Callable[..., int]:
    return _function("self", [f"return hash({_values(cls, 'self')})"], {})


@recursive_repr()
def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self) if f.repr)})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


__all__ = ["Frozen", "dataclass"]
