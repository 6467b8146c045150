"""The feed of a job whose body reads records: stages evaluated for the samples of each run, ahead of it, by threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, islice

import numpy as np

from jobflow.core.types import Array, TensorType
from jobflow.data.ahead import Pending, Pool, Reading
from jobflow.data.host_stages import Stage
from jobflow.data.record_order import RecordFiles, RecordPlace
from jobflow.engine.data_feed import DataFeed, Span

#: batches that are read ahead
PREFETCH = 4

#: by source, the samples of a run
Places = Mapping[RecordFiles, list[RecordPlace]]


class JobBatches(DataFeed):
    """Arrays by name, each from the stage that makes a row of it."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self._stages: dict[str, Stage] = {}
        self._reading: Reading[dict[str, Array]] | None = None
        self._next = 0

    def add(self, name: str, type: TensorType, stage: Stage) -> None:
        """One more array: of each sample what the stage gives."""
        self.types[name], self._stages[name] = type, stage

    def arrays(self, run: int, passes: int, rows: Mapping[str, Span]) -> dict[str, Array]:
        if self._reading is None or run != self._next:
            self.close()
            pool = Pool(min(PREFETCH, os.cpu_count() or 1))
            self._reading = Reading(self._plan(run, passes, rows, pool), PREFETCH, pool)
        found = next(self._reading)
        self._next = run + 1
        return found

    def _plan(self, run: int, passes: int, rows: Mapping[str, Span], pool: Pool) -> Iterator[Pending[dict[str, Array]]]:
        """One reading after another, from that of `run` on."""
        sizes = {self._stages[name].files: self.types[name].shape[0] for name in rows}
        sources = {files: files.batches(size) for files, size in sizes.items()}
        for batches in sources.values():
            next(islice(batches, run * passes, run * passes), None)
        while True:
            places = {files: list(chain.from_iterable(islice(batches, passes))) for files, batches in sources.items()}
            yield pool.ask(partial(self._read, places, rows), partial("run {} of a job".format, run))
            run += 1

    def _read(self, places: Places, rows: Mapping[str, Span]) -> dict[str, Array]:
        found = {name: np.empty((stop - start, *self.types[name].shape[1:]), self.types[name].dtype.numpy) for name, (start, stop) in rows.items()}
        for files, samples in places.items():
            mine = {name: span for name, span in rows.items() if self._stages[name].files is files}
            for row, place in enumerate(samples):
                known: dict[Stage, object] = {}
                for name, (start, stop) in mine.items():
                    if start <= row < stop:
                        found[name][row - start] = self._stages[name].value(place, known)
        return found

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None
