"""`import oneflow`: the forms in which programs import it, and what each of them finds.

oneflow, oneflow.compatible.single_client      the face of jobflow
oneflow.typing, oneflow.nn ...                 the module of jobflow with the same name
oneflow.core.record.record_pb2 ...             what programs took from generated modules: see `generated.py`
oneflow.python.framework.distribute            jobflow.distribute
oneflow_onnx.oneflow2onnx.util                 the tools that were published beside it: see `onnx_tools.py`
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from jobflow.compat.generated import MODULES
from jobflow.core.errors import no_attribute

#: what users see of it: the one package whose public names these modules show
jobflow: Any = importlib.import_module("jobflow")
PAGE = "docs/compatibility.md lists every name"
#: the package under its names
FACES = ("oneflow", "oneflow.compatible.single_client")
#: modules that lie elsewhere in jobflow
ELSEWHERE = {
    "python.framework.distribute": "jobflow.distribute",
    "python.framework.dtype": "jobflow",
    "python.framework.typing": "jobflow.typing",
    "python.ops.array_ops": "jobflow",
    "python.ops.math_ops": "jobflow.math",
    "python.ops.nn_ops": "jobflow.nn",
    "python.ops.layers": "jobflow.layers",
}
#: modules of packages that were published beside it
BESIDE = {"oneflow_onnx.oneflow2onnx.util": "jobflow.compat.onnx_tools"}
#: packages that hold nothing but modules of `MODULES` and `ELSEWHERE`
SHELLS = {"compatible"} | {name.rsplit(".", n)[0] for name in (*MODULES, *ELSEWHERE) for n in range(1, name.count(".") + 1)}
#: packages in which modules were generated from descriptions of messages
_OF_GENERATED = {f"core.{word}" for word in ("common", "framework", "job", "operator", "record", "register", "summary")}
#: such modules
_GENERATED = re.compile(r"core(\.\w+)*\.\w+_pb2")


class Face(ModuleType):
    """A module of jobflow under another name: what it lacks is answered with the nearest name and the page that lists all."""

    def __init__(self, name: str, shown: Any) -> None:
        super().__init__(name, shown.__doc__)
        self._shown = shown
        if hasattr(shown, "__path__") or shown is jobflow:
            self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in SHELLS and self._shown is jobflow:
            return importlib.import_module(f"oneflow.{name}")
        if (name.startswith("__") and name != "__version__") or not hasattr(self._shown, name):
            raise no_attribute(name, f"{self.__name__} has no {name!r} in jobflow ({PAGE})", dir(self))
        found = getattr(self._shown, name)
        if isinstance(found, ModuleType) and found.__name__.startswith("jobflow."):
            found = sys.modules.setdefault(f"{self.__name__}.{name}", Face(f"{self.__name__}.{name}", found))
        vars(self)[name] = found  # which is not asked for again
        return found

    def __dir__(self) -> Iterable[str]:
        if self._shown is jobflow:
            return dir(jobflow)
        return getattr(self._shown, "__all__", None) or [name for name in dir(self._shown) if not name.startswith("_")]


class Finder:
    """Finds `oneflow` and all below it; a loader of what it found, too.  As in `core/lazy_imports.py`, without base classes."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Of every name below `oneflow`; ModuleNotFoundError, in own words, for what jobflow does not have."""
        if fullname.partition(".")[0] not in ("oneflow", *(name.partition(".")[0] for name in BESIDE)):
            return None
        found = _module(fullname)
        if found is None:
            raise ModuleNotFoundError(f"jobflow has no module {fullname.partition('.')[2]!r} for {fullname!r}; {PAGE}", name=fullname)
        return ModuleSpec(fullname, cast(Any, self), loader_state=found)

    def create_module(self, spec: ModuleSpec) -> None:
        """The module to begin with is an ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        """The import system takes what is in `sys.modules` afterwards."""
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = module.__spec__.loader_state


def _module(fullname: str) -> ModuleType | None:
    """What `import fullname` gives."""
    if fullname in FACES:
        return sys.modules.get(FACES[0]) or Face(FACES[0], jobflow)
    if fullname in BESIDE:
        return Face(fullname, importlib.import_module(BESIDE[fullname]))
    if not fullname.startswith("oneflow."):
        return _shell(fullname) if any(name.startswith(f"{fullname}.") for name in BESIDE) else None
    name = next(fullname.removeprefix(f"{face}.") for face in reversed(FACES) if fullname.startswith(f"{face}."))
    if name in MODULES or _GENERATED.fullmatch(name):
        made = ModuleType(fullname)
        vars(made).update(MODULES.get(name, dict[str, Any])())
        return Face(fullname, made)
    if name in ELSEWHERE:
        return Face(fullname, importlib.import_module(ELSEWHERE[name]))
    if name in SHELLS or name in _OF_GENERATED:
        return _shell(fullname)
    found: Any = importlib.import_module(FACES[0])
    for word in name.split("."):
        found = getattr(found, word, None)
    return found if isinstance(found, ModuleType) else None


def _shell(fullname: str) -> ModuleType:
    """A package that holds nothing but other modules."""
    shell = ModuleType(fullname)
    shell.__path__ = []
    return shell


def install() -> None:
    """Have `import oneflow` find jobflow, in this process, before whatever is installed under that name."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, Finder()))
