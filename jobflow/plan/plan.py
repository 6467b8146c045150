"""The program of one rank as plain data that can be printed, pickled, compared and verified.

A slot is a strided window on a buffer.  ``arena`` is private to this rank, and its memory is reused by live range.  ``shared`` is reused in the
same way, but is visible to the other ranks of the node, and collectives read it.  Variables persist between runs, in ``state/...`` (private to
this rank) or ``common/...`` (stored once for all ranks of the node).  Their half-precision copies also persist, in ``shadow/...``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from itertools import accumulate
from typing import Literal, TypeAlias

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, SourceLine
from jobflow.core.layout import Box, Reduction, cut
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.graph.ir import Phase
from jobflow.ops.op import Op

#: Alignment of tensors, in bytes.
ALIGNMENT = 64


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round a number of bytes up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


def consecutive_offsets(types: Iterable[TensorType]) -> tuple[list[int], int]:
    """Return the aligned byte offsets of consecutive tensors, and the total number of bytes."""
    stops = list(accumulate((aligned(type.nbytes) for type in types), initial=0))
    return stops[:-1], stops[-1]


def line_cut(nbytes: int, n: int) -> list[tuple[int, int]]:
    """Cut a number of bytes into n balanced spans of whole cache lines, so that no two ranks write to the same line."""
    return [(start * ALIGNMENT, stop * ALIGNMENT) for start, stop in cut(-(-nbytes // ALIGNMENT), n)]


Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of `type` at `offset` bytes into `buffer`, with `strides` in bytes."""

    buffer: str
    offset: int
    type: TensorType
    strides: tuple[int, ...]

    def __str__(self) -> str:
        plain = self.strides == contiguous_strides(self.type.shape, self.type.dtype.itemsize)
        return f"{self.buffer}@{self.offset}:{self.type}{'' if plain else f'/{self.strides}'}"

    @property
    def stop(self) -> int:
        """The offset after the last byte of the slot."""
        if 0 in self.type.shape:
            return self.offset
        reach = sum((n - 1) * s for n, s in zip(self.type.shape, self.strides, strict=True))
        return self.offset + reach + self.type.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Compute:
    """A call of an operation's kernel."""

    op: Op
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    name: str
    where: SourceLine = NOWHERE
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of all `ranks` on contiguous slots, or its start if it is `concurrent`; pieces are concatenated in rank order.

    all_reduce      input and output have `sum(counts)` elements
    all_gather      rank i sends counts[i] elements
    reduce_scatter  rank i receives counts[i] elements
    all_to_all      this rank sends counts[i] elements to rank i, and receives receives[i] elements from rank i

    Concurrent collectives run on the rank's communication stream, in their order, beside the computation up to their `Completion`.  Until then, the
    input must not be written, and the output must not be read or written.
    """

    kind: Kind
    ranks: tuple[int, ...]
    input: Slot
    output: Slot
    counts: tuple[int, ...]
    receives: tuple[int, ...]
    reduce: Reduction
    #: position in the global order of communication; the same on all ranks
    order: int
    name: str
    where: SourceLine = NOWHERE
    phase: Phase = "forward"
    concurrent: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion of a concurrent collective: its input may be overwritten, and its output may be read."""

    input: Slot
    output: Slot
    order: int
    name: str
    where: SourceLine = NOWHERE


@dataclass(frozen=True, slots=True)
class Transfer:
    """The start of a send of a contiguous slot to `peer`, or of a receive from `peer` into the slot.

    Until the matching `Wait`, a sent slot must not be written and a received slot must not be read or written.
    """

    peer: int
    sends: bool
    slot: Slot
    order: int
    name: str
    where: SourceLine = NOWHERE


@dataclass(frozen=True, slots=True)
class Wait:
    """The completion of a transfer: a sent slot may be overwritten, and a received slot may be read."""

    peer: int
    sends: bool
    slot: Slot
    order: int
    name: str
    where: SourceLine = NOWHERE


@dataclass(frozen=True, slots=True)
class Announced:
    """An entry of the communication schedule, equal on all ranks, including ranks that do not participate."""

    what: str
    name: str
    #: the participating ranks; the sender before the receiver
    ranks: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.what} {self.name} {list(self.ranks)} {self.nbytes} bytes"


Instruction: TypeAlias = Compute | Collective | Completion | Transfer | Wait


@dataclass(frozen=True)
class Feed:
    """An argument of the job: the box of the logical array that this rank reads, and the slot that receives it."""

    name: str
    slot: Slot
    box: Box


@dataclass(frozen=True)
class Plan:
    """The program of one rank: instructions of `body` compute, and only instructions of `epilogue` write variables."""

    job: str
    rank: int
    buffers: dict[str, int]
    feeds: tuple[Feed, ...]
    body: tuple[Instruction, ...]
    epilogue: tuple[Instruction, ...]
    #: (position among the job's outputs, slot of the local part)
    fetches: tuple[tuple[int, Slot], ...]
    #: slot by variable name
    variables: dict[str, Slot] = field(default_factory=dict)
    #: every communication of all ranks, in order; compared across ranks before the first run
    schedule: tuple[Announced, ...] = ()
    #: peak bytes of the live values of each buffer, a lower bound for its size
    needed: dict[str, int] = field(default_factory=dict)
    #: slots of half-precision copies of variables, which updates write and the next run reads, by variable name
    shadows: dict[str, Slot] = field(default_factory=dict)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return self.body + self.epilogue
