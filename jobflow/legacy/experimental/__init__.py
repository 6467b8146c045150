"""What the legacy face kept under `experimental`."""

from __future__ import annotations

from typing import Any

from jobflow.checkpoint.session_variables import get_all_variables, load_variables
from jobflow.core.types import Array
from jobflow.legacy.aliases import name_scope
from jobflow.legacy.elements import logical_slice, square_sum
from jobflow.legacy.experimental import scope

__all__ = [
    "enable_typing_check",
    "get_interface_blob_value",
    "logical_slice",
    "name_scope",
    "scope",
    "set_interface_blob_value",
    "square_sum",
]


def enable_typing_check(val: bool = True) -> None:
    """Accepted: annotations are always checked."""


def get_interface_blob_value(op_name: str) -> Array:
    """The value of the variable of this name."""
    found: Array = get_all_variables()[op_name].numpy()
    return found


def set_interface_blob_value(op_name: str, ndarray: Any) -> None:
    """Set the variable of this name."""
    load_variables({op_name: ndarray}, ignore_mismatch=False)
