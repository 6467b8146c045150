"""The namespace `flow.experimental`: names that this namespace had in OneFlow, and all names of `flow`."""

from __future__ import annotations

import sys as _sys
from typing import Any as _Any

from jobflow.core.errors import no_attribute as _no_attribute
from jobflow.legacy.aliases import name_scope
from jobflow.legacy.elements import logical_slice, square_sum
from jobflow.legacy.extras.experimental import scope
from jobflow.legacy.extras.experimental.of_sessions import (
    eager_assign_121,
    enable_typing_check,
    get_interface_blob_value,
    get_job_set,
    logical_slice_assign,
    set_interface_blob_value,
)
from jobflow.legacy.extras.experimental.python_ops import custom_op_module
from jobflow.legacy.ids import indexed_slices_reduce_sum, unique_with_counts
from jobflow.legacy.variables import ssp_variable_proxy

__all__ = [
    "custom_op_module",
    "eager_assign_121",
    "enable_typing_check",
    "get_interface_blob_value",
    "get_job_set",
    "indexed_slices_reduce_sum",
    "logical_slice",
    "logical_slice_assign",
    "name_scope",
    "scope",
    "set_interface_blob_value",
    "square_sum",
    "ssp_variable_proxy",
    "unique_with_counts",
]


def __getattr__(name: str) -> _Any:
    """Return the attribute `name` of `flow`; raise AttributeError if there is none."""
    if name.startswith("__") or not hasattr(_sys.modules["jobflow"], name):
        raise _no_attribute(name, f"jobflow.experimental has no {name!r}", [*__all__, *dir(_sys.modules["jobflow"])])
    return getattr(_sys.modules["jobflow"], name)
