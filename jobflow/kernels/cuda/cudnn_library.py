"""cuDNN by its Python frontend: availability, the handle of a thread and GPU, and launches of plans.

The frontend builds a graph of operations for arrays of fixed shapes and strides, and chooses a plan.  A launch passes addresses, the workspace and
the current stream.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from jobflow.core.types import Array

#: the series of the frontend that builds gradients with cuDNN 9.19, and the least version of cuDNN
FRONTEND, LEAST = "1.23.", 91900
PIP = 'pip install "jobflow-sbp[gpu-fast]"'


@cache
def missing() -> str:
    """Return the reason cuDNN cannot be used, or ""."""
    if importlib.util.find_spec("cudnn") is None:
        return f"nvidia-cudnn-frontend is not installed; {PIP}"
    cudnn = importlib.import_module("cudnn")
    if not cudnn.__version__.startswith(FRONTEND):
        return f"nvidia-cudnn-frontend is {cudnn.__version__}; {PIP}"
    try:
        version = int(cudnn.backend_version())
    except RuntimeError as error:
        return f"cuDNN cannot be loaded ({error}); {PIP}"
    return "" if version >= LEAST else f"cuDNN is {version}; {PIP}"


class CudnnLaunch:
    """A callable that runs a plan on the current stream of the thread, and keeps the arrays alive whose addresses it passes.

    `index` is the number of the plan among the proposals, or None for the plan that the graph has chosen.
    """

    capturable = True

    def __init__(self, graph: Any, handle: CudnnHandle, arrays: Sequence[Array], workspace: Array, index: int | None = None) -> None:
        self._graph, self._handle, self._arrays, self._workspace = graph, handle, arrays, workspace
        self._index = index
        self._pack = {uid: int(array.data.ptr) for uid, array in enumerate(arrays)}
        self._stream = importlib.import_module("cupy").cuda.get_current_stream

    def __call__(self) -> None:
        self._handle.use(int(self._stream().ptr))
        workspace = int(self._workspace.data.ptr)
        if self._index is None:
            self._graph.execute(self._pack, workspace, handle=self._handle.handle)
        else:
            self._graph.execute_plan_at_index(self._pack, workspace, self._index, handle=self._handle.handle)


class CudnnHandle:
    """cuDNN's handle of one thread and GPU; a change of its stream takes microseconds, so it is set only if it differs."""

    def __init__(self) -> None:
        self.module = importlib.import_module("cudnn")
        self.handle = self.module.create_handle()
        self._stream = -1

    def use(self, stream: int) -> None:
        if stream != self._stream:
            self.module.set_stream(handle=self.handle, stream=stream)
            self._stream = stream


_handles = threading.local()


def handle_of(index: int) -> CudnnHandle:
    """Return the handle of this thread for GPU `index`, which must be the current one."""
    known: dict[int, CudnnHandle] = _handles.__dict__.setdefault("known", {})
    if index not in known:
        known[index] = CudnnHandle()
    return known[index]
