"""The recording of a communicator's operations until `seal`, which checks that all ranks recorded the same operations.

`bind_*` creates a `Record` and an `Operation` without calls.  `seal` exchanges one `BindingMessage` per record: the operation, and the memory in
which peers find this rank's data.  The messages of the ranks of an operation must match; the communicator then fills in the calls.

Records and messages use rank numbers of the world, also in a group.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlacementError, PlanError
from jobflow.core.layout import Reduction
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.plan.traffic import Traffic, handed, total
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers
from jobflow.runtime.comm.solo_communicator import SingleRankGroup, copying


class MemoryRange(NamedTuple):
    """A range of `nbytes` bytes at `offset` in allocation number `region` of one rank."""

    region: int
    offset: int
    nbytes: int


class Group(NamedTuple):
    """A series of operations that its ranks bind in the same order: the collectives of some ranks, or the transfers from one rank to another."""

    ranks: tuple[int, ...]
    transfers: bool


class BindingMessage(NamedTuple):
    """The message of one rank to the others about an operation that it bound."""

    kind: str
    ranks: tuple[int, ...]
    dtype: str
    reduce: str
    #: as bound; for a transfer, the number of elements
    counts: tuple[int, ...]
    receives: tuple[int, ...]
    name: str
    #: bytes of this rank's source
    nbytes: int
    #: the range in which peers read this rank's source; None without data or shared memory
    source: MemoryRange | None
    #: the second buffer for a small source, used alternately with `source`
    twin: MemoryRange | None
    #: the range in which peers read this rank's piece of the result of a large all_reduce
    result: MemoryRange | None
    #: True if the target is the source
    in_place: bool

    @property
    def readable(self) -> bool:
        """True if peers can read all data of the operation: the source, and the piece of the result that a large all_reduce exchanges.

        A separately allocated source can be in shared memory although too little was left for the staged result.
        """
        if self.nbytes == 0 or self.twin is not None:
            return True
        return self.source is not None and (self.kind != "all_reduce" or self.result is not None)

    @property
    def agreed(self) -> tuple[Any, ...]:
        """The fields that must be equal on all ranks of the operation."""
        return self.kind, self.dtype, self.reduce, () if self.kind == "all_to_all" else self.counts

    def __str__(self) -> str:
        name = f' "{self.name}"' if self.name else ""
        return f"{self.kind}{name} of {self.dtype}{list(self.counts)} among {list(self.ranks)}"


def _unsealed() -> None:
    raise PlanError("communication: an operation was called before seal() of its communicator; call seal() first")


@dataclass(slots=True)
class Tally:
    """The number of runs of an operation, and the bytes that this rank sends in each."""

    kind: str = ""
    nbytes: int = 0
    runs: int = 0

    @property
    def traffic(self) -> tuple[str, Traffic]:
        return self.kind, Traffic(self.runs, self.runs * self.nbytes)


class Turns:
    """The choice between two staging buffers for the next operation, shared by the operations of a group that were sealed together."""

    __slots__ = ("odd",)

    def __init__(self) -> None:
        self.odd = False


class Operation:
    """The calls of one operation: two lists, which runs use alternately, one for each staging buffer of the group."""

    __slots__ = ("__weakref__", "_arrays", "_even", "_odd", "_turns", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self._arrays: tuple[Array, ...] = ()
        self.fill([(_unsealed, ())])

    def fill(self, even: list[Call], odd: list[Call] | None = None, turns: Turns | None = None) -> None:
        self._even, self._odd = even, even if odd is None else odd
        self._turns = Turns() if turns is None else turns

    def keep(self, *arrays: Array) -> None:
        """Keep memory that peers read alive as long as the operation, even if its own calls do not use it."""
        self._arrays += arrays

    def rewind(self) -> None:
        """Use the first staging buffer for the next run."""
        self._turns.odd = False

    def run(self) -> None:
        turns = self._turns
        calls = self._odd if turns.odd else self._even
        turns.odd = not turns.odd
        self.tally.runs += 1
        for function, arguments in calls:
            function(*arguments)

    def perform(self) -> None:
        """Run the calls of an operation without staging buffers, and do not count the run."""
        for function, arguments in self._even:
            function(*arguments)


class Regions:
    """The allocations of this rank by address, as long as any array points into them.

    Arrays may be collected at any moment, also in the thread of another rank, so the finalizer only queues their removal.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._places: list[MemoryRange] = []
        self._gone: deque[int] = deque()

    def add(self, location: MemoryRange, array: Array, gone: Callable[[], None] | None = None) -> None:
        """Add the allocation `array`; `gone` is called when no array points into it any more."""
        self._forget_gone()
        at = bisect(self._starts, address(array))
        self._starts.insert(at, address(array))
        self._places.insert(at, location)
        weakref.finalize(owner(array), self._note, address(array), gone).atexit = False

    def _note(self, start: int, gone: Callable[[], None] | None) -> None:
        self._gone.append(start)
        if gone is not None:
            gone()

    def _forget_gone(self) -> None:
        """Remove dead allocations before a lookup, because their memory may belong to another allocation now."""
        while self._gone:
            start = self._gone.popleft()
            at = bisect(self._starts, start) - 1
            if at >= 0 and self._starts[at] == start:
                del self._starts[at], self._places[at]

    def locate(self, array: Array) -> MemoryRange | None:
        """Return the memory range of a contiguous array; None if it is not inside one allocation."""
        self._forget_gone()
        start = address(array)
        at = bisect(self._starts, start) - 1
        if at < 0:
            return None
        offset = start - self._starts[at]
        region, first, nbytes = self._places[at]
        return MemoryRange(region, first + offset, array.nbytes) if offset + array.nbytes <= nbytes else None

    def clear(self) -> None:
        self._starts.clear()
        self._places.clear()
        self._gone.clear()


def owner(array: Array) -> Array:
    """Return the array that all views of `array` keep alive."""
    return array.base if isinstance(array.base, np.ndarray) else array


def address(array: Array) -> int:
    """Return the address of the first byte."""
    return int(array.__array_interface__["data"][0])


@dataclass
class Record:
    """One operation bound by this rank; `source` and `target` are flat, and empty if unused."""

    kind: str
    ranks: tuple[int, ...]
    source: Array
    target: Array
    counts: tuple[int, ...]
    receives: tuple[int, ...] = ()
    reduce: Reduction | None = None
    name: str = ""
    #: a collective, or the start of a transfer
    operation: Operation = field(default_factory=Operation)
    #: the wait of a transfer
    wait: Operation = field(default_factory=Operation)

    def sizes(self, me: int) -> tuple[int, int]:
        """Return the required numbers of elements of source and target on the rank at position `me`."""
        match self.kind:
            case "all_reduce":
                return self.counts[0], self.counts[0]
            case "all_gather":
                return self.counts[me], sum(self.counts)
            case "reduce_scatter":
                return sum(self.counts), self.counts[me]
            case "all_to_all":
                return sum(self.counts), sum(self.receives)
        return (self.counts[0], 0) if me == 0 else (0, self.counts[0])

    @property
    def group(self) -> Group:
        return Group(self.ranks, self.kind == "transfer")

    @property
    def label(self) -> str:
        return f'{self.kind} "{self.name}" of ranks {list(self.ranks)}' if self.name else f"{self.kind} of ranks {list(self.ranks)}"

    def message(
        self, source: MemoryRange | None = None, twin: MemoryRange | None = None, result: MemoryRange | None = None, in_place: bool = False
    ) -> BindingMessage:
        reduce = self.reduce.value if self.reduce else ""
        about = (self.kind, self.ranks, str(self.source.dtype), reduce, self.counts, self.receives, self.name, self.source.nbytes)
        return BindingMessage(*about, source, twin, result, in_place)


def flat(array: Array) -> Array:
    """Return `array` with one axis, without a copy."""
    if not array.flags.c_contiguous:
        raise PlanError(f"communication: the array must be contiguous; got shape {array.shape} with strides {array.strides}")
    return array.reshape(-1)


class Recorder(Communicator):
    """The binding half of a communicator, and its groups; a subclass implements `_complete` and `_make_group`."""

    def __init__(self, members: tuple[int, ...], me: int, local: Callable[[int], Array], world: Recorder | None = None) -> None:
        """Create a communicator of `members`; `me` is this rank's number in the world.

        A group passes its `world`; `local` allocates memory that no peer reads.
        """
        self.members = members
        self.rank = members.index(me)
        self.size = len(members)
        self._me = me
        self._local = local
        self._all = world or self
        self._named = "all ranks" if world is None else f"ranks {list(members)}"
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._records: list[Record] = []
        self._sealed: weakref.WeakSet[Operation] = weakref.WeakSet()
        self._tallies: list[tuple[weakref.ref[Operation], Tally]] = []
        self._before: dict[str, Traffic] = {}

    def group(self, ranks: Sequence[int]) -> Communicator:
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise PlacementError(f"group of ranks {list(ranks)}: each rank must be unique and from 0 to {self.size - 1}")
        if self.rank not in ranks:
            raise PlacementError(f"group of ranks {list(ranks)}: rank {self.rank} is not a member; call it on its members only")
        return self._all._group(tuple(self.members[rank] for rank in ranks))

    def _group(self, members: tuple[int, ...]) -> Communicator:
        if members == self.members:
            return self
        if members not in self._groups:
            self._groups[members] = self._make_group(members) if len(members) > 1 else SingleRankGroup(self._local, self._me, self)
        return self._groups[members]

    def bind(self, what: Binding) -> list[Call]:
        return [(self._bind(what).operation.run, ())]

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        return self._bind_transfer(Binding("transfer", (self.rank, peer), source, source[:0], (source.size,), name=name))

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        return self._bind_transfer(Binding("transfer", (peer, self.rank), target[:0], target, (target.size,), name=name))

    def _bind_transfer(self, what: Binding) -> Transfers:
        record = self._bind(what)
        return Transfers([(record.operation.run, ())], [(record.wait.run, ())])

    def _bind(self, what: Binding) -> Record:
        kind, ranks, source, target, counts, receives, reduce, name = what
        record = Record(kind, tuple(ranks), flat(source), flat(target), tuple(counts), tuple(receives), reduce, name)
        if self.rank not in ranks or not all(0 <= rank < self.size for rank in ranks) or len(set(ranks)) != len(ranks):
            raise PlanError(
                f"rank {self.rank} of {self.size} bound {record.label}: its ranks must include this one, be unique, and be from 0 to {self.size - 1}"
            )
        needed = record.sizes(record.ranks.index(self.rank))
        if (source.size, target.size) != needed or source.dtype != target.dtype:
            got = f"{source.dtype}[{source.size}] and {target.dtype}[{target.size}]"
            raise PlanError(
                f"rank {self.rank} bound {record.label}: its counts need a source [{needed[0]}] and a target [{needed[1]}] of one type; got {got}"
            )
        record.ranks = tuple(self.members[rank] for rank in ranks)
        self._records.append(record)
        return record

    def seal(self) -> None:
        records, self._records = self._records, []
        self.sent()  # removes dead operations, but keeps their traffic
        messages = self.exchange(self._write(records))
        parts = match(messages, self.members)
        self._prepare({group: operations for group, operations in parts.items() if len(group.ranks) > 1})
        position: dict[Group, int] = defaultdict(int)
        for record in records:
            own = parts[record.group][position[record.group]]
            position[record.group] += 1
            record.wait.fill([])
            if len(record.ranks) == 1:
                record.operation.fill(copying(record.source, record.target))
            elif not any(message.nbytes for message in own):
                record.operation.fill([])
            else:
                self._complete(record, own)
            record.operation.keep(record.source, record.target)
            record.wait.keep(record.source, record.target)
            self._sealed.add(record.operation)
            self._begin_tally(record)
        self.barrier()  # no rank may free memory before its peers have their views

    def _begin_tally(self, record: Record) -> None:
        """Start to count the runs of the record's operation, and the bytes that this rank sends in them."""
        tally = record.operation.tally
        elements = handed(record.kind, record.counts, record.ranks.index(self._me), len(record.ranks))
        tally.kind, tally.nbytes = record.kind, elements * record.source.itemsize
        self._tallies.append((weakref.ref(record.operation), tally))

    def sent(self) -> dict[str, Traffic]:
        gone = [tally.traffic for operation, tally in self._tallies if operation() is None]
        self._before = total([*self._before.items(), *gone])
        self._tallies = [(operation, tally) for operation, tally in self._tallies if operation() is not None]
        groups = [entry for group in self._groups.values() for entry in group.sent().items()]
        return total([*self._before.items(), *groups, *(tally.traffic for _, tally in self._tallies if tally.runs)])

    def rewind(self) -> None:
        """Reset to the state after the last seal, before any call."""
        self._records.clear()
        for operation in self._sealed:
            operation.rewind()
        for group in self._groups.values():
            if isinstance(group, Recorder):
                group.rewind()

    @abstractmethod
    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        """Return the communicator of several ranks of this world, including this one."""

    def _write(self, records: Sequence[Record]) -> list[BindingMessage]:
        """Return the messages for `records`; a subclass with shared memory adds the memory ranges for peers."""
        return [record.message() for record in records]

    def _prepare(self, groups: dict[Group, list[list[BindingMessage]]]) -> None:
        """Prepare groups and their operations; all ranks of the world call this with the same arguments."""

    @abstractmethod
    def _complete(self, record: Record, messages: Sequence[BindingMessage]) -> None:
        """Fill in `record.operation`, and `record.wait` of a transfer; `messages` are the messages of `record.ranks`, in that order.

        The operation has several ranks, and at least one of them has data.
        """


def match(messages: Sequence[Sequence[BindingMessage]], members: Sequence[int]) -> dict[Group, list[list[BindingMessage]]]:
    """Return the operations of each group in order, each as the messages of its ranks; raise PlanError if ranks bound different operations."""
    written: dict[Group, dict[int, list[BindingMessage]]] = defaultdict(lambda: defaultdict(list))
    for rank, row in zip(members, messages, strict=True):
        for message in row:
            written[Group(message.ranks, message.kind == "transfer")][rank].append(message)
    parts: dict[Group, list[list[BindingMessage]]] = {}
    for group, rows in written.items():
        _compare(group.ranks, rows)
        parts[group] = [list(column) for column in zip(*(rows[rank] for rank in group.ranks), strict=True)]
    return parts


def _compare(ranks: tuple[int, ...], rows: dict[int, list[BindingMessage]]) -> None:
    first, *others = ranks
    for other in others:
        for number, (a, b) in enumerate(zip(rows[first], rows[other], strict=False)):
            if a.agreed != b.agreed:
                raise PlanError(f"communication: ranks {first} and {other} bound different operations as number {number} among them: {a} and {b}")
        if len(rows[first]) != len(rows[other]):
            counts = f"rank {first} bound {len(rows[first])} communications, rank {other} bound {len(rows[other])}"
            raise PlanError(f"communication: ranks {first} and {other} bound different numbers of operations of ranks {list(ranks)}: {counts}")
    for column in zip(*(rows[rank] for rank in ranks), strict=True):
        if column[0].kind == "all_to_all":
            _compare_pieces(ranks, column)


def _compare_pieces(ranks: tuple[int, ...], column: Sequence[BindingMessage]) -> None:
    for i, giver in enumerate(column):
        for j, taker in enumerate(column):
            if giver.counts[j] != taker.receives[i]:
                mismatch = f"rank {ranks[i]} sends {giver.counts[j]} elements, rank {ranks[j]} expects {taker.receives[i]}"
                raise PlanError(f"{giver}: {mismatch}")
