"""Collectives on local tensors of GPUs by NCCL, for groups of ranks with a GPU each.

The ranks of a group choose the transport together, at the first collective of tensors on GPUs, and keep the choice for the session.  Before every
collective the hosts compare the operation.  They do not wait for their GPUs: the result is complete for later operations of the GPU.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlacementError, user_line
from jobflow.core.layout import B, Reduction
from jobflow.core.types import Array, TensorType, type_of
from jobflow.ops.arithmetic import Multiply
from jobflow.ops.bitwise import BitwiseAnd, BitwiseOr, BitwiseXor
from jobflow.ops.op import Op
from jobflow.ops.scalar import DivideBy
from jobflow.runtime.comm.communicator import Binding
from jobflow.runtime.comm.nccl_calls import reduces
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.nccl_order import fix_order
from jobflow.runtime.comm.transports import note_hosts
from jobflow.tensors.collectives import HostCollectives, check_parts, everywhere
from jobflow.tensors.convert import agree, done, meeting
from jobflow.tensors.gpu_ranks import nccl_of_world, transport_between
from jobflow.tensors.gpus import device_name, gpu_of, in_rows, write
from jobflow.tensors.state import EagerState, mixed

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

_FOLDS: dict[str, Op] = {"product": Multiply(), "band": BitwiseAnd(), "bor": BitwiseOr(), "bxor": BitwiseXor()}


def chosen_collectives(here: EagerState, what: str, ranks: tuple[int, ...], arrays: Sequence[Any]) -> HostCollectives | NcclCollectives:
    """Return the collectives of a group for tensors of the device "cuda"; ranks without a GPU pass arrays of the host.  Collective.

    Raises: DivergedError if ranks differ; PlacementError for an array that is not on the GPU of the group's communicator.
    """
    gpu = next(filter(None, map(gpu_of, arrays)), None)
    comm = nccl_group(here, what, ranks, gpu)
    if comm is None:
        return HostCollectives(here, what, ranks)
    other = next((array for array in arrays if gpu_of(array) not in (None, here.gpus[comm.device.index])), None)
    if gpu is None or other is not None:
        name = "the host" if other is None else device_name(other)
        raise PlacementError(
            f"{what} at {user_line()}: a tensor is on {name}, but this rank exchanges tensors with ranks {list(ranks)} on "
            f"cuda:{comm.device.index}; move the tensor there with x.to('cuda:{comm.device.index}')"
        )
    return NcclCollectives(here, what, gpu, comm)


def nccl_group(here: EagerState, what: str, ranks: tuple[int, ...], gpu: EagerGpu | None) -> NcclCommunicator | None:
    """Return the NCCL communicator of these ranks, or None if they exchange tensors of GPUs through the hosts.  Collective.

    `what` names the operation in messages, and `gpu` is the GPU of its tensors on this rank, or None without GPUs.
    """
    with scope.lock():
        if ranks not in here.nccl_groups:
            here.nccl_groups[ranks] = _new_group(here, what, ranks, gpu)
        comm: NcclCommunicator | None = here.nccl_groups[ranks]
    return comm


def _new_group(here: EagerState, what: str, ranks: tuple[int, ...], gpu: EagerGpu | None) -> NcclCommunicator | None:
    hosts = here.rank.host_comm.group(ranks)
    agree(here, hosts, zlib.crc32(b"tensors on GPUs"), lambda: f"{what} of tensors on GPUs at {user_line()}")
    transport = transport_between(here, hosts, gpu)
    note_hosts(hosts, transport)
    if transport.kind != "nccl":
        return None
    assert gpu is not None
    gpu.activate()
    if gpu.target.products.deterministic:
        fix_order()
    comm = nccl_of_world(here.rank, gpu).group(ranks)
    assert isinstance(comm, NcclCommunicator)
    comm.prepare()
    return comm


@dataclass(frozen=True)
class NcclCollectives:
    """The collectives `what` of the ranks of `comm` for arrays on a GPU; the methods are the same as in `HostCollectives`."""

    here: EagerState
    what: str
    gpu: EagerGpu
    comm: NcclCommunicator

    # ---------------------------------------------------------------- collectives

    def reduced(self, array: Array, reduce: Reduction, provenance: int = 0) -> Array:
        if not reduces(array.dtype):
            return self._hosts.reduced(array, reduce, provenance)
        target = self.empty(array.shape, array.dtype)
        self._all_reduce(in_rows(array), target, reduce, provenance)()
        return target

    def start_reduced(self, array: Array, reduce: Reduction, provenance: int = 0) -> Callable[[], None]:
        """Start to overwrite a contiguous array by the reduction; return the function that makes later operations wait for it."""
        return self._all_reduce(array, array, reduce, provenance)

    def _all_reduce(self, source: Array, target: Array, reduce: Reduction, provenance: int) -> Callable[[], None]:
        return self._start("all_reduce", source, target, (source.size,), reduce=reduce, provenance=provenance)

    def scattered(self, rows: Array, reduce: Reduction) -> Array:
        if not reduces(rows.dtype):
            return self._hosts.scattered(rows, reduce)
        target = self.empty((1, *rows.shape[1:]), rows.dtype)
        self._start("reduce_scatter", in_rows(rows), target, (target.size,) * self.comm.size, reduce=reduce)()
        return target

    def stacked(self, array: Array) -> Array:
        target = self.empty((self.comm.size * array.shape[0], *array.shape[1:]), array.dtype)
        self._start("all_gather", in_rows(array), target, (array.size,) * self.comm.size)()
        return target

    def swapped(self, array: Array) -> Array:
        check_parts(array, self.comm.size, self.what)
        target, counts = self.empty(array.shape, array.dtype), (array.size // self.comm.size,) * self.comm.size
        self._start("all_to_all", in_rows(array), target, counts, counts)()
        return target

    def spread(self, array: Array, source: int) -> Array:
        target = self.empty(array.shape, array.dtype)
        self._start("broadcast", in_rows(array), target, (), root=self.comm.members.index(source))()
        return target

    def carried(self, array: Array | None, type: TensorType, source: int, target: int) -> Array:
        """Send the array, or return the received one; the ranks have compared the operation."""
        ranks = self.comm.members.index(source), self.comm.members.index(target)
        received = self.empty(type.shape if array is None else (0,), type.dtype.numpy)
        sent = self.empty((0,), type.dtype.numpy) if array is None else in_rows(array)
        if type.size:
            self.comm.start(Binding("transfer", ranks, sent, received, (type.size,), name=self.what))()
        return received

    def _start(
        self,
        kind: str,
        source: Array,
        target: Array,
        counts: Sequence[int],
        receives: Sequence[int] = (),
        reduce: Reduction | None = None,
        provenance: int = 0,
        root: int | None = None,
    ) -> Callable[[], None]:
        """Compare a collective of all ranks and start it; return the function that makes later operations wait for it."""
        type, placement = type_of(source), everywhere(self.here, B, self.comm.members).placement
        word = kind if reduce is None else f"{kind} ({reduce.value})"
        digest = mixed(self.here.collective_log(placement).number, provenance, zlib.crc32(f"{word} {root} {type} on GPUs".encode()))

        def described() -> str:
            return f"{self.what} of {type} on GPUs, {word}, at {user_line()}{done(self.here, placement)}"

        with meeting(self.here, self.here.rank.host_comm.group(self.comm.members), digest, described):
            if not type.size:
                return lambda: None
            self.gpu.activate()
            return self.comm.start(Binding(kind, range(self.comm.size), source, target, counts, receives, reduce, self.what), root)

    @property
    def _hosts(self) -> HostCollectives:
        """The collectives for types that NCCL cannot reduce."""
        return HostCollectives(self.here, self.what, self.comm.members)

    # ---------------------------------------------------------------- arrays

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        self.gpu.activate()
        return self.gpu.empty(tuple(shape), dtype)

    def rows(self, arrays: Sequence[Array]) -> Array:
        result = self.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
        for row, array in zip(result, arrays, strict=True):
            write(row, array)
        return result

    def folded(self, rows: Array, op: str) -> Array:
        fold = _FOLDS["band" if op == "product" and str(rows.dtype) == "bool" else op]  # kernels do not multiply bools
        total = rows[0]
        for k in range(1, len(rows)):
            target = self.empty(total.shape, total.dtype)
            self.gpu.calls_like(fold, total).run(None, [total, rows[k]], [target])
            total = target
        return total

    def divided(self, array: Array) -> Array:
        result = self.empty(array.shape, array.dtype)
        self.gpu.calls_like(DivideBy(float(self.comm.size)), array).run(None, [array], [result])
        return result
