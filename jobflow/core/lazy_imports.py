"""A package whose names are imported on first use: `__init__.pyi` says where each is defined.

    __getattr__, __dir__, __all__ = attach(__name__, __file__)

Only users ask a package for its names.  The modules inside import each other by name (`import jobflow.core.scope as scope`).
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, cast

from jobflow.core.errors import no_attribute

#: public name -> the module where it is, and its name there; "" if it is that module
Homes = dict[str, tuple[str, str]]


def read(package: str, stub: Path) -> tuple[Homes, list[str]]:
    """Where the names are of a stub that has nothing but `from a import b as c` and `from a import *`, what a lists in `__all__`; and its own
    `__all__`, which is all of them if it has none."""
    homes: Homes = {}
    public: list[str] | None = None
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            beside = node.module == package
            if node.names[0].name == "*":
                source = stub.parents[package.count(".") + 1].joinpath(*node.module.split("."))
                homes = {name: (node.module, name) for name in _listed(node.module, source)} | homes
                continue
            for alias in node.names:
                homes[alias.asname or alias.name] = (f"{node.module}.{alias.name}", "") if beside else (node.module, alias.name)
        elif isinstance(node, ast.Assign):
            public = ast.literal_eval(node.value)
    return homes, list(homes) if public is None else public


def _listed(module: str, source: Path) -> Collection[str]:
    """Return the names that a module lists in `__all__`, or the names of a package's stub, without importing it."""
    if source.is_dir():
        return read(module, source / "__init__.pyi")[0]
    names = re.search(r"^__all__ = (\[.*?\])", source.with_suffix(".py").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert names is not None, f"{source} has an __all__"
    return ast.literal_eval(names[1])


def attach(
    package: str, file: str, modules: Mapping[str, str] = MappingProxyType({}), made: Callable[[str, Any], Any] = lambda name, found: found
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package; `modules` may be imported from it too, by name, and lie elsewhere.

    `made` says what the package has under a name in the place of what was found.
    """
    homes, public = read(package, Path(file).with_suffix(".pyi"))
    inside = Path(file).parent

    def find(name: str) -> Any:
        if name not in homes:
            # the import system asks for a module before it imports it
            hints = () if name.startswith("_") or inside.joinpath(f"{name}.py").exists() else homes
            raise no_attribute(name, f"module {package!r} has no attribute {name!r}", hints)
        home, attribute = homes[name]
        found = importlib.import_module(home)
        if attribute:
            found = getattr(found, attribute) if hasattr(found, attribute) else importlib.import_module(f"{home}.{attribute}")
        found = made(name, found)
        setattr(sys.modules[package], name, found)
        return found

    _Aliases.names[package] = homes.keys()
    _Aliases.modules |= {f"{package}.{name}": home for name, home in modules.items()}
    return find, lambda: sorted({*homes, *public}), public


class _Aliases:
    """`import jobflow.math` where the stub says that `math` is a module somewhere else: that very module, under both names.

    A finder and a loader without their base classes: `importlib.abc` imports all that unpacks archives, for every program.
    """

    #: package -> the names of its stub
    names: ClassVar[dict[str, Collection[str]]] = {}
    #: what may be imported besides -> where it is
    modules: ClassVar[dict[str, str]] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Of names inside packages that have another name, and of what only a stub names."""
        package, _, name = fullname.rpartition(".")
        inside = sys.modules.get(package)
        home = self.modules.get(fullname, "")
        if not home and inside is not None and package.startswith("jobflow"):
            if inside.__name__ != package:
                home = f"{inside.__name__}.{name}"
            elif name in self.names.get(package, ()) and not _is_file(fullname, inside.__path__):
                found = getattr(inside, name)
                home = found.__name__ if isinstance(found, ModuleType) else ""
        return ModuleSpec(fullname, cast(Any, self), loader_state=home) if home and importlib.util.find_spec(home) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """The module to begin with is an ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        """The import system takes what is in `sys.modules` afterwards."""
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(module.__spec__.loader_state)


def _is_file(fullname: str, path: Sequence[str]) -> bool:
    """True if the path has a file of this module; a folder without one may be the rest of an older version, with `__pycache__` alone."""
    spec = PathFinder.find_spec(fullname, path)
    return spec is not None and spec.origin is not None


sys.meta_path.insert(0, _Aliases())
