"""The number of threads of NumPy's BLAS library.

Each rank should compute on its own cores, so ranks that share a process or a node divide the cores among them.  threadpoolctl supports every
library, if it is installed.  Otherwise the OpenBLAS of NumPy's wheels is called through ctypes.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.notices import notice
from jobflow.kernels.blas import openblas_files


class Knob(NamedTuple):
    """A pair of functions: `get` returns the number of threads of a matrix library, and `set` changes it."""

    get: Callable[[], int]
    set: Callable[[int], None]


def library() -> str:
    """Return the name and version of NumPy's matrix library."""
    built: Mapping[str, Any] = np.show_config(mode="dicts") or {}
    about = built.get("Build Dependencies", {}).get("blas", {})
    return f"{about.get('name', 'unknown')} {about.get('version', '')}".strip()


def limit(threads: int) -> int | None:
    """Set the number of threads of NumPy's BLAS library; return the previous number.

    If the number cannot be changed, a notice is printed and the result is None.
    """
    knob = _knob()
    if knob is None:
        notice("cannot set the number of threads of NumPy's matrix library; set OMP_NUM_THREADS or OPENBLAS_NUM_THREADS to 1 if ranks are slow")
        return None
    before = knob.get()
    knob.set(threads)
    return before


def threads() -> int | None:
    """Return the current number of threads of NumPy's BLAS library, or None if it cannot be read."""
    knob = _own()
    return None if knob is None else knob.get()


@cache
def _own() -> Knob | None:
    """Return the functions of the OpenBLAS in NumPy's wheels, which load faster than threadpoolctl; without this OpenBLAS, return `_knob()`."""
    return _from_openblas() or _knob()


@cache
def _knob() -> Knob | None:
    """Return the first pair of functions with which the number of threads can be changed; None if no pair works."""
    return next((knob for knob in (_from_threadpoolctl(), _from_openblas()) if knob is not None and _has_effect(knob)), None)


def _has_effect(knob: Knob) -> bool:
    before = knob.get()
    knob.set(1)
    works = knob.get() == 1
    knob.set(before)
    return works


def _from_threadpoolctl() -> Knob | None:
    if importlib.util.find_spec("threadpoolctl") is None:
        return None
    controller = importlib.import_module("threadpoolctl").ThreadpoolController().select(user_api="blas")
    if not controller.lib_controllers:
        return None

    def read() -> int:
        return max(int(library.num_threads) for library in controller.lib_controllers)

    def write(threads: int) -> None:
        for library in controller.lib_controllers:
            library.set_num_threads(threads)

    return Knob(read, write)


def _from_openblas() -> Knob | None:
    for path in openblas_files():
        library = ctypes.CDLL(path)  # another reference to the copy that NumPy has loaded
        for before, after in (("scipy_", "64_"), ("", "64_"), ("", "")):
            get = getattr(library, f"{before}openblas_get_num_threads{after}", None)
            set = getattr(library, f"{before}openblas_set_num_threads{after}", None)
            if get is not None and set is not None:
                return Knob(get, set)
    return None
