"""Tensors as arguments of einops: a backend that is registered as soon as einops is imported, before or after jobflow.

jobflow does not import einops.  einops looks for subclasses of its class `AbstractBackend`, so the subclass is defined when the module of that
class is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

_MODULE = "einops._backends"


def register() -> None:
    """Register the backend now if einops is loaded, otherwise when it is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _define(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, _Finder()))


def _define(module: ModuleType) -> None:
    """Define the subclass that einops finds; `module` references the subclass, because the base class has only weak references to subclasses."""
    from jobflow.functional.einops_backend import TensorFunctions  # few programs use einops

    if not hasattr(module, "JobflowBackend"):
        module.JobflowBackend = type("JobflowBackend", (TensorFunctions, module.AbstractBackend), {})  # type: ignore[attr-defined]


class _Finder:
    """A finder of the module of einops that defines backends; without a base class, because `importlib.abc` imports the archive modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader))
        return spec


class _Loader:
    """The loader of the module, which defines the subclass after the code of the module."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _define(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
