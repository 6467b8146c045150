"""Classification of code and objects: libraries, immutable types, and functions whose result depends only on their arguments."""

from __future__ import annotations

import collections
import dis
import enum
import functools
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from jobflow.functional.devices import device
from jobflow.functional.tensor_class import Tensor

_NamedTuple = collections.namedtuple("_NamedTuple", ("item",))
#: immutable types
PLAIN = (
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, np.generic, np.dtype, enum.Enum, types.BuiltinFunctionType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType, types.CodeType, device,
    type(_NamedTuple.item),
)  # fmt: skip
CONTAINERS = (dict, list, set, deque)
#: C functions with effects, or with results that depend on more than their arguments, by module
IMPURE = {"builtins": {"print", "input", "open", "exec", "eval", "globals", "locals", "breakpoint", "compile", "__import__"}}
PURE_MODULES = frozenset(
    {"builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "_collections", "collections", "_abc", "_struct",
     "numpy", "numpy.core._multiarray_umath", "numpy._core._multiarray_umath", "_weakref", "_typing", "sys", "_contextvars", "copyreg", "_warnings"}
)  # fmt: skip
PURE_OWNERS: tuple[Any, ...] = (
    *PLAIN, *CONTAINERS, tuple, frozenset, type, types.MappingProxyType, np.ndarray, np.ufunc, bytearray, memoryview, functools.partial,
    types.FunctionType, type(iter(())), type(iter([])), type(iter({})), zip, enumerate, map, filter, reversed, Tensor,
)  # fmt: skip
#: modules of the standard library whose objects do not change
_CONSTANT = frozenset(
    {"typing", "types", "enum", "re", "abc", "_abc", "collections.abc", "decimal", "fractions", "datetime", "pathlib",
     "functools", "_thread", "threading", "inspect", "dataclasses"}
)  # fmt: skip
#: types of these modules whose objects do change
_VARIABLE = (threading.local, type(functools.cache(len)))
#: modules of the standard library whose Python code may run
STANDARD = frozenset(
    {"functools", "contextlib", "collections", "dataclasses", "enum", "typing", "abc", "operator", "copy", "copyreg", "types", "inspect",
     "itertools", "numbers", "fractions", "weakref", "reprlib", "_collections_abc", "collections.abc", "re", "string", "statistics", "numpy",
     "_weakrefset", "keyword", "warnings", "importlib._bootstrap", "zipimport", "importlib._bootstrap_external", "einops"}
)  # fmt: skip
#: packages whose functions depend on their arguments alone; einops caches the results of its parser
_LIBRARIES = ("jobflow", "numpy", "builtins", "einops")


def is_standard(code: types.CodeType) -> bool:
    """Return True for code of the standard library, by the path of its file."""
    return "/lib/python" in code.co_filename and "site-packages" not in code.co_filename


def slots_of(kind: type) -> Sequence[str]:
    """Return the `__slots__` of a class, without those of its base classes."""
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


@functools.cache
def is_library(module: str) -> bool:
    """Return True if `module` is a module of jobflow, NumPy, einops or the standard library; return False for a user module with the same name."""
    root = module.partition(".")[0]
    if root not in sys.stdlib_module_names or root == "__main__":
        return root in _LIBRARIES
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or file.startswith(os.path.dirname(os.__file__))


@functools.cache
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the global variables that `code` uses; the names of attributes are not among them."""
    return tuple({each.argval: None for each in dis.get_instructions(code) if each.opname.endswith(("_GLOBAL", "_NAME"))})


def is_jobflow(module: str) -> bool:
    """Return True if `module` is the name of a module of jobflow."""
    return module.partition(".")[0] == "jobflow"


def is_own(kind: type) -> bool:
    """Return True if the class `kind` is defined in jobflow."""
    return kind.__module__.partition(".")[0] == "jobflow"


def is_constant(kind: type) -> bool:
    """Return True for a library type whose objects either do not change, or are read again at every run."""
    return is_own(kind) or kind.__module__.startswith("einops.") or (kind.__module__ in _CONSTANT and kind not in _VARIABLE)


class _Record:
    """A class whose objects consist of their attributes."""


def is_record(kind: type) -> bool:
    """Return True for a class of the standard library whose objects consist of their attributes alone, such as `argparse.Namespace`."""
    if kind is types.SimpleNamespace:
        return True
    in_python = kind.__dictoffset__ != 0 and kind.__basicsize__ <= _Record.__basicsize__
    return in_python and kind.__module__.partition(".")[0] in sys.stdlib_module_names and not is_constant(kind)
