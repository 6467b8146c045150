"""A job compiled for one set of argument shapes: what its ranks run, how a call's arguments are cut for them, and how results are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobflow.compiler.trace import RUN_COUNTER
from jobflow.errors import ArgumentError, SourceLine, user_line
from jobflow.graph.ir import Graph, Physical, Variable
from jobflow.graph.training import Watch
from jobflow.layout import Box, Layout, Local
from jobflow.ops.base import ViewOp
from jobflow.ops.source import Input
from jobflow.types import Array
from jobflow.typing.results import Results
from jobflow.typing.signature import Bound


@dataclass(frozen=True)
class Limit:
    """What an argument may hold because an op indexes with it: low <= value < high."""

    argument: str
    low: int
    high: int
    reader: str


@dataclass(frozen=True)
class Compiled:
    """A job for one set of argument shapes, known to the ranks by its number."""

    name: str
    #: where the job is declared
    where: SourceLine
    number: int
    #: per rank; the same object for all unless the ranks' shapes differ
    programs: tuple[Physical, ...]
    results: Results
    #: whom to show the outputs that come after those of `results`
    watches: tuple[Watch, ...]
    limits: tuple[Limit, ...]
    #: argument -> the box of it that each rank takes; None for an argument that is a list already
    boxes: dict[str, tuple[Box | None, ...]]

    @property
    def graph(self) -> Graph:
        return self.programs[0].graph

    @property
    def variables(self) -> dict[str, Variable]:
        return self.graph.variables

    def check_limits(self, bound: Sequence[Bound]) -> None:
        """ArgumentError if an argument holds an index that its reader cannot take."""
        values = {name: value for name, _, value in bound}
        for limit in self.limits:
            for array in values[limit.argument] if isinstance(values[limit.argument], list) else [values[limit.argument]]:
                if array.size and not (limit.low <= array.min() and array.max() < limit.high):
                    wrong = next(int(x) for x in array.flat if not limit.low <= x < limit.high)
                    raise ArgumentError(
                        f'{self.name}({limit.argument}=...) at {user_line()}: argument "{limit.argument}" holds {wrong}; '
                        f"{limit.reader} takes {limit.low} to {limit.high - 1}. Pass such numbers, or make what they point into larger."
                    )

    def feeds(self, bound: Sequence[Bound], run: int) -> list[dict[str, Array]]:
        """Per rank its parts of the arguments of run number `run`; views of the caller's arrays."""
        feeds: list[dict[str, Array]] = [{} for _ in self.programs]
        ranks = self.graph.placement.ranks
        for name, declared, value in bound:
            for rank, box in enumerate(self.boxes.get(name, ())):
                if declared.per_device:
                    if rank in ranks:
                        feeds[rank][name] = value[ranks.index(rank)]
                elif box is not None:
                    feeds[rank][name] = value if box.is_whole else value[box.slices]
        if RUN_COUNTER in self.boxes:
            for feed in feeds:
                feed[RUN_COUNTER] = np.array([run])
        return feeds

    def values(self, parts: Sequence[Sequence[tuple[int, Array]]]) -> list[Any]:
        """Per returned tensor: the whole array, or a list of one array per device of a mirrored one."""
        found: dict[int, dict[int, Array]] = {}
        for rank, fetched in enumerate(parts):
            for position, array in fetched:
                found.setdefault(position, {})[rank] = array
        return [self._whole(position, found[position]) for position in range(len(self.graph.outputs))]

    def _whole(self, position: int, shards: dict[int, Array]) -> Any:
        value = self.graph.outputs[position]
        layout = self.programs[0].layouts[value]
        if isinstance(layout, Local):
            return [shards[rank] for rank in layout.placement.ranks]
        if layout.is_whole:
            return next(iter(shards.values()))
        return layout.assemble([shards[rank] for rank in layout.placement.ranks], value.type)

    def show_watched(self, values: Sequence[Any]) -> None:
        """Hand watched tensors to their watchers."""
        for watch, value in zip(self.watches, values, strict=True):
            try:
                watch.take(value)
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) showed {watch.value.name}, which is watched at {watch.where}")
                raise


def argument_boxes(physical: Physical, size: int) -> dict[str, tuple[Box | None, ...]]:
    """For every argument, the part of it that each of `size` ranks takes."""
    found: dict[str, tuple[Box | None, ...]] = {}
    for value in physical.graph.inputs:
        layout = physical.layouts[value]
        op = value.node.op
        assert isinstance(op, Input)
        found[op.key] = tuple(
            layout.box(value.shape, rank) if isinstance(layout, Layout) and rank in layout.placement.ranks else None for rank in range(size)
        )
    return found


def argument_limits(graph: Graph) -> tuple[Limit, ...]:
    """Arguments that an op indexes with directly, and what they may hold."""
    found: list[Limit] = []
    for node in graph.nodes:
        for i, (low, high) in node.op.limits(*(value.type for value in node.inputs)).items():
            value = node.inputs[i]
            while isinstance(value.node.op, ViewOp):
                value = value.node.inputs[0]
            if isinstance(value.node.op, Input):
                found.append(Limit(value.node.op.key, low, high, f"{node.name} at {node.where}"))
    return tuple(found)
