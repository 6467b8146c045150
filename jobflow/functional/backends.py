"""The namespace `flow.backends`: PyTorch's switches of libraries, as modules that check what is assigned to them.

    import jobflow.backends.cudnn as cudnn
    cudnn.benchmark = True

A switch keeps its value and has no effect: no operation of tensors uses cuDNN, and results are deterministic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jobflow.core.errors import ArgumentError, no_attribute, user_line
from jobflow.functional.switches import checked_bool, get_float32_matmul_precision, set_float32_matmul_precision

__path__: list[str] = []


class Switches(ModuleType):
    """A module whose attributes are switches; an assignment checks the name and the type of the value."""

    def __init__(self, path: str, doc: str, switches: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
        name = f"{__name__}.{path}"
        super().__init__(name, doc)
        vars(self).update(functions)
        vars(self).update(switches)
        vars(self).update(
            _switches=dict(switches),
            _title=f"backends.{path}",
            __spec__=ModuleSpec(name, None),
            __path__=[],
            __all__=sorted({**switches, **functions}),
        )
        sys.modules[name] = self

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a switch.  Raises: ArgumentError for a value of another type; AttributeError for an unknown name."""
        if not name.startswith("__") and not isinstance(value, ModuleType):
            self._check(name, value)
        super().__setattr__(name, value)

    def _check(self, name: str, value: Any) -> None:
        if name not in self._switches:
            raise no_attribute(name, f"{self._title} at {user_line()}: there is no switch {name!r}", self._switches)
        now = self._switches[name]
        if type(value) is not type(now) and not (now is None or value is None):
            raise ArgumentError(f"{self._title}.{name} at {user_line()}: the value must be of type {type(now).__name__}; got {value!r}")

    @contextmanager
    def flags(self, **values: Any) -> Iterator[None]:
        """Set switches inside a `with` block, and restore their former values at its end."""
        for name, value in values.items():
            self._check(name, value)
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


class _Products(Switches):
    """Switches of matrix products; `allow_tf32` and `set_float32_matmul_precision` change the same setting."""

    def _check(self, name: str, value: Any) -> None:
        if name == "allow_tf32":
            checked_bool(f"{self._title}.{name}", "the value", value)
        else:
            super()._check(name, value)

    @property
    def allow_tf32(self) -> bool:
        """True if `set_float32_matmul_precision` permits less than float32."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_float32_matmul_precision("high" if value else "highest")


def _no() -> bool:
    """Return False: jobflow does not use this library for tensors."""
    return False


def _version() -> None:
    """Return None: jobflow does not use this library for tensors."""


def _opaque(**functions: Any) -> Mapping[str, Any]:
    return {"is_available": _no, "version": _version, **functions}


_FP32 = {"fp32_precision": "none"}
cudnn = Switches(
    "cudnn",
    "Switches of cuDNN.",
    {"enabled": True, "benchmark": False, "benchmark_limit": 10, "deterministic": False, "allow_tf32": True, **_FP32},
    _opaque(is_acceptable=lambda tensor: False),
)
_matmul = _Products(
    "cuda.matmul",
    "Switches of matrix products.",
    {"allow_fp16_reduced_precision_reduction": True, "allow_bf16_reduced_precision_reduction": True, "allow_fp16_accumulation": False},
    {},
)
cuda = Switches(
    "cuda",
    "Switches of CUDA.",
    {"preferred_linalg": "default"},
    {
        "matmul": _matmul,
        "is_built": _no,
        **{f"{name}_sdp_enabled": _no for name in ("flash", "mem_efficient", "cudnn")},
        "math_sdp_enabled": lambda: True,
        **{f"enable_{name}_sdp": lambda enabled: None for name in ("flash", "mem_efficient", "cudnn", "math")},
    },
)
mps = Switches("mps", "Availability of Apple's GPUs.", {}, {"is_available": _no, "is_built": _no})
mkl = Switches("mkl", "Availability of MKL.", {}, _opaque())
mkldnn = Switches("mkldnn", "Switches of oneDNN.", {"enabled": True, "deterministic": False, "allow_tf32": True, **_FP32}, _opaque())
openmp = Switches("openmp", "Availability of OpenMP.", {}, {"is_available": _no})
opt_einsum = Switches("opt_einsum", "Switches of einsum.", {"enabled": False, "strategy": None}, {"is_available": _no})
