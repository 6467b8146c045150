"""What one rank does, in order, as plain data: it prints, pickles, compares and can be verified.

A slot is a strided window on a buffer.  Buffers: ``arena`` (this rank's own, reused by lifetime), ``shared`` (the same, but
visible to the other ranks of the node: what collectives read), and variables, which outlive a run: ``state/...`` (this rank's
own) and ``common/...`` (stored once for all ranks of the node).
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

#: Bytes; where every tensor that has memory of its own begins.
ALIGNMENT = 64


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The least multiple of the alignment that so many bytes fit into."""
    return -(-nbytes // alignment) * alignment


def end_to_end(types: Iterable[TensorType]) -> tuple[list[int], int]:
    """Byte offsets of tensors laid one after another, each aligned, and the bytes of all."""
    stops = list(accumulate((aligned(type.nbytes) for type in types), initial=0))
    return stops[:-1], stops[-1]


def line_cut(nbytes: int, n: int) -> list[tuple[int, int]]:
    """So many bytes in n pieces that begin on cache lines, so that no two ranks write to one; the last line is whole."""
    return [(start * ALIGNMENT, stop * ALIGNMENT) for start, stop in cut(-(-nbytes // ALIGNMENT), n)]


Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`type` at `offset` bytes into `buffer`, with `strides` in bytes."""

    buffer: str
    offset: int
    type: TensorType
    strides: tuple[int, ...]

    def __str__(self) -> str:
        plain = self.strides == contiguous_strides(self.type.shape, self.type.dtype.itemsize)
        return f"{self.buffer}@{self.offset}:{self.type}{'' if plain else f'/{self.strides}'}"

    @property
    def stop(self) -> int:
        """One past the last byte that may be touched."""
        if 0 in self.type.shape:
            return self.offset
        reach = sum((n - 1) * s for n, s in zip(self.type.shape, self.strides, strict=True))
        return self.offset + reach + self.type.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op's kernel."""

    op: Op
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    name: str
    where: SourceLine = NOWHERE
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True)
class Collective:
    """All `ranks` take part.  Slots are contiguous; pieces are concatenated in rank order.

    all_reduce: input and output of `sum(counts)` elements; all_gather: rank i gives counts[i]; reduce_scatter: rank i keeps
    counts[i]; all_to_all: this rank sends counts[i] to rank i and receives receives[i] from it.
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


@dataclass(frozen=True, slots=True)
class Transfer:
    """Begin to send a contiguous slot to `peer`, or to receive it from there.

    Until a `Wait` nobody may write what is sent, nor touch what is received.
    """

    peer: int
    sends: bool
    slot: Slot
    order: int
    name: str
    where: SourceLine = NOWHERE


@dataclass(frozen=True, slots=True)
class Wait:
    """The transfer of this order is complete: what was sent may be overwritten, what was received may be read."""

    peer: int
    sends: bool
    slot: Slot
    order: int
    name: str
    where: SourceLine = NOWHERE


@dataclass(frozen=True, slots=True)
class Announced:
    """A communication as all ranks see it, those that take no part in it too: one line of the schedule."""

    what: str
    name: str
    #: who takes part; the sender before the receiver
    ranks: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.what} {self.name} {list(self.ranks)} {self.nbytes} bytes"


Instruction: TypeAlias = Compute | Collective | Transfer | Wait


@dataclass(frozen=True)
class Feed:
    """An argument of the job: which box of the logical array this rank takes, and where it goes."""

    name: str
    slot: Slot
    box: Box


@dataclass(frozen=True)
class Plan:
    """The program of one rank.  `body` computes; `epilogue` is the only part that writes variables."""

    job: str
    rank: int
    buffers: dict[str, int]
    feeds: tuple[Feed, ...]
    body: tuple[Instruction, ...]
    epilogue: tuple[Instruction, ...]
    #: (position among the job's outputs, where its local part lies)
    fetches: tuple[tuple[int, Slot], ...]
    #: variable name -> where it is stored
    variables: dict[str, Slot] = field(default_factory=dict)
    #: every communication of all ranks, in order; compared across ranks before the first run
    schedule: tuple[Announced, ...] = ()
    #: bytes of the values of each buffer at its fullest moment, which no placement can go below
    needed: dict[str, int] = field(default_factory=dict)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return self.body + self.epilogue
