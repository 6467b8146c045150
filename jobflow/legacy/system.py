"""`flow.system`."""

from __future__ import annotations

from jobflow.core.types import Tensor
from jobflow.legacy import variables

__all__ = ["assign"]


def assign(ref: Tensor, value: Tensor, validate_shape: bool | None = None, use_locking: bool | None = None, name: str | None = None) -> Tensor:
    """`flow.assign`; gives `ref`.  Shapes are always compared, and nothing needs a lock."""
    variables.assign(ref, value, name=name)
    return ref
