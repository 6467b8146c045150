"""Recording the operations of a communicator until `seal`, which checks that all ranks recorded the same.

`bind_*` makes a `Record` and an `Operation` without calls.  `seal` exchanges one `Letter` per record - what the operation is,
and where the peers find this rank's part - checks that the letters of an operation's ranks agree, and lets the communicator
fill in the calls.

Inside, ranks have their numbers in the world, in a group too: records, letters and messages name them so.
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
from jobflow.runtime.comm.solo_communicator import Alone, copying


class MemoryRange(NamedTuple):
    """`nbytes` at `offset` of the owner's allocation number `region`."""

    region: int
    offset: int
    nbytes: int


class Group(NamedTuple):
    """Operations that their ranks bind in one order: the collectives of some ranks, or the transfers from one to another."""

    ranks: tuple[int, ...]
    transfers: bool


class Letter(NamedTuple):
    """What one rank tells the others about an operation it bound."""

    kind: str
    ranks: tuple[int, ...]
    dtype: str
    reduce: str
    #: as bound; for a transfer the single number of elements
    counts: tuple[int, ...]
    receives: tuple[int, ...]
    name: str
    #: bytes of this rank's source
    nbytes: int
    #: where peers read this rank's source; None if nothing is to be read, or no memory is shared
    source: MemoryRange | None
    #: the second buffer for a small source, which this rank's operations of the group use in turn with `source`
    twin: MemoryRange | None
    #: where peers read this rank's piece of the result of a large all_reduce
    result: MemoryRange | None
    #: the target is the source
    in_place: bool

    @property
    def readable(self) -> bool:
        """True if peers can read all that the operation needs: the source, and the piece of the result that a large all_reduce exchanges.

        A source that is an allocation of its own can be in shared memory while the staging of the result found none.
        """
        if self.nbytes == 0 or self.twin is not None:
            return True
        return self.source is not None and (self.kind != "all_reduce" or self.result is not None)

    @property
    def agreed(self) -> tuple[Any, ...]:
        """What must be the same on all ranks of the operation."""
        return self.kind, self.dtype, self.reduce, () if self.kind == "all_to_all" else self.counts

    def __str__(self) -> str:
        name = f' "{self.name}"' if self.name else ""
        return f"{self.kind}{name} of {self.dtype}{list(self.counts)} among {list(self.ranks)}"


def _unsealed() -> None:
    raise PlanError("a communication was called before seal() of its communicator")


@dataclass(slots=True)
class Tally:
    """How often an operation ran, and the bytes that this rank hands to others each time."""

    kind: str = ""
    nbytes: int = 0
    runs: int = 0

    @property
    def traffic(self) -> tuple[str, Traffic]:
        return self.kind, Traffic(self.runs, self.runs * self.nbytes)


class Turns:
    """Which of two staging buffers the next operation of a group uses; all operations of the group that were sealed together share it."""

    __slots__ = ("odd",)

    def __init__(self) -> None:
        self.odd = False


class Operation:
    """The calls of one operation, for each of the two staging buffers of its group."""

    __slots__ = ("__weakref__", "_even", "_kept", "_odd", "_turns", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self._kept: tuple[Array, ...] = ()
        self.fill([(_unsealed, ())])

    def fill(self, even: list[Call], odd: list[Call] | None = None, turns: Turns | None = None) -> None:
        self._even, self._odd = even, even if odd is None else odd
        self._turns = Turns() if turns is None else turns

    def keep(self, *arrays: Array) -> None:
        """Memory that peers read lasts as long as the operation, whether or not its own calls use it."""
        self._kept += arrays

    def rewind(self) -> None:
        """Begin with the first buffer again."""
        self._turns.odd = False

    def run(self) -> None:
        turns = self._turns
        calls = self._odd if turns.odd else self._even
        turns.odd = not turns.odd
        self.tally.runs += 1
        for function, arguments in calls:
            function(*arguments)


class Regions:
    """This rank's allocations, found again by address for as long as any array points into them.

    Arrays may be collected at any moment, also by another rank's thread: then it is only noted that they are gone.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._places: list[MemoryRange] = []
        self._gone: deque[int] = deque()

    def add(self, place: MemoryRange, array: Array, gone: Callable[[], None] | None = None) -> None:
        """`array` is what lies at `place`; `gone` is called when nothing points into it any more."""
        self._forget_gone()
        at = bisect(self._starts, address(array))
        self._starts.insert(at, address(array))
        self._places.insert(at, place)
        weakref.finalize(owner(array), self._note, address(array), gone).atexit = False

    def _note(self, start: int, gone: Callable[[], None] | None) -> None:
        self._gone.append(start)
        if gone is not None:
            gone()

    def _forget_gone(self) -> None:
        """Before an address is looked up: the memory may belong to another allocation by now."""
        while self._gone:
            start = self._gone.popleft()
            at = bisect(self._starts, start) - 1
            if at >= 0 and self._starts[at] == start:
                del self._starts[at], self._places[at]

    def locate(self, array: Array) -> MemoryRange | None:
        """Where a contiguous array lies; None if it is not wholly inside one allocation."""
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
    """The array that all views of `array` keep alive."""
    return array.base if isinstance(array.base, np.ndarray) else array


def address(array: Array) -> int:
    """Of the first byte."""
    return int(array.__array_interface__["data"][0])


@dataclass
class Record:
    """One operation that this rank bound; `source` and `target` are flat, and empty where there is none."""

    kind: str
    ranks: tuple[int, ...]
    source: Array
    target: Array
    counts: tuple[int, ...]
    receives: tuple[int, ...] = ()
    reduce: Reduction | None = None
    name: str = ""
    #: all of a collective, the post of a transfer
    operation: Operation = field(default_factory=Operation)
    #: of a transfer
    wait: Operation = field(default_factory=Operation)

    def sizes(self, me: int) -> tuple[int, int]:
        """How many elements source and target must have on the rank at position `me`."""
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

    def letter(
        self, source: MemoryRange | None = None, twin: MemoryRange | None = None, result: MemoryRange | None = None, in_place: bool = False
    ) -> Letter:
        reduce = self.reduce.value if self.reduce else ""
        about = (self.kind, self.ranks, str(self.source.dtype), reduce, self.counts, self.receives, self.name, self.source.nbytes)
        return Letter(*about, source, twin, result, in_place)


def flat(array: Array) -> Array:
    """`array` as one axis, without a copy."""
    if not array.flags.c_contiguous:
        raise PlanError(f"communication needs contiguous arrays, got shape {array.shape} with strides {array.strides}")
    return array.reshape(-1)


class Recorder(Communicator):
    """The binding half of a communicator, and its groups; `_complete` and `_make_group` are what a subclass adds."""

    def __init__(self, members: tuple[int, ...], me: int, local: Callable[[int], Array], world: Recorder | None = None) -> None:
        """`me` is this rank's number in the world; `world` the communicator of which this is a group; `local` allocates what no peer reads."""
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
            raise PlacementError(f"there is no group of ranks {list(ranks)} among {self.size}: each must exist, and be named once")
        if self.rank not in ranks:
            raise PlacementError(f"rank {self.rank} asked for the group of ranks {list(ranks)}, and is not one of them")
        return self._all._group(tuple(self.members[rank] for rank in ranks))

    def _group(self, members: tuple[int, ...]) -> Communicator:
        if members == self.members:
            return self
        if members not in self._groups:
            self._groups[members] = self._make_group(members) if len(members) > 1 else Alone(self._local, self._me, self)
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
            raise PlanError(f"rank {self.rank} of {self.size} bound {record.label}: it must be one of them, and each of them exist once")
        wanted = record.sizes(record.ranks.index(self.rank))
        if (source.size, target.size) != wanted or source.dtype != target.dtype:
            got = f"{source.dtype}[{source.size}] -> {target.dtype}[{target.size}]"
            raise PlanError(f"rank {self.rank} bound {record.label}: counts ask for [{wanted[0]}] -> [{wanted[1]}] of one type, got {got}")
        record.ranks = tuple(self.members[rank] for rank in ranks)
        self._records.append(record)
        return record

    def seal(self) -> None:
        records, self._records = self._records, []
        self.sent()  # forgets operations that are gone, but not what they sent
        letters = self.exchange(self._write(records))
        parts = match(letters, self.members)
        self._prepare({group: operations for group, operations in parts.items() if len(group.ranks) > 1})
        position: dict[Group, int] = defaultdict(int)
        for record in records:
            found = parts[record.group][position[record.group]]
            position[record.group] += 1
            record.wait.fill([])
            if len(record.ranks) == 1:
                record.operation.fill(copying(record.source, record.target))
            elif not any(letter.nbytes for letter in found):
                record.operation.fill([])
            else:
                self._complete(record, found)
            record.operation.keep(record.source, record.target)
            record.wait.keep(record.source, record.target)
            self._sealed.add(record.operation)
            self._begin_tally(record)
        self.barrier()  # until all have looked at it, nobody may drop what its peers are about to read

    def _begin_tally(self, record: Record) -> None:
        """Begin to count the runs of an operation."""
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
        """As if no operation had been called yet, and none bound since the last seal."""
        self._records.clear()
        for operation in self._sealed:
            operation.rewind()
        for group in self._groups.values():
            if isinstance(group, Recorder):
                group.rewind()

    @abstractmethod
    def _make_group(self, members: tuple[int, ...]) -> Communicator:
        """Of a world: the communicator of these of its ranks, several, of which this one is one."""

    def _write(self, records: Sequence[Record]) -> list[Letter]:
        """The letters for `records`; a subclass that shares memory says where the peers find them."""
        return [record.letter() for record in records]

    def _prepare(self, groups: dict[Group, list[list[Letter]]]) -> None:
        """Groups and their operations; all ranks of the world call this with the same ones."""

    @abstractmethod
    def _complete(self, record: Record, letters: Sequence[Letter]) -> None:
        """Fill in `record.operation`, and `record.wait` of a transfer; `letters` are those of `record.ranks`, in that order.

        Several ranks, of which some have something to give.
        """


def match(letters: Sequence[Sequence[Letter]], members: Sequence[int]) -> dict[Group, list[list[Letter]]]:
    """What each of `members` wrote, as for each group its operations in order, each as the letters of its ranks; PlanError where ranks disagree."""
    written: dict[Group, dict[int, list[Letter]]] = defaultdict(lambda: defaultdict(list))
    for rank, row in zip(members, letters, strict=True):
        for letter in row:
            written[Group(letter.ranks, letter.kind == "transfer")][rank].append(letter)
    parts: dict[Group, list[list[Letter]]] = {}
    for group, rows in written.items():
        _compare(group.ranks, rows)
        parts[group] = [list(column) for column in zip(*(rows[rank] for rank in group.ranks), strict=True)]
    return parts


def _compare(ranks: tuple[int, ...], rows: dict[int, list[Letter]]) -> None:
    first, *others = ranks
    for other in others:
        for number, (a, b) in enumerate(zip(rows[first], rows[other], strict=False)):
            if a.agreed != b.agreed:
                raise PlanError(f"ranks {first} and {other} disagree at communication {number} between them: {a} versus {b}")
        if len(rows[first]) != len(rows[other]):
            counts = f"rank {first} bound {len(rows[first])} communications, rank {other} bound {len(rows[other])}"
            raise PlanError(f"ranks {first} and {other} disagree among {list(ranks)}: {counts}")
    for column in zip(*(rows[rank] for rank in ranks), strict=True):
        if column[0].kind == "all_to_all":
            _compare_pieces(ranks, column)


def _compare_pieces(ranks: tuple[int, ...], column: Sequence[Letter]) -> None:
    for i, giver in enumerate(column):
        for j, taker in enumerate(column):
            if giver.counts[j] != taker.receives[i]:
                disagree = f"rank {ranks[i]} sends {giver.counts[j]} elements, rank {ranks[j]} expects {taker.receives[i]}"
                raise PlanError(f"{giver}: {disagree}")
