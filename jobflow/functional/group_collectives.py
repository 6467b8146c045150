"""Collectives on local tensors of a group of ranks, for the namespaces `flow.comm` and `flow.distributed`.

Every function writes its result into tensor arguments.  The functions are not differentiable, unlike redistribution of global tensors.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, counted, user_line
from jobflow.core.types import Array, TensorType
from jobflow.functional.typed import Tensor
from jobflow.tensors.collectives import FOLDS, REDUCTIONS, HostCollectives, collectives_of
from jobflow.tensors.convert import meeting
from jobflow.tensors.gpus import write
from jobflow.tensors.parameters import described
from jobflow.tensors.state import refuse_tracing, state
from jobflow.tensors.tensor import TensorBase, own

if TYPE_CHECKING:
    from jobflow.tensors.gpu_collectives import NcclCollectives

REDUCE_OPS = (*REDUCTIONS, "avg", *FOLDS)


class Group:
    """A collective operation `what`, such as "comm.all_reduce", among the ranks `ranks`, by default all ranks."""

    def __init__(self, what: str, ranks: Sequence[int] | None = None) -> None:
        self.what = what
        self.here = state()
        self.ranks = tuple(range(self.here.rank.size)) if ranks is None else tuple(ranks)
        self.me = self.here.rank.index

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def index(self) -> int:
        """The position of this rank in the group."""
        return self.ranks.index(self.me)

    def _refuse_tracing(self) -> None:
        """Raise JobError while a program is traced: its runs would not communicate, and a failed trace could not undo the communication."""
        refuse_tracing(self.what, "ranks cannot communicate local tensors or objects", "call it outside")

    # ---------------------------------------------------------------- arguments

    def tensors(self, **arguments: Any) -> None:
        """Raise ArgumentError or JobError unless each argument is a local tensor, or a sequence of local tensors for a name with "_list".

        While a program is traced, raise JobError.
        """
        self._refuse_tracing()
        for name, argument in arguments.items():
            several = name.endswith("_list") and isinstance(argument, list | tuple)
            for x in argument if several else [argument]:
                if not isinstance(x, TensorBase):
                    raise ArgumentError(f"{self.what} at {user_line()}: {name} must be a tensor, or a list of tensors; got {described(x)}")
                if x.layout is not None or x.traced is not None:
                    raise JobError(f"{self.what} at {user_line()}: the tensors must be local; pass x.to_local() for a global tensor x")

    def rank(self, rank: Any, name: str = "rank") -> int:
        """Return `rank` as an int.  Raises: ArgumentError unless it is a rank of the group; `name` is the argument in the message."""
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank not in self.ranks:
            whole = self.ranks == tuple(range(self.size))
            there = f"0 to {self.size - 1}" if whole else f"{list(self.ranks)}"
            raise ArgumentError(f"{self.what} at {user_line()}: {name} {rank!r} does not exist; the ranks are {there}")
        return int(rank)

    def other(self, rank: Any) -> int:
        """Return `rank` as an int.  Raises: ArgumentError unless it is a rank of the group other than this one."""
        if self.rank(rank) == self.me:
            raise ArgumentError(f"{self.what} at {user_line()}: rank {rank} is this rank itself; pass another rank")
        return int(rank)

    def reduction(self, op: Any, dtype: Any) -> str:
        """Return the reduction `op`.  Raises: ArgumentError for another value; DtypeError for a type without this reduction."""
        if not isinstance(op, str) or op not in REDUCE_OPS:
            raise ArgumentError(f"{self.what} at {user_line()}: op must be one of {', '.join(REDUCE_OPS)}; got {op!r}")
        if op == "avg" and not dtype.is_float:
            raise DtypeError(f"{self.what} at {user_line()}: op avg needs a floating point tensor; got {dtype.name}; use sum")
        if op in ("band", "bor", "bxor") and dtype.is_float:
            raise DtypeError(f"{self.what} at {user_line()}: op {op} needs an integer tensor; got {dtype.name}")
        return str(op)

    def count(self, tensors: Any, name: str = "the list") -> None:
        """Raise ArgumentError unless `tensors` has one tensor per rank."""
        if not isinstance(tensors, list | tuple) or len(tensors) != self.size:
            number = counted(self.size, "tensor")
            shown = len(tensors) if isinstance(tensors, list | tuple) else repr(tensors)
            raise ArgumentError(f"{self.what} at {user_line()}: {name} must have {number}, one per rank; got {shown}")

    def alike(self, tensors: Sequence[Tensor], type: TensorType) -> None:
        """Raise ShapeError unless all tensors have the type `type`."""
        for x in tensors:
            if x.tensor_type != type:
                raise ShapeError(f"{self.what} at {user_line()}: a tensor of the list is {x.tensor_type}; all must be {type}")

    def write(self, x: Tensor, value: Array) -> None:
        """Overwrite the elements of x with `value`, an array of the same shape and type."""
        write(own(x, self.what), value)
        x.wrote()

    # ---------------------------------------------------------------- collectives

    def meet(self, text: str = "", digest: int = 0) -> AbstractContextManager[None]:
        """Return a context that compares `digest` between the ranks of the group; `text` describes the operation in messages.

        Raises: DivergedError on all ranks if the digests differ; JobError while a program is traced.
        """
        self._refuse_tracing()
        return meeting(self.here, self.here.rank.host_comm.group(self.ranks), digest, lambda: f"{text or self.what} at {user_line()}")

    def barrier(self) -> None:
        with self.meet():
            self.here.rank.host_comm.group(self.ranks).barrier()

    def exchange(self, item: Any, text: str) -> list[Any]:
        """Return copies of the objects of all ranks, in the order of the group.  Raises: ArgumentError, on all ranks, if one cannot be pickled."""
        message = self._pickled(item)
        with self.meet(digest=zlib.crc32(text.encode())):
            messages: list[bytes | str] = self.here.rank.host_comm.group(self.ranks).exchange(message)
        for rank, each in zip(self.ranks, messages, strict=True):
            if isinstance(each, str):
                raise ArgumentError(
                    f"{self.what} at {user_line()}: the object of rank {rank} cannot be pickled: {each}; pass an object that pickle supports"
                )
        return [pickle.loads(each) for each in messages if isinstance(each, bytes)]

    def _pickled(self, item: Any) -> bytes | str:
        """Return the pickle of an object, or the reason why it cannot be pickled."""
        try:
            return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - methods of the object raise any error
            return f"{type(error).__name__}: {error}"

    def collectives(self, *tensors: Tensor) -> HostCollectives | NcclCollectives:
        """Return the collectives of the group for tensors like these."""
        return collectives_of(self.here, self.what, self.ranks, tensors)

    def reduced(self, x: Tensor, op: str) -> Array:
        """Return the reduction of the tensors of all ranks, as an array on the device of x or on the host."""
        through = self.collectives(x)
        if op in FOLDS:
            return through.folded(through.stacked(x.array[None]), op)
        total = through.reduced(x.array, REDUCTIONS["sum" if op == "avg" else op])
        return through.divided(total) if op == "avg" else total

    def all_reduce(self, x: Tensor, op: Any) -> None:
        self.tensors(tensor=x)
        self.write(x, self.reduced(x, self.reduction(op, x.dtype)))

    def reduce(self, x: Tensor, target: int, op: Any) -> None:
        self.tensors(tensor=x)
        to = self.rank(target)
        result = self.reduced(x, self.reduction(op, x.dtype))
        if self.me == to:
            self.write(x, result)

    def broadcast(self, x: Tensor, source: int) -> None:
        self.tensors(tensor=x)
        root = self.rank(source)
        self.write(x, self.collectives(x).spread(x.array, root))

    def gathered(self, x: Tensor) -> Array:
        """Return the tensors of all ranks along a new first axis."""
        return self.collectives(x).stacked(x.array[None])

    def all_gather(self, results: Sequence[Tensor], x: Tensor) -> None:
        self.count(results)
        self.tensors(tensor_list=results, tensor=x)
        self.alike(results, x.tensor_type)
        for to, part in zip(results, self.gathered(x), strict=True):
            self.write(to, part)

    def gather(self, x: Tensor, results: Sequence[Tensor] | None, target: int) -> None:
        self.tensors(tensor=x)
        if to_me := self.me == self.rank(target):
            self.count(results)
            self.tensors(gather_list=results)
            self.alike(results or (), x.tensor_type)
        parts = self.gathered(x)
        for to, part in zip(results or () if to_me else (), parts, strict=False):
            self.write(to, part)

    def scatter(self, x: Tensor, sources: Sequence[Tensor] | None, source: int) -> None:
        self.tensors(tensor=x)
        if mine := self.me == self.rank(source):
            self.count(sources)
            self.tensors(scatter_list=sources)
            self.alike(sources or (), x.tensor_type)
        through = self.collectives(x)
        shape, dtype = (self.size, *x.tensor_type.shape), x.tensor_type.dtype.numpy
        rows = through.rows([y.array for y in sources or ()]) if mine else through.empty(shape, dtype)
        self.write(x, through.spread(rows, source)[self.index])

    def reduce_scatter(self, x: Tensor, sources: Sequence[Tensor], op: Any) -> None:
        """Write row i of the reduced rows into x of the i-th rank; the rows are tensors of the type of x."""
        word = self.reduction(op, x.dtype)
        self._scatter_reduced(x, *self._stacked(sources, x.tensor_type), word)

    def reduce_scatter_parts(self, x: Tensor, source: Tensor, op: Any) -> None:
        """Write part i of the reduced tensors into x of the i-th rank, which has the shape of a part along axis 0."""
        word = self.reduction(op, x.dtype)
        self._scatter_reduced(x, self.collectives(source), source.array.reshape(self.size, *x.tensor_type.shape), word)

    def _scatter_reduced(self, x: Tensor, through: HostCollectives | NcclCollectives, rows: Array, word: str) -> None:
        if word in FOLDS:
            self.write(x, through.folded(through.stacked(rows[None]), word)[self.index])
            return
        (piece,) = through.scattered(rows, REDUCTIONS["sum" if word == "avg" else word])
        self.write(x, through.divided(piece) if word == "avg" else piece)

    def swapped(self, x: Tensor) -> Array:
        """Send part i of x along axis 0 to the i-th rank, and return the parts received from all ranks."""
        return self.collectives(x).swapped(x.array)

    def _stacked(self, tensors: Sequence[Tensor], like: TensorType) -> tuple[HostCollectives | NcclCollectives, Array]:
        """Return the collectives for one tensor per rank, each of the type `like`, and the tensors along a new first axis."""
        self.count(tensors)
        self.tensors(input_list=tensors)
        self.alike(tensors, like)
        through = self.collectives(*tensors)
        return through, through.rows([x.array for x in tensors])

    def all_to_all(self, results: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        self.count(results)
        self.tensors(output_tensor_list=results, input_tensor_list=sources)
        through, rows = self._stacked(sources, results[0].tensor_type)
        self.alike(results, results[0].tensor_type)
        for to, part in zip(results, through.swapped(rows), strict=True):
            self.write(to, part)

    # ---------------------------------------------------------------- two ranks

    def send(self, x: Tensor, target: int, tag: int = 0) -> None:
        self.tensors(tensor=x)
        through = self._between(x, self.me, self.other(target))
        with self._pair(through, self.me, target, x.tensor_type, tag):
            through.carried(x.array, x.tensor_type, self.me, target)

    def receive(self, x: Tensor, source: int, tag: int = 0) -> None:
        self.tensors(tensor=x)
        through = self._between(x, self.other(source), self.me)
        with self._pair(through, source, self.me, x.tensor_type, tag):
            self.write(x, through.carried(None, x.tensor_type, source, self.me))

    def _between(self, x: Tensor, source: int, target: int) -> HostCollectives | NcclCollectives:
        return collectives_of(self.here, self.what, tuple(sorted((source, target))), [x])

    def _pair(self, through: HostCollectives | NcclCollectives, source: int, target: int, type: TensorType, tag: int) -> AbstractContextManager[None]:
        """Return a context that raises DivergedError unless sender and receiver pass the same shape and element size through the same transport."""
        pair = self.here.rank.host_comm.group(tuple(sorted((source, target))))
        where = "" if isinstance(through, HostCollectives) else " on GPUs"
        digest = zlib.crc32(f"{source} {target} {tag} {type.shape} {type.dtype.itemsize}{where}".encode())
        text = f"{self.what} of {type}{where} from rank {source} to rank {target}"
        return meeting(self.here, pair, digest, lambda: f"{text} at {user_line()}")
