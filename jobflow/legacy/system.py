"""The namespace `flow.system`: `assign`, which returns the variable."""

from __future__ import annotations

from jobflow.core.types import Tensor
from jobflow.legacy import variables

__all__ = ["assign"]


def assign(ref: Tensor, value: Tensor, validate_shape: bool | None = None, use_locking: bool | None = None, name: str | None = None) -> Tensor:
    """Call `flow.assign` and return `ref`; the options have no effect, because shapes are always compared."""
    variables.assign(ref, value, name=name)
    return ref
