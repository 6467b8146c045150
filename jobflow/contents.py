"""A package whose names are imported when they are first asked for: `__init__.pyi` says where each is, `__init__.py` reads it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobflow.errors import did_you_mean


def read(stub: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Of a stub that has nothing but `from a import b as c`: name -> module and name in it ("" if it is the module); and its `__all__`."""
    homes: dict[str, tuple[str, str]] = {}
    public: list[str] = []
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            beside = stub.parent.name == node.module
            for alias in node.names:
                homes[alias.asname or alias.name] = (f"{node.module}.{alias.name}", "") if beside else (node.module, alias.name)
        elif isinstance(node, ast.Assign):
            public = ast.literal_eval(node.value)
    return homes, public


def attach(package: str, file: str, others: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package; `others` is a module whose public names it has too."""
    homes, public = read(Path(file).with_suffix(".pyi"))

    def find(name: str) -> Any:
        if name in homes:
            module = importlib.import_module(homes[name][0])
            found = getattr(module, homes[name][1]) if homes[name][1] else module
        else:
            rest = None if name.startswith("_") else importlib.import_module(others)
            if rest is None or not hasattr(rest, name):
                raise AttributeError(f"module {package!r} has no attribute {name!r}{did_you_mean(name, public)}")
            found = getattr(rest, name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*homes, *public, *importlib.import_module(others).__all__})

    return find, names, public
