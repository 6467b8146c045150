"""Containers of modules or parameters, by index or by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.checked_layers import check_layers
from jobflow.nn.modules.module import Module
from jobflow.nn.parameter import Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _at(what: str, index: Any, size: int) -> int:
    """Return the position of the element `index`, which may be negative; raise IndexError if it is out of range."""
    if not -size <= int(index) < size:
        raise IndexError(f"{what} at {user_line()}: index {index} is out of range for {size} elements")
    return int(index) % size


class _Parts(Module):
    """A container of modules or parameters."""

    _kind: ClassVar[str] = "_modules"

    @property
    def _parts(self) -> dict[str, Any]:
        return vars(self)[self._kind]

    def __len__(self) -> int:
        return len(self._parts)


class _Listed(_Parts):
    """A container whose modules or parameters have the names 0, 1, ..."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._parts.items())[index])
        return list(self)[_at(type(self).__name__, index, len(self))]

    def _of(self, parts: list[tuple[str, Any]]) -> Any:
        return type(self)([part for _, part in parts])  # type: ignore[call-arg]


class _Keyed(_Parts):
    """A container of modules or parameters by key."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, key: str) -> bool:
        return key in self._parts

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]

    def __delitem__(self, key: str) -> None:
        del self._parts[key]

    def keys(self) -> Iterable[str]:
        """Return the keys in the order of insertion."""
        return self._parts.keys()

    def values(self) -> Iterable[Any]:
        """Return the modules or parameters in the order of insertion."""
        return self._parts.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return pairs (key, module or parameter) in the order of insertion."""
        return self._parts.items()

    def pop(self, key: str) -> Any:
        """Remove the module or parameter `key`, and return it."""
        part = self[key]
        del self[key]
        return part


class _ListedModules(_Listed):
    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._modules)[_at(type(self).__name__, index, len(self))], module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)
        gone = names[index] if isinstance(index, slice) else [names[_at(type(self).__name__, index, len(self))]]
        self._renumber([module for name, module in self._modules.items() if name not in gone])

    def _renumber(self, modules: list[Module | None]) -> None:
        self._modules.clear()
        for number, module in enumerate(modules):
            self._modules[str(number)] = module

    def append(self, module: Module) -> Self:
        """Append a module, and return the container."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Append modules, and return the container."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Insert a module before index `index`, and return the container."""
        parts = list(self._modules.values())
        parts.insert(index, module)
        self._renumber([])
        for each in parts:
            self.add_module(str(len(self)), each)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove the module at an index, and return the module."""
        module = self[index]
        del self[index]
        return module


class Sequential(_ListedModules):
    """A sequence of modules, each applied to the output of the previous one.

    Pass the modules as arguments, as in Sequential(a, b, c), or as an OrderedDict of names and modules.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> model(flow.randn(5, 4)).shape
        jobflow.Size([5, 2])
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for number, module in enumerate(modules):
                self.add_module(str(number), module)

    def _of(self, parts: list[tuple[str, Any]]) -> Any:
        return type(self)(OrderedDict(parts))

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_ListedModules):
    """A list of modules, which are submodules with the names "0", "1" and so on; it has no forward method.

    Examples:
        >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        >>> len(list(layers.parameters()))
        6
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])


class ModuleDict(_Keyed):
    """A dict of modules, which are submodules with their keys as names; it has no forward method."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Assign each module to its key; `modules` is a mapping, or yields pairs (key, module)."""
        for key, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[key] = module

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()


def _parameter(what: str, value: Any) -> Parameter:
    if isinstance(value, Parameter):
        return value
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{what} at {user_line()}: elements must be parameters or tensors; got {type(value).__name__}")
    return Parameter(value)


class ParameterList(_Listed):
    """A list of parameters; tensors are converted to parameters."""

    _kind = "_parameters"

    def __init__(self, parameters: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(parameters or ())

    def __setitem__(self, index: int, parameter: Tensor) -> None:
        self.register_parameter(str(_at("ParameterList", index, len(self))), _parameter("ParameterList", parameter))

    def append(self, parameter: Tensor) -> Self:
        """Append a parameter, and return the container."""
        self.register_parameter(str(len(self)), _parameter("ParameterList", parameter))
        return self

    def extend(self, parameters: Iterable[Tensor]) -> Self:
        """Append parameters, and return the container."""
        for parameter in parameters:
            self.append(parameter)
        return self

    def extra_repr(self) -> str:
        return _shown(self._parameters)


class ParameterDict(_Keyed):
    """A dict of parameters; tensors are converted to parameters."""

    _kind = "_parameters"

    def __init__(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __setitem__(self, key: str, parameter: Tensor) -> None:
        self.register_parameter(key, _parameter("ParameterDict", parameter))

    def update(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Assign each parameter to its key; `parameters` is a mapping, or yields pairs (key, parameter)."""
        for key, parameter in parameters.items() if isinstance(parameters, Mapping) else parameters:
            self[key] = parameter

    def extra_repr(self) -> str:
        return _shown(self._parameters)


def _shown(parameters: Mapping[str, Parameter | None]) -> str:
    return "\n".join(f"({name}): Parameter {p.tensor_type if p is not None else None}" for name, p in parameters.items())


check_layers(globals())
