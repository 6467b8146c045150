"""Eager redistribution: changes of layout as plans that contain only communication and copies.

The ranks of both placements participate, as a group with its own communicator.  A plan is compiled and bound to memory once per type and pair
of layouts, and cached for the group.  Before ranks communicate, they compare digests of the operation (`Communicator.compare_digests`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import DivergedError, user_line
from jobflow.core.layout import B, Layout, Partial, Placement
from jobflow.core.types import Array, TensorType
from jobflow.tensors.gpus import as_numpy, duplicate, fill, placed
from jobflow.tensors.state import EagerState, mixed
from jobflow.tensors.tensor import TensorBase, check_current

if TYPE_CHECKING:
    from jobflow.runtime.comm.communicator import Communicator
    from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
    from jobflow.tensors.conversions import Conversion

#: the maximal number of prepared conversions per group of ranks
MAX_CONVERSIONS = 128
#: stands for the elements in the descriptions that `agree_on_values` receives
ELEMENTS = "{elements}"


def empty(type: TensorType) -> Array:
    """Return an empty array for a rank outside of the placement, with the element type and number of axes of `type`."""
    return np.empty((0,) * type.ndim, type.dtype.numpy)


def addend(array: Array, layout: Layout, rank: int) -> Array:
    """Return `array` as this rank's piece of a tensor whose layout has P.

    Along a P, the first rank has the value, and the other ranks get the identity of the reduction, such as 0 for a sum.
    """
    at = layout.placement.coordinates(rank)
    for sbp, where in zip(layout.sbp, at, strict=True):
        if isinstance(sbp, Partial) and where > 0:
            fill(array, sbp.reduce.identity(array.dtype))
    return array


def convert(here: EagerState, x: TensorBase, target: Layout, what: str) -> Array:
    """Return this rank's piece of the global tensor x in the layout `target`; all ranks of both placements must call this function.

    `what` names the operation in messages.
    """
    assert x.layout is not None
    return convert_array(here, x.array, x.tensor_type, x.layout, target, what, x._provenance)


def convert_array(here: EagerState, array: Array, type: TensorType, source: Layout, target: Layout, what: str, provenance: int = 0) -> Array:
    """Return this rank's piece of a tensor in the layout `target`; `array` is this rank's piece in the layout `source`.

    All ranks of both placements must call this function.  `what` names the operation in messages.  Pieces on GPUs are exchanged by NCCL if each
    rank has a GPU of its own, and otherwise through the hosts.
    """
    if source == target:
        return array
    ranks = tuple(sorted({*source.placement.ranks, *target.placement.ranks}))
    if here.rank.index not in ranks:
        return empty(type)
    if here.gpus and len(ranks) == 1:  # all layouts of one rank are equal
        moved = placed(here, array, target)
        return duplicate(moved) if moved is array else moved
    with scope.lock():  # a bound change reuses its memory
        nccl: NcclCommunicator | None = None
        if len(ranks) > 1 and source.placement.tag == "cuda" == target.placement.tag:
            from jobflow.tensors.gpu_conversions import nccl_between  # programs on CPUs need no NCCL

            nccl = nccl_between(here, ranks, type, source, target, what)
        piece = _converted(here, as_numpy(array) if nccl is None else array, type, source, target, ranks, what, provenance, nccl)
    return placed(here, piece, target)


def _converted(
    here: EagerState,
    array: Array,
    type: TensorType,
    source: Layout,
    target: Layout,
    ranks: tuple[int, ...],
    what: str,
    provenance: int,
    nccl: NcclCommunicator | None,
) -> Array:
    cache = here.conversions.setdefault(ranks, {})
    key = (type, source, target)
    conversion: Conversion | None = cache.get(key)
    comm = here.rank.host_comm.group(ranks)
    if conversion is None or conversion.communicates:
        agree(here, comm, _digest(here, type, source, target, provenance), _described(here, what, type, source, target, provenance))
    if conversion is not None:
        del cache[key]
    elif len(cache) >= MAX_CONVERSIONS:
        cache.pop(next(iter(cache)))
    if conversion is None and nccl is not None:
        from jobflow.tensors.gpu_conversions import bound as bound_on_gpu

        conversion = bound_on_gpu(here, nccl, ranks, type, source, target)
    elif conversion is None:
        from jobflow.tensors.conversions import bound

        conversion = bound(here, comm, ranks, type, source, target)
    cache[key] = conversion  # least recently used first
    return conversion(array, type)


def agree(here: EagerState, comm: Communicator, digest: int, what: Callable[[], str]) -> None:
    """Compare the next operation of all ranks of a communicator, described by `digest`; raise DivergedError on all ranks if the digests differ.

    `what` returns the description for the message.  The caller holds `scope.lock` until the operation ends.
    """
    here.rank.check_process()
    try:
        comm.compare_digests(mixed(digest, zlib.crc32(scope.caller().encode())), lambda: what() + in_thread(scope.caller()))
    except DivergedError:
        here.forget(comm.members)
        raise


def agree_on_values(here: EagerState, array: Array, type: TensorType, layout: Layout, what: Callable[[], str]) -> int:
    """Compare the arrays of all ranks of the world by a digest, and return the digest, the provenance of the tensor; 0 for one rank.

    Raises: DivergedError on all ranks if the arrays differ.  The message contains `what()`, and the elements of the rank.
    """
    if here.rank.size == 1:
        return 0
    array = as_numpy(array)
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = zlib.crc32(content.data, zlib.crc32(f"{type} {layout}".encode()))
    with scope.lock():
        agree(here, here.rank.host_comm, digest, lambda: what().replace(ELEMENTS, shortened(array)))
    return digest


def shortened(array: Array) -> str:
    """Return the text of the elements in one line; more than 8 elements are abbreviated."""
    return np.array2string(array, threshold=8, edgeitems=2, separator=", ").replace("\n", "")


def in_thread(caller: str) -> str:
    """Return the end of a message for an operation that the Python thread `caller` calls; "" for the main thread of the rank."""
    return f" in Python thread {caller!r}" if caller else ""


@contextmanager
def meeting(here: EagerState, comm: Communicator, digest: int, what: Callable[[], str]) -> Iterator[None]:
    """Compare the next operation of all ranks of a communicator as `agree` does, and hold `scope.lock` inside the `with` block."""
    with scope.lock():
        agree(here, comm, digest, what)
        yield


def _digest(here: EagerState, type: TensorType, source: Layout, target: Layout, provenance: int) -> int:
    """Return a digest of a change of layout and of the provenance of the tensor.

    The digest includes the earlier operations on the placement if the ranks remain the same.
    """
    before = here.collective_log(source.placement).number if source.placement.ranks == target.placement.ranks else 0
    return mixed(before, provenance, zlib.crc32(f"{type} {source} {target}".encode()))


def _described(here: EagerState, what: str, type: TensorType, source: Layout, target: Layout, provenance: int) -> Callable[[], str]:
    def text() -> str:
        # the number distinguishes tensors that are otherwise alike
        return f"{what} of {type} #{provenance % 10_000:04} {source} -> {target} at {user_line()}{done(here, source.placement)}"

    return text


def done(here: EagerState, placement: Placement) -> str:
    """Return the end of a message, a list of the last operations on a placement; "" before the first operation."""
    last = here.collective_log(placement).last
    return "".join(["\n    after", *(f"\n      {text}" for text in last)]) if last else ""


def gathered(here: EagerState, x: TensorBase, what: str) -> Array:
    """Return a copy of the whole logical array of the global tensor x on every rank; all ranks must call this function."""
    with scope.lock():
        return _gathered(here, x, what)


def _gathered(here: EagerState, x: TensorBase, what: str) -> Array:
    assert x.layout is not None
    check_current(x)
    everywhere = Layout(Placement("cpu", tuple(range(here.rank.size))), (B,))
    if x.layout.placement.ranks == everywhere.placement.ranks and x.layout.is_whole:
        if here.rank.size > 1:
            same = x.tensor_type, x.layout, x.layout
            agree(here, here.rank.host_comm, _digest(here, *same, x._provenance), _described(here, what, *same, x._provenance))
        return as_numpy(x.array).copy() if isinstance(x.array, np.ndarray) else as_numpy(x.array)  # a write on one rank must not reach the copies
    return convert_array(here, x.array, x.tensor_type, x.layout, everywhere, what, x._provenance)
