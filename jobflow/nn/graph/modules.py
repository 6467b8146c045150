"""Modules as attributes of a graph: proxies that give access to the module and to its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobflow.core.errors import JobError, user_line
from jobflow.nn.graph.settings import GraphModule
from jobflow.nn.modules.module import Module


def is_module(x: Any) -> bool:
    """Whether x is an nn.Module."""
    return isinstance(x, Module)


class ProxyModule:
    """A module as its graph sees it.

    `to(nn.Module)` is the module itself; `to(nn.graph.GraphModule)` what the graph is told about it.  Submodules are proxies too;
    all else is as in the module.
    """

    _OWN = ("_module", "_settings")

    def __init__(self, module: Any, settings: dict[int, GraphModule]) -> None:
        self._module = module
        self._settings = settings

    def to(self, kind: type) -> Any:
        """The module, or what the graph is told about it."""
        if kind is GraphModule:
            return self._settings.setdefault(id(self._module), GraphModule(self._module))
        if isinstance(kind, type) and isinstance(self._module, kind):
            return self._module
        raise JobError(f"to at {user_line()}: {type(self._module).__name__} in a graph gives its nn.Module or its nn.graph.GraphModule; got {kind!r}")

    @property
    def config(self) -> GraphModule:
        """The older name of `to(nn.graph.GraphModule)`."""
        found: GraphModule = self.to(GraphModule)
        return found

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._module(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return self._seen(getattr(self._module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._module, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self._seen(self._module[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._seen, self._module)

    def __len__(self) -> int:
        return len(self._module)

    def _seen(self, x: Any) -> Any:
        return ProxyModule(x, self._settings) if is_module(x) else x

    def __repr__(self) -> str:
        said = self._settings.get(id(self._module))
        return f"{self._module!r}{'' if said is None else f' {said!r}'}"
