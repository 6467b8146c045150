"""The memory that a rank needs at each instruction, updated as instructions are moved, fused and removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, Send
from jobflow.compiler.rank.memory import allocations_of
from jobflow.compiler.rank.order import Ordered

#: regions may raise the peak by this fraction of it: the vectors that stay alive when a large matrix is not written
SLACK = 1024


class LiveBytes:
    """Live bytes at each instruction, in the rank's private memory and in memory that other ranks read."""

    def __init__(self, ordered: Ordered, steps: Sequence[LocalInstruction], position: list[int]) -> None:
        program = ordered.program
        self.steps, self.position, self.count = steps, position, len(steps)
        self.allocation, self.part, free = allocations_of(ordered)
        self.of_step = [
            () if step in free else tuple(dict.fromkeys(self.allocation[value] for value in (*step.inputs, *step.outputs))) for step in steps
        ]
        self.touching: dict[LocalValue, list[int]] = {}
        for i, allocations in enumerate(self.of_step):
            for allocation in allocations:
                self.touching.setdefault(allocation, []).append(i)
        self.begin = {self.allocation[argument.value] for argument in program.arguments}
        self.end = {self.allocation[value] for _, value in program.fetches}
        self.sent = {self.allocation[value] for step in steps if isinstance(step.action, Collect | Send) for value in step.inputs}
        #: allocation -> the first and the last position that touches it; recomputed only if an instruction at one end moves
        self.extents: dict[LocalValue, tuple[int, int]] = {}
        #: allocations for which `of_step` is no longer complete
        self.irregular: set[LocalValue] = set()
        self.live = np.zeros((2, self.count + 1), np.int64)
        for allocation in self.touching:
            self._add(self.live, allocation, 1)
        self.most = self.live.max(axis=1, keepdims=True)

    def touch(self, a: LocalValue, b: LocalValue) -> bool:
        """Return True if two values may share memory."""
        x, y = self.allocation[a], self.allocation[b]
        if x.slot is None or y.slot is None:
            return x is y
        return x.slot.buffer == y.slot.buffer and x.slot.offset < y.slot.stop and y.slot.offset < x.slot.stop

    def _add(self, live: np.ndarray, allocation: LocalValue, sign: int) -> None:
        if allocation.slot is not None:
            return
        first, last = self._extent(allocation)
        first = 0 if allocation in self.begin else first
        last = self.count if allocation in self.end else last
        if first < last or len(self.touching[allocation]) == 1:  # a value within one region has no memory
            live[int(allocation in self.sent), first : last + 1] += sign * allocation.type.nbytes

    def _extent(self, allocation: LocalValue) -> tuple[int, int]:
        """Return the first and the last position at which an allocation is used."""
        extent = self.extents.get(allocation)
        if extent is None:
            indices = [self.position[i] for i in self.touching[allocation]]
            extent = self.extents[allocation] = min(indices), max(indices)
        return extent

    def rejection(self, steps: Sequence[int], position: int) -> str | None:
        """Return the reason why these instructions must not be fused at this position; None if they may be."""
        new, old_positions = self.live.copy(), [self.position[i] for i in steps]
        allocations = self._allocations(steps)
        extents = {allocation: self._extent(allocation) for allocation in allocations}
        for allocation in allocations:
            self._add(new, allocation, -1)
        self._set_position(steps, position)
        for allocation in allocations:
            self._add(new, allocation, 1)
        for i, index in zip(steps, old_positions, strict=True):
            self.position[i] = index
        self.extents.update(extents)
        return self.excess(np.where(new > self.live, new, 0))

    def excess(self, live: np.ndarray) -> str | None:
        """Return a description of the excess of these live bytes over the peak without regions, or None if there is no excess."""
        for row, most in zip(live.max(axis=1).tolist(), self.most[:, 0].tolist(), strict=True):
            if row > most + most // SLACK:
                return f"its peak memory would be {row} bytes, compared to {most} without regions"
        return None

    def move(self, steps: Sequence[int], position: int) -> None:
        """Move these instructions to one position, where they become one instruction."""
        allocations = self._allocations(steps)
        for allocation in allocations:
            self._add(self.live, allocation, -1)
        self._set_position(steps, position)
        for allocation in allocations:
            self._add(self.live, allocation, 1)

    def _allocations(self, steps: Sequence[int]) -> list[LocalValue]:
        return list(dict.fromkeys(allocation for i in steps for allocation in self.of_step[i]))

    def _set_position(self, steps: Sequence[int], position: int) -> None:
        for i in steps:
            before, self.position[i] = self.position[i], position
            for allocation in self.of_step[i]:
                first, last = self.extents.get(allocation, (before, before))
                if before in (first, last) or allocation in self.irregular:
                    self.extents.pop(allocation, None)
                else:
                    self.extents[allocation] = min(first, position), max(last, position)

    def replace_read(self, value: LocalValue, readers: Iterable[int], others: Sequence[tuple[LocalValue, int]]) -> str | None:
        """Replace the reads of a value by reads of other values, each with the index of its reader.

        Return None after the replacement.  If the replacement would exceed the peak without regions, return the reason and change nothing.
        """
        allocations = list(dict.fromkeys((self.allocation[value], *(self.allocation[other] for other, _ in others))))
        old_touching, before = {allocation: self.touching[allocation] for allocation in allocations}, self.live.copy()
        for allocation in allocations:
            self._add(self.live, allocation, -1)
        left = {
            i
            for i in readers
            if not any(x is not value and self.allocation[x] is self.allocation[value] for x in (*self.steps[i].inputs, *self.steps[i].outputs))
        }
        self.irregular.update(allocations)
        for allocation in allocations:
            self.extents.pop(allocation, None)
        self.touching[self.allocation[value]] = [i for i in self.touching[self.allocation[value]] if i not in left]
        for other, i in others:
            self.touching[self.allocation[other]] = sorted({*self.touching[self.allocation[other]], i})
        for allocation in allocations:
            self._add(self.live, allocation, 1)
        why = self.excess(np.where(self.live > before, self.live, 0))
        if why is not None:
            self.live = before
            self.touching |= old_touching
            for allocation in allocations:
                self.extents.pop(allocation, None)
        return why
