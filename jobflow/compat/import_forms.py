"""`import oneflow`: the forms in which programs import it, and what each of them finds.

oneflow, oneflow.compatible.single_client      the face of jobflow
oneflow.typing, oneflow.nn ...                 the module of jobflow with the same name
oneflow.core.record.record_pb2 ...             what programs took from generated modules: see `generated.py`
oneflow.python.framework.distribute            jobflow.distribute
"""

from __future__ import annotations

import importlib
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
ELSEWHERE = {"python.framework.distribute": "jobflow.distribute", "python.framework.dtype": "jobflow", "python.framework.typing": "jobflow.typing"}
#: packages that hold nothing but modules of `MODULES` and `ELSEWHERE`
SHELLS = {"compatible"} | {name.rsplit(".", n)[0] for name in (*MODULES, *ELSEWHERE) for n in range(1, name.count(".") + 1)}


class Face(ModuleType):
    """jobflow under another name: what it lacks is answered with the nearest name and the page that lists all."""

    def __init__(self, name: str) -> None:
        super().__init__(name, jobflow.__doc__)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in SHELLS:
            return importlib.import_module(f"oneflow.{name}")
        if name.startswith("__") or not hasattr(jobflow, name):
            raise no_attribute(name, f"jobflow has no {name!r} ({PAGE})", dir(jobflow))
        return getattr(jobflow, name)

    def __dir__(self) -> Iterable[str]:
        return dir(jobflow)


class Finder:
    """Finds `oneflow` and all below it; a loader of what it found, too.  As in `core/lazy_imports.py`, without base classes."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Of every name below `oneflow`; ModuleNotFoundError, in own words, for what jobflow does not have."""
        if fullname.partition(".")[0] != "oneflow":
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
        return sys.modules.get(FACES[0]) or Face(FACES[0])
    name = next(fullname.removeprefix(f"{face}.") for face in reversed(FACES) if fullname.startswith(f"{face}."))
    if name in MODULES:
        made = ModuleType(fullname)
        vars(made).update(MODULES[name]())
        return made
    if name in ELSEWHERE:
        return cast(ModuleType, getattr(jobflow, ELSEWHERE[name].removeprefix("jobflow."), jobflow))
    if name in SHELLS:
        shell = ModuleType(fullname)
        shell.__path__ = []
        return shell
    found: Any = jobflow
    for word in name.split("."):
        found = getattr(found, word, None)
    return found if isinstance(found, ModuleType) else None


def install() -> None:
    """Have `import oneflow` find jobflow, in this process, before whatever is installed under that name."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, Finder()))
