"""The bytes that communication sends, counted as in textbooks; the same for plans and for runs.

A collective is counted as its ring does it, whatever way the bytes take in truth (windows, MPI, NCCL); with b bytes in balance
on n ranks each rank hands on

    all_gather      b (n-1)/n      a rank's piece goes to every other rank
    reduce_scatter  b (n-1)/n      all but a rank's own piece leave it
    all_reduce      2 b (n-1)/n    the second, then the first
    all_to_all      b (n-1)/n^2    all but what stays
    transfer        b              by the sender

Numbers are exact integers for uneven pieces too, and those of all ranks add up to the formula times n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobflow.core.layout import cut
from jobflow.plan.plan import Collective, Instruction, Plan, Transfer


class Traffic(NamedTuple):
    """How many communications of one kind a rank took part in, and the bytes it handed to others in them."""

    operations: int
    nbytes: int


def handed(kind: str, counts: Sequence[int], me: int, n: int) -> int:
    """Elements that the rank at position `me` of `n` hands to the others; `counts` as in `Collective`, of a transfer its number of elements."""
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
    """What one run of a rank's plan hands to others, by kind of communication."""
    return total((kind, Traffic(1, nbytes)) for kind, nbytes in _each(plan.instructions, plan.rank))


def _each(instructions: Iterable[Instruction], rank: int) -> Iterable[tuple[str, int]]:
    for instruction in instructions:
        if isinstance(instruction, Collective):
            elements = handed(instruction.kind, instruction.counts, instruction.ranks.index(rank), len(instruction.ranks))
            yield instruction.kind, elements * instruction.input.type.dtype.itemsize
        elif isinstance(instruction, Transfer):
            yield "transfer", instruction.slot.type.nbytes if instruction.sends else 0


def total(parts: Iterable[tuple[str, Traffic]]) -> dict[str, Traffic]:
    """Sums by kind, in the order of the kinds' names."""
    found: dict[str, Traffic] = {}
    for kind, traffic in parts:
        so_far = found.get(kind, Traffic(0, 0))
        found[kind] = Traffic(so_far.operations + traffic.operations, so_far.nbytes + traffic.nbytes)
    return dict(sorted(found.items()))
