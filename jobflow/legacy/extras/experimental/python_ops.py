"""Operations with Python functions as kernels, in the plugin format of OneFlow 0.3 and 0.4: `custom_op_module`.

    user_sigmoid/
        user_sigmoid_py_api.py        functions of tensors, by user_op_builder("...").Op("user_sigmoid_forward").Input("x", [x]).Output("y") ...
        user_sigmoid_py_kernel.py     forward(args) and backward(args): arrays to an array

    op = flow.experimental.custom_op_module("user_sigmoid", "path/of/the/folder's/parent")
    op.py_api().cpp_def().py_kernel().build_load()
    y = op.api.user_sigmoid_forward(x)

`forward` receives the inputs. `backward`, the gradient, receives an output and its gradient: (y, dy). Shapes are inferred by a call of `forward`
with ones. Definitions and kernels in C++ are not compiled.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, type_of
from jobflow.legacy.extras import user_ops
from jobflow.ops.op import Grads, Op
from jobflow.ops.pointwise import call


class PythonKernel(Op):
    """An operation y = f(inputs), where f is the Python function `function` in `file`."""

    file: str
    function: str

    def infer(self, *types: TensorType) -> TensorType:
        return type_of(self._run([np.ones(t.shape, t.dtype.numpy) for t in types]))

    def rule(self, *types: TensorType) -> Rule:
        result = self.infer(*types)
        words = ["ABCDEFGH"[: t.ndim] or "1" for t in types]
        return Rule(f"{','.join(words)}->{'ABCDEFGH'[: result.ndim]}")

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        *inputs, y = arrays
        result = self._run([a if xp is np else xp.asnumpy(a) for a in inputs])
        y[...] = xp.asarray(result)

    def _run(self, inputs: Sequence[Any]) -> Any:
        function = getattr(loaded(self.file), self.function, None)
        if function is None:
            raise ArgumentError(f"{self.file} does not define the function {self.function}(args)")
        return np.asarray(function(tuple(inputs)))

    def grad(self, *tensors: Any) -> Grads:
        *inputs, y, dy = tensors
        if len(inputs) != 1 or self.function != "forward":
            raise JobError(
                f"{self.file}: a gradient requires the function forward with one input, not {self.function} with {len(inputs)}; "
                "define the operation as a class"
            )
        return (None if dy is None else call(PythonKernel(self.file, "backward"), y, dy),)


@functools.cache
def loaded(file: str) -> ModuleType:
    """Import the Python file `file` as a module, once; raise ArgumentError if there is no such file."""
    description = importlib.util.spec_from_file_location(Path(file).stem, file)
    if description is None or description.loader is None or not Path(file).exists():
        raise ArgumentError(f"custom_op_module at {user_line()}: no such file: {file}")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


class custom_op_module:
    """A plugin: the operations in the folder `<module_path>/<op_module_name>`."""

    def __init__(self, op_module_name: str, module_path: str = "") -> None:
        self.op_module_name = op_module_name
        self.folder = Path(module_path) / op_module_name
        if not self.folder.is_dir():
            raise ArgumentError(f"custom_op_module at {user_line()}: no such folder: {self.folder}")

    def _file(self, part: str) -> str:
        return str(self.folder / f"{self.op_module_name}_{part}.py")

    @property
    def api(self) -> ModuleType:
        """The imported module `<name>_py_api.py`, with the functions of the plugin."""
        return loaded(self._file("py_api"))

    def py_api(self) -> custom_op_module:
        """Import `<name>_py_api.py` and return the plugin."""
        loaded(self._file("py_api"))
        return self

    def cpp_def(self) -> custom_op_module:
        """Do nothing and return the plugin: shapes are inferred from the Python kernel instead of a definition in C++."""
        return self

    def cpp_kernel(self) -> custom_op_module:
        """Raise JobError, because kernels in C++ and CUDA are not supported."""
        raise JobError(f"custom_op_module at {user_line()}: kernels in C++ and CUDA are not supported; write a py_kernel or an operation class")

    gpu_kernel = cpp_kernel

    def py_kernel(self) -> custom_op_module:
        """Register the operations `<name>_forward` and `<name>_backward`, where <name> is `op_module_name`, and return the plugin.

        `<name>_grad` is an alias of `<name>_backward`.
        """
        for word, function in (("forward", "forward"), ("backward", "backward"), ("grad", "backward")):
            user_ops.OWN_FUNCTIONS[f"{self.op_module_name}_{word}"] = _applied(self._file("py_kernel"), function)
        return self

    def build_load(self) -> custom_op_module:
        """Do nothing and return the plugin, because it needs no compilation."""
        return self


def _applied(file: str, function: str) -> Callable[..., Tensor]:
    return lambda *x: call(PythonKernel(file, function), *x)
