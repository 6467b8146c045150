"""The data feed of a job with readers in its body: threads evaluate stages for the samples of later runs.

Inputs of stages are samples, tensors that can be computed before the job runs, and arguments of the call. Stages that depend on arguments
are evaluated when the job is called, all others ahead of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, ShapeError
from jobflow.core.types import Array, TensorType
from jobflow.data.ahead import Pending, Pool, Reading
from jobflow.engine.data_feed import DataFeed, DynamicArgument, Span
from jobflow.host_pipeline.host_values import HostValue, MicrobatchRows
from jobflow.host_pipeline.sample_sources import Drawn, Source
from jobflow.host_pipeline.stages import Stage
from jobflow.runtime.world.environment import usable_cores

#: batches that are read ahead
PREFETCH = 4

#: sample positions of a run by source
Places = Mapping[Source, list[Any]]


class RowsOfCall(Source):
    """The source of rows whose values are computed at the call of the job."""

    def batches(self, size: int) -> Iterator[list[Drawn]]:
        run = 0
        while True:
            yield [Drawn(row, run * size + row) for row in range(size)]
            run += 1

    def where(self, place: Drawn) -> str:
        return f"row {place.at} of the arguments"


#: the only instance, shared by all stages with such rows
ROWS_OF_CALL = RowsOfCall()


@dataclass(frozen=True, eq=False)
class KnownRows(Stage):
    """A stage with an array per row, computed at the call of the job."""

    @property
    def origin(self) -> Source:
        return ROWS_OF_CALL

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments of the job that the rows depend on."""
        raise NotImplementedError

    def rows(self, run: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> list[Array]:
        """Return the arrays of all rows in the microbatch `part` of run number `run`."""
        raise NotImplementedError

    def of(self, place: Drawn, *values: Any) -> Array:
        raise JobError(f"row {place.at} depends on arguments of the job and was read before the call set them; call the job first")


@dataclass(frozen=True, eq=False)
class OfTensor(KnownRows):
    """A stage that splits a tensor into subarrays with `axes` axes.

    The tensor is a tensor of the job body, or the result named `tensor` of an earlier phase of the run.
    """

    tensor: HostValue | str
    axes: int
    #: number of subarrays on all devices
    count: int

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset({self.tensor}) if isinstance(self.tensor, str) else self.tensor.arguments

    def rows(self, run: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> list[Array]:
        tensors = arguments[self.tensor] if isinstance(self.tensor, str) else self.tensor.arrays(run, arguments, part)
        each, shapes = instances(tensors, self.axes), [list(array.shape) for array in tensors] if isinstance(tensors, list) else []
        if len(each) != self.count or len({math.prod(shape[: len(shape) - self.axes]) for shape in shapes}) > 1:
            raise ShapeError(
                f"a tensor buffer requires the same number of arrays on every device, but the tensors of the devices are {shapes}; "
                "pass arrays of equal length"
            )
        return each


def instances(arrays: Array | list[Array], axes: int) -> list[Array]:
    """Split an array, or the arrays of the devices in order, into subarrays of the last `axes` axes."""
    each = arrays if isinstance(arrays, list) else [arrays]
    return [row for array in each for row in array.reshape(-1, *array.shape[array.ndim - axes :])]


@dataclass(frozen=True, eq=False)
class OfList(KnownRows):
    """A stage with the arrays of the argument `name`, which has a list of arrays per device."""

    name: str

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset({self.name})

    def rows(self, run: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> list[Array]:
        return [array for own in arguments[self.name] for array in own]


@dataclass(frozen=True, eq=False)
class Constants(KnownRows):
    """A stage with the same arrays in every run."""

    arrays: tuple[Array, ...]

    def __repr__(self) -> str:
        return f"Constants({[(array.shape, str(array.dtype), array.tobytes()) for array in self.arrays]})"

    @property
    def arguments(self) -> frozenset[str]:
        return frozenset()

    def rows(self, run: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> list[Array]:
        return list(self.arrays)


@dataclass(frozen=True, eq=False)
class DynamicRowsOfStage(DynamicArgument):
    """An argument with a dynamic shape, combined from all rows of a stage, or per device from the rows of the device."""

    stage: Stage
    rows: int
    devices: int
    combine: Callable[[list[Array]], Array]

    def of(self, rows: list[Array]) -> Any:
        """Return the combined array, or a list with one array per device."""
        each = self.rows // self.devices
        arrays = [self.combine(rows[first : first + each]) for first in range(0, self.rows, each)]
        return arrays if self.per_device else arrays[0]


class JobBatches(DataFeed):
    """A data feed: arrays by name, with the stages that compute their rows."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        #: stage by array name; and for each `HostResult` stage and number of rows
        self.stages: dict[str, Stage] = {}
        self.results: dict[str, tuple[Stage, int]] = {}
        self.dynamic: dict[str, DynamicRowsOfStage] = {}
        self.phases: dict[str, list[str]] = {}
        #: reading and next run number by preceding phase
        self._readings: dict[str | None, tuple[Reading[dict[str, Any]], int]] = {}

    def __repr__(self) -> str:
        """Describe the arrays; feeds with equal descriptions supply equal arrays."""
        return f"JobBatches({self.types}, {self.stages}, {self.results}, {self.dynamic})"

    @property
    def names(self) -> frozenset[str]:
        """The names of the arrays that are tensors of the job."""
        return frozenset((*self.types, *self.dynamic))

    def add(self, name: str, type: TensorType, stage: Stage) -> None:
        """Add an array whose rows `stage` computes."""
        self.types[name], self.stages[name] = type, stage

    def arrays(self, run: int, passes: int, rows: Mapping[str, Span], arguments: Mapping[str, Any], phase: str | None) -> dict[str, Any]:
        requests = {name: (self.stages[name], span) for name, span in rows.items()}
        whole = {**self.results, **{name: (dynamic.stage, dynamic.rows) for name, dynamic in self.dynamic.items()}}
        requests |= {name: (stage, (0, count)) for name, (stage, count) in whole.items() if self.phase_of(name) == phase}
        self._arguments = arguments
        reading, ready = self._readings.pop(phase, (None, run))
        if reading is None or run != ready:
            if reading is not None:
                reading.close()
            waits = any(known.arguments for stage, _ in requests.values() for known in known_rows(stage))
            threads = 0 if waits else min(PREFETCH, len(usable_cores()))
            pool = Pool(threads)
            reading = Reading(self._plan(run, passes, requests, pool), PREFETCH if threads else 0, pool)
        try:
            arrays = next(reading)
        except BaseException:
            reading.close()
            raise
        self._readings[phase] = reading, run + 1
        return arrays

    def _plan(self, run: int, passes: int, requests: Mapping[str, tuple[Stage, Span]], pool: Pool) -> Iterator[Pending[dict[str, Any]]]:
        """Yield the pending arrays of consecutive runs, from run number `run` on, after their reads have been submitted to `pool`.

        `requests` has the stage and the rows to read by name of an array.  A run has `passes` microbatches.
        """
        sizes: dict[Source, int] = {}
        for name, (stage, span) in requests.items():
            rows = self.types[name].shape[0] if name in self.types else span[1]
            sizes[stage.origin] = max(sizes.get(stage.origin, 0), rows)
        sources = {source: source.batches(size) for source, size in sizes.items()}
        for batches in sources.values():
            next(islice(batches, run * passes, run * passes), None)
        while True:
            places = {source: list(chain.from_iterable(islice(batches, passes))) for source, batches in sources.items()}
            parts = [MicrobatchRows(number, passes, max(sizes.values(), default=1)) for number in range(passes)]
            yield pool.ask(partial(self._read, run, parts, places, requests, self._arguments), partial("run {} of a job".format, run))
            run += 1

    def _read(
        self, run: int, parts: Sequence[MicrobatchRows], places: Places, requests: Mapping[str, tuple[Stage, Span]], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        stages = {each for stage, _ in requests.values() for each in known_rows(stage)}
        known = {each: [row for part in parts for row in each.rows(run, arguments, part)] for each in stages}
        arrays: dict[str, Any] = {}
        for name, (_, (start, stop)) in requests.items():
            whole = self.types.get(name)
            arrays[name] = [None] * stop if whole is None else np.empty((stop - start, *whole.shape[1:]), whole.dtype.numpy)
        for source, samples in places.items():
            mine = {name: (stage, span) for name, (stage, span) in requests.items() if stage.origin is source}
            for row, place in enumerate(samples):
                values: dict[Stage, Any] = {each: rows[row] for each, rows in known.items() if row < len(rows)}
                for name, (stage, (start, stop)) in mine.items():
                    if start <= row < stop:
                        arrays[name][row - start] = stage.value(place, values)
        return arrays | {name: dynamic.of(arrays[name]) for name, dynamic in self.dynamic.items() if name in arrays}

    def shapes(self, name: str, run: int, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        alone = JobBatches()
        alone.dynamic[name] = self.dynamic[name]
        result = alone.arrays(run, 1, {}, arguments, None)[name]
        alone.close()
        return tuple([each.shape for each in result]) if self.dynamic[name].per_device else result.shape

    def close(self) -> None:
        for reading, _ in self._readings.values():
            reading.close()
        self._readings.clear()


def known_rows(stage: Stage) -> Iterator[KnownRows]:
    """Yield the stages that are computed at the call of the job, among `stage` and its direct and indirect inputs."""
    if isinstance(stage, KnownRows):
        yield stage
    for before in stage.inputs:
        yield from known_rows(before)
