"""Argument checks of the public classes of a module of layers."""

from __future__ import annotations

from typing import Any

from jobflow.functional.dispatch import of_tensors
from jobflow.nn.modules.module import Module


def check_layers(names: dict[str, Any], *private: str) -> None:
    """Check the arguments of `forward` as for functions, in the classes of `__all__` and in base classes that are public elsewhere.

    `names` are the globals of a module.
    """
    for name in (*names["__all__"], *private):
        layer = names[name]
        if isinstance(layer, type) and issubclass(layer, Module) and layer.forward is not Module.forward:
            setattr(layer, "forward", of_tensors(layer.forward, name))  # noqa: B010 - a class attribute to the type checker
