"""Import forms of OneFlow programs, and the modules that they resolve to.

oneflow, oneflow.compatible.single_client      the public API of jobflow
oneflow.typing, oneflow.nn ...                 the module of jobflow with the same name
oneflow.core.record.record_pb2 ...             names of generated modules: see `MODULES`
oneflow.python.framework.distribute            jobflow.distribute
oneflow_onnx.oneflow2onnx.util                 the tools published as a separate package: see `onnx_tools.py`
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from jobflow.core.errors import no_attribute
from jobflow.core.scope import placement
from jobflow.data.ofrecord import record_classes
from jobflow.engine.distribute import Distribute
from jobflow.engine.job_config import FunctionConfig
from jobflow.legacy.initializers import Initializer
from jobflow.legacy.regularizers import Regularizer
from jobflow.legacy.util import unique_str

#: names of element types, in the order of their protobuf enum values
DATA_TYPES = "kInvalidDataType kChar kFloat kDouble kInt8 kInt32 kInt64 kUInt8 kOFRecord kFloat16 kTensorBuffer"
#: names of activations, in the order of their protobuf enum values
ACTIVATIONS = "kNone kTanH kRelu kSigmoid"


def _numbered(words: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split())}


#: functions that return the contents of modules, by name below `oneflow`
MODULES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "core.record.record_pb2": record_classes,
    "core.common.data_type_pb2": lambda: _numbered(DATA_TYPES),
    "core.operator.op_conf_pb2": lambda: _numbered(ACTIVATIONS),
    "core.job.initializer_conf_pb2": lambda: {"InitializerConf": Initializer},
    "core.job.regularizer_conf_pb2": lambda: {"RegularizerConf": Regularizer},
    "core.job.job_conf_pb2": lambda: {"JobConfigProto": FunctionConfig},
    "core.job.placement_pb2": lambda: {"ParallelConf": placement},
    "core.job.sbp_parallel_pb2": lambda: {"SbpParallel": Distribute},
    "python.framework.id_util": lambda: {"UniqueStr": unique_str},
}


#: the package whose public names the aliases contain
jobflow: Any = importlib.import_module("jobflow")
PAGE = "docs/compatibility.md lists every name"
#: names of the main package
FACES = ("oneflow", "oneflow.compatible.single_client")
#: modules with another path in jobflow
ELSEWHERE = {
    "python.framework.distribute": "jobflow.distribute",
    "python.framework.dtype": "jobflow",
    "python.framework.typing": "jobflow.typing",
    "python.ops.array_ops": "jobflow",
    "python.ops.math_ops": "jobflow.math",
    "python.ops.nn_ops": "jobflow.nn",
    "python.ops.layers": "jobflow.layers",
}
#: modules of packages that were published separately
BESIDE = {"oneflow_onnx.oneflow2onnx.util": "jobflow.compat.onnx_tools"}
#: packages that only contain modules of `MODULES` and `ELSEWHERE`
SHELLS = {"compatible"} | {name.rsplit(".", n)[0] for name in (*MODULES, *ELSEWHERE) for n in range(1, name.count(".") + 1)}
#: packages of modules generated from protocol buffers
_OF_GENERATED = {f"core.{word}" for word in ("common", "framework", "job", "operator", "record", "register", "summary")}
#: generated modules
_GENERATED = re.compile(r"core(\.\w+)*\.\w+_pb2")


class Face(ModuleType):
    """An alias of a module of jobflow; an unknown name raises an error with the closest match and the page that lists all names."""

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
        value = getattr(self._shown, name)
        if isinstance(value, ModuleType) and value.__name__.startswith("jobflow."):
            value = sys.modules.setdefault(f"{self.__name__}.{name}", Face(f"{self.__name__}.{name}", value))
        vars(self)[name] = value  # later accesses do not call this method
        return value

    def __dir__(self) -> Iterable[str]:
        if self._shown is jobflow:
            return dir(jobflow)
        return getattr(self._shown, "__all__", None) or [name for name in dir(self._shown) if not name.startswith("_")]


class Finder:
    """A finder and loader of the import system, for `oneflow`, `oneflow_onnx` and their submodules.

    The class has no base class, because `importlib.abc` imports the archive modules.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an import of OneFlow, or None for other imports; raise ModuleNotFoundError for a module that jobflow lacks."""
        if fullname.partition(".")[0] not in ("oneflow", *(name.partition(".")[0] for name in BESIDE)):
            return None
        module = _module(fullname)
        if module is None:
            raise ModuleNotFoundError(f"jobflow has no module {fullname.partition('.')[2]!r} for {fullname!r}; {PAGE}", name=fullname)
        return ModuleSpec(fullname, cast(Any, self), loader_state=module)

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that the import system creates an ordinary module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the new module in `sys.modules` by the alias module; the import system returns that entry."""
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = module.__spec__.loader_state


def _module(fullname: str) -> ModuleType | None:
    """Return an alias module or an empty package for `fullname`, or None if jobflow has no such module."""
    if fullname in FACES:
        return sys.modules.get(FACES[0]) or Face(FACES[0], jobflow)
    if fullname in BESIDE:
        return Face(fullname, importlib.import_module(BESIDE[fullname]))
    if not fullname.startswith("oneflow."):
        return _shell(fullname) if any(name.startswith(f"{fullname}.") for name in BESIDE) else None
    name = next(fullname.removeprefix(f"{face}.") for face in reversed(FACES) if fullname.startswith(f"{face}."))
    if name in MODULES or _GENERATED.fullmatch(name):
        module = ModuleType(fullname)
        vars(module).update(MODULES.get(name, dict[str, Any])())
        return Face(fullname, module)
    if name in ELSEWHERE:
        return Face(fullname, importlib.import_module(ELSEWHERE[name]))
    if name in SHELLS or name in _OF_GENERATED:
        return _shell(fullname)
    source: Any = importlib.import_module(FACES[0])
    for word in name.split("."):
        source = getattr(source, word, None)
    return source if isinstance(source, ModuleType) else None


def _shell(fullname: str) -> ModuleType:
    """Return an empty package named `fullname`; its submodules are imported separately."""
    shell = ModuleType(fullname)
    shell.__path__ = []
    return shell


def install() -> None:
    """Resolve `import oneflow` to jobflow in this process, even if a package of that name is installed."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, Finder()))
