"""Lazy imports of a package's public names; `__init__.pyi` defines their modules.

    __getattr__, __dir__ = attach(__name__, __file__)

The stub is read at the first use of a name; `__all__` is one of the names.  Only user code imports names from the package.  Internal modules
import each other directly (`import jobflow.core.scope as scope`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, cast

from jobflow.core.errors import no_attribute
from jobflow.core.missing_features import missing

#: public name -> (module, attribute); the attribute "" is the module itself
Homes = dict[str, tuple[str, str]]
_IMPORT = re.compile(r"^from ([\w.]+) import (?:(\w+)(?: as (\w+))?|\*)(?: *#.*)?$", re.MULTILINE)
_LIST = re.compile(r"^__all__ = \[(.*?)\]", re.MULTILINE | re.DOTALL)


def read(package: str, stub: Path) -> tuple[Homes, list[str]]:
    """Return the (module, attribute) of each name of a stub, and the stub's `__all__`, by default all names.

    The stub contains only lines `from a import b as c` and `from a import *`, and `__all__ = [...]`.  A star import adds the names in `a.__all__`.
    """
    text = stub.read_text(encoding="utf-8")
    root = stub.parents[package.count(".") + (stub.name == "__init__.pyi")]
    targets: Homes = {}
    lines = _IMPORT.findall(text)
    assert len(lines) == len(re.findall("^from ", text, re.MULTILINE)), f"{stub} has a line with several names"
    for module, name, public in lines:
        if not name:
            targets = {each: (module, each) for each in _listed(module, root.joinpath(*module.split(".")))} | targets
        else:
            targets[public or name] = (f"{module}.{name}", "") if module == package else (module, name)
    return targets, _public(text) or list(targets)


@cache
def _listed(module: str, source: Path) -> Collection[str]:
    """Return the names that a module lists in `__all__`, or the names of a package's stub, without an import."""
    if source.is_dir():
        return read(module, source / "__init__.pyi")[0]
    names = _public(source.with_suffix(".py").read_text(encoding="utf-8"))
    assert names, f"{source} has an __all__"
    return names


def _public(text: str) -> list[str]:
    """Return the names in the `__all__` of a module's text; an empty list if there is none."""
    names = _LIST.search(text)
    return [] if names is None else re.findall(r"['\"](\w+)['\"]", names[1])


def attach(
    package: str, file: str, modules: Mapping[str, str] = MappingProxyType({}), convert: Callable[[str, Any], Any] = lambda name, value: value
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, or of a module with a stub.

    `modules` maps paths below this package, such as "layout" or "nn.modules.linear", to modules.  `convert` returns the public value from the
    name and the imported object.
    """
    inside = Path(file).parent

    @cache
    def table() -> tuple[Homes, list[str]]:
        return read(package, Path(file).with_suffix(".pyi"))

    def find(name: str) -> Any:
        if f"{package}.{name}" in _Aliases.modules:
            return importlib.import_module(f"{package}.{name}")
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=None)
        targets, public = table()
        if name == "__all__":
            return public
        if name not in targets:
            # the import system looks up a module before it imports it
            hints = () if name.startswith("_") or inside.joinpath(f"{name}.py").exists() else targets
            reason = missing(package, name)
            raise no_attribute(name, f"module {package!r} has no attribute {name!r}{reason}", () if reason else hints)
        target, attribute = targets[name]
        value = importlib.import_module(target)
        if attribute:
            value = getattr(value, attribute) if hasattr(value, attribute) else importlib.import_module(f"{target}.{attribute}")
        value = convert(name, value)
        setattr(sys.modules[package], name, value)
        return value

    _Aliases.tables[package] = table
    _Aliases.modules |= {f"{package}.{name}": target for name, target in modules.items()}
    return find, lambda: sorted({*table()[0], *table()[1]})


def add_aliases(module: str, public: str) -> None:
    """Make the aliases below `public` attributes of `module`, whose public path is `public`; they are imported at their first use.

    A module that is not a package becomes one without files.
    """
    inside = vars(sys.modules[module])

    def find(name: str) -> Any:
        below = f"{public}.{name}"
        if below not in _Aliases.modules:
            reason = missing(public, name)
            raise no_attribute(name, f"module {public!r} has no attribute {name!r}{reason}", () if reason or name.startswith("_") else inside)
        return importlib.import_module(below)

    inside.setdefault("__path__", [])
    inside["__getattr__"] = find


class _Aliases:
    """An import hook for module aliases of stubs, such as `jobflow.math`. The aliased module and the alias are one module object.

    The class has no base class, because `importlib.abc` imports the archive modules.
    """

    #: package -> function that returns the names of its stub, with their modules
    tables: ClassVar[dict[str, Callable[[], tuple[Homes, list[str]]]]] = {}
    #: alias -> module of another package
    modules: ClassVar[dict[str, str]] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module in an aliased package, or of a module named only in a stub; None for other modules."""
        package, _, name = fullname.rpartition(".")
        inside = sys.modules.get(package)
        real = self.modules.get(fullname, "")
        if not real and inside is not None and package.startswith("jobflow"):
            if inside.__name__ != package:
                real = f"{inside.__name__}.{name}"
            elif package in self.tables and not _is_file(fullname, inside.__path__) and name in self.tables[package]()[0]:
                attribute = getattr(inside, name)
                real = attribute.__name__ if isinstance(attribute, ModuleType) else ""
        return ModuleSpec(fullname, cast(Any, self), loader_state=real) if real and importlib.util.find_spec(real) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, which selects the default creation of modules."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the new module in `sys.modules` by the aliased module; the import system returns that entry."""
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(module.__spec__.loader_state)


def _is_file(fullname: str, path: Sequence[str]) -> bool:
    """Return True if `path` contains a file of the module `fullname`.

    A folder with `__pycache__` only, from an older version, does not count.
    """
    if any(os.path.isfile(os.path.join(folder, f"{fullname.rpartition('.')[2]}.py")) for folder in path):
        return True
    spec = PathFinder.find_spec(fullname, path)
    return spec is not None and spec.origin is not None


sys.meta_path.insert(0, _Aliases())
