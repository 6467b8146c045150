"""The lines of tests/public/names.txt, and the page of the API reference that describes each name."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from jobflow.core.lazy_imports import read  # noqa: E402

TABLE = ROOT / "tests" / "public" / "names.txt"
LINE = re.compile(
    r"""^[*\ ]\ (?P<path><tensor\ of\ a\ job>[\w.]*|jobflow[\w.]*(?:\(\)\.[\w.]+|\(\)(?=:\ a\ )|\[[^]]*\])?)
    (?P<signature>\(.*?\))?(?:(?::\ |\ (?==))(?P<remark>.*))?$""",
    re.VERBOSE,
)
BASES = re.compile(r"class \((.*)\)")


@dataclass(frozen=True)
class Name:
    """A public name: its dotted path, its signature with defaults, and its remark in the record."""

    path: str
    signature: str | None
    remark: str

    @property
    def is_class(self) -> bool:
        return self.remark.startswith("class")

    @property
    def is_module(self) -> bool:
        return self.remark.startswith("module")

    @property
    def alias_of(self) -> str:
        """The path of the same object, or ""."""
        return self.remark.removeprefix("is ") if self.remark.startswith("is ") else ""

    @property
    def bases(self) -> list[str]:
        match = BASES.search(self.remark)
        return match[1].split(", ") if match else []

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def anchor(self) -> str:
        """The name as an anchor of a page."""
        return re.sub(r"[^\w.]+", "-", self.path).strip("-")

    @property
    def word(self) -> str:
        return self.path.rpartition(".")[2]


@cache
def names() -> dict[str, Name]:
    """Return the public names by path, in the order of the record."""
    result = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, f"{TABLE}: {line!r} has another form"
            result[match["path"]] = Name(match["path"], match["signature"], match["remark"] or "")
    return result


def is_member(name: Name) -> bool:
    """Return True for a member of a class or of a value, which is described with it."""
    parent = names().get(name.parent)
    return name.parent.startswith("<") or (parent is not None and not parent.is_module)


# -------------------------------------------------------------------- pages

#: page -> title and first sentences
PAGES = {
    "tensors": ("Tensors", "The class `flow.Tensor`, element types, and the functions that create tensors."),
    "functions": ("Functions", "Functions of tensors: elementwise, reductions, shapes, indices."),
    "linear_algebra": ("Linear algebra and special functions", "Products, decompositions and solvers of matrices, and special functions."),
    "gradients": ("Gradients, graphs and compilation", "Gradients, `nn.Graph`, `flow.compile`, and contexts that change how operations run."),
    "modules": ("Modules", "Layers and losses with parameters: `from jobflow import nn`."),
    "nn_functional": ("Functions of neural networks", "The same layers and losses as functions: `nn.functional`."),
    "nn_tools": ("Initial values and tools of modules", "Initial values, utilities, averaged weights, and mixed precision."),
    "optim": ("Optimizers and schedules", "Optimizers of tensors and learning-rate schedules: `flow.optim`."),
    "global_tensors": ("Placements, layouts and ranks", "Global tensors, strategies, process groups and collectives."),
    "data": ("Data", "Readers, order and batches, and the data loaders with PyTorch's interface."),
    "training": ("Training and files", "Training from a configuration, models, checkpoints, saved files, and logs."),
    "distributions": ("Probability distributions", "Distributions with samples and log-probabilities, and random numbers."),
    "errors": ("Errors", "The exceptions that jobflow raises."),
    "devices": ("Devices and settings", "Devices, backends, profiling, and switches that programs for PyTorch use."),
    "jobs": ("Job functions", "Jobs, their variables, layers, losses and optimizers: the interface of OneFlow 0.2 to 0.4."),
    "job_functions": ("Functions of jobs", "Functions for tensors of jobs, and rarely used parts of that interface."),
}
#: prefix of a module that defines a name of flow, nn or nn.functional, or of a public path -> page; the longest prefix decides
AREAS = {
    "jobflow": "functions",
    "<tensor of a job>": "jobs",
    "jobflow.core.types": "tensors",
    "jobflow.core.errors": "errors",
    "jobflow.errors": "errors",
    "jobflow.core": "devices",
    "jobflow.version": "devices",
    "jobflow.core.scope": "jobs",
    "jobflow.scope": "jobs",
    "jobflow.engine": "jobs",
    "jobflow.engine.placements": "global_tensors",
    "jobflow.layout": "global_tensors",
    "jobflow.env": "global_tensors",
    "jobflow.typing": "jobs",
    "jobflow.legacy": "job_functions",
    **{
        f"jobflow.legacy.{part}": "jobs"
        for part in ("declare", "variables", "watch", "initializers", "layers", "optimizer", "loss_functions", "losses")
    },
    **{f"jobflow.legacy.{part}": "jobs" for part in ("regularizers", "normalization")},
    "jobflow.legacy.shared_names": "functions",
    "jobflow.legacy.onnx": "training",
    "jobflow.legacy.profiler": "devices",
    "jobflow.legacy.sysconfig": "devices",
    "jobflow.legacy.linalg": "linear_algebra",
    "jobflow.legacy.extras.summary": "training",
    **{f"jobflow.{part}": "jobs" for part in ("config", "layers", "losses", "optimizer", "initializers", "regularizers", "distribute", "session")},
    **{f"jobflow.{part}": "job_functions" for part in ("math", "image", "detection", "advanced", "deprecated", "experimental", "quantization")},
    **{f"jobflow.{part}": "job_functions" for part in ("saved_model", "serving", "unittest", "util", "tensorrt", "system")},
    "jobflow.functional": "functions",
    **{f"jobflow.functional.{part}": "tensors" for part in ("classes", "creation", "casting", "memory_formats", "dlpack", "filling", "sparse")},
    **{f"jobflow.functional.{part}": "tensors" for part in ("sparse_creation", "sparse_tensors")},
    **{f"jobflow.functional.{part}": "linear_algebra" for part in ("matrix_functions", "matrix_products", "special_functions", "special", "linalg")},
    **{f"jobflow.functional.{part}": "gradients" for part in ("gradients", "autograd", "jit")},
    **{f"jobflow.functional.{part}": "global_tensors" for part in ("global_tensors", "comm")},
    **{f"jobflow.functional.{part}": "devices" for part in ("devices", "switches", "values", "cuda", "backends", "mps", "hub", "multiprocessing")},
    "jobflow.functional.sampling": "distributions",
    "jobflow.functional.saving": "training",
    "jobflow.sparse": "tensors",
    **{f"jobflow.{part}": "linear_algebra" for part in ("linalg", "special")},
    **{f"jobflow.{part}": "gradients" for part in ("autograd", "jit", "compiler", "nn.graph", "nn.compiled", "nn.autocasting")},
    **{f"jobflow.{part}": "devices" for part in ("cuda", "backends", "mps", "hub", "multiprocessing", "profiler", "sysconfig")},
    **{f"jobflow.{part}": "distributions" for part in ("random", "distributions")},
    **{f"jobflow.{part}": "global_tensors" for part in ("distributed", "comm", "strategies", "filters", "core.filters", "utils.global_view")},
    "jobflow.nn": "modules",
    "jobflow.nn.functional": "nn_functional",
    **{f"jobflow.functional.{part}": "nn_functional" for part in ("nn_",)},
    **{f"jobflow.nn.{part}": "nn_tools" for part in ("init", "utils", "amp", "swa_utils")},
    "jobflow.amp": "nn_tools",
    **{f"jobflow.nn.{part}": "global_tensors" for part in ("parallel", "data_parallel_wrapper")},
    "jobflow.optim": "optim",
    **{f"jobflow.{part}": "data" for part in ("data", "utils.data")},
    **{f"jobflow.{part}": "training" for part in ("trainer", "models", "model", "train", "checkpoint", "storage", "summary", "onnx", "record")},
    **{f"jobflow.{part}": "training" for part in ("utils", "utils.checkpoint", "utils.tensorboard")},
    **{f"jobflow.{part}": "devices" for part in ("compat",)},
}
STUBS = {
    "jobflow": ("jobflow", "__init__.pyi"),
    "jobflow.nn": ("jobflow", "nn", "__init__.pyi"),
    "jobflow.nn.functional": ("jobflow", "nn", "functional.pyi"),
    "jobflow.functional": ("jobflow", "functional", "__init__.pyi"),
    "jobflow.optim": ("jobflow", "optim", "__init__.pyi"),
    "jobflow.data": ("jobflow", "data", "__init__.pyi"),
    "jobflow.distributed": ("jobflow", "distributed", "__init__.pyi"),
}


@cache
def modules_of(package: str) -> dict[str, str]:
    """Return the module that defines each name of a package with lazy imports."""
    entries, _ = read(package, ROOT.joinpath(*STUBS[package]))
    return {name: module for name, (module, _) in entries.items()}


def module_of(path: str) -> str:
    """Return the module that defines a public object, or its public path if no stub lists it."""
    for package in sorted(STUBS, key=len, reverse=True):
        if path.startswith(f"{package}."):
            word = path.replace("()", "").removeprefix(f"{package}.").partition(".")[0]
            module = modules_of(package).get(word, path)
            return modules_of("jobflow.functional").get(word, module) if module == "jobflow.functional" else module
    return path


def page_of(path: str) -> str:
    """Return the page that describes a public name: by its path, else by the module that defines it."""
    by_path = area(path, frozenset(AREAS) - {"jobflow", "jobflow.nn", "jobflow.functional", "jobflow.nn.functional"})
    return AREAS[by_path or area(module_of(path), frozenset(AREAS)) or "jobflow"]


def area(path: str, prefixes: frozenset[str]) -> str:
    """Return the longest of the prefixes that a path begins with, or ""."""
    matches = (each for each in prefixes if f"{path}.".startswith(f"{each}.") or (each.endswith("_") and path.startswith(each)))
    return max(matches, key=len, default="")
