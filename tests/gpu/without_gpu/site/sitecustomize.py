"""Install the stub GPU in every Python process whose PYTHONPATH contains this folder, when that process first imports CuPy.

JOBFLOW_GPU_STUB names the folder of the compiled library; the texts of kernels are saved to its subfolder `texts`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class StubFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "cupy":
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = StubLoader(spec.loader)
        return spec


class StubLoader(Loader):
    """A loader that installs the stub around CuPy's own loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        import host_runtime

        folder = Path(os.environ["JOBFLOW_GPU_STUB"])
        counts = host_runtime.before_cupy(folder)
        self._loader.exec_module(module)
        texts = folder / "texts"
        texts.mkdir(exist_ok=True)
        host_runtime.after_cupy(counts, texts)


if "JOBFLOW_GPU_STUB" in os.environ:
    sys.meta_path.insert(0, StubFinder())
