"""How much memory a rank needs at each step, as steps are moved, joined and left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jobflow.compiler.rank.local import Collect, Item, Send, Step
from jobflow.compiler.rank.memory import homes_of
from jobflow.compiler.rank.order import Ordered


class LiveBytes:
    """How many bytes live in each buffer at each step, as the steps stand: in a rank's own memory, and in what others look at."""

    def __init__(self, ordered: Ordered, steps: Sequence[Step], position: list[int]) -> None:
        program = ordered.program
        self.steps, self.position, self.count = steps, position, len(steps)
        self.home, self.part, free = homes_of(ordered)
        self.of_step = [() if step in free else tuple(dict.fromkeys(self.home[item] for item in (*step.inputs, *step.outputs))) for step in steps]
        self.touching: dict[Item, list[int]] = {}
        for i, homes in enumerate(self.of_step):
            for home in homes:
                self.touching.setdefault(home, []).append(i)
        self.begin = {self.home[argument.item] for argument in program.arguments}
        self.end = {self.home[item] for _, item in program.fetches}
        self.told = {self.home[item] for step in steps if isinstance(step.action, Collect | Send) for item in step.inputs}
        #: by buffer, the first and the last position that touches it; recomputed only if a step at one end moves
        self.extents: dict[Item, tuple[int, int]] = {}
        #: buffers that other steps touch than `of_step` says
        self.irregular: set[Item] = set()
        self.live = np.zeros((2, self.count + 1), np.int64)
        for home in self.touching:
            self._add(self.live, home, 1)
        self.most = self.live.max(axis=1, keepdims=True)

    def touch(self, a: Item, b: Item) -> bool:
        """May two items share memory?"""
        x, y = self.home[a], self.home[b]
        if x.slot is None or y.slot is None:
            return x is y
        return x.slot.buffer == y.slot.buffer and x.slot.offset < y.slot.stop and y.slot.offset < x.slot.stop

    def _add(self, live: np.ndarray, home: Item, sign: int) -> None:
        if home.slot is not None:
            return
        first, last = self._extent(home)
        first = 0 if home in self.begin else first
        last = self.count if home in self.end else last
        if first < last or len(self.touching[home]) == 1:  # what one region alone touches has no memory
            live[int(home in self.told), first : last + 1] += sign * home.type.nbytes

    def _extent(self, buffer: Item) -> tuple[int, int]:
        """Return the first and the last position that touches a buffer."""
        extent = self.extents.get(buffer)
        if extent is None:
            indices = [self.position[i] for i in self.touching[buffer]]
            extent = self.extents[buffer] = min(indices), max(indices)
        return extent

    def refuses(self, steps: Sequence[int], place: int) -> str | None:
        """Why these steps must not be one at this position."""
        new, kept = self.live.copy(), [self.position[i] for i in steps]
        homes = self._homes(steps)
        extents = {buffer: self._extent(buffer) for buffer in homes}
        for home in homes:
            self._add(new, home, -1)
        self._put(steps, place)
        for home in homes:
            self._add(new, home, 1)
        for i, index in zip(steps, kept, strict=True):
            self.position[i] = index
        self.extents.update(extents)
        return self.excess(np.where(new > self.live, new, 0))

    def excess(self, live: np.ndarray) -> str | None:
        """What is too much about so many bytes; None if it is not."""
        for row, most in zip(live.max(axis=1).tolist(), self.most[:, 0].tolist(), strict=True):
            if row > most:
                return f"{row} bytes would live at once, and {most} do without regions"
        return None

    def move(self, steps: Sequence[int], place: int) -> None:
        """Have these steps run there, as one."""
        homes = self._homes(steps)
        for home in homes:
            self._add(self.live, home, -1)
        self._put(steps, place)
        for home in homes:
            self._add(self.live, home, 1)

    def _homes(self, steps: Sequence[int]) -> list[Item]:
        return list(dict.fromkeys(home for i in steps for home in self.of_step[i]))

    def _put(self, steps: Sequence[int], place: int) -> None:
        for i in steps:
            before, self.position[i] = self.position[i], place
            for buffer in self.of_step[i]:
                first, last = self.extents.get(buffer, (before, before))
                if before in (first, last) or buffer in self.irregular:
                    self.extents.pop(buffer, None)
                else:
                    self.extents[buffer] = min(first, place), max(last, place)

    def reads_instead(self, item: Item, readers: Iterable[int], others: Sequence[tuple[Item, int]]) -> str | None:
        """Have these steps not read an item, but others be read, each by a step; or why they must not."""
        homes = list(dict.fromkeys((self.home[item], *(self.home[other] for other, _ in others))))
        kept, before = {home: self.touching[home] for home in homes}, self.live.copy()
        for home in homes:
            self._add(self.live, home, -1)
        left = {
            i for i in readers if not any(x is not item and self.home[x] is self.home[item] for x in (*self.steps[i].inputs, *self.steps[i].outputs))
        }
        self.irregular.update(homes)
        for buffer in homes:
            self.extents.pop(buffer, None)
        self.touching[self.home[item]] = [i for i in self.touching[self.home[item]] if i not in left]
        for other, i in others:
            self.touching[self.home[other]] = sorted({*self.touching[self.home[other]], i})
        for home in homes:
            self._add(self.live, home, 1)
        why = self.excess(np.where(self.live > before, self.live, 0))
        if why is not None:
            self.live = before
            self.touching |= kept
            for buffer in homes:
                self.extents.pop(buffer, None)
        return why
