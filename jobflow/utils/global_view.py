"""Redistribution of nested structures of tensors in dicts, lists and tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobflow.engine.placements import placement as public_placement
from jobflow.functional import global_tensors as moving
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.structures import replaced


def over(change: Callable[[Tensor], Any], structure: Any) -> Any:
    """Return the structure with every tensor replaced by `change(tensor)`; other objects are unchanged."""
    return replaced(structure, Tensor, change)


def to_global(structure: Any, placement: public_placement | None = None, sbp: Any = None, *, check_meta: bool = True) -> Any:
    """Return the structure with every tensor redistributed by `Tensor.to_global`.  All ranks must call this function.

    `sbp` may be a function (structure, tensor) -> sbp.
    """

    def change(x: Tensor) -> Tensor:
        target = sbp(structure, x) if callable(sbp) and not hasattr(sbp, "__dataclass_fields__") else sbp
        return moving.to_global(x, placement, target, check_meta=check_meta)

    return over(change, structure)


def to_local(structure: Any, *, copy: bool = False) -> Any:
    """Return the structure with every global tensor replaced by this rank's piece, a local tensor.

    A piece shares the memory of the global tensor unless `copy` is True.
    """
    return over(lambda x: x if x.layout is None else moving.to_local(x, copy=copy), structure)
