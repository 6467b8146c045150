"""The number of bytes that communication sends, by the textbook formulas, for plans and for runs.

A collective is counted as a ring algorithm, whatever its implementation (windows, MPI, NCCL).  For b bytes evenly split over n ranks each rank sends

    all_gather      b (n-1)/n      a rank's piece goes to every other rank
    reduce_scatter  b (n-1)/n      every piece except the rank's own is sent
    all_reduce      2 b (n-1)/n    reduce_scatter, then all_gather
    all_to_all      b (n-1)/n^2    every piece except the rank's own is sent
    transfer        b              counted at the sender

Counts are exact integers for uneven pieces too, and the counts of all ranks add up to n times the formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobflow.core.layout import cut
from jobflow.plan.plan import Collective, Instruction, Plan, Transfer


class Traffic(NamedTuple):
    """The number of communications of one kind on a rank, and the bytes that the rank sends in them."""

    operations: int
    nbytes: int


def handed(kind: str, counts: Sequence[int], me: int, n: int) -> int:
    """Return the number of elements that the rank at position `me` of `n` sends in a communication.

    For a collective, `counts` is `Collective.counts`; for a transfer, it is [size], and the sender has position 0.
    """
    if n == 1:
        return 0
    if kind == "transfer":
        return counts[0] if me == 0 else 0
    if kind == "all_reduce":
        start, stop = cut(sum(counts), n)[me]
        return sum(counts) - (stop - start) + (stop - start) * (n - 1)
    if kind == "all_gather":
        return counts[me] * (n - 1)
    return sum(counts) - counts[me]


def planned(plan: Plan) -> dict[str, Traffic]:
    """Return the number of communications in one run of a rank's plan, and the bytes that the rank sends, by kind of communication."""
    return total((kind, Traffic(1, nbytes)) for kind, nbytes in _each(plan.instructions, plan.rank))


def _each(instructions: Iterable[Instruction], rank: int) -> Iterable[tuple[str, int]]:
    for instruction in instructions:
        if isinstance(instruction, Collective):
            elements = handed(instruction.kind, instruction.counts, instruction.ranks.index(rank), len(instruction.ranks))
            yield instruction.kind, elements * instruction.input.type.dtype.itemsize
        elif isinstance(instruction, Transfer):
            yield "transfer", instruction.slot.type.nbytes if instruction.sends else 0


def total(parts: Iterable[tuple[str, Traffic]]) -> dict[str, Traffic]:
    """Return the sum of the traffic per kind, sorted by kind."""
    sums: dict[str, Traffic] = {}
    for kind, traffic in parts:
        so_far = sums.get(kind, Traffic(0, 0))
        sums[kind] = Traffic(so_far.operations + traffic.operations, so_far.nbytes + traffic.nbytes)
    return dict(sorted(sums.items()))
