"""The namespace `flow.comm`: collectives on local tensors, which all ranks must call in the same order.

Most functions write their result into a tensor argument.  The functions are not differentiable, unlike collectives of global tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.group_collectives import Group
from jobflow.functional.typed import Tensor


def barrier() -> None:
    """Wait until all ranks have called `barrier`."""
    Group("comm.barrier").barrier()


def all_reduce(tensor: Tensor, op: str = "sum") -> None:
    """Overwrite `tensor` with the elementwise reduction over the tensors of all ranks.

    `op` is "sum", "max", "min", "avg", "product", "band", "bor" or "bxor".  Raises: ArgumentError for another `op`.
    """
    Group("comm.all_reduce").all_reduce(tensor, op)


def reduce(tensor: Tensor, dst: int, op: str = "sum") -> None:
    """Overwrite `tensor` of rank `dst` with the elementwise reduction over the tensors of all ranks; `op` as for `all_reduce`.

    Raises: ArgumentError for another `op`, or for an unknown rank.
    """
    Group("comm.reduce").reduce(tensor, dst, op)


def broadcast(tensor: Tensor, src: int) -> None:
    """Overwrite `tensor` with the tensor of rank `src`.  Raises: ArgumentError for an unknown rank."""
    Group("comm.broadcast").broadcast(tensor, src)


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor) -> None:
    """Write the tensor of rank i into tensor_list[i]; all tensors must have the same shape and element type.

    Raises: ArgumentError unless the list has one tensor per rank.
    """
    Group("comm.all_gather").all_gather(tensor_list, tensor)


def gather(tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0) -> None:
    """Write the tensor of rank i into gather_list[i], on rank `dst` only.

    Raises: ArgumentError for an unknown rank, or unless the list on rank `dst` has one tensor per rank.
    """
    Group("comm.gather").gather(tensor, gather_list, dst)


def scatter(tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0) -> None:
    """Write scatter_list[i] of rank `src` into `tensor` of rank i.

    Raises: ArgumentError for an unknown rank, or unless the list on rank `src` has one tensor per rank.
    """
    Group("comm.scatter").scatter(tensor, scatter_list, src)


def reduce_scatter(output: Tensor, input_list: Sequence[Tensor], op: str = "sum") -> None:
    """Write the elementwise reduction of input_list[i] over all ranks into `output` of rank i; `op` as for `all_reduce`.

    Raises: ArgumentError for another `op`, or unless the list has one tensor per rank.
    """
    group = Group("comm.reduce_scatter")
    group.tensors(output=output)
    group.reduce_scatter(output, input_list, op)


def all_to_all(output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor]) -> None:
    """Write input_tensor_list[j] of rank i into output_tensor_list[i] of rank j; all tensors must have the same shape and element type.

    Raises: ArgumentError unless both lists have one tensor per rank.
    """
    Group("comm.all_to_all").all_to_all(output_tensor_list, input_tensor_list)


def send(tensor: Tensor, dst: int) -> None:
    """Send the tensor to rank `dst`, which must call `recv`.  Raises: ArgumentError if `dst` is this rank or an unknown rank."""
    Group("comm.send").send(tensor, dst)


def recv(out: Tensor, src: int) -> Tensor:
    """Receive a tensor from rank `src`, which must call `send`, into `out`, and return `out`.

    Both tensors must have the same shape and element type.  Raises: ArgumentError if `src` is this rank or an unknown rank.
    """
    Group("comm.recv").receive(out, src)
    return out


globals().update(all_of(__name__, globals(), __name__, of_tensors))
