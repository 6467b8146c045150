"""A package whose names are imported when they are first asked for: `__init__.pyi` says where each is, `__init__.py` reads it.

    __getattr__, __dir__, __all__ = attach(__name__, __file__)

Only users ask a package for its names.  The modules inside import each other by name (`import jobflow.scope as scope`).
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobflow.errors import no_attribute

#: public name -> the module where it is, and its name there; "" if it is that module
Homes = dict[str, tuple[str, str]]


def read(package: str, stub: Path) -> tuple[Homes, list[str]]:
    """Where the names are of a stub that has nothing but `from a import b as c`; and its `__all__`, which is all of them if it has none."""
    homes: Homes = {}
    public: list[str] | None = None
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            beside = node.module == package
            for alias in node.names:
                homes[alias.asname or alias.name] = (f"{node.module}.{alias.name}", "") if beside else (node.module, alias.name)
        elif isinstance(node, ast.Assign):
            public = ast.literal_eval(node.value)
    return homes, list(homes) if public is None else public


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package."""
    homes, public = read(package, Path(file).with_suffix(".pyi"))

    def find(name: str) -> Any:
        if name not in homes:
            raise no_attribute(name, f"module {package!r} has no attribute {name!r}", homes)
        home, inside = homes[name]
        module = importlib.import_module(home)
        found = getattr(module, inside) if inside else module
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*homes, *public}), public
