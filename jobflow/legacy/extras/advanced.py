"""flow.advanced: explicit tensors per device of the current placement.

distribute_split    logical tensor -> its shards, one per device         gradient: distribute_concat
distribute_clone    logical tensor -> a copy on each device              gradient: distribute_add
distribute_concat   tensors, one per device -> their concatenation       gradient: distribute_split
distribute_add      tensors, one per device -> their sum                 gradient: distribute_clone
distribute_map      split, apply a function on each device, concat
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, PlacementError, ShapeError, user_line
from jobflow.core.layout import B, P, Placement, S, cut
from jobflow.core.types import Tensor
from jobflow.engine.distribute import current_placement
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.ops.elementwise import add
from jobflow.ops.layout_ops import Identity
from jobflow.ops.op import apply, normal_axis
from jobflow.ops.parts import put_part, take_parts


def distribute_split(x: Tensor, axis: int = 0, name: str | None = None) -> tuple[Tensor, ...]:
    """Return the balanced shards of x along `axis`, shard i on device i of the current placement."""
    where = normal_axis(f"distribute_split: x {x.tensor_type}", axis, x.tensor_type.ndim)
    return take_parts(x, S(where), _devices("distribute_split"), name)


def distribute_clone(x: Tensor, name: str | None = None) -> tuple[Tensor, ...]:
    """Return a copy of x on each device of the current placement."""
    return take_parts(x, B, _devices("distribute_clone"), name)


def distribute_concat(xs: Sequence[Tensor], axis: int = 0, name: str | None = None) -> Tensor:
    """Concatenate xs, one tensor per device of the current placement, along `axis` into a logical tensor.

    Raises: ShapeError unless xs has one tensor per device, with balanced lengths: equal, or larger by one for the first devices.
    """
    whole = _devices("distribute_concat")
    _check_count("distribute_concat", xs, whole)
    where = normal_axis(f"distribute_concat: xs[0] {xs[0].tensor_type}", axis, xs[0].tensor_type.ndim)
    lengths = tuple(x.tensor_type.shape[where] for x in xs)
    if lengths != tuple(stop - start for start, stop in cut(sum(lengths), whole.size)):
        raise ShapeError(
            f"distribute_concat at {user_line()}: lengths {list(lengths)} along axis {axis} are not a balanced split of {sum(lengths)}; use concat"
        )
    shape = (*xs[0].tensor_type.shape[:where], sum(lengths), *xs[0].tensor_type.shape[where + 1 :])
    return _sum([put_part(x, S(where), i, whole, shape) for i, x in enumerate(xs)], whole, name)


def distribute_add(xs: Sequence[Tensor], name: str | None = None) -> Tensor:
    """Return the sum of xs, one tensor per device of the current placement, as partial sums that are reduced at their first use."""
    whole = _devices("distribute_add")
    _check_count("distribute_add", xs, whole)
    return _sum([put_part(x, P, i, whole, x.tensor_type.shape) for i, x in enumerate(xs)], whole, name)


def distribute_map(xs: Tensor, f: Callable[[Tensor], Tensor], axis: int = 0) -> Tensor:
    """Apply f to each shard of the tensor `xs` on the shard's device, and concatenate the results; split and concatenate along `axis`."""
    if not callable(f):
        raise ArgumentError(f"distribute_map at {user_line()}: f must be a function of a tensor, not {f!r}")
    whole = _devices("distribute_map")
    results = []
    for rank, piece in zip(whole.ranks, distribute_split(xs, axis), strict=True):
        with scope.using(placement=Placement(whole.tag, (rank,))):
            results.append(f(piece))
    return distribute_concat(results, axis)


def _devices(what: str) -> Placement:
    whole = current_placement(what)
    if len(whole.mesh) != 1:
        raise PlacementError(
            f"{what} at {user_line()}: the placement must have no hierarchy, but is {whole}; call it in a scope.placement without hierarchy"
        )
    return whole


def _check_count(what: str, xs: Sequence[Tensor], whole: Placement) -> None:
    if not isinstance(xs, list | tuple):
        raise ArgumentError(f"{what} at {user_line()}: xs must be a list of tensors, one for each of the {whole.size} devices, not {xs!r}")
    if len(xs) != whole.size:
        raise ShapeError(f"{what} at {user_line()}: xs has {len(xs)} tensors for the {whole.size} devices of {whole}; pass one tensor per device")


def _sum(parts: Sequence[Tensor], whole: Placement, name: str | None) -> Tensor:
    with scope.using(placement=whole):
        total: Tensor = apply(Identity(), reduce(add, parts), name=name)
    return total


#: equivalents for tensors outside of jobs
_OF_TENSORS = {
    "distribute_split": "to_global(sbp=flow.sbp.split(axis)) and to_local()",
    "distribute_clone": "to_global(sbp=flow.sbp.broadcast) and to_local()",
    "distribute_concat": "to_global(sbp=flow.sbp.split(axis))",
    "distribute_add": "to_global(sbp=flow.sbp.partial_sum)",
    "distribute_map": "global tensors, whose shards are computed on their devices",
}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _OF_TENSORS))
