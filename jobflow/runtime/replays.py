"""Replays of a program on a GPU: runs of calls become captured graphs, each of which the host launches by one call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from jobflow.core.errors import JobflowError
from jobflow.ops.op import Call
from jobflow.runtime.device.cuda_graph import capturable


class Replays:
    """The calls of a part of a program, and the same calls with captured graphs."""

    def __init__(self, device: Any, name: str, calls: Sequence[Call]) -> None:
        """`name` is the name of the program in messages."""
        self._device, self._name, self.calls = device, name, list(calls)
        self._ran = False
        self._launches: list[Call] | None = None

    def launches(self) -> list[Call]:
        """Return the calls of the next run.

        A run is captured after the first complete run, because libraries allocate memory at their first call.
        """
        if not self._ran:
            return [*self.calls, (self._note_run, ())]
        if self._launches is None:
            self._launches = self._with_graphs()
        return self._launches

    def _note_run(self) -> None:
        self._ran = True

    def _with_graphs(self) -> list[Call]:
        launches: list[Call] = []
        flags = _closed([capturable(call, self._device.xp) for call in self.calls], self.calls)
        for in_graph, pairs in groupby(zip(flags, self.calls, strict=True), lambda pair: pair[0]):
            run = [call for _, call in pairs]
            launches += [(self._graph(run), ())] if in_graph and len(run) > 1 else run
        return launches

    def _graph(self, run: Sequence[Call]) -> Any:
        try:
            return self._device.capture(run)
        except Exception as error:
            raise JobflowError(
                f"{self._name}: a graph of {len(run)} calls cannot be captured: {error} ({type(error).__name__}); "
                'flow.config.debug("sync") runs the calls one by one'
            ) from error


def _closed(flags: Sequence[bool], calls: Sequence[Call]) -> list[bool]:
    """Exclude starts and waits of communication from graphs that would contain only one of the two.

    A capture must contain both, because it ends on the stream on which it began.
    """
    flags = list(flags)
    while True:
        split: list[int] = []
        for in_graph, group in groupby(range(len(calls)), lambda at: flags[at]):
            run = list(group) if in_graph else []
            begins: set[object] = set().union(*(getattr(calls[at][0], "begins", ()) for at in run))
            ends: set[object] = set().union(*(getattr(calls[at][0], "ends", ()) for at in run))
            single = begins ^ ends
            split += [at for at in run if single & {*getattr(calls[at][0], "begins", ()), *getattr(calls[at][0], "ends", ())}]
        if not split:
            return flags
        for at in split:
            flags[at] = False
