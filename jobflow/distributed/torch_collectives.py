"""PyTorch's collectives on local tensors; all ranks of the group must call them in the same order.

A collective of tensors on the host ends before it returns.  On GPUs, later operations wait for it.  So `async_op=True` returns a finished `Work`.
A rank outside of the group does nothing.  A rank that calls another collective is an error on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.functional.group_arguments import group_of
from jobflow.functional.group_collectives import Group
from jobflow.functional.switches import checked_bool
from jobflow.functional.typed import Tensor


class ReduceOp(StrEnum):
    """An elementwise reduction over ranks."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


class Work:
    """A collective that has ended, or whose result later operations of the GPU wait for."""

    def __init__(self, results: Sequence[Tensor] = ()) -> None:
        self._results = list(results)

    def wait(self, timeout: Any = None) -> bool:
        """Return True, because later operations read the result of the collective."""
        return True

    def is_completed(self) -> bool:
        """Return True, because later operations read the result of the collective."""
        return True

    def is_success(self) -> bool:
        """Return True; a failure would have raised an error."""
        return True

    def exception(self) -> None:
        """Return None; a failure would have raised an error."""

    def result(self) -> list[Tensor]:
        """Return the tensors that the collective wrote."""
        return self._results

    def synchronize(self) -> None:
        """Do nothing, because later operations read the result of the collective."""


def _word(op: Any) -> Any:
    return op.value if isinstance(op, ReduceOp) else op


def _done(async_op: bool, results: Any = ()) -> Work | None:
    checked_bool("distributed", "async_op", async_op)
    return Work(results if isinstance(results, list | tuple) else [results]) if async_op else None


def _root(members: Group, name: str, root: Any, group_root: Any, default: int | None = 0) -> int:
    """Return the root as a rank of the program, from its rank `root` or from `group_root`, its position in the group.

    `default` is the rank without both arguments; None requires one of them.  Raises: ArgumentError if both are passed, or a required one is missing.
    """
    if group_root is not None:
        if root is not None:
            raise ArgumentError(f"{members.what} at {user_line()}: pass either {name} or group_{name}, not both")
        return members.ranks[Group(members.what, range(members.size)).rank(group_root, f"group_{name}")]
    if root is None and default is None:
        raise ArgumentError(f"{members.what} at {user_line()}: {name} is missing; pass the number of a rank")
    return members.rank(default if root is None else root, name)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Work | None:
    """Wait until all ranks of the group have called `barrier`."""
    if members := group_of("barrier", group):
        members.barrier()
    return _done(async_op)


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Wait until all ranks of the group have called this function; an absent rank is reported while the others wait."""
    if members := group_of("monitored_barrier", group):
        members.barrier()


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Overwrite `tensor` with the elementwise reduction over the ranks.

    Examples:
        >>> x = flow.ones(2)  # on n ranks the result is n
        >>> work = flow.distributed.all_reduce(x)
        >>> x
        tensor([1., 1.], dtype=jobflow.float32)
    """
    if members := group_of("all_reduce", group):
        members.all_reduce(tensor, _word(op))
    return _done(async_op, tensor)


def reduce(
    tensor: Tensor, dst: int | None = None, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False, group_dst: int | None = None
) -> Work | None:
    """Overwrite `tensor` of rank `dst` with the elementwise reduction over the ranks."""
    if members := group_of("reduce", group):
        members.reduce(tensor, _root(members, "dst", dst, group_dst, None), _word(op))
    return _done(async_op, tensor)


def broadcast(tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None) -> Work | None:
    """Overwrite `tensor` with the tensor of rank `src`."""
    if members := group_of("broadcast", group):
        members.broadcast(tensor, _root(members, "src", src, group_src, None))
    return _done(async_op, tensor)


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    """Write the tensor of the i-th rank into tensor_list[i]."""
    if members := group_of("all_gather", group):
        members.all_gather(tensor_list, tensor)
    return _done(async_op, tensor_list)


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    """Write the tensors of all ranks into `output_tensor`, joined along axis 0, or along a new first axis.

    Raises: ShapeError for another shape of `output_tensor`.
    """
    if members := group_of("all_gather_into_tensor", group):
        members.tensors(output_tensor=output_tensor, input_tensor=input_tensor)
        _check_rows(members, "output_tensor", output_tensor, input_tensor)
        members.write(output_tensor, members.gathered(input_tensor).reshape(output_tensor.tensor_type.shape))
    return _done(async_op, output_tensor)


def _check_rows(members: Group, name: str, whole: Tensor, piece: Tensor) -> None:
    """Raise ShapeError unless `whole` has one `piece` per rank, along axis 0 or along a new first axis."""
    shape = piece.tensor_type.shape
    legal = [(members.size, *shape)] + ([(members.size * shape[0], *shape[1:])] if shape else [(members.size,)])
    if whole.tensor_type.shape not in legal or whole.dtype is not piece.dtype:
        raise ShapeError(
            f"{members.what} at {user_line()}: {name} is {whole.tensor_type}; it must be {piece.tensor_type.with_shape(legal[-1])}, "
            f"one {piece.tensor_type} per rank"
        )


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Write the tensor of the i-th rank into gather_list[i], on rank `dst` only, by default 0."""
    if members := group_of("gather", group):
        members.gather(tensor, gather_list, _root(members, "dst", dst, group_dst))
    return _done(async_op, gather_list or ())


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Write scatter_list[i] of rank `src`, by default 0, into `tensor` of the i-th rank."""
    if members := group_of("scatter", group):
        members.scatter(tensor, scatter_list, _root(members, "src", src, group_src))
    return _done(async_op, tensor)


def reduce_scatter(output: Tensor, input_list: Sequence[Tensor], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Write the elementwise reduction of input_list[i] over the ranks into `output` of the i-th rank."""
    if members := group_of("reduce_scatter", group):
        members.tensors(output=output)
        members.reduce_scatter(output, input_list, _word(op))
    return _done(async_op, output)


def reduce_scatter_tensor(output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Write the i-th part of the elementwise reduction of `input` over the ranks into `output` of the i-th rank.

    Raises: ShapeError unless `input` has one part per rank, along axis 0 or along the first axis.
    """
    if members := group_of("reduce_scatter_tensor", group):
        members.tensors(output=output, input=input)
        _check_rows(members, "input", input, output)
        members.reduce_scatter_parts(output, input, _word(op))
    return _done(async_op, output)


def all_to_all(output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None, async_op: bool = False) -> Work | None:
    """Write input_tensor_list[j] of the i-th rank into output_tensor_list[i] of the j-th rank."""
    if members := group_of("all_to_all", group):
        members.all_to_all(output_tensor_list, input_tensor_list)
    return _done(async_op, output_tensor_list)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Write part j of `input` of the i-th rank into part i of `output` of the j-th rank; the parts split axis 0.

    Raises: ShapeError unless the parts are equal, and `output` has the shape of `input`.
    """
    if members := group_of("all_to_all_single", group):
        members.tensors(output=output, input=input)
        _check_equal_parts(members, output, input, output_split_sizes, input_split_sizes)
        members.write(output, members.swapped(input))
    return _done(async_op, output)


def _check_equal_parts(members: Group, output: Tensor, input: Tensor, *sizes: Any) -> None:
    shape = input.tensor_type.shape
    if output.tensor_type != input.tensor_type or not shape or shape[0] % members.size:
        raise ShapeError(
            f"{members.what} at {user_line()}: output {output.tensor_type} must have the type of input {input.tensor_type}, and axis 0 must split "
            f"into {members.size} equal parts"
        )
    equal = [shape[0] // members.size] * members.size
    if any(each is not None and (not isinstance(each, list | tuple) or list(each) not in ([], equal)) for each in sizes):
        raise ShapeError(
            f"{members.what} at {user_line()}: the parts must be equal, {equal}; use all_to_all of padded tensors for others; got {sizes}"
        )


# -------------------------------------------------------------------- objects


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Write the object of the i-th rank into object_list[i]; objects are pickled."""
    if members := group_of("all_gather_object", group):
        _check_list(members, "object_list", object_list, members.size)
        object_list[:] = members.exchange(obj, members.what)


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None, group_dst: int | None = None
) -> None:
    """Write the object of the i-th rank into object_gather_list[i], on rank `dst` only, by default 0."""
    if members := group_of("gather_object", group):
        target = _root(members, "dst", dst, group_dst)
        if members.me == target:
            _check_list(members, "object_gather_list", object_gather_list, members.size)
        items = members.exchange(obj, f"{members.what} {target}")
        if object_gather_list is not None and members.me == target:
            object_gather_list[:] = items


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None, group_src: int | None = None
) -> None:
    """Overwrite the objects of the list with those of rank `src`, by default 0."""
    if members := group_of("broadcast_object_list", group):
        source = _root(members, "src", src, group_src)
        _check_list(members, "object_list", object_list)
        items = members.exchange(object_list if members.me == source else None, f"{members.what} {source}")[members.ranks.index(source)]
        if len(items) != len(object_list):
            raise ArgumentError(
                f"{members.what} at {user_line()}: object_list has {len(object_list)} objects, but object_list of rank {source} has {len(items)}; "
                f"pass equally long lists"
            )
        object_list[:] = items


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Write scatter_object_input_list[i] of rank `src`, by default 0, into scatter_object_output_list[0] of the i-th rank."""
    if members := group_of("scatter_object_list", group):
        source = _root(members, "src", src, group_src)
        _check_list(members, "scatter_object_output_list", scatter_object_output_list)
        if members.me == source:
            _check_list(members, "scatter_object_input_list", scatter_object_input_list, members.size)
        items = members.exchange(scatter_object_input_list if members.me == source else None, f"{members.what} {source}")
        scatter_object_output_list[:1] = [items[members.ranks.index(source)][members.index]]


def _check_list(members: Group, name: str, argument: Any, size: int | None = None) -> None:
    if not isinstance(argument, list) or (size is not None and len(argument) != size):
        words = "a list" if size is None else f"a list of {size} objects, one per rank"
        raise ArgumentError(f"{members.what} at {user_line()}: {name} must be {words}; got {argument!r}")


# -------------------------------------------------------------------- two ranks


def send(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """Send the tensor to rank `dst`, which must call `recv`."""
    if members := group_of("send", group):
        members.send(tensor, _root(members, "dst", dst, group_dst, None), tag)


def recv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """Receive a tensor from rank `src`, which must call `send`, and return `src`; on a rank outside of the group, return -1.

    Raises: ArgumentError without `src`.
    """
    members = group_of("recv", group)
    if members is None:
        return -1
    source = _root(members, "src", src, group_src, None)
    members.receive(tensor, source, tag)
    return source


class PendingWork(Work):
    """A message of `isend` or `irecv`, which both ranks transfer when they wait for it."""

    def __init__(self, tensor: Tensor, pair: tuple[int, int], transfer: Callable[[], None]) -> None:
        super().__init__([tensor])
        #: sender and receiver
        self.pair = pair
        self.transfer: Callable[[], None] | None = transfer

    def wait(self, timeout: Any = None) -> bool:
        """Transfer the message; return True."""
        if self.transfer is not None:
            self.transfer()
            self.transfer = None
        return True

    def is_completed(self) -> bool:
        """Return True if the message was transferred."""
        return self.transfer is None


def _ends(what: str, tensor: Tensor, group: Any, name: str, peer: int | None, group_peer: int | None) -> tuple[Group | None, int]:
    """Return the ranks of the group and the other rank of a message; (None, -1) on a rank outside of the group."""
    members = group_of(what, group)
    if members is None:
        return None, -1
    rank = members.other(_root(members, name, peer, group_peer, None))
    members.tensors(tensor=tensor)
    return members, rank


def isend(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> Work:
    """Return the message to rank `dst`, which must call `irecv` or `recv`; `wait` transfers it."""
    members, target = _ends("isend", tensor, group, "dst", dst, group_dst)
    if members is None:
        return Work()
    return PendingWork(tensor, (members.me, target), lambda: members.send(tensor, target, tag))


def irecv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> Work:
    """Return the message from rank `src`, which must call `isend` or `send`; `wait` transfers it."""
    members, source = _ends("irecv", tensor, group, "src", src, group_src)
    if members is None:
        return Work()
    return PendingWork(tensor, (source, members.me), lambda: members.receive(tensor, source, tag))


class P2POp:
    """An argument of `batch_isend_irecv`: a tensor to send to the rank `peer`, or to receive from it; `op` is `isend` or `irecv`."""

    def __init__(
        self, op: Callable[..., Any], tensor: Tensor, peer: int | None = None, group: Any = None, tag: int = 0, group_peer: int | None = None
    ) -> None:
        if op not in (isend, irecv):
            raise ArgumentError(f"distributed.P2POp at {user_line()}: op must be distributed.isend or distributed.irecv; got {op!r}")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = op, tensor, peer, group, tag, group_peer

    def begin(self) -> Work:
        """Call `isend` or `irecv`, and return the pending message."""
        where = "group_dst" if self.op is isend else "group_src"
        work: Work = self.op(self.tensor, self.peer, self.group, self.tag, **{where: self.group_peer})
        return work


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Transfer all messages of the list, and return the finished works.

    Messages are transferred in the order of their pairs of ranks, which prevents deadlocks.  Raises: ArgumentError unless the argument is a list of
    P2POp.
    """
    if not isinstance(p2p_op_list, list | tuple) or not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ArgumentError(f"distributed.batch_isend_irecv at {user_line()}: pass a list of P2POp; got {p2p_op_list!r}")
    works = [op.begin() for op in p2p_op_list]
    pending = [work for work in works if isinstance(work, PendingWork)]
    for work in sorted(pending, key=lambda work: (sorted(work.pair), work.pair)):
        work.wait()
    return works
