"""The namespace `flow.comm`: collectives on local tensors, which all ranks must call in the same order.

Most functions write their result into a tensor argument.  The functions are not differentiable, unlike collectives of global tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, counted, user_line
from jobflow.core.layout import Reduction
from jobflow.core.types import Array, TensorType
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.typed import Tensor
from jobflow.tensors.collectives import REDUCTIONS, carried, reduced, scattered, spread, stacked, swapped
from jobflow.tensors.convert import meeting
from jobflow.tensors.state import EagerState, state
from jobflow.tensors.tensor import own


def _here(what: str, *tensors: Tensor) -> EagerState:
    for x in tensors:
        if not isinstance(x, Tensor) or x.layout is not None or x.traced is not None:
            raise JobError(f"comm.{what} at {user_line()}: the tensors must be local; pass x.to_local() for a global tensor x")
    return state()


def _rank(here: EagerState, what: str, rank: int) -> int:
    if not 0 <= rank < here.rank.size:
        raise ArgumentError(f"comm.{what} at {user_line()}: rank {rank} does not exist; the ranks are 0 to {here.rank.size - 1}")
    return rank


def _reduction(what: str, op: str) -> Reduction:
    if op not in REDUCTIONS:
        raise ArgumentError(f"comm.{what} at {user_line()}: op must be one of {', '.join(REDUCTIONS)}; got {op!r}")
    return REDUCTIONS[op]


def _write(x: Tensor, value: Array, what: str) -> None:
    own(x, f"comm.{what}")[...] = value
    x.wrote()


def barrier() -> None:
    """Wait until all ranks have called `barrier`."""
    here = state()
    with meeting(here, here.rank.comm, 0, lambda: f"barrier at {user_line()}"):
        here.rank.comm.barrier()


def all_reduce(tensor: Tensor, op: str = "sum") -> None:
    """Overwrite `tensor` with the elementwise sum, maximum or minimum over the tensors of all ranks.

    `op` is "sum", "max" or "min".  Raises: ArgumentError for another `op`.
    """
    here = _here("all_reduce", tensor)
    _write(tensor, reduced(here, tensor.array, _reduction("all_reduce", op), "all_reduce"), "all_reduce")


def reduce(tensor: Tensor, dst: int, op: str = "sum") -> None:
    """Overwrite `tensor` of rank `dst` with the elementwise sum, maximum or minimum over the tensors of all ranks.

    `op` is "sum", "max" or "min".  Raises: ArgumentError for another `op`, or for an unknown rank.
    """
    here = _here("reduce", tensor)
    result = reduced(here, tensor.array, _reduction("reduce", op), "reduce")
    if here.rank.index == _rank(here, "reduce", dst):
        _write(tensor, result, "reduce")


def broadcast(tensor: Tensor, src: int) -> None:
    """Overwrite `tensor` with the tensor of rank `src`.  Raises: ArgumentError for an unknown rank."""
    here = _here("broadcast", tensor)
    _write(tensor, spread(here, tensor.array, _rank(here, "broadcast", src), "broadcast"), "broadcast")


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor) -> None:
    """Write the tensor of rank i into tensor_list[i]; all tensors must have the same shape and element type.

    Raises: ArgumentError unless the list has one tensor per rank.
    """
    here = _here("all_gather", tensor, *tensor_list)
    _count("all_gather", tensor_list, here)
    parts = stacked(here, tensor.array[None], "all_gather")
    for to, part in zip(tensor_list, parts, strict=True):
        _write(to, part, "all_gather")


def gather(tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0) -> None:
    """Write the tensor of rank i into gather_list[i], on rank `dst` only.

    Raises: ArgumentError for an unknown rank, or unless the list on rank `dst` has one tensor per rank.
    """
    here = _here("gather", tensor)
    parts = stacked(here, tensor.array[None], "gather")
    if here.rank.index == _rank(here, "gather", dst):
        _count("gather", gather_list or (), here)
        for to, part in zip(gather_list or (), parts, strict=True):
            _write(to, part, "gather")


def scatter(tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0) -> None:
    """Write scatter_list[i] of rank `src` into `tensor` of rank i.

    Raises: ArgumentError for an unknown rank, or unless the list on rank `src` has one tensor per rank.
    """
    here = _here("scatter", tensor)
    n, mine = here.rank.size, here.rank.index == _rank(here, "scatter", src)
    if mine:
        _count("scatter", scatter_list or (), here)
    rows = np.stack([x.array for x in scatter_list or ()]) if mine else np.empty((n, *tensor.tensor_type.shape), tensor.tensor_type.dtype.numpy)
    _write(tensor, spread(here, rows, src, "scatter")[here.rank.index], "scatter")


def reduce_scatter(output: Tensor, input_list: Sequence[Tensor], op: str = "sum") -> None:
    """Write the elementwise sum, maximum or minimum of input_list[i] over all ranks into `output` of rank i.

    `op` is "sum", "max" or "min".  Raises: ArgumentError for another `op`, or unless the list has one tensor per rank.
    """
    here = _here("reduce_scatter", output, *input_list)
    _count("reduce_scatter", input_list, here)
    result = scattered(here, np.stack([x.array for x in input_list]), _reduction("reduce_scatter", op), "reduce_scatter")
    _write(output, result[0], "reduce_scatter")


def all_to_all(output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor]) -> None:
    """Write input_tensor_list[j] of rank i into output_tensor_list[i] of rank j; all tensors must have the same shape and element type.

    Raises: ArgumentError unless both lists have one tensor per rank.
    """
    here = _here("all_to_all", *output_tensor_list, *input_tensor_list)
    _count("all_to_all", input_tensor_list, here)
    _count("all_to_all", output_tensor_list, here)
    for to, part in zip(output_tensor_list, swapped(here, np.stack([x.array for x in input_tensor_list]), "all_to_all"), strict=True):
        _write(to, part, "all_to_all")


def send(tensor: Tensor, dst: int) -> None:
    """Send the tensor to rank `dst`, which must call `recv`.  Raises: ArgumentError if `dst` is this rank or an unknown rank."""
    here = _here("send", tensor)
    _other(here, "send", dst)
    me = here.rank.index
    with _agreed(here, "send", me, dst, tensor.tensor_type):
        carried(here, tensor.array, tensor.tensor_type, me, dst, "send and recv")


def recv(out: Tensor, src: int) -> Tensor:
    """Receive a tensor from rank `src`, which must call `send`, into `out`, and return `out`.

    Both tensors must have the same shape and element type.  Raises: ArgumentError if `src` is this rank or an unknown rank.
    """
    here = _here("recv", out)
    _other(here, "recv", src)
    me = here.rank.index
    with _agreed(here, "recv", src, me, out.tensor_type):
        _write(out, carried(here, None, out.tensor_type, src, me, "send and recv"), "recv")
    return out


def _agreed(here: EagerState, what: str, source: int, target: int, type: TensorType) -> AbstractContextManager[None]:
    """Return a context that raises DivergedError unless sender and receiver pass the same shape and element size."""
    pair = here.rank.comm.group(tuple(sorted((source, target))))
    digest = zlib.crc32(f"{source} {target} {type.shape} {type.dtype.itemsize}".encode())
    return meeting(here, pair, digest, lambda: f"{what} of {type} from rank {source} to rank {target} at {user_line()}")


def _other(here: EagerState, what: str, rank: int) -> None:
    if _rank(here, what, rank) == here.rank.index:
        raise ArgumentError(f"comm.{what} at {user_line()}: rank {rank} is this rank itself; pass another rank")


def _count(what: str, tensors: Sequence[Tensor], here: EagerState) -> None:
    if len(tensors) != here.rank.size:
        number = counted(here.rank.size, "tensor")
        raise ArgumentError(f"comm.{what} at {user_line()}: the list must have {number}, one per rank; got {len(tensors)}")


globals().update(all_of(__name__, globals(), __name__, of_tensors))
